"""The rights that a role needs (`RoleSpec`), and what is missing or superfluous on a cluster (`plan`).

`plan` contains no change that removes a right. The creator of an ACL is unknown, so superfluous ones are only shown.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from txlayer.core.messages import DLQ_SUFFIX, REPLAY_SUFFIX
from txlayer.errors import UsageError


class AclResource(Enum):
    """The type of resource that a right applies to."""

    TOPIC = "topic"  #: a topic
    GROUP = "group"  #: a consumer group
    TRANSACTIONAL_ID = "transactional_id"  #: its owner can fence others
    CLUSTER = "cluster"  #: the cluster itself
    OTHER = "other"  #: delegation tokens and users: not used by txlayer


class AclPattern(Enum):
    """Which names a right applies to."""

    LITERAL = "literal"  #: this name; `*` is every name
    PREFIXED = "prefixed"  #: every name with this prefix


class Operation(Enum):
    """Operations on a resource."""

    READ = "read"  #: fetch; of a group: join it and store its offsets
    WRITE = "write"  #: produce
    DESCRIBE = "describe"  #: know that it exists, its offsets, its members; every other right includes it
    DESCRIBE_CONFIGS = "describe_configs"  #: its settings
    CREATE = "create"  #: topics
    ALTER = "alter"  #: ACLs, and partitions
    ALTER_CONFIGS = "alter_configs"  #: settings
    DELETE = "delete"  #: topics, groups, records
    ALL = "all"  #: everything
    OTHER = "other"  #: what txlayer does not use


EVERY_NAME = "*"
EVERY_HOST = "*"
ANYBODY = "User:*"
_DERIVED = (DLQ_SUFFIX, REPLAY_SUFFIX)
_SYSTEM_TOPICS = ("half", "op", "doubt", "check", "locks")


@dataclass(frozen=True, slots=True)
class Acl:
    """One right of one principal, as the cluster has it."""

    resource: AclResource
    name: str
    pattern: AclPattern
    operation: Operation
    principal: str
    host: str = EVERY_HOST
    is_denied: bool = False

    def covers(self, resource: AclResource, name: str) -> bool:
        if self.resource is not resource:
            return False
        if self.pattern is AclPattern.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, EVERY_NAME)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a role: `name` may contain {namespace}, {group} and {topic}."""

    resource: AclResource
    name: str
    pattern: AclPattern
    operation: Operation
    why: str

    @property
    def placeholders(self) -> frozenset[str]:
        return frozenset(field for _, field, _, _ in string.Formatter().parse(self.name) if field)


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """One file of topics/acl/: the rights that a role needs."""

    role: str
    entries: tuple[Entry, ...]

    @staticmethod
    def parse(role: str, content: Mapping[str, Any]) -> RoleSpec:
        """The content of a role's file. The files are a part of txlayer: a test checks their form."""
        return RoleSpec(role, tuple(_entry(**entry) for entry in content["entry"]))

    def _joins(self, group: str) -> bool:
        # In every namespace: the cluster may have others beside the namespace of this call.
        is_consumer = any(e.resource is AclResource.GROUP and e.name == "{group}" for e in self.entries)
        return is_consumer and (group.endswith(".coordinator") or ".check." in group)

    def needs(self) -> frozenset[str]:
        """The names that must be given: some of namespace, group, topic."""
        return frozenset[str]().union(*(entry.placeholders for entry in self.entries))

    def wanted(
        self, *, namespace: str, group: str | None, topics: Sequence[str], principal: str, host: str
    ) -> list[CreateAcl]:
        """Every right of the role for these names; an entry about a topic applies to each of `topics`.

        UsageError: a name that the role needs is missing, or no ACL can express a pattern.
        """
        if "group" in self.needs() and group is None:
            raise UsageError(f"the role {self.role} needs --group")
        if "topic" in self.needs() and not topics:
            raise UsageError(f"the role {self.role} needs --topic, once for each of its topics")
        if group is not None and self._joins(group):
            why = f"--group {group}: a consumer of this name would join the coordinators, or a producer group's check-backs"
            raise UsageError(why)
        found: dict[Acl, CreateAcl] = {}
        for entry in self.entries:
            for topic in topics if "topic" in entry.placeholders else ("",):
                name, pattern = _filled(entry, namespace=namespace, group=group or "", topic=topic)
                acl = Acl(entry.resource, name, pattern, entry.operation, principal, host)
                found.setdefault(acl, CreateAcl(acl, entry.why))
        return list(found.values())


@dataclass(frozen=True, slots=True)
class CreateAcl:
    """A required right; in a plan one that is missing."""

    acl: Acl
    why: str


@dataclass(frozen=True, slots=True)
class OtherAcl:
    """A right beyond the role, or a denial: txlayer does not remove it; an operator must."""

    acl: Acl
    why: str


AclChange = CreateAcl | OtherAcl


def plan(wanted: Sequence[CreateAcl], actual: Iterable[Acl], *, namespace: str) -> list[AclChange]:
    """What is missing, in the order of `wanted`, then what is superfluous. After applying it, a new plan has only the latter.

    Superfluous: any other right of the same principals, or of everybody, on a resource that `wanted` names or on a system topic
    of the namespace; and every denial there, because a denial wins.
    """
    there = frozenset(actual)
    acls = {w.acl for w in wanted}
    principals = {acl.principal for acl in acls} | {ANYBODY}
    watched = {(acl.resource, acl.name) for acl in acls}
    watched |= {(AclResource.TOPIC, f"{namespace}.{name}") for name in _SYSTEM_TOPICS}
    watched.add((AclResource.GROUP, f"{namespace}.coordinator"))
    others = [
        acl
        for acl in there - acls
        if acl.principal in principals and any(acl.covers(*resource) for resource in watched)
    ]
    missing = [w for w in wanted if w.acl not in there]
    more = [OtherAcl(acl, _why_other(acl)) for acl in others]
    more += [OtherAcl(acl, _SAME_NAME) for acl in _of_namesakes(acls, there)]
    return [*missing, *sorted(more, key=repr)]


_SAME_NAME = "dead letters of that principal's group and topic have the same name: each reads the other's"


def _of_namesakes(acls: Collection[Acl], there: Collection[Acl]) -> list[Acl]:
    """Rights of other principals on dead-letter and replay topics whose names another group and topic share."""
    names = {a.name for a in acls if a.resource is AclResource.TOPIC and a.name.endswith(_DERIVED)}
    groups = {a.name for a in acls if a.resource is AclResource.GROUP}
    others: dict[str, set[str]] = {}  # groups by the principals that may join them
    for acl in there:
        if acl.resource is AclResource.GROUP and acl.pattern is AclPattern.LITERAL and acl.name not in groups:
            others.setdefault(acl.principal, set()).add(f"{acl.name}.")
    return [
        acl
        for acl in there
        if acl.resource is AclResource.TOPIC
        and acl.name in names
        and acl.name.startswith(tuple(others.get(acl.principal, ())))
        and acl not in acls
    ]


def _why_other(acl: Acl) -> str:
    if acl.is_denied:
        return "a denial wins over every right"
    if acl.principal == ANYBODY:
        return "everybody has it"
    return "the role does not need it"


def _filled(entry: Entry, *, namespace: str, group: str, topic: str) -> tuple[str, AclPattern]:
    """The entry's name and pattern. A topic `shop.*` is a prefix, and `*` means every topic."""
    pattern = entry.pattern
    if "topic" in entry.placeholders and topic.endswith("*"):
        if entry.name != "{topic}":
            raise UsageError(f"{entry.name} needs the topics one by one, not {topic}")
        if topic != EVERY_NAME:
            topic, pattern = topic[:-1], AclPattern.PREFIXED
    if "topic" in entry.placeholders and any(c in topic for c in "*?[") and topic != EVERY_NAME:
        raise UsageError(f"{topic}: an ACL knows names, prefixes (shop.*) and * alone")
    return entry.name.format(namespace=namespace, group=group, topic=topic), pattern


def _entry(*, operation: str, why: str, pattern: str = AclPattern.LITERAL.value, **resource: str) -> Entry:
    ((kind, name),) = resource.items()
    return Entry(AclResource(kind), name, AclPattern(pattern), Operation(operation), why)
