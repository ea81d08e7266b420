"""An export holds every byte of a message, and its file is there whole or not at all."""

import fcntl
import json
import os
import signal
import subprocess
import sys
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


def test_a_file_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "parked.jsonl"

    def interrupted() -> None:
        with tx._opened(path, is_forced=False) as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [] == list(tmp_path.iterdir())


def killed_export(path: Path, *, writes: str) -> None:
    """An export that is killed with -9 while it writes."""
    program = f"""
import os, pathlib, signal
from txlayer.cli import tx
with tx._opened(pathlib.Path({str(path)!r}), is_forced=False) as file:
    file.write({writes!r})
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert -signal.SIGKILL == ended.returncode


def test_what_a_killed_export_left_is_gone_after_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "parked.jsonl"
    killed_export(path, writes="a long half of a file")

    with tx._opened(path, is_forced=False) as file:
        file.write("whole")

    assert ([path], "whole") == (list(tmp_path.iterdir()), path.read_text("utf-8"))


def test_of_two_exports_to_one_place_the_second_is_refused_and_the_first_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "parked.jsonl"

    with tx._opened(path, is_forced=True) as file:
        file.write("who")
        with pytest.raises(UsageError, match="another export writes"), tx._opened(path, is_forced=True):
            pass
        file.write("le")

    assert ([path], "whole") == (list(tmp_path.iterdir()), path.read_text("utf-8"))


def test_the_place_that_an_export_left_while_another_waited_for_its_lock_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock = tmp_path / "parked.jsonl", fcntl.flock

    def ended_meanwhile(handle: int, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        (tmp_path / ".parked.jsonl.part").rename(path)
        path.write_text("another's", encoding="utf-8")
        lock(handle, kind)

    monkeypatch.setattr(fcntl, "flock", ended_meanwhile)
    with pytest.raises(UsageError, match="it is there already"), tx._opened(path, is_forced=False) as file:
        file.write("mine")

    assert ([path], "another's") == (list(tmp_path.iterdir()), path.read_text("utf-8"))


def test_a_file_that_came_meanwhile_is_not_overwritten_unless_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "parked.jsonl"

    def written(text: str, *, is_forced: bool) -> None:
        with tx._opened(path, is_forced=is_forced) as file:
            file.write(text)
            path.write_text("another's", encoding="utf-8")

    with pytest.raises(UsageError, match="it is there already"):
        written("mine", is_forced=False)
    assert ([path], "another's") == (list(tmp_path.iterdir()), path.read_text("utf-8"))
    written("mine", is_forced=True)
    assert "mine" == path.read_text("utf-8")
    assert 0o600 == path.stat().st_mode & 0o777


def test_only_a_file_is_overwritten_and_of_a_link_the_file_that_it_names(tmp_path: Path) -> None:
    pipe, link, named = tmp_path / "pipe", tmp_path / "link", tmp_path / "elsewhere.jsonl"
    os.mkfifo(pipe)
    named.write_text("old", encoding="utf-8")
    link.symlink_to(named)

    with pytest.raises(UsageError, match="name a file in a folder that is there"):
        tx._check_path(pipe, is_forced=True)
    with tx._opened(link, is_forced=True) as file:
        file.write("new")

    assert (True, True, "new") == (pipe.is_fifo(), link.is_symlink(), named.read_text("utf-8"))


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
