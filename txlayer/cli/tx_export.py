"""`txlayer tx export`: transactions whole, with the bytes of their messages, as JSON lines in a file."""

from __future__ import annotations

import base64
import heapq
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from txlayer.adapters.connect import connect_coordinator
from txlayer.cli.options import (
    BootstrapServers,
    ClientSetting,
    Insecure,
    Namespace,
    client_config,
)
from txlayer.cli.tx_filters import (
    PARKED,
    GroupFilter,
    IsHeld,
    IsOpen,
    IsParked,
    OlderThan,
    ReasonCode,
    StateFilter,
    TopicFilter,
    YoungerThan,
    make_filter,
)
from txlayer.cli.tx_rows import Json, standing_json
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.overview import Overview, Standing
from txlayer.coordinator.whole import read_whole
from txlayer.core.messages import user_headers
from txlayer.core.transaction import Content
from txlayer.errors import UsageError

FORMAT = 1
"""Version of a line: a reader refuses one that it does not know."""

STDOUT = "-"

Output = Annotated[
    str, typer.Option("--output", "-o", metavar="FILE|-", help="Where to; - is standard output.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file when it is there.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="So many, the oldest.", show_default=False)
]


def add_to(app: typer.Typer) -> None:
    """The command."""
    app.command()(export)


def export(  # every option is a parameter
    *,
    output: Output,
    force: Force = False,
    is_open: IsOpen = False,
    is_parked: IsParked = False,
    is_held: IsHeld = False,
    group: GroupFilter = None,
    topic: TopicFilter = None,
    state: StateFilter = None,
    reason_code: ReasonCode = None,
    older_than: OlderThan = None,
    younger_than: YoungerThan = None,
    limit: Limit = None,
    bootstrap_servers: BootstrapServers = None,
    namespace: Namespace = None,
    client_setting: ClientSetting = None,
    insecure: Insecure = False,
) -> None:
    """Write transactions whole into a file, one JSON object per line; parked ones, unless a state is named.

    Keys, values and headers of users are in it. Nothing is changed: what is exported stands where it stood.
    """
    wanted = make_filter(
        group=group, topic=topic, state=state, is_open=is_open, is_parked=is_parked, is_held=is_held,
        reason_code=reason_code, older_than=older_than, younger_than=younger_than,
    )  # fmt: skip
    states = wanted.states or PARKED
    path = None if output == STDOUT else Path(output)
    if path is not None:
        _check_place(path, is_forced=force)
    config = client_config(
        CoordinatorConfig,
        bootstrap_servers=bootstrap_servers,
        namespace=namespace,
        client_setting=client_setting,
        insecure=insecure,
    )
    now_ms = int(time.time() * 1000)
    with closing(connect_coordinator(config, is_one_shot=True)) as connections:
        found = [
            each
            for each in Overview(config, connections).standing()
            if each.state in states and wanted.lets_through(each, now_ms=now_ms)
        ]
        oldest = heapq.nsmallest(len(found) if limit is None else limit, found, key=_by_age)
        with _opened(path, is_forced=force) as file:
            for each, contents in read_whole(config, connections, oldest):
                file.write(json.dumps(whole_json(each, contents, now_ms=now_ms)) + "\n")
    where = "standard output" if path is None else str(path)
    typer.echo(f"{len(oldest):,} transactions written to {where}", err=True)


def whole_json(found: Standing, contents: list[Content], *, now_ms: int) -> Json:
    """One line of an export."""
    more = found.txn.more
    return {
        "format": FORMAT,
        **standing_json(found, now_ms=now_ms),
        "born_ms": found.txn.summary().born_ms,
        "moved_ms": (more.moved_ms or None) if more is not None else None,
        "messages": [_message_json(content) for content in contents],
    }


def _message_json(content: Content) -> Json:
    record: Any = content.record
    return {
        "index": content.index,
        "topic": content.topic,
        "partition": content.options.partition,
        "timestamp_ms": content.options.timestamp_ms,
        "key": bytes_json(record.key()),
        "value": bytes_json(record.value()),
        "headers": [
            {"name": name, "value": bytes_json(value)}
            for name, value in user_headers(record.headers())
        ],
    }


def bytes_json(raw: bytes | None) -> Json | None:
    """Bytes as base64, and as text where they are UTF-8; null for null."""
    if raw is None:
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    return {"base64": base64.b64encode(raw).decode("ascii"), "text": text}


def _check_place(path: Path, *, is_forced: bool) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--output {path}: name a file in a folder that is there")
    if path.exists() and not is_forced:
        raise UsageError(f"--output {path}: it is there already; say --force to overwrite it")


@contextmanager
def _opened(path: Path | None, *, is_forced: bool) -> Iterator[TextIO]:
    """A file that is there whole or not at all; only its owner may read it, as it holds users' data."""
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as exc:
        raise UsageError(
            f"--output {path}: {exc.strerror}; name a folder that may be written"
        ) from exc
    made = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _check_place(path, is_forced=is_forced)  # somebody else may have been quicker
        made.replace(path)
    finally:
        made.unlink(missing_ok=True)


def _by_age(found: Standing) -> tuple[int, int, int]:
    return found.txn.appended_ms, found.partition, found.txn.first_offset
