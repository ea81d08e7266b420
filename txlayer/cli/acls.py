"""`txlayer topics acls plan|apply|check`: the rights of one principal compared with what its roles need."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from txlayer.adapters.topic_files import read_acl_files
from txlayer.cli import tables
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import (
    BootstrapServers,
    ClientSetting,
    Insecure,
    Json,
    Namespace,
    client_config,
)
from txlayer.config import ClientConfig
from txlayer.core import acls
from txlayer.core.acls import EVERY_HOST, Acl, AclChange, CreateAcl, OtherAcl, RoleSpec, WantedAcl
from txlayer.core.ids import check_group
from txlayer.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    help="Compare the rights of a principal with what its roles need, and create what is missing; never takes one away.",
)

Roles = Annotated[
    list[str],
    typer.Option(
        "--role",
        metavar="ROLE",
        help="producer, responder, coordinator, consumer, reader, operator or spark; may be repeated.",
    ),
]
Principal = Annotated[
    str,
    typer.Option(
        "--principal", metavar="User:NAME", help="Whose rights; as the brokers name whoever connects."
    ),
]  # fmt: skip
Group = Annotated[
    str | None,
    typer.Option("--group", help="The producer's or the consumer's group.", show_default=False),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="A real topic of the role (orders, shop.*); may be repeated.",
        show_default=False,
    ),
]
Host = Annotated[str, typer.Option("--host", help="From where; * is everywhere.")]


@app.command()
def plan(  # every option is a parameter
    *,
    role: Roles,
    principal: Principal,
    group: Group = None,
    topic: Topics = None,
    host: Host = EVERY_HOST,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show what `apply` would create; exit code 1 when the principal may do more than its roles."""
    config = client_config(
        ClientConfig, bootstrap_servers=bootstrap_servers, namespace=namespace,
        client_setting=client_setting, insecure=insecure,
    )  # fmt: skip
    wanted = _Wanted.of(config, role, principal, group=group, topics=topic, host=host)
    changes = wanted.compare()
    wanted.show(changes, as_json=as_json)
    _fail_when(_others(changes))


@app.command()
def apply(  # the same
    *,
    role: Roles,
    principal: Principal,
    group: Group = None,
    topic: Topics = None,
    host: Host = EVERY_HOST,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Create what is missing; safe to repeat; exit code 1 when the principal may do more than its roles."""
    config = client_config(
        ClientConfig, bootstrap_servers=bootstrap_servers, namespace=namespace,
        client_setting=client_setting, insecure=insecure,
    )  # fmt: skip
    wanted = _Wanted.of(config, role, principal, group=group, topics=topic, host=host)
    changes = wanted.compare(creates=True)
    wanted.show(changes, as_json=as_json)
    _fail_when(_others(changes))


@app.command()
def check(  # the same
    *,
    role: Roles,
    principal: Principal,
    group: Group = None,
    topic: Topics = None,
    host: Host = EVERY_HOST,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Show what is missing or more than the roles need; exit code 1 when anything is."""
    config = client_config(
        ClientConfig, bootstrap_servers=bootstrap_servers, namespace=namespace,
        client_setting=client_setting, insecure=insecure,
    )  # fmt: skip
    wanted = _Wanted.of(config, role, principal, group=group, topics=topic, host=host)
    changes = wanted.compare()
    wanted.show(changes, as_json=as_json)
    _fail_when(changes)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The rights of one principal's roles."""

    config: ClientConfig
    principal: str
    acls: tuple[WantedAcl, ...]

    @staticmethod
    def of(
        config: ClientConfig,
        roles: Sequence[str],
        principal: str,
        *,
        group: str | None,
        topics: Sequence[str] | None,
        host: str,
    ) -> _Wanted:
        """The options together.

        Raises:
            UsageError: a role is unknown, or lacks a name. Nothing was asked.
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
                namespace=config.namespace, group=group, topics=tuple(topics or ()),
                principal=principal, host=host,
            )  # fmt: skip
            for entry in entries:
                wanted.setdefault(entry.acl, entry)
        return _Wanted(config, principal, tuple(wanted.values()))

    def compare(self, *, creates: bool = False) -> list[AclChange]:
        """What is missing or more; with `creates` what is missing is created."""
        from txlayer.adapters.kafka.acls import KafkaAcls

        with KafkaAcls(self.config) as cluster:
            changes = acls.plan(self.acls, cluster.read(), namespace=self.config.namespace)
            if creates:
                cluster.create([change.acl for change in changes if isinstance(change, CreateAcl)])
        return changes

    def show(self, changes: Sequence[AclChange], *, as_json: bool) -> None:
        """For a person, or a program."""
        if as_json:
            rows = [{"change": type(change).__name__, **_fields(change)} for change in changes]
            told = {
                "namespace": self.config.namespace, "principal": self.principal,
                "wanted": len(self.acls), "changes": rows,
            }  # fmt: skip
            typer.echo(json.dumps(told, indent=2))
            return
        if not changes:
            typer.echo(f"{self.principal}: all {len(self.acls)} rights are there, and no other")
            return
        table = tables.table(
            "what", "resource", "operation", "why", title=f"rights of {self.principal}"
        )
        for change in changes:
            table.add_row(*map(tables.cell, _row(change)))
        tables.console().print(table)


def _others(changes: Sequence[AclChange]) -> list[AclChange]:
    return [change for change in changes if isinstance(change, OtherAcl)]


def _fail_when(found: Sequence[AclChange]) -> None:
    if found:
        raise typer.Exit(ExitCode.FINDING)


def _fields(change: AclChange) -> dict[str, str]:
    acl = change.acl
    return {
        "resource": acl.resource.value,
        "name": acl.name,
        "pattern": acl.pattern.value,
        "operation": acl.operation.value,
        "principal": acl.principal,
        "host": acl.host,
        "permission": "deny" if acl.is_denied else "allow",
        "why": change.why,
    }


def _row(change: AclChange) -> tuple[str, str, str, str]:
    told = _fields(change)
    name = told["name"] + ("…" if told["pattern"] == "prefixed" else "")
    what = "create" if isinstance(change, CreateAcl) else "is there (cannot be removed here)"
    operation = f"{told['permission']} {told['operation']}"
    return what, f"{told['resource']} {name}", operation, told["why"]
