"""Transactions written with plain clients and the codec alone, so that a test controls every byte; and their journal.

A random mixture from one seed: one message or several, with an ordering key or without, in both order modes, decided at
once, late or never, sometimes twice, sometimes contrarily. A record is acknowledged or it counts as unknown.
"""

import heapq
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.support.logs import header, read_log
from tests.support.next_release import next_form
from tests.support.truth import GROUP as DOUBTFUL_GROUP
from tests.support.truth import Truth
from tests.support.waiting import wait_until
from txlayer.config import SystemTopics
from txlayer.core import codec, messages, partitions
from txlayer.core.messages import HalfHeader, HalfOptions, OpMessage, OrderMode, Resolution, Source, UnresolvedAction


class Placeless:
    """What is sought in one topic, by what only that record says."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers = servers
        self._topic = topic
        self._sought: dict[bytes, Callable[[list[tuple[int, int]]], None]] = {}

    def __len__(self) -> int:
        return len(self._sought)

    def seek(self, name: bytes, on_found: Callable[[list[tuple[int, int]]], None]) -> None:
        """`on_found` is told every (partition, offset) of `name`: a transaction's key in half, a whole value in op."""
        self._sought[name] = on_found

    def look(self) -> None:
        """Read the topic, tell who is found; where a broker is away, or a record missing, the next look may find it."""
        if not self._sought:
            return
        found: dict[bytes, list[tuple[int, int]]] = {}
        with suppress(KafkaException, AssertionError):
            for record in read_log(self._servers, [self._topic])[self._topic]:
                raw = header(record.headers, codec.HALF_HEADER)
                name = raw.split(b"|")[1] if raw else record.value or b""
                if name in self._sought:
                    found.setdefault(name, []).append((record.partition, record.offset))
        for name, places in found.items():
            self._sought.pop(name)(places)


TICK_S = 0.01
IN_FLIGHT_MAX = 4_000
"""Records that wait for their acknowledgement; then no new transaction begins."""
LINES_PER_RECORD_MAX = 5
DELAY_MAX_S = 3.0
LONG_SHARE, LONG_S_MAX = 0.3, 6.0
"""Of the transactions with times, so many are decided so late: some are on doubt by then."""
LATER_S = (None, 0.0, 0.5, 0.5, 3.0, 10.0)
AT_THE_END = float("inf")
GROUP = "load"
DOUBTFUL_SHARE = 0.15
SILENT_SHARE = 0.6
"""Of the doubtful ones: their producer dies between its half messages and its op, whatever its database has committed."""
ORPHANS = "orphans"
"""The group whose transactions nobody decides, and nobody answers for: each has its own policy."""
ORPHAN_SHARE = 0.03
THEN = ("", "", "cancel", "move", "move")
"""What is said of scheduled messages after the commit."""
THEN_S_MAX = 2.0
MOVES_MS = (-2_000, 0, 1_500, 5_000)
LOCAL_S_MAX = 5.0
AGAIN_S = 0.1
FIND_S = 120.0


@dataclass(slots=True)
class Sent:
    """One transaction as its producer knows it."""

    key: str
    partition: int
    resolutions: list[Resolution]  # in the order in which they are sent
    messages: list[tuple[str, bytes, bytes]]  # real topic, key, value
    options: HalfOptions
    later_s: Sequence[
        float | None
    ] = ()  # how much later than prepared each message may be seen; empty: none has a time
    delay_s: float = 0.0  # between the acknowledgement of the half records and the resolution
    acknowledged: list[int] = field(default_factory=list)
    group: str = GROUP
    is_silent: bool = False
    then: str = ""
    is_resolved: bool = False
    is_placeless: bool = False  # stored, and of one of its half records nobody told where


def plain_producer(servers: str) -> Producer:
    """An idempotent producer that outlives any fault of a test."""
    return Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 2,
            "message.timeout.ms": 300_000,
            "retry.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
    )


def new_key(rng: random.Random) -> str:
    """A fresh `id/nonce`."""
    (tail,) = messages.key_tails(f"{rng.getrandbits(4 * messages.TAIL_DIGITS):0{messages.TAIL_DIGITS}x}")
    return f"{messages.uuid7_head(int(time.time() * 1000))}{tail}"


class Load:
    """Writes transactions at a rate from a thread of its own until `stop`.

    With a `truth` a share is doubtful: of a group of its own, with a local transaction in that database, and most of
    their producers die before they say how it ended.
    """

    def __init__(
        self,
        servers: str,
        topics: SystemTopics,
        *,
        partition_count: int,
        targets: Sequence[str],
        rate: int,
        seed: int,
        key_count: int = 40,
        next_share: float = 0.0,
        timed_share: float = 0.0,
        truth: Truth | None = None,
    ) -> None:
        self.sent: list[Sent] = []
        self.failures: list[str] = []
        self.acknowledged_ops: list[tuple[int, int]] = []  # (partition, offset)
        self._topics = topics
        self._partition_count = partition_count
        self._targets = list(targets)
        self._rate = rate
        self._rng = random.Random(seed)
        self._next_share = next_share
        self._timed_share = timed_share
        self._truth = truth
        self._keys = [f"customer-{n}".encode() for n in range(key_count)]
        self._producer = plain_producer(servers)
        self._halves = Placeless(servers, topics.half)
        self._ops = Placeless(servers, topics.op)
        self._lines: dict[int, list[str]] = {}
        self._delayed: list[tuple[float, int, Sent]] = []
        self._numbers = count()
        self._report_count = 0
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, *, within: float = 120) -> None:
        """No new transactions; decide the late ones; every record acknowledged, one of them `within` each time."""
        self._is_stopping.set()
        wait_until(
            lambda: not self._thread.is_alive(),
            within=within,
            what="the load has ended",
            growing=lambda: self._report_count,
        )

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        due = 0.0
        while not self._is_stopping.wait(TICK_S):
            due = min(due + self._rate * TICK_S, self._rate)
            while due >= 1 and len(self._producer) < IN_FLIGHT_MAX:
                due -= 1
                self._prepare(self._next())
            self._producer.poll(0)
            self._halves.look()
            self._resolve_delayed(before=time.monotonic())
            self._write_ops()
        self._producer.flush()
        wait_until(self._has_found_all, within=FIND_S, what="the places of all half records")
        self._resolve_delayed(before=AT_THE_END)
        self._write_ops()
        self._producer.flush()
        wait_until(self._has_found_all, within=FIND_S, what="the places of all op records")

    def _has_found_all(self) -> bool:
        self._halves.look()
        self._ops.look()
        return not self._halves and not self._ops

    def _next(self) -> Sent:
        rng = self._rng
        key = new_key(rng)
        ordering_key = rng.choice(self._keys) if rng.random() < 0.6 else None
        # Two sorts of keys: those that wait for undecided ones shall not stop all keys.
        is_prepare = ordering_key is not None and ordering_key[-1] % 3 == 0
        options = HalfOptions()
        if ordering_key is not None:
            order = OrderMode.PREPARE if is_prepare else OrderMode.COMMIT
            options = HalfOptions(key_hash=partitions.key_hash(ordering_key), order=order)
        messages = [
            (
                rng.choice(self._targets),
                ordering_key or f"key-{rng.randrange(1000)}".encode(),
                f"{key}#{index}#{'x' * rng.randrange(200)}".encode(),
            )
            for index in range(rng.choice((1, 1, 1, 1, 2, 3, 5)))
        ]
        partition = partitions.half_partition(
            ordering_key=ordering_key, txn_id=key.partition("/")[0], partition_count=self._partition_count
        )
        if self._truth is not None and rng.random() < DOUBTFUL_SHARE:
            wanted = Resolution.COMMIT if rng.random() < 0.7 else Resolution.ROLLBACK
            local_s, is_silent = rng.uniform(0, LOCAL_S_MAX), rng.random() < SILENT_SHARE
            return Sent(
                key, partition, [wanted], messages, options, delay_s=local_s, group=DOUBTFUL_GROUP, is_silent=is_silent
            )
        is_timed = rng.random() < self._timed_share
        later_s = [rng.choice(LATER_S) for _ in messages] if is_timed else ()
        if self._truth is not None and rng.random() < ORPHAN_SHARE:
            options = options._replace(unresolved=rng.choice([*UnresolvedAction]))
            return Sent(key, partition, [], messages, options, later_s, group=ORPHANS, is_silent=True)
        resolutions, delay_s = self._fate(may_stay_open=not is_prepare)
        then = rng.choice(THEN) if is_timed and resolutions == [Resolution.COMMIT] and delay_s < AT_THE_END else ""
        if then and rng.random() < LONG_SHARE:
            delay_s = rng.uniform(0, LONG_S_MAX)
        return Sent(key, partition, resolutions, messages, options, later_s, delay_s, then=then)

    def _fate(self, *, may_stay_open: bool) -> tuple[list[Resolution], float]:
        rng = self._rng
        commit, rollback = Resolution.COMMIT, Resolution.ROLLBACK
        first, other = (commit, rollback) if rng.random() < 0.85 else (rollback, commit)
        kind = rng.random()
        if kind < 0.03:
            return [Resolution.UNKNOWN, first], 0.0
        if kind < 0.06:
            return [first, first], 0.0
        if kind < 0.09:
            return [first, other], 0.0
        if kind < 0.14:
            return [first], rng.uniform(0, DELAY_MAX_S)
        if kind < 0.15 and may_stay_open:
            return [first], AT_THE_END
        if kind < 0.16 and may_stay_open:
            return [], 0.0
        return [first], 0.0

    def _prepare(self, sent: Sent) -> None:
        self.sent.append(sent)
        born_ms = int(time.time() * 1000)
        for index, (topic, key, value) in enumerate(sent.messages):
            later_s = sent.later_s[index] if sent.later_s else None
            due_ms = None if later_s is None else born_ms + round(later_s * 1_000)
            options = sent.options._replace(deliver_at_ms=due_ms)
            head = HalfHeader(sent.key, sent.group, topic, index, len(sent.messages), born_ms, options)
            self._producer.produce(
                self._topics.half,
                value,
                key,
                sent.partition,
                headers=[("user", b"header"), (codec.HALF_HEADER, self._form(sent, codec.encode_half_header(head)))],
                on_delivery=partial(self._on_half, sent),
            )

    def _on_half(self, sent: Sent, error: KafkaError | None, record: Any) -> None:
        self._report_count += 1
        if error is not None:
            self.failures.append(f"half of {sent.key}: {error}")
            return
        offset = record.offset()
        sent.is_placeless |= offset is None
        sent.acknowledged.append(offset)
        if len(sent.acknowledged) < len(sent.messages):
            return
        if sent.is_placeless:
            self._halves.seek(sent.key.encode(), partial(self._found, sent))
        else:
            self._stored(sent)

    def _found(self, sent: Sent, places: list[tuple[int, int]]) -> None:
        sent.acknowledged = [offset for _, offset in places]
        self._stored(sent)

    def _stored(self, sent: Sent) -> None:
        if sent.delay_s or sent.group != GROUP:
            due = time.monotonic() + sent.delay_s
            heapq.heappush(self._delayed, (due, next(self._numbers), sent))
        else:
            self._resolve(sent)

    def _resolve_delayed(self, *, before: float) -> None:
        while self._delayed and self._delayed[0][0] <= before:
            sent = heapq.heappop(self._delayed)[2]
            if sent.group == GROUP or self._has_ended_locally(sent):
                self._resolve(sent)

    def _has_ended_locally(self, sent: Sent) -> bool:
        """Whether the local transaction is over and its producer lives on; one whose database is locked comes again."""
        assert self._truth is not None
        if sent.resolutions == [Resolution.COMMIT]:
            is_committed = self._truth.commit(sent.key)
            if is_committed is None:
                due = time.monotonic() + AGAIN_S
                heapq.heappush(self._delayed, (due, next(self._numbers), sent))
                return False
            if not is_committed:  # a check came first
                sent.resolutions = [Resolution.ROLLBACK]
        if sent.is_silent:
            sent.resolutions = []
        return not sent.is_silent

    def _resolve(self, sent: Sent) -> None:
        now_ms = int(time.time() * 1000)
        ops = [OpMessage(each, sent.key, sent.group, sent.acknowledged[-1], now_ms) for each in sent.resolutions]
        if sent.is_resolved and sent.then == "cancel":
            ops = [ops[0]._replace(resolution=Resolution.ROLLBACK, is_abandon=True)]
        elif sent.is_resolved:
            due_ms = now_ms + self._rng.choice(MOVES_MS)
            ops = [ops[0]._replace(resolution=Resolution.UNKNOWN, source=Source.OPERATOR, time_ms=due_ms)]
        elif sent.then:
            due = time.monotonic() + self._rng.uniform(0, THEN_S_MAX)
            heapq.heappush(self._delayed, (due, next(self._numbers), sent))
        sent.is_resolved = True
        lines = self._lines.setdefault(sent.partition, [])
        lines += [self._form(sent, codec.encode_op(op).encode()).decode() for op in ops]

    def _form(self, sent: Sent, record: bytes) -> bytes:
        """As this release writes it, or as the next one does: both records of a transaction alike."""
        is_next = random.Random(sent.key).random() < self._next_share
        return next_form(record.decode()).encode() if is_next else record

    def _write_ops(self) -> None:
        for partition, lines in self._lines.items():
            while lines:
                count = self._rng.randint(1, LINES_PER_RECORD_MAX)
                value = codec.encode_ops(lines[:count])
                del lines[:count]
                self._producer.produce(self._topics.op, value, partition=partition, on_delivery=self._on_op)

    def _on_op(self, error: KafkaError | None, record: Any) -> None:
        self._report_count += 1
        if error is not None:
            self.failures.append(f"op: {error}")
        elif record.offset() is None:
            self._ops.seek(record.value(), self.acknowledged_ops.extend)
        else:
            self.acknowledged_ops.append((record.partition(), record.offset()))
