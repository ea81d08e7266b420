"""The rights of one principal compared with what its roles need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from txlayer.adapters.topic_files import read_acl_files
from txlayer.core import acls
from txlayer.core.acls import Acl, AclChange, CreateAcl, RoleSpec, WantedAcl
from txlayer.core.ids import check_group
from txlayer.errors import ConfigError


class AclAdministration(Protocol):
    """Reads and creates the rights of a cluster."""

    def read(self) -> Collection[Acl]:
        """All rights that the cluster knows."""
        ...

    def create(self, acls: Sequence[Acl], /) -> None:
        """Create rights; those that are there stay."""
        ...


@dataclass(frozen=True, slots=True)
class WantedRights:
    """The rights that the roles of one principal need in one namespace."""

    namespace: str
    principal: str
    acls: tuple[WantedAcl, ...]

    @staticmethod
    def of(
        namespace: str,
        roles: Sequence[str],
        principal: str,
        *,
        group: str | None,
        topics: Sequence[str],
        host: str,
    ) -> WantedRights:
        """What topics/*.toml say of these roles.

        Raises:
            ConfigError, UsageError: a role is unknown or lacks a name, or the principal is none.
        """
        files = read_acl_files()
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name) or principal == acls.ANYBODY:
            raise ConfigError(
                "not one principal", name="--principal", value=principal, expected="User:NAME"
            )
        if group is not None:
            check_group(group)
        wanted: dict[Acl, WantedAcl] = {}
        for role in dict.fromkeys(roles):
            if role not in files:
                raise ConfigError(
                    "no such role", name="--role", value=role, expected=f"one of {', '.join(files)}"
                )
            entries = RoleSpec.parse(role, files[role]).wanted(
                namespace=namespace,
                group=group,
                topics=tuple(topics),
                principal=principal,
                host=host,
            )
            for entry in entries:
                wanted.setdefault(entry.acl, entry)
        return WantedRights(namespace, principal, tuple(wanted.values()))

    def compare(self, cluster: AclAdministration, *, creates: bool = False) -> list[AclChange]:
        """What is missing or more; with `creates` what is missing is created."""
        changes = acls.plan(self.acls, cluster.read(), namespace=self.namespace)
        if creates:
            cluster.create([change.acl for change in changes if isinstance(change, CreateAcl)])
        return changes
