"""`txlayer dlq replay|drop`: their options; what they do stands in dlq_order.py."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from txlayer.cli.dlq_options import (
    Group,
    Key,
    KeyHex,
    Letters,
    Operator,
    Reason,
    ReasonCode,
    RequestId,
    Since,
    Topics,
    Until,
    author_of,
    check_names,
    make_filter,
    parse_letter,
)
from txlayer.cli.dlq_order import Order, carry_out
from txlayer.cli.options import (
    BootstrapServers,
    ClientSetting,
    Insecure,
    Json,
    Namespace,
    client_config,
)
from txlayer.config import ProducerConfig, parse_duration
from txlayer.consumer.dead_letter_log import Place
from txlayer.core.handling import ReplayKind

_EXITS = """

    The request is recorded on the replay topic with your name and reason, and the consumer that owns the partition carries
    it out. Exit codes: 0 it is so, 1 not all are (each is told), 2 usage, 3 no broker, 5 not authorised."""

HELP = {
    ReplayKind.REPLAY: """Have dead letters handled again by their consumer group, in order per key.

    Nothing goes into their topic again. Those of a parked key are replayed whole, and then the key is released.""",
    ReplayKind.DROP: """Drop dead letters: nobody will handle them.

    They stay readable until the topic's retention removes them.""",
}

IsAll = Annotated[
    bool, typer.Option("--all", help="All that the filters let through and nobody asked for yet.")
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, help="With --all: so many, the oldest.", show_default=False),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be asked for, ask nothing.")
]
Yes = Annotated[bool, typer.Option("--yes", help="With --all: do not ask me.")]
Rate = Annotated[
    float | None,
    typer.Option("--rate", min=0.001, help="At most so many a second.", show_default=False),
]
Wait = Annotated[
    str,
    typer.Option(
        "--wait",
        metavar="30s",
        help="How long no result may come before the command ends; 0s: do not wait.",
    ),
]
IsAgain = Annotated[
    bool,
    typer.Option(
        "--again", help="Also those named that were handled, dropped or asked for already."
    ),
]
IsOnly = Annotated[
    bool,
    typer.Option(
        "--only",
        help="Of a parked key, only those chosen: later ones may be handled before earlier ones then.",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="TOPIC",
        help="Publish copies there instead, with the header txl-replay; the dead letters stay as they are.",
        show_default=False,
    ),
]


def add_to(app: typer.Typer) -> None:
    """The two commands; `replay` has some options more."""
    _add_replay(app)
    _add_drop(app)


def _add_replay(app: typer.Typer) -> None:  # every option that it has
    @app.command("replay", help=HELP[ReplayKind.REPLAY] + _EXITS)
    def replay(  # every option is a parameter
        letters: Letters = None,
        *,
        group: Group,
        reason: Reason = "",
        operator: Operator = None,
        request_id: RequestId = None,
        topic: Topics = None,
        is_all: IsAll = False,
        key: Key = None,
        key_hex: KeyHex = None,
        reason_code: ReasonCode = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = None,
        is_again: IsAgain = False,
        is_only: IsOnly = False,
        to: To = None,
        rate: Rate = None,
        dry_run: DryRun = False,
        yes: Yes = False,
        wait: Wait = "30s",
        bootstrap_servers: BootstrapServers = None,
        namespace: Namespace = None,
        client_setting: ClientSetting = None,
        insecure: Insecure = False,
        as_json: Json = False,
    ) -> None:
        check_names(group, topic)
        author = author_of(
            "txlayer dlq replay", operator=operator, reason=reason, request_id=request_id
        )
        order = Order(
            ReplayKind.REPLAY, group, tuple(topic or ()), _names(letters, topic), is_all,
            make_filter(key=key, key_hex=key_hex, reason_code=reason_code, since=since, until=until, now_ms=_now_ms()),
            limit, rate, author, parse_duration("--wait", wait).total_seconds(), is_again=is_again, is_only=is_only, to=to,
        )  # fmt: skip
        config = client_config(
            ProducerConfig, bootstrap_servers=bootstrap_servers, namespace=namespace, client_setting=client_setting,
            insecure=insecure,
        )  # fmt: skip
        carry_out(order, config, dry_run=dry_run, yes=yes, as_json=as_json)


def _add_drop(app: typer.Typer) -> None:  # every option that it has
    @app.command("drop", help=HELP[ReplayKind.DROP] + _EXITS)
    def drop(  # every option is a parameter
        letters: Letters = None,
        *,
        group: Group,
        reason: Reason = "",
        operator: Operator = None,
        request_id: RequestId = None,
        topic: Topics = None,
        is_all: IsAll = False,
        key: Key = None,
        key_hex: KeyHex = None,
        reason_code: ReasonCode = None,
        since: Since = None,
        until: Until = None,
        limit: Limit = None,
        rate: Rate = None,
        dry_run: DryRun = False,
        yes: Yes = False,
        wait: Wait = "30s",
        bootstrap_servers: BootstrapServers = None,
        client_setting: ClientSetting = None,
        insecure: Insecure = False,
        as_json: Json = False,
    ) -> None:
        check_names(group, topic)
        author = author_of(
            "txlayer dlq drop", operator=operator, reason=reason, request_id=request_id
        )
        order = Order(
            ReplayKind.DROP, group, tuple(topic or ()), _names(letters, topic), is_all,
            make_filter(key=key, key_hex=key_hex, reason_code=reason_code, since=since, until=until, now_ms=_now_ms()),
            limit, rate, author, parse_duration("--wait", wait).total_seconds(),
        )  # fmt: skip
        config = client_config(
            ProducerConfig, bootstrap_servers=bootstrap_servers, client_setting=client_setting, insecure=insecure
        )  # fmt: skip
        carry_out(order, config, dry_run=dry_run, yes=yes, as_json=as_json)


def _names(letters: Sequence[str] | None, topics: Sequence[str] | None) -> tuple[Place, ...]:
    return tuple(parse_letter(text, topics=topics or ()) for text in letters or ())


def _now_ms() -> int:
    return int(time.time() * 1000)
