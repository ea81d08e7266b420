"""An export holds every byte of a message, and its file is private."""

import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.core_records import txn_key
from tests.support.memory_stage import Stage
from tests.support.still_coordinator import StillCoordinator
from txlayer.cli import tx
from txlayer.core import codec
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.messages import HalfHeader, HalfOptions, OpMessage, Resolution, Source
from txlayer.errors import UsageError
from txlayer.operate.history import export_json, read_with_contents
from txlayer.operate.unsettled import Overview, UnsettledTransaction

KEY = "order-1/00000001"


def test_a_young_transaction_is_exported_with_all_bytes_of_its_message() -> None:
    stage = Stage()
    stage.kafka.create_topic("txlayer.half", partitions=1)
    header = HalfHeader(KEY, "orders", "shop", 0, 1, 900, HalfOptions(partition=3))
    headers = [("trace", b"1"), ("none", None), ("txl", codec.encode_half_header(header))]
    writer = stage.half_writer()
    writer.produce("txlayer.half", b"\xff", b"key", 0, lambda *_: None, None, 0, headers)
    writer.close(1)
    found = UnsettledTransaction(0, "open", Transaction(KEY, "orders", "shop", 0, 1_000, "900", (0, 0), None))

    ((each, contents),) = read_with_contents(stage.connections(), [found])
    assert contents is not None
    row: dict[str, Any] = json.loads(json.dumps(export_json(each, contents, now_ms=2_000)))

    assert (1, "order-1", "open", 900) == tuple(row[name] for name in ("format", "txn_id", "state", "born_ms"))
    assert [
        {
            "index": 0,
            "topic": "shop",
            "partition": 3,
            "timestamp_ms": None,
            "deliver_at_ms": None,
            "key": {"base64": "a2V5", "text": "key"},
            "value": {"base64": "/w==", "text": None},
            "headers": [{"name": "trace", "value": {"base64": "MQ==", "text": "1"}}, {"name": "none", "value": None}],
        }
    ] == row["messages"]


def test_a_transaction_without_half_records_has_no_messages() -> None:
    txn = Transaction(KEY, "orders", "", -1, 1_000, "900", (0, 0), [])
    txn.seen = txn.count = 0

    ((_, contents),) = read_with_contents(Stage().connections(), [UnsettledTransaction(0, "parked", txn)])

    assert [] == contents


def test_a_file_is_there_when_it_is_whole_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "parked.jsonl"

    def interrupted() -> None:
        with tx._opened(path) as file:
            file.write("half")
            assert not path.exists()  # a kill -9 leaves no file that seems whole
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [] == list(tmp_path.iterdir())

    with tx._opened(path) as file:
        file.write("whole")
    assert [path] == list(tmp_path.iterdir())
    assert 0o600 == path.stat().st_mode & 0o777
    with pytest.raises(UsageError, match="File exists"), tx._opened(path):
        pass
    assert "whole" == path.read_text()


def test_a_file_that_comes_while_an_export_runs_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "parked.jsonl"

    with pytest.raises(UsageError, match="File exists"), tx._opened(path):
        path.write_text("of another program")

    assert ([path], "of another program") == (list(tmp_path.iterdir()), path.read_text())


def exported(stage: StillCoordinator) -> list[dict[str, Any]]:
    with closing(stage.kafka.connect_coordinator(stage.config, client="export")) as connections:
        found = list(Overview(connections).unsettled())
        read = read_with_contents(connections, found)
        return [export_json(each, contents, now_ms=0) for each, contents in read if contents is not None]


def test_of_a_scheduled_transaction_what_consumers_see_is_left_out_and_the_rest_has_its_time() -> None:
    stage, key = StillCoordinator(), txn_key("a")
    due_ms = stage.world.now_ms() + 60_000
    times = [None, due_ms, due_ms + 1_000]
    halves = [stage.half(key, index=n, count=3, options=HalfOptions(deliver_at_ms=at)) for n, at in enumerate(times)]
    (undecided,) = exported(stage)
    stage.commit(key, halves[-1])
    stage.work(seconds=5)
    (scheduled,) = exported(stage)
    moved = OpMessage(Resolution.UNKNOWN, key, "shop", halves[-1], 5, Source.OPERATOR, reason="zoe", time_ms=due_ms + 9)
    stage.op(codec.encode_op(moved))
    stage.work(seconds=5)
    (later,) = exported(stage)

    assert 1 == len(stage.visible())
    told = [[(m["index"], m["deliver_at_ms"]) for m in row["messages"]] for row in (undecided, scheduled, later)]
    left = [(1, due_ms), (2, due_ms + 1_000)]
    assert [[(0, None), *left], left, [(1, due_ms + 9), (2, due_ms + 9)]] == told


def test_a_transaction_of_which_a_message_is_gone_is_left_out_and_the_others_are_exported() -> None:
    stage, small, large = StillCoordinator(doubt_after=timedelta(seconds=5)), txn_key("a"), txn_key("b")
    stage.kafka.do(lambda: stage.kafka.cluster.alter_topic(stage.topics.doubt, {"max.message.bytes": "5000"}))
    stage.half(small)
    last = stage.half(large, value=b"v" * 10_000)
    stage.work(seconds=20)
    assert {small, large} == stage.on_doubt().keys()
    before = exported(stage)

    stage.kafka.delete_records(stage.topics.half, 0, before=last + 1)

    assert [2, 1] == [len(before), len(exported(stage))]
    assert [small] == [f"{row['txn_id']}/{row['nonce']}" for row in exported(stage)]
