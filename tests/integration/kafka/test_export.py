"""`txlayer tx export` on a real broker: parked and open transactions whole."""

import base64
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.operating import Tx
from tests.support.raw import RawWriter
from txlayer.core.messages import HalfOptions
from txlayer.testing.stage import RunningCoordinator

pytestmark = pytest.mark.kafka

BINARY = b"\xff\x00\x01"


@pytest.fixture
def arena(broker: Broker) -> Arena:
    return make_arena(broker.bootstrap_servers)


@pytest.fixture
def coordinator(arena: Arena) -> Iterator[RunningCoordinator]:
    with arena.coordinator(session_timeout=timedelta(seconds=3)) as running:
        yield running


def lines(text: str) -> list[dict[str, Any]]:
    """The objects of JSON lines."""
    return [json.loads(line) for line in text.splitlines()]


def test_a_parked_transaction_is_exported_whole_and_the_file_is_not_overwritten(
    arena: Arena, raw: RawWriter, operator: Tx, tmp_path: Path
) -> None:
    good, bad = arena.targets[0], f"{arena.namespace}.half"
    headers = [("trace", b"1"), ("none", None)]
    parked = raw.prepare((good, b"key", "Zoë".encode()), (good, BINARY, None), (bad, None, BINARY), headers=headers)
    raw.commit(parked)
    arena.wait_for_doubt(parked.key, state="parked-committed")
    raw.prepare((good, b"key", b"open"), options=HalfOptions(immunity_ms=60_000))
    file = tmp_path / "parked.jsonl"

    code, out, err = operator.run("export", "--output", str(file))
    again = operator.run("export", "--output", str(file))

    assert (0, "", f"1 transactions written to {file}\n") == (code, out, err)
    assert 2 == again[0]
    assert f"error: --output {file}: File exists; name a new file" in again[2]
    assert [file] == list(tmp_path.iterdir())
    assert parked.txn_id in file.read_text("utf-8")
    (row,) = lines(operator.run("export", "--output", "-")[1])
    assert (1, "parked-committed", "forbidden-topic", 3) == tuple(
        row[name] for name in ("format", "state", "reason", "message_count")
    )
    assert parked.key == f"{row['txn_id']}/{row['nonce']}"
    assert [(good, 0), (good, 1), (bad, 2)] == [(m["topic"], m["index"]) for m in row["messages"]]
    assert {"base64": base64.b64encode("Zoë".encode()).decode(), "text": "Zoë"} == row["messages"][0]["value"]
    assert {"base64": "/wAB", "text": None} == row["messages"][1]["key"]
    assert (None, None) == (row["messages"][1]["value"], row["messages"][2]["key"])
    assert [{"name": "trace", "value": {"base64": "MQ==", "text": "1"}}, {"name": "none", "value": None}] == row[
        "messages"
    ][2]["headers"]


def test_open_ones_are_exported_when_asked_for_young_and_on_doubt(arena: Arena, raw: RawWriter, operator: Tx) -> None:
    ids = {raw.prepare((arena.targets[0], b"k", b"%d" % n)).txn_id: b"%d" % n for n in range(5)}

    rows = lines(operator.run("export", "--output", "-", "--open")[1])
    two = lines(operator.run("export", "--output", "-", "--open", "--limit", "2")[1])

    assert ids == {r["txn_id"]: r["messages"][0]["value"]["text"].encode() for r in rows}
    assert [r["txn_id"] for r in rows[:2]] == [r["txn_id"] for r in two]
    assert [] == lines(operator.run("export", "--output", "-")[1])


def test_a_place_that_cannot_be_written_is_refused_before_a_broker_is_asked(operator: Tx, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "no" / "file"):
        code, out, err = operator.run("export", "--output", str(place))
        assert (2, "") == (code, out)
        assert f"error: --output {place}: " in err
        assert "name a new file in a folder that may be written" in err
