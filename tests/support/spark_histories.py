"""Histories of the reference model, many at once, as one bronze: each with ids, key hashes, topics and partitions of its own.

A run of the ledger takes seconds whatever it reads, so histories are judged together. What is renamed is renamed in the bytes of
the records; nothing else of them is changed.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from tests.reference.differential import without
from tests.reference.model import Kind, Report, Transaction, judge, verdict
from tests.reference.wire import Bounds, History, Record, parse_half
from txlayer_spark.catalog import BatchFolder, Catalog, Gap, Reader, ReadState
from txlayer_spark.parse import BRONZE, TopicKind

NAMESPACE = "all"
DAY_MS = 86_400_000
CUT_AFTER_MS = 3 * DAY_MS
"""Everything is old: what waits for half records waits a day."""
_ROLES = ("half", "op", "doubt", "check", "locks")
_ID = rb"[!-.0-{}~]"


@dataclass(frozen=True)
class Judged:
    """One transaction under both judges."""

    name: str
    txn_key: str
    expected: str
    found: str
    life: tuple[str, ...]

    def __str__(self) -> str:
        life = "".join(f"\n    {line}" for line in self.life)
        return f"{self.name}: {self.txn_key} is {self.found}, the model says {self.expected}{life}"


def readable(history: History, *, is_doubt_whole: bool = False) -> History:
    """The same as readers of committed records see it, with all of it old and every topic allowed; doubt may have lost what was ended, or not.

    Spark has no partitioner of producers: it does not know in which partition of its topic a message is that it does not see. So what one
    partition lost, or hides, excuses every message of the topic, and one that is held is late when it is visible, and not before.
    """
    bounds = {
        place: Bounds(b.start, b.readable_end, b.readable_end if b.stable_end is not None else None)
        for place, b in history.bounds.items()
    }
    records = [r for r in history.records if r.kafka == "committed" and _is_in(r, bounds)]
    doubt = {f"{history.settings.namespace}.doubt"}
    compacted = (
        history.settings.compacted_topics - doubt if is_doubt_whole else history.settings.compacted_topics | doubt
    )
    settings = replace(history.settings, compacted_topics=compacted, now_ms=None)
    settings = replace(settings, overdue_after_ms=None, clock_error_ms=0, is_topic_wide=True)
    return History(records, bounds, settings)


def _is_in(record: Record, bounds: Mapping[tuple[str, int], Bounds]) -> bool:
    found = bounds.get((record.topic, record.partition))
    return found is None or found.start <= record.offset < found.end


class Renamed:
    """One history under its number among others."""

    def __init__(self, history: History, *, number: int, first: int, total: int) -> None:
        """Its half partitions begin with `first` of `total`."""
        self.history, self.number, self._first, self._total = history, number, first, total
        self._namespace = history.settings.namespace
        self.partition_count = partition_count(history)
        self.ids = {txn_id: self._new_id(txn_id) for txn_id in sorted(self._ids())}
        self._hashes = {old: self._new_hash(old, at) for at, old in enumerate(sorted(self._key_hashes()))}
        names = sorted(self.ids, key=len, reverse=True)
        any_id = b"|".join(re.escape(name) for name in names) or rb"(?!)"
        self._any_id = re.compile(rb"(?<!" + _ID + rb")(?:" + any_id + rb")(?!" + _ID + rb")")
        any_hash = b"|".join(re.escape(old) for old in self._hashes) or rb"(?!)"
        self._any_hash = re.compile(rb"(?<![0-9a-f])(?:" + any_hash + rb")(?![0-9a-f])")

    def _ids(self) -> set[bytes]:
        found: set[bytes] = set()
        for record in self.history.records:
            role = self._role(record.topic)
            for name, value in record.headers:
                if name == "txl" and value is not None and value.count(b"|") > 1:
                    found.add(value.split(b"|")[1].split(b"/")[0])
                if name == "txl-id" and value is not None:
                    found.add(value)
            if role == "op":
                lines = (record.value or b"").split(b"\n")
                found |= {x.split(b"|")[2].split(b"/")[0] for x in lines if x.count(b"|") > 2}
            if role == "doubt" and record.key is not None and not record.key.startswith(b"origin/"):
                found.add(record.key.split(b"/")[0])
        return {each for each in found if re.fullmatch(_ID + rb"{1,100}", each)}

    def _key_hashes(self) -> set[bytes]:
        halves = (parse_half(record) for record in self.history.records)
        return {half.options["k"].encode() for half in halves if half and "k" in half.options}

    def _new_id(self, old: bytes) -> bytes:
        """One whose crc32 leads to the partition of this history that the old one led to."""
        wanted = self._first + zlib.crc32(old) % self.partition_count
        for salt in range(self._total * 100):
            new = b"%d~%s~%d" % (self.number, old, salt)
            if zlib.crc32(new) % self._total == wanted:
                return new
        raise AssertionError("no id for that partition")

    def _new_hash(self, old: bytes, at: int) -> bytes:
        wanted = self._first + int(old[:8], 16) % self.partition_count
        return b"%08x%s" % (wanted + self._total * at, old[8:])

    def topic(self, name: str) -> str:
        """A topic's new name."""
        role = self._role(name)
        return f"{NAMESPACE}.{role}" if role else f"h{self.number}-{name}"

    def _role(self, topic: str) -> str:
        role = topic.removeprefix(f"{self._namespace}.")
        return role if topic != role and role in _ROLES else ""

    def partition(self, topic: str, partition: int) -> int:
        """A partition's new number."""
        return partition + self._first if self._role(topic) else partition

    def records(self) -> list[Record]:
        """All records, renamed."""
        return [self._record(record) for record in self.history.records]

    def _record(self, record: Record) -> Record:
        role = self._role(record.topic)
        return replace(
            record,
            topic=self.topic(record.topic),
            partition=self.partition(record.topic, record.partition),
            key=self._doubt_key(record.key) if role == "doubt" else record.key,
            value=self._value(record, role),
            headers=[(name, self._header(name, value)) for name, value in record.headers],
        )

    def _value(self, record: Record, role: str) -> bytes | None:
        # Contents are the user's bytes; a summary and a line that was quarantined are ours.
        key = record.key or b""
        is_ours = role in ("op", "check") or (role == "doubt" and (key.count(b"/") == 1 or key.startswith(b"origin/")))
        return self._text(record.value) if is_ours and record.value is not None else record.value

    def _doubt_key(self, key: bytes | None) -> bytes | None:
        found = re.fullmatch(rb"origin/([^/]+)/(\d+)/(.*)", key or b"", re.DOTALL)
        if found is None:
            return None if key is None else self._text(key)
        topic = found[1].decode("latin-1")
        moved = self.partition(topic, int(found[2]))
        return b"origin/%s/%d/%s" % (self.topic(topic).encode("latin-1"), moved, found[3])

    def _header(self, name: str, value: bytes | None) -> bytes | None:
        if value is None or not name.startswith("txl"):
            return value
        if name == "txl":
            fields = value.split(b"|")
            if len(fields) > 3:
                fields[3] = self.topic(fields[3].decode("latin-1")).encode("latin-1")
            return self._text(b"|".join(fields))
        if name == "txl-origin":
            found = re.fullmatch(rb"(\d{1,9}):(.*)", value, re.DOTALL)
            return b"%d:%s" % (int(found[1]) + self._first, found[2]) if found else value
        return self._text(value) if name == "txl-id" else value

    def _text(self, raw: bytes) -> bytes:
        named = self._any_id.sub(lambda match: self.ids[match[0]], raw)
        return self._any_hash.sub(lambda match: self._hashes[match[0]], named)

    def bounds(self) -> dict[tuple[str, int], Bounds]:
        """The bounds of every partition, renamed."""
        found = self.history.bounds.items()
        return {(self.topic(t), self.partition(t, p)): bounds for (t, p), bounds in found}


def partition_count(history: History) -> int:
    """Of half."""
    half = f"{history.settings.namespace}.half"
    return max(1, sum(topic == half for topic, _ in history.bounds))


class TogetherJudged:
    """Histories by name, laid into one bronze, and what the model says of each."""

    def __init__(
        self, histories: Mapping[str, History], *, doubt_ends_ms: int = 1 << 40, is_doubt_whole: bool = False
    ) -> None:
        """Nothing is written yet. Compaction keeps null values on doubt for so long: longer than any history. Or it took nothing."""
        self._doubt_ends_ms = doubt_ends_ms
        seen = {name: readable(history, is_doubt_whole=is_doubt_whole) for name, history in histories.items()}
        self.reports: dict[str, Report] = {name: judge(each) for name, each in seen.items()}
        total = sum(partition_count(each) for each in seen.values())
        first = 0
        self.renamed: dict[str, Renamed] = {}
        for number, (name, each) in enumerate(seen.items()):
            self.renamed[name] = Renamed(each, number=number, first=first, total=total)
            first += self.renamed[name].partition_count
        self.records = [r for each in self.renamed.values() for r in each.records()]
        self._bounds = {p: b for each in self.renamed.values() for p, b in each.bounds().items()}
        newest = max((r.timestamp_ms for r in self.records), default=0)
        self.cut_ms = newest + CUT_AFTER_MS

    def write(self, spark: SparkSession, root: str) -> None:
        """Bronze as `read_new` would have made it."""
        catalog = Catalog(spark, root)
        catalog.claim(NAMESPACE)
        system = [r for r in self.records if is_system(r.topic)]
        real = [r for r in self.records if not is_system(r.topic)]
        for number, records in enumerate((system, real)):
            folder = BatchFolder(number, 0, 0)
            rows = [row_of(record, cut_ms=self.cut_ms) for record in records]
            frame = spark.createDataFrame(rows, BRONZE)
            frame = frame.drop("folder").coalesce(1)
            frame.write.partitionBy("kind", "day").parquet(catalog.path_of(folder))
        catalog.store(self.state(*self.named()))

    def named(self) -> tuple[list[str], list[str]]:
        """The producer groups and the real topics that half records name."""
        halves = [parse_half(r) for r in self.records if r.topic.endswith(".half")]
        named = sorted({(half.producer_group, half.topic) for half in halves if half})
        return [group for group, _ in named], [topic for _, topic in named]

    def state(self, groups: Sequence[str], topics: Sequence[str]) -> ReadState:
        """What bronze knows when it has read all of it."""
        ends: dict[str, dict[str, int]] = {}
        for (topic, partition), bounds in self._bounds.items():
            ends.setdefault(topic, {})[str(partition)] = bounds.end
        there = tuple(t for t in ends if not is_system(t))
        system = Reader(
            0,
            tuple(f"{NAMESPACE}.{role}" for role in _ROLES),
            self.cut_ms,
            {t: e for t, e in ends.items() if is_system(t)},
            0,
            is_system=True,
        )
        real = Reader(1, there, self.cut_ms, {t: ends[t] for t in there}, 0)
        compacted = [each.topic(t) for each in self.renamed.values() for t in each.history.settings.compacted_topics]
        return ReadState(
            readers=(system, real),
            topics=tuple(dict.fromkeys(topics)),
            groups=tuple(dict.fromkeys(groups)),
            gaps=tuple(Gap(t, p, 0, b.start) for (t, p), b in self._bounds.items() if b.start),
            compacted=tuple(sorted(set(compacted))),
            doubt_lag_ms=0 if f"{NAMESPACE}.doubt" in compacted else None,
            doubt_ends_ms=self._doubt_ends_ms,
            hidden=tuple(sorted({t for (t, _), b in self._bounds.items() if b.stable_end is not None})),
        )

    def compare(self, rows: Sequence[Any]) -> list[Judged]:
        """Every transaction and every stray record under both judges; `shelf` are those of `read_ledger`."""
        found: dict[tuple[str, str], set[str]] = {}
        orphans = {row.txn_id for row in rows if row.verdict == "orphan"}
        for row in rows:
            found.setdefault((row.txn_id, row.nonce or ""), set()).add(_plain(row.verdict))
        judged = []
        for name, renamed in self.renamed.items():
            report = self.reports[name]
            there = {key for (_, key), txn in report.transactions.items() if txn.messages}
            # What is quarantined of half where a transaction's own records are gone, Spark takes for one.
            there |= {half.txn_key for half in map(parse_half, renamed.history.records) if half}
            strays = self._strays(renamed, report)
            unplaced = {key for (_, key), txn in report.transactions.items() if txn.is_timed or _is_not_judged(txn)}
            for (partition, txn_key), txn in report.transactions.items():
                if not txn.messages and txn_key in there:
                    continue  # or a line in another partition than the transaction's names a half record that is gone
                old_id, nonce = txn_key.split("/")
                new_id = renamed.ids[old_id.encode()].decode()
                kinds = {finding.kind for finding in txn.findings}
                expected = _expected(verdict(txn), kinds)
                words = found.get((new_id, nonce), {"nothing"})
                # The model finds what was certainly late also of what retention may have taken in part, and of scheduled messages. Spark keeps
                # no place for these: its row of a key on a partition is how far the others came.
                if expected == "out_of_order" and txn_key in unplaced:
                    continue
                if expected == "out_of_order" and expected not in words and unplaced:
                    alone = judge(without(renamed.history, report, unplaced))
                    expected = _expected(verdict(alone.transactions[partition, txn_key]), kinds)
                if not txn.messages and new_id in strays and words == {"orphan"}:
                    expected = "orphan"  # one row of all that is there of the id: a certain fault goes first
                said = expected if expected in words else "+".join(sorted(words))
                judged.append(Judged(name, txn_key, expected, said, tuple(txn.history)))
            for old, new in renamed.ids.items():
                new_id = new.decode()
                wanted, found_too = ("orphan" if new_id in each else "no orphan" for each in (strays, orphans))
                life = tuple(map(str, report.findings))
                judged.append(Judged(name, old.decode(), wanted, found_too, life))
        return judged

    def _strays(self, renamed: Renamed, report: Report) -> set[str]:
        """The ids on records of real topics that belong to no transaction."""
        at = {record.place: record for record in renamed.history.records}
        found = set()
        for finding in report.findings:
            is_stray = finding.kind is Kind.PHANTOM or (
                finding.kind is Kind.LEAKED and "belongs to no transaction" in finding.detail
            )
            if is_stray:
                ids = [v for n, v in at[finding.places[0]].headers if n == "txl-id" and v]
                found |= {renamed.ids[each].decode() for each in ids if each in renamed.ids}
        return found


def _is_not_judged(txn: Transaction) -> bool:
    return any(finding.kind is Kind.NOT_JUDGED for finding in txn.findings)


def _expected(word: str, kinds: set[Kind]) -> str:
    # Two attempts that are visible break no promise by the model; Spark's table calls each a duplicate.
    if Kind.TWO_ATTEMPTS in kinds and word != "leaked":
        return "duplicate"
    return _plain(word)


def _plain(word: str) -> str:
    return "open" if word == "overdue" else word


def is_system(topic: str) -> bool:
    """Whether a topic is one of the namespace itself."""
    return topic.startswith(f"{NAMESPACE}.")


def row_of(record: Record, *, cut_ms: int, batch: int = 0) -> tuple[Any, ...]:
    """A record as a row of bronze."""
    at = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
    role = record.topic.removeprefix(f"{NAMESPACE}.")
    kind = role if is_system(record.topic) else TopicKind.FORWARDED.value
    values: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": at,
        "key": record.key,
        "value": record.value,
        "headers": list(record.headers),
        "batch": batch,
        "is_append_time": record.is_append_time,
        "key_hash": None,
        "content_hash": None,
        "folder": "",
        "kind": kind,
        "day": at.date(),
    }
    if not record.is_append_time:
        values["day"] = datetime.fromtimestamp(cut_ms / 1000, UTC).date()
    return tuple(values[field.name] for field in BRONZE)
