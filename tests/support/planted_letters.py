"""A group's topics on a real broker with dead letters planted in them, `txlayer dlq` on them, and an owner that answers."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.broker import create_topic, unique_name
from tests.support.commands import run_txlayer
from tests.support.logs import Seen, read_log
from tests.support.topic_records import Record, RecordWriter
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.client import PlainReader
from txlayer.config import ClientConfig
from txlayer.core.dead_letters import (
    DLQ_HEADER,
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_topic,
    decode_replay,
    encode_dead_letter,
    encode_replay,
    replay_topic,
)
from txlayer.core.messages import Headers, Origin, Undecodable
from txlayer.operate.topics import GroupTopics

WHY = ("--reason", "ticket 12: mended", "--operator", "zoe@desk")
"""What an operator says with a request."""

Answer = Callable[[ReplayRecord], ReplayOutcome | None]
"""What an owner answers to a request; None: nothing."""


class Planted:
    """One group and one topic of it."""

    def __init__(
        self, servers: str, capsys: pytest.CaptureFixture[str], *, partitions: int = 2, is_append_time: bool = True
    ) -> None:
        self.servers = servers
        self.config = ClientConfig(bootstrap_servers=servers)
        self._capsys = capsys
        self.group = unique_name("loyalty")
        self.topic = create_topic(servers, unique_name("orders"), partitions=partitions)
        self.partition_count = partitions
        with KafkaAdmin(self.config) as admin:
            if is_append_time:
                GroupTopics(admin, group=self.group, topics=[self.topic]).apply()
            else:  # a test says when dead letters were written
                for name in (self.dead_letters, self.replays):
                    create_topic(servers, name, partitions=partitions)
        self._records = RecordWriter(servers, record_bytes_max=10_000_000)

    @property
    def dead_letters(self) -> str:
        """The dead-letter topic."""
        return dead_letter_topic(self.group, self.topic)

    @property
    def replays(self) -> str:
        """The replay topic."""
        return replay_topic(self.group, self.topic)

    # --- planting -----------------------------------------------------------------------------------------------------

    def letter(
        self,
        *,
        key: bytes | None = b"customer-7",
        value: bytes | None = b"an order",
        partition: int = 0,
        reason: DeadLetterReason = DeadLetterReason.ATTEMPTS_EXHAUSTED,
        headers: Headers = (("tags", b"TagA"), ("txl-id", b"order-1")),
        at_ms: int = 0,
        group: str = "",
    ) -> str:
        """Write a dead letter as a consumer does; its name."""
        now_ms = int(time.time() * 1000)
        letter = DeadLetter(
            reason,
            Origin(self.topic, partition, 1_000),
            now_ms - 5_000,
            16,
            now_ms - 4_000,
            now_ms - 100,
            "ValueError",
            "no such customer",
            group or self.group,
        )
        packed = [*headers, (DLQ_HEADER, encode_dead_letter(letter))]
        return self.record(key=key, value=value, partition=partition, headers=packed, at_ms=at_ms)

    def record(
        self,
        *,
        key: bytes | None = None,
        value: bytes | None = b"",
        partition: int = 0,
        headers: Headers = (),
        at_ms: int = 0,
    ) -> str:
        """Any record in the dead-letter topic; its name."""
        (offset,) = self._records.write([Record(self.dead_letters, value, key, list(headers), partition, at_ms)])
        return f"{self.topic}/{partition}:{offset}"

    def say(self, record: ReplayRecord, *, partition: int = 0, key: bytes | None = None) -> int:
        """Any record in the replay topic."""
        return self._records.write([Record(self.replays, encode_replay(record), key, partition=partition)])[0]

    # --- looking ------------------------------------------------------------------------------------------------------

    def requests(self) -> list[tuple[int, bytes | None, ReplayRecord]]:
        """(partition, key, record) of the whole replay topic."""
        found = []
        for seen in self.seen(self.replays):
            record = decode_replay(seen.value)
            assert isinstance(record, ReplayRecord)
            found.append((seen.partition, seen.key, record))
        return found

    def asked(self) -> list[str]:
        """The dead letters that were asked for, per partition in the order of the requests."""
        return [
            f"{self.topic}/{partition}:{record.dead_letter_offset}"
            for partition, _, record in self.requests()
            if record.kind in (ReplayKind.REPLAY, ReplayKind.DROP)
        ]

    def seen(self, topic: str) -> list[Seen]:
        """What a `read_committed` reader sees."""
        return read_log(self.servers, [topic])[topic]

    # --- operating ----------------------------------------------------------------------------------------------------

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of `txlayer …` on this broker."""
        return run_txlayer(*arguments, "-b", self.servers, capsys=self._capsys)

    def dlq(self, command: str, *arguments: str) -> tuple[int, str, str]:
        """`txlayer dlq …` for the group."""
        return self.run("dlq", command, *arguments, "--group", self.group)

    def json(self, command: str, *arguments: str) -> Any:
        """What it answers with --json."""
        code, out, err = self.dlq(command, *arguments, "--json")
        assert code in (0, 1), err
        return json.loads(out)

    def results(self, command: str, *arguments: str) -> dict[str, str]:
        """{dead letter: result}."""
        return {row["letter"]: row["result"] for row in self.json(command, *arguments)}

    @contextmanager
    def owner(self, answer: Answer) -> Iterator[list[ReplayRecord]]:
        """A consumer's part in it: every request is answered with what `answer` says; those heard."""
        heard: list[ReplayRecord] = []
        is_over = threading.Event()

        def serve() -> None:
            reader = PlainReader(self.config)
            reader.assign({(self.replays, p): 0 for p in range(self.partition_count)})
            while not is_over.is_set():
                for record in reader.read(record_count_max=100, timeout_s=0.05):
                    if record.error() is None:
                        self._answer(record, answer, heard)
            reader.close()

        thread = threading.Thread(target=serve, name="owner")
        thread.start()
        try:
            yield heard
        finally:
            is_over.set()
            thread.join()

    def _answer(self, record: Any, answer: Answer, heard: list[ReplayRecord]) -> None:
        request = decode_replay(record.value())
        if isinstance(request, Undecodable) or request.kind is ReplayKind.RESULT:
            return
        heard.append(request)
        outcome = answer(request)
        if outcome is not None:
            said = ReplayRecord(ReplayKind.RESULT, request.request_id, request.dead_letter_offset, outcome, "as told")
            self.say(said, partition=record.partition(), key=record.key())
