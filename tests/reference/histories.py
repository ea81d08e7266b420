"""Random histories, one for each seed: what a right coordinator leaves in the logs, and faults planted in it.

The bytes are written by docs/explanation/protocol.md; nothing of the product is used. `make(seed)` is the whole interface.

A `Cluster` holds the logs, a `Coordinator` does what the protocol says, and a `Play` drives both: producers store half
records, decide, repeat and contradict themselves, strangers write garbage, topics refuse for a while. A planted fault is
a transaction that the coordinator treats wrongly (`MISDEEDS`), or a record that is changed at the end (`CHANGES`).
Retention, compaction and open Kafka transactions come last, as in a real cluster: they are no faults.
"""

import math
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.reference.wire import Bounds, Headers, History, Record, Settings, murmur2

HALF, OP, DOUBT = "txlayer.half", "txlayer.op", "txlayer.doubt"
BORN = 1_700_000_000_000
HOUR_MS = 3_600_000
CLOCK_ERROR_MS = 5_000

#: What the coordinator does wrong with one transaction.
MISDEEDS = (
    "lost",
    "doubled",
    "torn",
    "only aborted",
    "early",
    "undecided visible",
    "rolled back visible",
    "rolled back hidden",
    "reversed",
    "overtaken",
    "copy forwarded",
    "stranger forwarded",
    "forgotten",
    "held undecided",
    "contents missing",
    "incomplete visible",
    "not ended",
    "did not wait",
)
#: How one record on a real topic is changed, or added.
CHANGES = (
    "value",
    "key",
    "header more",
    "header less",
    "topic",
    "partition",
    "timestamp",
    "origin broken",
    "origin elsewhere",
    "origin count",
    "id missing",
    "id of another",
    "id twice",
    "phantom",
    "phantom ahead",
    "born",
)


#: What it may do wrong with one of which messages have times.
MISDEEDS_TIMED = ("", "lost", "doubled", "torn", "early", "undecided visible", "rolled back visible", "too soon")
#: With this bit in its seed a history is wide: messages have times, policies decide, chains of one key wait for each other, attempts are of
#: one millisecond, retention takes much, compaction a part, and a coordinator may end. Of those that were found before none has it.
WIDE = 1 << 32
#: What may be wrong in wide ones alone.
MISDEEDS_WIDE = ("too soon", "down")
#: Last digit of seeds in whose histories compaction has taken nothing of doubt, as on the day on which it was written: who was parked is
#: known. The clocks of brokers differ, timestamps are in the future, persons end what was quarantined, and doubt has contents that are cut, or
#: that follow a summary. Of those that were found before none has it.
FRESH = 7
#: Last digits of seeds in whose histories transactions are on doubt in part, are answered otherwise before they are whole, and stand in
#: half by a second copy alone: of those that were found before none has them.
IN_PART = (3, 6, FRESH)
#: What the coordinator may do wrong with one of them.
MISDEEDS_IN_PART = ("", "lost", "doubled", "torn", "rolled back visible")


@dataclass(frozen=True)
class Made:
    """One history. The planted faults say what was tried; retention, for example, may hide one again."""

    seed: int
    history: History
    faults: tuple[str, ...]
    #: No retention, compaction or open Kafka transaction: a judge may take it for everything that ever was.
    is_whole: bool


def make(seed: int, *, has_faults: bool = True) -> Made:
    """The history of a seed. The same on every machine."""
    in_part, is_wide = 0.3 * (seed % 10 in IN_PART), bool(seed & WIDE)
    is_fresh = seed % 10 == FRESH
    return Play(random.Random(seed), has_faults=has_faults, in_part=in_part, is_wide=is_wide, is_fresh=is_fresh).made(
        seed
    )


def seeds(first: int, count: int) -> Iterator[int]:
    """So many, of which every second one is wide."""
    return (first + number | WIDE * (number % 2) for number in range(count))


# ---------------------------------------------------------------------------- the logs


@dataclass
class Cluster:
    """Records in the order in which they were written."""

    draw: random.Random
    counts: dict[str, int]
    append_time: dict[str, bool]
    records: list[Record] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    stable_ends: dict[tuple[str, int], int] = field(default_factory=dict)
    now_ms: int = BORN
    clocks_ms: dict[str, int] = field(default_factory=dict)  # by topic, how far its broker's clock is ahead

    def add(self, topic: str, partition: int, *, timestamp_ms: int | None = None, **fields: Any) -> Record:
        """Append one record; `timestamp_ms` is the writer's, which a topic with append times ignores."""
        self.now_ms += self.draw.randint(1, 2_000)
        is_append_time = self.append_time.get(topic, True)
        clock_ms = self.now_ms + self.clocks_ms.get(topic, 0)
        at_ms = clock_ms if is_append_time or timestamp_ms is None else min(timestamp_ms, clock_ms)
        offset = self.ends.get((topic, partition), 0)
        self.ends[topic, partition] = offset + 1
        record = Record(topic, partition, offset, at_ms, is_append_time=is_append_time, **fields)
        self.records.append(record)
        return record

    def end_kafka_transaction(self, records: Sequence[Record]) -> None:
        """Each partition that was written to gets a marker."""
        for place in {(record.topic, record.partition) for record in records}:
            self.ends[place] += 1

    def partitions(self) -> list[tuple[str, int]]:
        return [(topic, p) for topic, count in self.counts.items() for p in range(count)]


# ---------------------------------------------------------------------------- transactions


@dataclass
class Message:
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    options: str = ""


@dataclass
class Txn:
    """What is to be, and what the coordinator knows of it."""

    id: str
    nonce: str
    group: str
    partition: int
    key_hash: str
    is_prepare: bool
    messages: list[Message]
    misdeed: str = ""
    #: By message, its time; none of it has one where this is empty.
    due: list[int] = field(default_factory=list)
    unresolved: str = ""
    is_twin: bool = False  # prepared in the same millisecond as the other attempts of its id
    halves: list[Record] = field(default_factory=list)
    copies: list[Record] = field(default_factory=list)
    #: open, parked, waiting, scheduled, held, parked-committed, committed, rolled-back
    state: str = "open"
    decided_at: tuple[int, int] | None = None
    doubt_state: str = ""  # as the summary says; empty: not on doubt
    was_on_doubt: bool = False
    kept_count: int = 0  # of its half records that doubt holds
    is_growing: bool = False  # contents follow its summary on doubt
    committed_at: tuple[int, int] | None = None  # the first complete commit, of one with times
    times: list[int] = field(default_factory=list)  # that are left
    released: set[int] = field(default_factory=set)  # messages
    sent: set[int] = field(default_factory=set)
    released_to: int = 0
    sent_to: int = 0

    @property
    def is_on_doubt(self) -> bool:
        return bool(self.doubt_state)

    @property
    def key(self) -> str:
        return f"{self.id}/{self.nonce}"

    @property
    def born_ms(self) -> int:
        return BORN + (0 if self.is_twin else int(self.nonce))

    @property
    def is_stored(self) -> bool:
        return len(self.halves) == len(self.messages)

    @property
    def is_settled(self) -> bool:
        return self.state in ("committed", "rolled-back")

    def txl(self, index: int, *, count: int | None = None, topic: str | None = None) -> bytes:
        message = self.messages[index % len(self.messages)]
        due_ms = self.due[index % len(self.messages)] if self.due else 0
        options = [f"d{due_ms}"] if due_ms else []
        options += [f"k{self.key_hash}"] if self.key_hash else []
        options += ["op"] if self.is_prepare else []
        options += [message.options] if message.options else []
        options += [f"u{self.unresolved}"] if self.unresolved and not index else []
        version = 3 if due_ms else 1
        total = len(self.messages) if count is None else count
        return (
            f"{version}|{self.key}|{self.group}|{topic or message.topic}|{index}/{total}|{self.born_ms}|{','.join(options)}"
        ).encode()

    def line(
        self, resolution: str, offset: int, *, source: str = "producer", number: str = "", time_ms: int | None = None
    ) -> bytes:
        version, end = (1, "") if time_ms is None else (2, f"|{time_ms}")
        return (
            f"{version}|{resolution}|{self.key}|{self.group}|{offset}|{self.born_ms}|{source}|{number}|{end}".encode()
        )

    def may_name(self, offset: int) -> bool:
        """Whether the coordinator finds a half record of it there; doubt forgets those between the ends."""
        here = [r.offset for r in self.halves]
        copies = [r.offset for r in self.copies]
        return offset in ([here[0], here[-1]] if self.was_on_doubt else here) + copies


@dataclass
class Coordinator:
    """Does what the protocol says, but for the misdeed of a transaction."""

    cluster: Cluster
    draw: random.Random
    txns: list[Txn] = field(default_factory=list)
    refusing: set[str] = field(default_factory=set)  # real topics that refuse for now
    is_down: bool = False
    is_fresh: bool = False

    def find(self, txn_key: str, partition: int) -> Txn | None:
        return next((t for t in self.txns if (t.key, t.partition) == (txn_key, partition)), None)

    # ------------------------------------------------------------ what is read

    def read_line(self, line: bytes, record: Record, number: int) -> None:
        _, resolution, txn_key, group, offset, *more = line.decode().split("|")
        time_ms = int(more[4]) if more[4:] else None
        txn = self.find(txn_key, record.partition)
        if txn is None or group != txn.group or not txn.may_name(int(offset)) or self.is_down:
            return
        if time_ms is not None:
            self.take_time(txn, resolution, time_ms, record, number)
        elif resolution == "U":
            return
        elif resolution == "C":
            self.commit(txn, int(offset), (record.offset, number))
        else:
            may_go = ("waiting", "scheduled", "held", "parked-committed") if resolution == "A" else ()
            if txn.state in ("open", "parked", *may_go):
                self.roll_back(txn)
        self.release(txn)

    def commit(self, txn: Txn, offset: int, position: tuple[int, int]) -> None:
        is_first = txn.state in ("open", "parked")
        if not is_first and txn.state != "parked-committed":
            return
        txn.decided_at = txn.decided_at or position
        here = [r.offset for r in txn.halves]
        if txn.is_stored and offset >= here[-1]:
            txn.state = "waiting"
            if txn.due and txn.committed_at is None:
                txn.committed_at = position
                if 0 in txn.due:
                    self.let_go(txn, position)
                else:
                    self.to_doubt(txn, "scheduled", "")
        elif txn.misdeed == "incomplete visible" and is_first:
            self.forward(txn)
        else:
            self.to_doubt(txn, "parked-committed", "incomplete")

    def take_time(self, txn: Txn, resolution: str, time_ms: int, record: Record, number: int) -> None:
        """A line that releases messages, or gives those that are left another time."""
        if txn.committed_at is None or txn.is_settled or not txn.times:
            return
        if resolution == "U":
            txn.times = [time_ms]
            if txn.state == "scheduled":
                self.to_doubt(txn, "scheduled", "")
        elif time_ms == txn.times[0] and record.timestamp_ms >= time_ms:
            self.let_go(txn, (record.offset, number))

    def let_go(self, txn: Txn, position: tuple[int, int]) -> None:
        """Release the messages with the first time that is left; with the last one, all."""
        time_ms, *txn.times = txn.times if txn.misdeed != "too soon" else [0]
        due = {index for index, due_ms in enumerate(txn.due) if due_ms <= time_ms or not txn.times}
        txn.released, txn.released_to, txn.decided_at = txn.released | due - txn.sent, time_ms + 1, position
        txn.state = "waiting" if txn.state == "scheduled" else txn.state

    def roll_back(self, txn: Txn) -> None:
        if txn.misdeed == "rolled back visible":
            self.show(txn, range(len(txn.halves)))
        elif txn.misdeed == "rolled back hidden":
            self.show(txn, range(len(txn.halves)), kafka="aborted")
        txn.state = "rolled-back"
        self.end_on_doubt(txn)

    # ------------------------------------------------------------ order

    def is_free(self, txn: Txn) -> bool:
        """Whether nobody of its ordering key goes first."""
        if not txn.key_hash or txn.misdeed == "did not wait":
            return True
        others = [t for t in self.txns if t.key_hash == txn.key_hash and t is not txn and t.halves]
        others = [t for t in others if t.partition == txn.partition]
        if txn.is_prepare:
            first = txn.halves[0].offset
            ahead = [t for t in others if t.state in ("open", "waiting", "held")]
            return not any(t.halves[0].offset < first for t in ahead)
        stuck = [t for t in others if t.state == "held" or (t.state == "waiting" and not t.is_prepare)]
        assert txn.decided_at is not None
        return not any(t.decided_at is not None and t.decided_at < txn.decided_at for t in stuck)

    def release(self, txn: Txn) -> None:
        """Forward what may go, one after the other."""
        mine = [t for t in self.txns if t is txn or (t.key_hash and t.key_hash == txn.key_hash)]
        while True:
            ready = [t for t in mine if t.state == "waiting" and self.is_free(t)]
            if not ready:
                break
            first = min(ready, key=lambda t: t.decided_at or (0, 0))
            if {message.topic for message in first.messages} & self.refusing:
                self.to_doubt(first, "held", "topic-denied")
            elif first.misdeed == "overtaken":
                first.state = "late"  # nobody waits for it
            else:
                self.forward(first)
        # Who waits for one on doubt is on doubt, too.
        if any(t.is_on_doubt for t in mine):
            for waiting in (t for t in mine if t.state == "waiting" and t.doubt_state != "waiting"):
                self.to_doubt(waiting, "waiting", "")

    def try_again(self, topic: str) -> None:
        self.refusing.discard(topic)
        for txn in sorted(self.txns, key=lambda t: t.decided_at or (0, 0)):
            if txn.state == "held" and not {m.topic for m in txn.messages} & self.refusing:
                txn.state = "waiting"
                self.release(txn)

    # ------------------------------------------------------------ what is written

    def forward(self, txn: Txn) -> None:
        """One Kafka transaction, perhaps after a first try that was aborted; then it is settled."""
        txn.state = "committed"
        indexes = sorted(txn.released) if txn.due else list(range(len(txn.halves)))
        txn.sent, txn.released, txn.sent_to = txn.sent | txn.released, set(), txn.released_to
        if txn.misdeed == "torn" and indexes:
            indexes.remove(self.draw.choice(indexes))
        elif txn.misdeed == "reversed":
            indexes.reverse()
        if txn.misdeed not in ("early", "undecided visible"):
            if self.draw.random() < 0.15 or txn.misdeed == "only aborted":
                self.show(txn, indexes, kafka="aborted")
            if txn.misdeed not in ("lost", "only aborted"):
                self.show(txn, indexes)
        if txn.misdeed == "doubled":
            self.show(txn, indexes[: self.draw.randint(1, max(1, len(indexes)))])
        if txn.misdeed == "copy forwarded":
            for copy in txn.copies[:1]:
                self.cluster.end_kafka_transaction([self.show_record(txn, copy)])
        if txn.times and txn.due:
            self.to_doubt(txn, "scheduled", "")
        else:
            self.end_on_doubt(txn)

    def show(self, txn: Txn, indexes: Sequence[int], *, kafka: str = "committed") -> None:
        if indexes:
            shown = [self.show_record(txn, txn.halves[i], kafka=kafka) for i in indexes]
            self.cluster.end_kafka_transaction(shown)

    def show_record(self, txn: Txn, half: Record, *, kafka: str = "committed") -> Record:
        [txl] = [value or b"" for name, value in half.headers if name == "txl"]
        _, _, _, topic, numbers, born, options = txl.decode().split("|")
        option = {item[0]: item[1:] for item in options.split(",") if item}
        count = self.cluster.counts[topic]
        if "n" in option:
            partition = int(option["n"])
        elif half.key is not None:
            partition = murmur2(half.key) % count
        else:
            partition = int(option["m"]) % count if "m" in option else self.draw.randrange(count)
        origin = f"{half.partition}:{half.offset}|{numbers}|{born}".encode()
        headers = [(name, value) for name, value in half.headers if name != "txl"]
        headers += [("txl-group", txn.group.encode())] if "g" in option else []
        headers += [("txl-id", txn.id.encode()), ("txl-origin", origin)]
        return self.cluster.add(
            topic,
            partition,
            kafka=kafka,
            key=half.key,
            value=half.value,
            headers=headers,
            timestamp_ms=int(option["t"]) if "t" in option else None,
        )

    def to_doubt(self, txn: Txn, state: str, reason: str, *, is_told: bool = True) -> None:
        """Write the summary, unless it is to be left out, and the contents that are not there yet."""
        txn.state = state
        halves = txn.halves
        last = "+".join(str(record.offset) for record in [halves[-1], *txn.copies])
        topics = ",".join(dict.fromkeys(message.topic for message in txn.messages))
        decided = "{}:{}".format(*txn.decided_at) if txn.decided_at else ""
        shown_state = "held" if txn.misdeed == "held undecided" and not txn.decided_at else state
        more = ""
        if txn.due:
            committed = "{}:{}".format(*txn.committed_at) if txn.committed_at else ""
            more = f"|{txn.sent_to}/{txn.released_to}/{'+'.join(map(str, txn.times))}/{committed}"
        version = 3 if txn.due else 1
        if txn.unresolved and shown_state == "open":
            version, more = max(version, 2), f"{more}|{txn.unresolved}"
        txn.is_growing = self.is_fresh and not txn.is_stored and not txn.due
        shown_state += "+" if txn.is_growing else ""
        value = (
            f"{version}|{shown_state}|{reason}|{txn.group}|{halves[0].offset}|{last}|{len(halves)}|{len(txn.messages)}"
            f"|{halves[0].timestamp_ms}|{txn.born_ms}|{txn.key_hash}|{'prepare' if txn.is_prepare else 'commit'}||{decided}"
            f"|{self.cluster.now_ms}|{topics}|0/0/0/0{more}"
        )
        written = [self.put(txn, txn.key, value.encode())] if is_told else []
        left_out = self.draw.randrange(len(halves)) if txn.misdeed == "contents missing" else -1
        for index, half in enumerate(halves):
            if index >= txn.kept_count and index != left_out:
                numbers = f"{index}/{len(txn.messages)}|{txn.born_ms}"
                extra = [("txl-origin", f"{half.partition}:{half.offset}|{numbers}".encode())]
                extra += [("txl-key", half.key)] if half.key is not None else []
                extra += [("txl-null", b"1")] if half.value is None else []
                headers = [*half.headers, *extra]
                body = half.value or b""
                if self.is_fresh and self.draw.random() < 0.1:
                    ours = [header for header in half.headers if header[0] == "txl"]
                    headers, body = [*ours, extra[0], ("txl-cut", b"too-large 2000000")], b""
                written.append(self.put(txn, f"{txn.key}/{index}", body, headers))
        self.cluster.end_kafka_transaction(written)
        txn.doubt_state, txn.was_on_doubt, txn.kept_count = state, True, len(halves)

    def end_on_doubt(self, txn: Txn) -> None:
        if txn.is_on_doubt and txn.misdeed != "not ended":
            names = [txn.key, *(f"{txn.key}/{index}" for index in range(len(txn.halves)))]
            self.cluster.end_kafka_transaction([self.put(txn, name, None) for name in names])
            txn.doubt_state, txn.kept_count = "", 0

    def put(self, txn: Txn, name: str, value: bytes | None, headers: Headers = ()) -> Record:
        return self.cluster.add(DOUBT, txn.partition, key=name.encode(), value=value, headers=headers)

    def keep_aside(self, record: Record, line: int | None = None) -> None:
        suffix = "" if line is None else f":{line}"
        name = f"origin/{record.topic}/{record.partition}/{record.offset}{suffix}"
        value, why = record.value or b"", ("txl-why", b"undecodable what it was")
        if line is not None:
            value = value.split(b"\n")[line]
        self.cluster.add(DOUBT, record.partition, key=name.encode(), value=value, headers=[*record.headers, why])
        if self.is_fresh and self.draw.random() < 0.3:  # a person ends it
            self.cluster.add(DOUBT, record.partition, key=name.encode())


# ---------------------------------------------------------------------------- the play


class Play:
    """One history, step by step."""

    def __init__(self, draw: random.Random, *, has_faults: bool, in_part: float, is_wide: bool, is_fresh: bool) -> None:
        """`in_part`: how likely it is that a transaction is on doubt before the next of its half records is there."""
        self.draw, self.in_part, self.is_wide, self.is_fresh = draw, in_part, is_wide, is_fresh
        halves = draw.choice((1, 1, 2, 3))
        known = MISDEEDS + CHANGES + MISDEEDS_WIDE * 3 * is_wide
        self.faults = draw.sample(known, draw.choice((0, 1, 1, 2))) if has_faults else []
        is_about_order = bool({"overtaken", "did not wait"} & set(self.faults))
        self.reals = ["shop", "loyalty", "audit"][: 1 if is_about_order else draw.randint(1, 3)]
        counts = {HALF: halves, OP: halves, DOUBT: halves}
        counts |= {topic: 1 if is_about_order else draw.randint(1, 3) for topic in self.reals}
        self.cluster = Cluster(draw, counts, {topic: draw.random() < 0.6 for topic in self.reals})
        self.coordinator = Coordinator(self.cluster, draw, is_fresh=is_fresh)
        if is_fresh and is_wide:  # else the judge of simulation, who knows of no clocks, judges it too
            self.cluster.clocks_ms = {topic: draw.randint(0, CLOCK_ERROR_MS) for topic in counts}
        self.is_compacted = draw.random() < 0.2
        self.ordering_keys: list[bytes | None] = [None, *(draw.randbytes(4) for _ in range(2))]
        if is_about_order:
            del self.ordering_keys[:2]
        self.is_chain = is_wide and not is_about_order and draw.random() < 0.3
        if self.is_chain:
            self.ordering_keys = self.ordering_keys[-1:] * 2
        count = draw.randint(5 if is_about_order else 1, 10 if is_wide else 7)
        self.left: list[Txn] = [self.txn(number) for number in range(count)]
        for misdeed in (fault for fault in self.faults if fault in MISDEEDS + MISDEEDS_WIDE[:1]):
            # The last one that begins has others before it.
            txn = self.left[0] if misdeed == "did not wait" else draw.choice(self.left)
            txn.misdeed = misdeed
            if misdeed in ("overtaken", "did not wait"):
                txn.is_prepare = misdeed == "did not wait"
        for txn in self.left if is_wide and not is_about_order else []:
            if txn.misdeed in MISDEEDS_TIMED and (draw.random() < 0.3 or txn.misdeed == "too soon"):
                self.give_times(txn)
        #: Lines that were not written yet, each with its transaction: (resolution, which half record).
        self.lines: list[tuple[Txn, str, int]] = []

    # ------------------------------------------------------------ what is to be

    def txn(self, number: int) -> Txn:
        draw = self.draw
        txn_id = f"order-{number if draw.random() < (0.85 if self.is_wide else 0.9) else 0}"  # sometimes another attempt of one id
        ordering_key = draw.choice(self.ordering_keys)
        crc = zlib.crc32(txn_id.encode() if ordering_key is None else ordering_key)
        key_hash = "" if ordering_key is None else f"{crc:08x}{crc ^ 0x712C936A:08x}"
        messages = [
            self.message(number, i, ordering_key) for i in range(draw.randint(1, 9 if self.in_part else 5) // 2 + 1)
        ]
        return Txn(
            id=txn_id,
            nonce=f"{number:08x}",
            group=draw.choice(("orders", "stock")),
            partition=crc % self.cluster.counts[HALF],
            key_hash=key_hash,
            is_prepare=bool(key_hash) and draw.random() < (0.8 if self.is_chain else 0.4),
            messages=messages,
            unresolved=draw.choice(("", "", "park", "rollback", "commit")) if self.is_wide else "",
            is_twin=self.is_wide and txn_id == "order-0",
        )

    def give_times(self, txn: Txn) -> None:
        times = [0, *(BORN + self.draw.randint(1, 200_000) for _ in range(3))]
        txn.due = [self.draw.choice(times) for _ in txn.messages]
        txn.due[self.draw.randrange(len(txn.due))] = times[1]
        txn.times = sorted(set(txn.due))

    def message(self, number: int, index: int, ordering_key: bytes | None) -> Message:
        draw = self.draw
        topic = draw.choice(self.reals)
        key = draw.choice([None, b"a", b"b", "Zürich".encode()])
        options = []
        if draw.random() < 0.15:
            options.append(f"n{draw.randrange(self.cluster.counts[topic])}")
        if key is None and ordering_key is not None:
            options.append(f"m{murmur2(ordering_key)}")
        if draw.random() < 0.15:  # some far in the past, before everything else
            later = (BORN + 30_000, BORN + HOUR_MS) if self.is_fresh else ()
            options.append(f"t{draw.choice((1_000, BORN - 1_000 * HOUR_MS, BORN + number, *later))}")
        if self.is_wide and draw.random() < 0.1:
            options.append("g1")
        value = None if draw.random() < 0.05 else f"message {number}/{index}".encode()
        headers = [("trace", b"t")] * draw.choice((0, 1, 1, 2)) + [("none", None)] * draw.choice((0, 0, 1))
        return Message(topic, key, value, headers, ",".join(options))

    # ------------------------------------------------------------ steps

    def made(self, seed: int) -> Made:
        for _ in range(400):
            steps = self.steps()
            if not steps:
                break
            self.draw.choice(steps)()
        for txn in self.coordinator.txns:
            if txn.state == "late":
                self.coordinator.forward(txn)
        for fault in self.faults:
            if fault in CHANGES:
                self.change(fault)
        history, is_whole = self.end()
        return Made(seed, history, tuple(self.faults), is_whole)

    def steps(self) -> list[Callable[[], None]]:
        """What may happen next; an idea that comes twice is twice as likely."""
        steps: list[Callable[[], None]] = []
        under_way = [t for t in self.coordinator.txns if not t.is_stored]
        if self.left:
            steps.append(self.begin)
        for txn in under_way:
            steps += [partial(self.store, txn)] * 3
        steps += [self.say] * min(len(self.lines), 4)
        if (self.left or self.lines) and self.coordinator.txns:
            steps += [self.disturb]
            if any(t.state == "late" for t in self.coordinator.txns):
                steps.append(self.forward_late)
            if "down" in self.faults:
                steps.append(self.end_coordinator)
            if self.coordinator.refusing and not self.coordinator.is_down:
                steps.append(lambda: self.coordinator.try_again(min(self.coordinator.refusing)))
        for txn in self.coordinator.txns:
            if txn.state == "scheduled" and self.draw.random() < 0.9:
                steps.append(partial(self.let_time_pass, txn))
        return steps

    def end_coordinator(self) -> None:
        self.coordinator.is_down = True

    def let_time_pass(self, txn: Txn) -> None:
        """Its time has come, or it is moved or cancelled, perhaps at the same moment."""
        texts = []
        for said in self.draw.choices("CCCCCUA", k=self.draw.choice((1, 1, 2, 3))):
            time_ms = self.draw.choice([*txn.times[:1] * 5, *txn.times])
            if said == "C":
                self.cluster.now_ms = max(self.cluster.now_ms, time_ms - self.draw.choice((1, 1, 1, 2_000)))
            elif said == "U":
                time_ms = self.cluster.now_ms + self.draw.choice((-5_000, 0, 60_000))
            source = "policy" if said == "C" else "operator"
            offset = self.draw.choice([txn.halves[-1]] * 5 + txn.copies + txn.halves).offset
            texts.append(txn.line(said, offset, source=source, time_ms=None if said == "A" else time_ms))
        record = self.cluster.add(OP, txn.partition, value=b"\n".join(texts))
        for number, text in enumerate(texts):
            self.coordinator.read_line(text, record, number)

    def begin(self) -> None:
        txn = self.left.pop()
        self.coordinator.txns.append(txn)
        self.store(txn)

    def store(self, txn: Txn) -> None:
        index = len(txn.halves)
        message = txn.messages[index]
        ahead: Record | None = None
        late: list[Record] = []
        may_take_long = self.in_part and txn.misdeed in MISDEEDS_IN_PART
        if may_take_long and index and not txn.is_settled and self.draw.random() < self.in_part:
            late = self.move_in_part(txn)
        if index == len(txn.messages) - 1 and self.draw.random() < (0.1 if self.is_wide else 0.03):
            ahead = self.say_ahead(txn)
        headers = self.shuffled([*message.headers, ("txl", txn.txl(index))])
        half = self.half(txn.partition, message.key, message.value, headers)
        txn.halves.append(half)
        if self.in_part and txn.is_on_doubt and self.draw.random() < 0.7:  # else it may be settled with the same batch
            self.coordinator.to_doubt(txn, txn.state, "", is_told=not txn.is_growing or txn.is_stored)
        for record in late:
            self.coordinator.read_line(record.value or b"", record, 0)
        if self.draw.random() < (0.15 if self.is_wide else 0.06) or txn.misdeed == "copy forwarded":
            txn.copies.append(self.half(txn.partition, half.key, half.value, half.headers))
        if txn.is_stored:
            self.plan_lines(txn)
            if txn.misdeed in ("early", "undecided visible"):
                self.coordinator.show(txn, range(len(txn.halves)))
            if txn.misdeed == "stranger forwarded":
                self.stranger_of(txn, is_forwarded=True)
            if txn.misdeed in ("forgotten", "held undecided", "contents missing"):
                self.doubt(txn)
        if ahead is not None:
            self.coordinator.read_line((ahead.value or b"").split(b"\n")[0], ahead, 0)

    def move_in_part(self, txn: Txn) -> list[Record]:
        """A producer takes long, and it is on doubt meanwhile. Lines that name its last half record may be read when it is the last no more."""
        if txn.state == "open":
            self.coordinator.to_doubt(txn, "open", "")
            self.coordinator.release(txn)  # those that wait for it
        if self.draw.random() < 0.2:
            half = txn.halves[0]
            txn.copies.append(self.half(txn.partition, half.key, half.value, half.headers))
        if self.draw.random() < 0.3:
            return []
        records = []
        for _ in range(self.draw.choice((1, 1, 2, 3))):
            half = self.draw.choice([txn.halves[-1]] * 3 + txn.halves)
            line = txn.line(self.draw.choice("RACC"), half.offset, source="policy")
            records.append(self.cluster.add(OP, txn.partition, value=line))
        early_count = self.draw.choice((0, 0, 0, 1, len(records)))
        for record in records[:early_count]:
            self.coordinator.read_line(record.value or b"", record, 0)
        return records[early_count:]

    def half(self, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> Record:
        return self.cluster.add(HALF, partition, key=key, value=value, headers=headers)

    def say_ahead(self, txn: Txn) -> Record | None:
        """A line that comes before its half record: it waits for that, or is given up and quarantined."""
        line = txn.line(self.draw.choice("CR"), self.cluster.ends.get((HALF, txn.partition), 0))
        record = self.cluster.add(OP, txn.partition, value=line)
        if self.draw.random() < 0.5:
            self.coordinator.keep_aside(record, 0)
            return None
        return record

    def plan_lines(self, txn: Txn) -> None:
        """What producers, responders and operators will say of a transaction."""
        draw = self.draw
        last = len(txn.halves) - 1
        said = draw.choice("CCCCCCRRUA ")
        if txn.misdeed in ("rolled back visible", "rolled back hidden"):
            said = "R"
        elif txn.misdeed in ("undecided visible", "forgotten", "held undecided", "contents missing"):
            said = " "
        elif txn.misdeed or len(self.ordering_keys) == 1:
            said = "C"
        lines = [(said, last)] if said != " " else []
        if txn.misdeed not in ("", "incomplete visible") and draw.random() < 0.7:  # nothing that might hide it
            self.lines += [(txn, resolution, index) for resolution, index in lines]
            return
        if txn.misdeed == "incomplete visible" or (said == "C" and draw.random() < 0.1):
            lines.insert(0, ("C", draw.randint(0, last)))
        if draw.random() < 0.25:  # repeated, contradicted, given up, asked, or naming another half record
            lines.append((draw.choice("CRAU"), draw.randint(0, last)))
        if draw.random() < 0.1:
            lines.insert(0, (draw.choice("RU"), draw.randint(0, last)))
        self.lines += [(txn, resolution, index) for resolution, index in lines]

    def say(self) -> None:
        """Write one op record, of one line or several."""
        first = self.draw.choice(self.lines)[0]
        count = self.draw.choice((1, 1, 1, 2, 3))
        mine = [line for line in self.lines if line[0].partition == first.partition][:count]
        texts = []
        for line in mine:
            self.lines.remove(line)
            txn, resolution, index = line
            half = self.draw.choice(txn.copies or [txn.halves[index]])
            offset = half.offset if self.draw.random() < 0.3 else txn.halves[index].offset
            source, check = self.draw.choice((("producer", ""), ("check", "1"), ("operator", "")))
            texts.append(txn.line(resolution, offset, source=source, number=check))
        if self.draw.random() < 0.05:  # the next release's, and one that nobody can read
            texts[0] = b"2" + texts[0][1:] + b"|new"
            texts.append(b"what is this?")
        record = self.cluster.add(OP, first.partition, value=b"\n".join(texts))
        for number, text in enumerate(texts):
            if text == b"what is this?":
                self.coordinator.keep_aside(record, number)
            else:
                self.coordinator.read_line(text.removesuffix(b"|new"), record, number)

    def forward_late(self) -> None:
        late = [t for t in self.coordinator.txns if t.state == "late"]
        self.coordinator.forward(self.draw.choice(late))

    # ------------------------------------------------------------ what disturbs

    def disturb(self) -> None:
        """Doubt, refusing topics, strangers, second copies, lines that count for nothing."""
        txn = self.draw.choice([t for t in self.coordinator.txns if t.halves])
        many = {
            self.doubt: 6,
            self.refuse: 2,
            self.second_copy: 1,
            self.stranger_of: 1,
            self.void_line: 1,
            self.garbage: 1,
        }
        if self.is_wide:
            many |= {self.expire: 2, self.decide_by_policy: 2}
        self.draw.choices(list(many), list(many.values()))[0](txn)

    def doubt(self, txn: Txn) -> None:
        """Nobody decided it for long: it moves to doubt, is parked there, or (a fault) ends there."""
        if txn.state not in ("open", "parked") or not txn.is_stored or self.coordinator.is_down:
            return
        if txn.is_on_doubt and txn.misdeed == "forgotten":
            self.coordinator.end_on_doubt(txn)
            txn.state = "rolled-back"
            self.lines = [line for line in self.lines if line[0] is not txn]
        elif not txn.is_on_doubt or self.draw.random() < 0.4:
            is_parked = txn.state == "parked" or self.draw.random() < 0.3
            state, reason = ("parked", "checks-exhausted") if is_parked else ("open", "")
            self.coordinator.to_doubt(txn, state, reason)
            self.coordinator.release(txn)  # those that wait for it, or waited

    def expire(self, txn: Txn) -> None:
        """It was held too long; perhaps a person commits it again."""
        if txn.state == "held" and not self.coordinator.is_down:
            self.coordinator.to_doubt(txn, "parked-committed", "held-too-long")
            self.coordinator.release(txn)
            if self.draw.random() < 0.5:
                self.lines.append((txn, "C", len(txn.halves) - 1))

    def decide_by_policy(self, txn: Txn) -> None:
        """Nobody answered."""
        if (
            txn.state == "open"
            and txn.is_on_doubt
            and txn.is_stored
            and not txn.misdeed
            and not self.coordinator.is_down
        ):
            line = txn.line("C" if txn.unresolved == "commit" else "R", txn.halves[-1].offset, source="policy")
            self.coordinator.read_line(line, self.cluster.add(OP, txn.partition, value=line), 0)

    def refuse(self, txn: Txn) -> None:
        self.coordinator.refusing.add(txn.messages[0].topic)

    def second_copy(self, txn: Txn) -> None:
        """The broker keeps one half record again, perhaps long after the transaction was settled."""
        half = self.draw.choice(txn.halves)
        copy = self.half(txn.partition, half.key, half.value, half.headers)
        if not txn.is_settled and not txn.is_on_doubt:
            txn.copies.append(copy)

    def stranger_of(self, txn: Txn, *, is_forwarded: bool = False) -> None:
        """A half record with the transaction's key that is no part of it: another count, or not its turn."""
        count = len(txn.messages)
        index, total = self.draw.choice(((0, count + 1), (count + 1, count + 2), (count, count + 1)))
        partition = txn.partition
        if self.draw.random() < 0.2 and not is_forwarded:
            partition = (partition + 1) % self.cluster.counts[HALF]
        if partition != txn.partition:
            index, total = 0, count
        elif not txn.halves or not txn.is_stored:
            return
        headers = [("txl", txn.txl(index, count=total))]
        record = self.half(partition, b"a", b"no part of it", headers)
        if record.partition != txn.partition or total != count:
            self.coordinator.keep_aside(record)
        if is_forwarded:
            self.cluster.end_kafka_transaction([self.coordinator.show_record(txn, record)])

    def void_line(self, txn: Txn) -> None:
        """It names another producer group, or an offset where no half record of it is."""
        other = replace(txn, group="another")
        offset = max((r.offset for t in self.coordinator.txns for r in t.halves if t is not txn), default=0)
        end = self.cluster.ends[HALF, txn.partition]
        lines = [other.line("R", txn.halves[-1].offset)]
        if not txn.may_name(offset) and offset < end:
            lines.append(txn.line("C", offset))
        lines.append(txn.line("C", end + 50))  # half never comes so far
        line = self.draw.choice(lines)
        record = self.cluster.add(OP, txn.partition, value=line)
        self.coordinator.keep_aside(record, 0)

    def garbage(self, txn: Txn) -> None:
        """Records of nobody, in half, in op and on real topics."""
        place = self.draw.choice(("half", "op", "real", "real", "aborted half", "aborted op"))
        last = txn.halves[-1]
        if place == "half":
            bad = self.draw.choice((b"1|nothing", b"", (b"4" if txn.due else b"3") + txn.txl(0)[1:], None))
            headers = [("txl", bad)] if bad is not None else [("trace", b"t")]
            self.coordinator.keep_aside(self.half(txn.partition, b"k", b"v", headers))
        elif place == "op":
            value = self.draw.choice((None, b"", txn.line("C", last.offset) + "é".encode()))
            self.coordinator.keep_aside(self.cluster.add(OP, txn.partition, value=value))
        elif place == "aborted half":
            headers = [("txl", txn.txl(0))]
            self.cluster.add(HALF, txn.partition, value=b"x", headers=headers, kafka="aborted")
            self.cluster.ends[HALF, txn.partition] += 1
        elif place == "aborted op":
            line = txn.line("R", last.offset)
            self.cluster.add(OP, txn.partition, value=line, kafka="aborted")
            self.cluster.ends[OP, txn.partition] += 1
        else:
            topic = self.draw.choice(self.reals)
            headers = [("trace", b"t")]
            partition = self.draw.randrange(self.cluster.counts[topic])
            self.cluster.add(topic, partition, key=b"k", value=b"v", headers=headers)

    # ------------------------------------------------------------ changed records

    def change(self, fault: str) -> None:
        """Change one record of ours on a real topic, or add one."""
        ours = [
            i
            for i, r in enumerate(self.cluster.records)
            if r.topic in self.reals
            and r.kafka == "committed"
            and "txl-id" in dict(r.headers)
            and len((dict(r.headers).get("txl-origin") or b"").split(b"|")) == 3
        ]
        if not ours:
            return
        timed = [i for i in ours if self.cluster.records[i].timestamp_ms < BORN]
        index = self.draw.choice(timed if fault == "timestamp" and timed else ours)
        record = self.cluster.records[index]
        headers = dict(record.headers)
        origin = headers["txl-origin"] or b""
        place, numbers, born = origin.split(b"|")
        if fault in ("phantom", "phantom ahead"):
            far = b"0:77777|0/1|5" if fault == "phantom ahead" else place + b"|4/5|5"
            self.cluster.add(
                record.topic,
                record.partition,
                key=record.key,
                value=record.value,
                headers=[("txl-id", b"order-0"), ("txl-origin", far)],
            )
            return
        if fault in ("topic", "partition"):
            self.move(index, fault)
            return
        wrong: dict[str, Any] = {
            "value": {"value": b"another"},
            "key": {"key": b"another"},
            "header more": {"headers": [("more", b"1"), *record.headers]},
            "header less": {"headers": [h for h in record.headers if h[0] in ("txl-id", "txl-origin")]},
            "timestamp": {"timestamp_ms": record.timestamp_ms - (0 if record.is_append_time else 77)},
        }
        changed = {
            "origin broken": (b"txl-origin", self.draw.choice((b"0:1", b"", b"a:b|0/1|5", b"0:1|1/1|5"))),
            "origin elsewhere": (b"txl-origin", place + b"0|" + numbers + b"|" + born),
            "origin count": (b"txl-origin", place + b"|" + numbers + b"9|" + born),
            "born": (b"txl-origin", origin + b"1"),
            "id of another": (b"txl-id", b"order-77"),
        }
        if fault in changed:
            name, value = changed[fault]
            kept = [h for h in record.headers if h[0] != name.decode()]
            wrong[fault] = {"headers": [*kept, (name.decode(), value)]}
        wrong["id missing"] = {"headers": [h for h in record.headers if h[0] != "txl-id"]}
        wrong["id twice"] = {"headers": [*record.headers, ("txl-id", headers["txl-id"])]}
        self.cluster.records[index] = replace(record, **wrong[fault])

    def move(self, index: int, fault: str) -> None:
        """Write the record to another topic or partition, where there is one, instead of its own."""
        record = self.cluster.records[index]
        places = [(t, p) for t, p in self.cluster.partitions() if t in self.reals]
        is_other_topic = fault == "topic"
        places = [
            (t, p)
            for t, p in places
            if (t != record.topic) == is_other_topic and (t, p) != (record.topic, record.partition)
        ]
        if places:
            topic, partition = self.draw.choice(places)
            del self.cluster.records[index]
            self.cluster.add(
                topic,
                partition,
                key=record.key,
                value=record.value,
                headers=record.headers,
                timestamp_ms=record.timestamp_ms,
            )

    # ------------------------------------------------------------ the end

    def end(self) -> tuple[History, bool]:
        """Open Kafka transactions, retention and compaction; then what is left is the history."""
        draw, cluster = self.draw, self.cluster
        is_whole = not cluster.clocks_ms
        for place in cluster.partitions():
            if place[0] != DOUBT and draw.random() < 0.06:
                self.leave_open(place)
                is_whole = False
        starts = dict.fromkeys(cluster.partitions(), 0)
        share = 0.3 if self.is_wide and draw.random() < 0.3 else 0.08
        for place in starts:
            if place[0] != DOUBT and draw.random() < share:
                stable = cluster.stable_ends.get(place, cluster.ends.get(place, 0))
                starts[place] = draw.randint(0, stable)
                behind = (
                    self.behind_first_copies(place[1]) if place[0] == HALF and (self.in_part or self.is_wide) else []
                )
                starts[place] = min(draw.choice(behind), stable) if behind else starts[place]
                if place[0] == HALF and draw.random() < 0.7:
                    starts[place] = min(starts[place], self.needed_from(place[1]))
                elif place[0] == HALF:
                    self.faults.append("half too short")
                is_whole = False
        compacted = set() if self.is_fresh else {DOUBT}
        compacted |= {draw.choice(self.reals)} if self.is_compacted else set()
        if draw.random() < 0.4:
            is_whole &= not self.is_compacted
            self.compact(compacted)
        bounds = {
            place: Bounds(start, cluster.ends.get(place, 0), cluster.stable_ends.get(place))
            for place, start in starts.items()
        }
        records = [
            r
            if r.offset < cluster.stable_ends.get((r.topic, r.partition), r.offset + 1)
            else replace(r, kafka="open")  # a reader cannot know what will become of it
            for r in cluster.records
            if r.offset >= starts[r.topic, r.partition]
        ]
        settings = Settings(
            compacted_topics=frozenset(compacted),
            former_partition_counts={topic: frozenset(range(1, count)) for topic, count in cluster.counts.items()},
            clock_error_ms=CLOCK_ERROR_MS if cluster.clocks_ms else 0,
        )
        return History(records, bounds, settings), is_whole

    def behind_first_copies(self, partition: int) -> list[int]:
        """From where half has the first message of a transaction as a second copy alone, and perhaps all others."""
        copied = [t for t in self.coordinator.txns if t.partition == partition and t.copies]
        return [t.halves[0].offset + 1 for t in copied]

    def needed_from(self, partition: int) -> int:
        """The first half record of a transaction that is neither settled nor on doubt: retention is longer than that."""
        live = [t for t in self.coordinator.txns if t.partition == partition and t.halves]
        here = [t.halves[0].offset for t in live if not t.is_settled and not t.is_on_doubt]
        return min(here, default=self.cluster.ends.get((HALF, partition), 0))

    def leave_open(self, place: tuple[str, int]) -> None:
        """A stranger's Kafka transaction never ends. On a real topic messages of ours may stand behind its first record."""
        topic, partition = place
        mine = [r.offset for r in self.cluster.records if (r.topic, r.partition) == place]
        if topic in self.reals and mine and self.draw.random() < 0.6:
            self.cluster.stable_ends[place] = self.draw.choice(mine)
            return
        stranger = self.cluster.add(topic, partition, value=b"a stranger's", headers=[])
        self.cluster.stable_ends[place] = stranger.offset
        txn = self.draw.choice(self.coordinator.txns)
        if topic == HALF:
            self.half(partition, b"k", b"v", [("txl", b"1|late-1/00000001|orders|shop|0/1|5|")])
        elif topic == OP and txn.partition == partition:
            self.cluster.add(OP, partition, value=txn.line("R", txn.halves[-1].offset))

    def compact(self, topics: set[str]) -> None:
        """Of each key only the newest committed record stays, null values among them; perhaps the cleaner has not come to the end."""
        ends = {place: math.inf for place in self.cluster.partitions() if place[0] in topics}
        for place in ends if self.is_wide else ():
            if self.draw.random() < 0.5:
                ends[place] = self.draw.randint(0, self.cluster.ends.get(place, 0))
        old = [r for r in self.cluster.records if r.offset < ends.get((r.topic, r.partition), 0) and r.key is not None]
        newest = {(r.topic, r.partition, r.key): r.offset for r in old if r.kafka == "committed"}
        gone = {r.log_order for r in old if newest.get((r.topic, r.partition, r.key)) != r.offset}
        self.cluster.records = [r for r in self.cluster.records if r.log_order not in gone]

    def shuffled(self, headers: list[Any]) -> list[Any]:
        self.draw.shuffle(headers)
        return headers
