"""Histories of records, written by hand or as steps, in the order in which their records are appended.

A half record is named by its number in the history:

    half 0/2 options=t5     a half record: its numbers (0/1 if none are said), and perhaps the transaction, topic, key, options (a time
                            `d+60000` is so long after what was written before), or the order of customer-7, the ordering key
    U C 1 group=x           one op record: lines of an operator about the transaction of half record 1, all naming that record
    lines TEXT TEXT         one op record of these lines
    show 0 1 value=x        each is forwarded, perhaps `to` another topic or partition, with another value, `also` with a further header,
                            or `at` a producer's time (`+1000`: so long after its half record was stored)
    summary held 0 1        the summary on doubt, perhaps with a reason, count or order
    content 0               its content on doubt, perhaps with another value
    keep held 0 1           both: the summary, and the content of each
    ended 0 1               doubt says null for the summary and for the contents of these indexes, perhaps of another transaction
    starts half=1           the topic begins at this offset; `stable`: readers see what is before it; `compacted`, `partitions` likewise
    stranger shop           a record of a stranger, in a Kafka transaction that is open
    timed                   a committed transaction of three messages: at once, after a minute, after two minutes
    release 0               the line that releases those of the first time, in time
    says A                  a line about a transaction with times that names none
"""

import re
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

from tests.reference.model import Report, judge
from tests.reference.wire import Bounds, History, Record, Settings

HALF, OP, DOUBT = "txlayer.half", "txlayer.op", "txlayer.doubt"
KEY = "order-1/5f3a90c2"
#: crc32 of the ordering key "customer-7", then 32 bits that only have to be there.
HASH = f"{zlib.crc32(b'customer-7'):08x}712c936a"
PREPARE_ORDER = f"k{HASH},op"
ORDERS = {"commit": f"k{HASH}", "prepare": PREPARE_ORDER}
TOPICS = {"half": HALF, "op": OP, "doubt": DOUBT}
MINUTE = 60_000


@dataclass
class Log:
    """Writes a history. One partition a topic; every record is 10 ms younger than the one before."""

    records: list[Record] = field(default_factory=list)
    starts: dict[str, int] = field(default_factory=dict)
    stable_ends: dict[str, int] = field(default_factory=dict)
    partition_counts: dict[str, int] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    now_ms: int = 1_700_000_000_000

    def add(self, topic: str, partition: int = 0, **fields: Any) -> Record:
        self.now_ms += 10
        offset = self.ends.get((topic, partition), 0)
        self.ends[topic, partition] = offset + 1
        record = Record(topic, partition, offset, self.now_ms, **fields)
        self.records.append(record)
        return record

    def half(
        self, txn_key: str = KEY, numbers: str = "0/1", *, topic: str = "shop", options: str = "", **fields: Any
    ) -> Record:
        version = "3" if options.startswith("d") else "1"
        txl = f"{version}|{txn_key}|orders|{topic}|{numbers}|1700000000000|{options}".encode()
        headers = [("trace", b"t"), ("txl", txl)]
        return self.add(HALF, **{"key": b"k", "value": numbers.encode(), "headers": headers} | fields)

    def op(self, *lines: tuple[str, Record] | bytes, key: str = KEY, group: str = "orders", **fields: Any) -> Record:
        texts = [
            line
            if isinstance(line, bytes)
            else f"1|{line[0]}|{key}|{group}|{line[1].offset}|1700000000000|operator||zo%C3%AB: why".encode()
            for line in lines
        ]
        return self.add(OP, value=b"\n".join(texts), **fields)

    def summary(
        self,
        state: str,
        *halves: Record,
        key: str = KEY,
        reason: str = "",
        count: int = 0,
        order: str = "commit",
        key_hash: str = "",
        due: str = "",
    ) -> Record:
        first, last = halves[0].offset, halves[-1].offset
        value = (
            f"{3 if due else 1}|{state}|{reason}|orders|{first}|{last}|{len(halves)}|{count or len(halves)}|{halves[0].timestamp_ms}"
            f"|1700000000000|{key_hash}|{order}|||{halves[0].timestamp_ms}|shop|0/0/0/0{'|' if due else ''}{due}"
        )
        return self.add(DOUBT, key=key.encode(), value=value.encode())

    def content(self, half: Record, index: int = 0, *, key: str = KEY, **fields: Any) -> Record:
        [txl] = [value or b"" for name, value in half.headers if name == "txl"]
        origin = b"%d:%d|" % (half.partition, half.offset) + b"|".join(txl.split(b"|")[4:6])
        headers = [*half.headers, ("txl-origin", origin), ("txl-key", half.key)]
        record_key = f"{key}/{index}".encode()
        return self.add(DOUBT, **{"key": record_key, "value": half.value, "headers": headers} | fields)

    def end_on_doubt(self, *indexes: int, key: str = KEY) -> None:
        for suffix in ("", *(f"/{index}" for index in indexes)):
            self.add(DOUBT, key=(key + suffix).encode())

    def show(self, half: Record, topic: str = "shop", partition: int = 0, **fields: Any) -> Record:
        """Forward a half record as a coordinator does."""
        [txl] = [value or b"" for name, value in half.headers if name == "txl"]
        _, key, _, _, numbers, born, _ = txl.decode().split("|")
        origin = f"{half.partition}:{half.offset}|{numbers}|{born}".encode()
        ours = [("txl-id", key.split("/")[0].encode()), ("txl-origin", origin)]
        headers = [*(h for h in half.headers if h[0] != "txl"), *ours]
        return self.add(topic, partition, **{"key": half.key, "value": half.value, "headers": headers} | fields)

    def history(self) -> History:
        """All of it, with the bounds of every partition that is named."""
        bounds = {}
        for topic in {HALF, OP, DOUBT, "shop", *(topic for topic, _ in self.ends)}:
            seen = (partition + 1 for name, partition in self.ends if name == topic)
            for partition in range(max([self.partition_counts.get(topic, 1), *seen])):
                start = self.starts.get(topic, 0)
                end = max(self.ends.get((topic, partition), 0), start)
                bounds[topic, partition] = Bounds(start, end, self.stable_ends.get(topic))
        return History(self.records, bounds, self.settings)

    def judge(self, **settings: Any) -> Report:
        """What the model says of it, perhaps under other settings."""
        return judge(replace(self.history(), settings=replace(self.settings, **settings)))


@dataclass
class Timed:
    """A log with one committed transaction of three messages: at once, after a minute, after two minutes."""

    log: Log = field(default_factory=Log)
    halves: list[Record] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        begin_ms = self.log.now_ms
        self.times = [begin_ms + MINUTE, begin_ms + 2 * MINUTE]
        options = ["", *(f"d{time_ms}" for time_ms in self.times)]
        self.halves = [self.log.half(numbers=f"{i}/3", options=given) for i, given in enumerate(options)]
        self.log.op(("C", self.halves[-1]))

    def line(self, letter: str, time_ms: int | None, *, at_ms: int = 0) -> None:
        """A line with a time, or an abandon, appended at that time."""
        self.log.now_ms = max(self.log.now_ms, at_ms)
        offset = self.halves[-1].offset
        end = "" if time_ms is None else f"|{time_ms}"
        version = 1 if time_ms is None else 2
        self.log.op(f"{version}|{letter}|{KEY}|orders|{offset}|1700000000000|policy||{end}".encode())

    def release(self, number: int) -> None:
        """The line that releases the messages of that time, in time."""
        self.line("C", self.times[number], at_ms=self.times[number])

    def show(self, *indexes: int) -> None:
        for index in indexes:
            self.log.show(self.halves[index])

    def on_doubt(self, state: str, due: str) -> None:
        self.log.summary(state, *self.halves, due=due)
        for index, half in enumerate(self.halves):
            self.log.content(half, index)


class Steps:
    """Writes a history from its steps: one method for each kind of step."""

    _timed: Timed

    def __init__(self, log: Log) -> None:
        self.log = log
        self.halves: list[Record] = []

    def write(self, text: str) -> None:
        for step in re.split(r",\s+", text.strip()):
            self.take(step)

    def take(self, step: str) -> None:
        words = step.split()
        given = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        numbers = [int(word) for word in plain if word.isdigit()]
        said = [word for word in plain[1:] if not word.isdigit()]
        if plain[0] == "lines":
            self.log.op(*(line.encode() for line in plain[1:]))
        elif plain[0] in "UCRA":
            (half,) = (self.halves[number] for number in numbers)
            self.log.op(*((letter, half) for letter in [plain[0], *said]), key=_key(half), **given)
        else:
            getattr(self, plain[0])(*said, *numbers, **given)

    def half(self, numbers: str = "0/1", *, txn: str = KEY, order: str = "", key: str = "k", **given: str) -> None:
        options = ",".join(filter(None, (given.pop("options", ""), ORDERS.get(order, ""))))
        options = re.sub(r"\+(\d+)", lambda later: str(self.log.now_ms + int(later[1])), options)
        self.halves.append(self.log.half(txn, numbers, options=options, key=key.encode() if key else None, **given))

    def show(self, *numbers: int, to: str = "shop", partition: str = "0", also: str = "", **given: str) -> None:
        at, (name, _, value) = given.pop("at", ""), also.partition(":")
        fields: dict[str, Any] = given | {name: given[name].encode() for name in {"key", "value"} & set(given)}
        for number in numbers:
            half = self.halves[number]
            shown = self.log.show(half, to, int(partition), **fields)
            if also:
                self.log.records[-1] = shown = replace(shown, headers=[*shown.headers, (name, value.encode())])
            if at:
                at_ms = int(at) if at.isdigit() else half.timestamp_ms + int(at)
                self.log.records[-1] = replace(shown, timestamp_ms=at_ms, is_append_time=False)

    def summary(self, state: str, *numbers: int, count: str = "0", order: str = "", **given: str) -> None:
        halves = [self.halves[number] for number in numbers]
        more = {"key_hash": HASH, "order": order} if order else {}
        self.log.summary(state, *halves, key=_key(halves[0]), count=int(count), **more, **given)

    def content(self, number: int, **given: str) -> None:
        half, fields = self.halves[number], {name: text.encode() for name, text in given.items()}
        self.log.content(half, int(_header(half)[4].split("/")[0]), key=_key(half), **fields)

    def shortened(self, number: int) -> None:
        """A content that doubt did not take whole."""
        half, said = self.halves[number], _header(self.halves[number])
        origin = ("txl-origin", f"0:{half.offset}|{said[4]}|{said[5]}".encode())
        headers = [*half.headers, origin, ("txl-cut", b"too-large 2000000")]
        self.log.content(half, int(said[4].split("/")[0]), value=b"", headers=headers)

    def forgotten(self, *indexes: int) -> None:
        """It ended on doubt, where compaction left nothing of what was there before."""
        self.log.end_on_doubt(*indexes)
        self.log.records = [r for r in self.log.records if r.topic != DOUBT or r.value is None]
        self.compacted(DOUBT)

    def keep(self, state: str, *numbers: int, **given: str) -> None:
        self.summary(state, *numbers, **given)
        for number in numbers:
            self.content(number)

    def ended(self, *indexes: int, txn: str = KEY) -> None:
        self.log.end_on_doubt(*indexes, key=txn)

    def starts(self, **given: str) -> None:
        self.log.starts |= {TOPICS.get(topic, topic): int(offset) for topic, offset in given.items()}

    def stable(self, **given: str) -> None:
        self.log.stable_ends |= {topic: int(offset) for topic, offset in given.items()}

    def forge(self, txn_id: str, origin: str = "", *, at: str = "") -> None:
        """A forwarded record that no coordinator wrote: `forge order-1 0:7|0/1|5`."""
        headers = [("txl-id", txn_id.encode()), *([("txl-origin", origin.encode())] if origin else [])]
        forged = self.log.add("shop", key=b"k", value=b"0/1", headers=headers)
        if at:
            self.log.records[-1] = replace(forged, timestamp_ms=int(at), is_append_time=False)

    def at(self, now_ms: int) -> None:
        self.log.now_ms = now_ms

    def others(self, topic: str) -> None:
        self.log.add(topic, value=b"of others")

    def aside(self, number: int) -> None:
        """Doubt has a half record that belongs to no transaction."""
        half = self.halves[number]
        self.log.add(DOUBT, key=f"origin/{HALF}/0/{half.offset}".encode(), value=half.value, headers=half.headers)

    def stranger(self, topic: str) -> None:
        self.log.add(topic, value=b"of a stranger", kafka="open")

    def compacted(self, *topics: str) -> None:
        self.log.settings = replace(self.log.settings, compacted_topics=frozenset(topics))

    def partitions(self, **given: str) -> None:
        self.log.partition_counts |= {topic: int(count) for topic, count in given.items()}

    def timed(self) -> None:
        self._timed = Timed(self.log)
        self.halves = self._timed.halves

    def release(self, number: int) -> None:
        self._timed.release(number)

    def says(self, letter: str) -> None:
        self._timed.line(letter, None)


def _header(half: Record) -> list[str]:
    """The fields of its header."""
    [txl] = [value or b"" for name, value in half.headers if name == "txl"]
    return txl.decode().split("|")


def _key(half: Record) -> str:
    return _header(half)[1]


def written(text: str) -> tuple[Log, list[Record]]:
    """The log of these steps, and its half records."""
    steps = Steps(Log())
    steps.write(text)
    return steps.log, steps.halves
