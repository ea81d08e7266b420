"""Who answers check-backs for which producer group, and for which groups no responder does."""

from collections.abc import Iterable
from typing import NamedTuple

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import GroupMember
from txlayer.errors import NotAuthorisedError
from txlayer.operate import Json

NAMED_MAX = 20
"""Groups that are asked about one by one, and whose members are named. The others are looked for in the cluster's list of groups."""


class GroupResponders(NamedTuple):
    """Those that answer for one producer group: producers with a check handler or a barrier, and responders alone."""

    producer_group: str
    is_answered: bool | None  # None: these credentials may not know
    members: tuple[GroupMember, ...]  # empty, too, where they were not asked for
    seen_ms: int


def read_responders(
    connections: CoordinatorConnections, groups: Iterable[str], *, now_ms: int
) -> tuple[GroupResponders, ...]:
    """Whether each group has a responder, in the order of `groups`.

    A coordinator asks the same before it sends a question: the responders of a producer group are the members of its check
    group, which share the partitions of the check topic.
    """
    names = {connections.config.topics.check_group(group): group for group in groups}
    found = []
    for name in list(names)[:NAMED_MAX]:
        try:
            members = connections.group(name).members
        except NotAuthorisedError:
            found.append(GroupResponders(names.pop(name), None, (), now_ms))
        else:
            found.append(GroupResponders(names.pop(name), bool(members), members, now_ms))
    present = connections.groups_with_members(names) if names else frozenset()
    # The list leaves out groups that these credentials may not describe: absence says nothing then.
    may_know_all = all(each.is_answered is not None for each in found)
    found += [
        GroupResponders(group, True if name in present else False if may_know_all else None, (), now_ms)
        for name, group in names.items()
    ]
    return tuple(found)


def responders_json(found: GroupResponders) -> Json:
    return found._asdict() | {"members": [member._asdict() for member in found.members]}
