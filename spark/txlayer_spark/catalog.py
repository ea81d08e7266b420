"""Where bronze keeps its data: which folders of records count, which reader reads which topics, and how far. Never: a column.

::

    <root>/v1/about.json                             whose records these are
    <root>/v1/reads/000000000007.json                what is known after the seventh change; the newest counts
    <root>/v1/checkpoints/<reader>/                  Spark's own
    <root>/v1/records/folder=<reader>-<first>-<last>/kind=half/day=2026-01-31/*.parquet
    <root>/v1/records/folder=<reader>-<first>-<last>-<edition>/…                          the same, written again

A folder holds the batches from `first` to `last` of one reader, and counts when it is complete (`_SUCCESS`) and no other
complete folder covers it: so a batch that is written again, or was folded into a larger folder, is never read twice. No job writes
into a folder that another one has begun, because a suspended job may go on and put its files beside those that count.

A reader of bronze reads the *cut*: the batches of each reader up to the last one that it had when all readers had read. Later
batches may hold a visible message without its half record (docs/howto/reconcile.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txlayer.errors import UsageError
from txlayer_spark.brokers import EndOffsets
from txlayer_spark.parse import BRONZE, SCHEMA_VERSION, TopicKind, Values
from txlayer_spark.sessions import java_of, our_files

WRITING = {  # options of every write of Parquet, whatever the cluster says
    # Done again, a write takes the place of all that is there; a session may say otherwise.
    "partitionOverwriteMode": "static",
    # The file by which a folder counts.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "true",
}

_PATH = re.compile(r"\{path=(.+?); isDirectory=")  # in what Hadoop writes of one file or folder


class Folder:
    """One folder, through the file system that Spark itself uses for its path.

    Raises, from what writes:
        UsageError: another job put something there meanwhile.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Nothing is created before something is written."""
        self.path = path.rstrip("/")
        jvm = java_of(spark, "keeping bronze and the ledger")
        configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - Spark gives Python no other way to its file systems
        self._new_path = jvm.org.apache.hadoop.fs.Path
        self._root = self._new_path(self.path)
        self._files = self._root.getFileSystem(configuration)
        self._read_all = jvm.org.apache.commons.io.IOUtils.toString
        self._to_list = jvm.org.apache.hadoop.util.functional.RemoteIterators.toList

    @property
    def absolute_path(self) -> str:
        return str(self._files.makeQualified(self._root).toString())

    def at(self, *names: str) -> str:
        return "/".join((self.path, *names))

    def names(self, *below: str) -> list[str]:
        """What a folder in it holds, sorted; nothing when it is not there."""
        where = self._new_path(self.at(*below))
        if not self._files.exists(where):
            return []
        return sorted(path.rpartition("/")[2] for path in self._paths(self._files.listStatusIterator(where)))

    def files(self, *below: str) -> list[str]:
        """All files in a folder in it, also in folders there, by their paths from that folder."""
        where = self._files.makeQualified(self._new_path(self.at(*below)))
        start = len(str(where.toString())) + 1
        return sorted(path[start:] for path in self._paths(self._files.listFiles(where, True)))

    def _paths(self, found: Any) -> list[str]:
        # As one text: Java is not called for each of thousands.
        listed = self._to_list(found)
        paths = _PATH.findall(str(listed.toString()))
        if len(paths) != len(listed):
            paths = [str(status.getPath().toString()) for status in listed]
        return paths

    def size(self, *below: str) -> int:
        return int(self._files.getContentSummary(self._new_path(self.at(*below))).getLength())

    def has(self, *names: str) -> bool:
        return bool(self._files.exists(self._new_path(self.at(*names))))

    def make(self, *names: str) -> None:
        """Make an empty folder in it."""
        self._files.mkdirs(self._new_path(self.at(*names)))

    def remove(self, *names: str) -> None:
        """End a file, or a folder with all in it; nothing when it is not there."""
        self._files.delete(self._new_path(self.at(*names)), True)

    def rename(self, names: Sequence[str], to: Sequence[str]) -> None:
        """Put a file or folder in it where nothing is, or only files of it that a killed rename put there.

        An object store has no rename of a folder: Hadoop copies its files and deletes them, some at a time.
        """
        if not self.has(*to):
            self.make(*to[:-1])
            if not self._rename(names, to):
                raise UsageError(f"{self.at(*names)} was moved by another job meanwhile: run one at a time")
            return
        for file in self.files(*names) if self.has(*names) else []:
            parts = file.split("/")
            # One that is there is whole: a store shows a copy when it has ended.
            if not self.has(*to, *parts):
                self.rename((*names, *parts), (*to, *parts))
        self.remove(*names)

    def _rename(self, names: Sequence[str], to: Sequence[str]) -> bool:
        return bool(self._files.rename(self._new_path(self.at(*names)), self._new_path(self.at(*to))))

    def read_json(self, *names: str) -> Any:
        return json.loads(self.read_text(*names))

    def read_text(self, *names: str) -> str:
        stream = self._files.open(self._new_path(self.at(*names)))
        try:
            return str(self._read_all(stream, "UTF-8"))
        finally:
            stream.close()

    def write_json(self, value: Any, *names: str) -> None:
        """Put a new small file in place in one step: a killed writer leaves none of that name."""
        *folders, name = names
        draft = self._new_path(self.at(*folders, f"_{name}"))
        stream = self._files.create(draft, True)
        try:
            stream.write(json.dumps(value, sort_keys=True).encode())
        finally:
            stream.close()
        # Never over another one: most file systems could only end that first, and be killed in between.
        if self.has(*names) or not self._rename((*folders, f"_{name}"), names):
            raise UsageError(f"{self.at(*names)} was written by another job meanwhile: run one at a time")

    def notes(self, kind: str) -> list[str]:
        """The names of its notes of a kind, the newest last."""
        return [name for name in self.names(kind) if name.endswith(".json") and name[0] != "_"]

    def note(self, value: Mapping[str, Any], kind: str, *, kept: int) -> None:
        """Put a note in place, as `write_json` does, under the `number` in it; so many of the newest of its kind are kept."""
        self.write_json(value, kind, f"{value['number']:012d}.json")
        for name in self.notes(kind)[:-kept]:
            self.remove(kind, name)


def known(note: type[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Those fields of a note that this release knows. A later one may write more: what it cannot leave out has a folder of another version."""
    names = {each.name for each in fields(note)}
    return {name: value for name, value in found.items() if name in names}


class Turn:
    """Which run of a job may write a folder: the one that began last. An earlier one ends before its next write."""

    def __init__(self, folder: Folder, job: str) -> None:
        """No run has begun; `job` is what errors call it."""
        self._folder, self._job, self._mine = folder, job, ""

    def begin(self, *, above: int = 0) -> int:
        """Take the turn; its number, which no other has; UsageError: another run began in this moment."""
        before = self._folder.notes("begun")
        number = 1 + max([above, *(int(name.partition(".")[0]) for name in before)])
        self._mine = f"{number:012d}.json"
        self._folder.write_json({}, "begun", self._mine)
        for name in before:
            self._folder.remove("begun", name)
        return number

    def go_on(self) -> None:
        """Does nothing unless another run began.

        Raises:
            UsageError: one did. What this run wrote does not count, or the other run writes it again.
        """
        if any(name > self._mine for name in self._folder.notes("begun")):
            raise UsageError(
                f"another run of {self._job} in {self._folder.path} began meanwhile: run one at a time. This one does not count"
            )


READS_KEPT = 20
_RECORDS, _READS, _CHECKPOINTS, _ABOUT = "records", "reads", "checkpoints", "about.json"
COMPLETE = "_SUCCESS"
_KIND, _DAY = "kind=", "day="


class BatchFolder(NamedTuple):
    """A folder of records: the batches `first` to `last` of one reader."""

    reader: int
    first: int
    last: int
    edition: int = 0  # how often it was written before: by a killed run, or with data that were erased since

    @property
    def name(self) -> str:
        """Its value of the column `folder`."""
        edition = f"-{self.edition}" if self.edition else ""
        return f"{self.reader:03d}-{self.first:010d}-{self.last:010d}{edition}"

    def covers(self, other: BatchFolder) -> bool:
        """Whether all of the other's batches are in this one too, in a later edition if they are the same ones."""
        is_within = self.reader == other.reader and self.first <= other.first and other.last <= self.last
        return is_within and (self[:3] != other[:3] or self.edition > other.edition)


def parse_folder(name: str) -> BatchFolder | None:
    """The folder of that name; None for any other thing that lies there."""
    word, _, numbers = name.partition("=")
    parts = numbers.split("-")
    if word != "folder" or len(parts) not in (3, 4) or not all(map(str.isdigit, parts)):
        return None
    return BatchFolder(*map(int, parts))


def effective(complete: Sequence[BatchFolder]) -> list[BatchFolder]:
    """Those that no other one covers: each batch once."""
    return sorted(f for f in complete if not any(other.covers(f) for other in complete))


FOLDERS_MIN = 20  # fewer are left as they are: a folder of each run costs a reader nothing
SMALL_BYTES = 16 * 1024 * 1024  # a folder of this size costs nothing to write anew

_Place = TypeVar("_Place")


def worth_folding(sizes: Mapping[_Place, int]) -> list[_Place]:
    """Folders, in their order, without the first ones as long as one is larger than all later ones together."""
    found, size = list(sizes), sum(sizes.values())
    while found and sizes[found[0]] > max(SMALL_BYTES, size - sizes[found[0]]):
        size -= sizes[found.pop(0)]
    return found


class Gap(NamedTuple):
    """Offsets `start` <= offset < `end` of a partition that were gone before they could be read."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def name(self) -> str:
        """One for all that is known of it."""
        return f"{self.topic}:{self.partition}:{self.start}"


@dataclass(frozen=True, slots=True)
class Reader:
    """One stream: its topics, and how far it had come when all readers had read."""

    number: int
    topics: tuple[str, ...]
    at_ms: int | None = None  # when its ends were taken
    end_offsets: EndOffsets = field(default_factory=dict)  # where it had come to; one that follows another begins there
    last_batch: int | None = None  # its last batch of the cut, -1 without any; None: it has not read since it was added
    is_system: bool = False
    follows: int | None = None
    """The reader that it replaced: what that one had read up to `end_offsets` counts, and it reads no more."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # {topic: Kafka's id of it when it was read}
    absent: EndOffsets = field(default_factory=dict)
    """Where it had come to in topics that it no longer sees: if one comes back with the same id, it goes on there."""


@dataclass(frozen=True, slots=True)
class ReadState:
    """What bronze holds and knows."""

    number: int = 0
    readers: tuple[Reader, ...] = ()
    topics: tuple[str, ...] = ()
    """Real topics that half records name, in the order in which they were met; only ever longer."""
    groups: tuple[str, ...] = ()  # producer groups, likewise
    gone: tuple[str, ...] = ()  # real topics that were deleted: what was visible there and not read is not known
    gaps: tuple[Gap, ...] = ()  # what retention had taken before it was read, at a log's start or later
    noted_ms: Mapping[str, int] = field(default_factory=dict)
    """{name of a gap: when it was there at the latest}: what was written later is behind it."""
    compacted: tuple[str, ...] = ()  # real topics of which compaction takes records
    hidden: tuple[str, ...] = ()
    """Real topics whose end cannot be read, because a Kafka transaction has been open for long."""
    doubt_lag_ms: int | None = None
    """How long doubt keeps every state that a transaction passed, before compaction takes some; None: for ever."""
    doubt_ends_ms: int = 0  # how long after that it still shows that the transaction was there

    def with_readers(self, *changed: Reader) -> ReadState:
        numbers = {r.number for r in changed}
        others = [r for r in self.readers if r.number not in numbers]
        return replace(self, readers=tuple(sorted((*others, *changed), key=lambda r: r.number)))

    def next_number(self) -> int:
        return max((r.number for r in self.readers), default=-1) + 1

    def line_of(self, reader: Reader) -> list[Reader]:
        """The reader, and those whose place it took, the newest first."""
        by_number, found = {r.number: r for r in self.readers}, [reader]
        while (before := found[-1].follows) is not None:
            found.append(by_number[before])
        return found

    def incarnations(self) -> dict[str, dict[int, int]]:
        """{real topic that was made anew: {number of a reader: how often it had been when that one read it}}."""
        found: dict[str, dict[int, int]] = {}
        for reader in self.active:
            times: dict[str, int] = {}
            line = self.line_of(reader)[::-1]
            for before, now in pairwise(line):
                for topic, known in before.topic_ids.items():
                    times[topic] = times.get(topic, 0) + (now.topic_ids.get(topic, known) != known)
                for topic in times.keys() & now.topic_ids.keys():
                    if times[topic] and not reader.is_system:
                        found.setdefault(topic, {})[now.number] = times[topic]
        return found

    def earlier_topics(self, reader: Reader) -> list[str]:
        """The real topics that others read before this one began."""
        first = self.line_of(reader)[-1].number
        others = (r for r in self.active if not r.is_system and self.line_of(r)[-1].number < first)
        return sorted(t for r in others for t in r.topics)

    @property
    def active(self) -> tuple[Reader, ...]:
        """The active readers, real topics first: so half and op of every visible message are read after it."""
        followed = {r.follows for r in self.readers}
        found = (r for r in self.readers if r.number not in followed)
        return tuple(sorted(found, key=lambda r: (r.is_system, -r.number)))

    @property
    def system(self) -> Reader | None:
        """The reader of half, op, doubt, check and locks."""
        return next((r for r in self.active if r.is_system), None)

    @property
    def real_topics(self) -> frozenset[str]:
        return frozenset(t for r in self.active if not r.is_system for t in r.topics)

    @property
    def judged_topics(self) -> frozenset[str]:
        """Of these, the ones that were there, and were read as a whole up to the cut."""
        read = (r for r in self.active if not r.is_system and r.last_batch is not None)
        return frozenset(t for r in read for t in r.topics if t in r.end_offsets) - set(self.gone)

    @property
    def cut_ms(self) -> int | None:
        """Every record older than this is in the cut; None before all readers have read once."""
        if self.system is None or self.system.last_batch is None:
            return None
        times = [r.at_ms for r in self.active if r.last_batch is not None]
        return min(t for t in times if t is not None)

    def first_day(self, *, keep_ms: int) -> str:
        """The first day (2026-01-31) of which something is at most `keep_ms` before the cut; "" before there is one."""
        if self.cut_ms is None:
            return ""
        return datetime.fromtimestamp((self.cut_ms - keep_ms) / 1000, UTC).date().isoformat()


def _last_batches(state: ReadState) -> dict[int, int]:
    return {r.number: r.last_batch for r in state.readers if r.last_batch is not None}


def _is_noted(folder: BatchFolder, last: Mapping[int, int]) -> bool:
    """Whether a folder is known to be complete: one batch as it was read, that the cut holds. There may be thousands of these."""
    return folder.first == folder.last <= last.get(folder.reader, -1) and not folder.edition


class Catalog:
    """Bronze under one root, of one namespace."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self.folder = Folder(spark, f"{root.rstrip('/')}/v{SCHEMA_VERSION}")

    def claim(self, namespace: str, values: Values = Values.FULL) -> None:
        """Make this the bronze of a namespace, with those values.

        Raises:
            UsageError: it is another one's, or it holds the other values. Nothing was changed.
        """
        if not self.folder.has(_ABOUT):
            self.folder.write_json({"namespace": namespace, "id": uuid4().hex, "values": values.value}, _ABOUT)
        self.check(namespace)
        if self.values is not values:
            raise UsageError(
                f"{self.folder.path} was begun with --values {self.values.value}: say so again, or name another folder"
            )

    @property
    def bronze_id(self) -> str:
        """A new id for each bronze that is begun; "" for one of an earlier release."""
        return str(self._about().get("id", ""))

    @property
    def values(self) -> Values:
        """What it keeps of what users sent."""
        return Values(self._about().get("values", Values.FULL.value))

    def _about(self) -> dict[str, Any]:
        return dict(self.folder.read_json(_ABOUT)) if self.folder.has(_ABOUT) else {}

    def check(self, namespace: str) -> None:
        """Raise if this is the bronze of another namespace; UsageError: it is. Nothing was changed."""
        owner = self._about().get("namespace", namespace)
        if owner != namespace:
            raise UsageError(
                f"{self.folder.path} holds the records of namespace {owner!r}, not of {namespace!r}: "
                "name another folder, or the other namespace"
            )

    def state(self) -> ReadState:
        """What is known; that of an empty bronze when nothing was read."""
        names = self.folder.notes(_READS)
        if not names:
            return ReadState()
        found: dict[str, Any] = self.folder.read_json(_READS, names[-1])
        readers = tuple(
            # Of an earlier release the first reader is the system's, and no last batch is known.
            Reader(**{"is_system": not r["number"], **known(Reader, r), "topics": tuple(r["topics"])})
            for r in found["readers"]
        )
        several = {name: tuple(found.get(name, ())) for name in ("topics", "groups", "gone", "compacted", "hidden")}
        gaps = tuple(Gap(*gap[: len(Gap._fields)]) for gap in found.get("gaps", ()))
        return ReadState(**{**known(ReadState, found), **several, "readers": readers, "gaps": gaps})

    def store(self, state: ReadState) -> ReadState:
        """Put a newer state in place; what it was given back with its number."""
        numbered = replace(state, number=state.number + 1)
        self.folder.note(asdict(numbered), _READS, kept=READS_KEPT)
        return numbered

    def checkpoint(self, reader: int) -> str:
        return self.folder.at(_CHECKPOINTS, f"{reader:03d}")

    def is_checkpoint_there(self, reader: Reader) -> bool:
        """Whether Spark's checkpoint has come to the last batch of the cut: one that was deleted, or put back from a copy, has not."""
        if reader.last_batch is None or reader.last_batch < 0:
            return True
        # Spark keeps some of the last ones, and a run that was killed may have come far.
        batches = self.folder.names(_CHECKPOINTS, f"{reader.number:03d}", "offsets")
        return any(name.isdigit() and int(name) >= reader.last_batch for name in batches)

    def path_of(self, folder: BatchFolder) -> str:
        return self.folder.at(_RECORDS, f"folder={folder.name}")

    def begin(self, folder: BatchFolder) -> BatchFolder:
        """Make a folder for these batches, of an edition that no job has begun."""
        while self.folder.has(_RECORDS, f"folder={folder.name}"):
            folder = folder._replace(edition=folder.edition + 1)
        self.folder.make(_RECORDS, f"folder={folder.name}")
        return folder

    def remove(self, folder: BatchFolder) -> None:
        self.folder.remove(_RECORDS, f"folder={folder.name}")

    def end_days(self, folders: Sequence[BatchFolder], *, before: str) -> int:
        """End the records of days before that one (2026-01-31) in those folders; how many days of a kind."""
        old = [
            (name, kind, day)
            for name in (f"folder={folder.name}" for folder in folders)
            for kind in self.folder.names(_RECORDS, name)
            if kind.startswith(_KIND)
            for day in self.folder.names(_RECORDS, name, kind)
            if day.startswith(_DAY) and day.removeprefix(_DAY) < before
        ]
        # Half records first: without them a transaction keeps its verdict; with them, it would be judged by its remaining records.
        for place in sorted(old, key=lambda place: place[1] != f"{_KIND}{TopicKind.HALF.value}"):
            self.folder.remove(_RECORDS, *place)
        return len(old)

    def folders(self) -> list[BatchFolder]:
        """All that were begun."""
        return [f for f in map(parse_folder, self.folder.names(_RECORDS)) if f]

    def complete(self) -> list[BatchFolder]:
        """All that were written to their end, also covered ones."""
        last = _last_batches(self.state())
        return [f for f in self.folders() if _is_noted(f, last) or self._is_complete(f)]

    def _is_complete(self, folder: BatchFolder) -> bool:
        return self.folder.has(_RECORDS, f"folder={folder.name}", COMPLETE)

    def remove_incomplete(self) -> None:
        for folder in self.folders():
            if not self._is_complete(folder):
                self.remove(folder)

    def cut(self, state: ReadState) -> list[BatchFolder]:
        """The folders that count: each batch once, and none behind the cut."""
        last = _last_batches(state)
        return effective([f for f in self.complete() if f.last <= last.get(f.reader, -1)])

    def up_to_cut(self, state: ReadState) -> list[BatchFolder]:
        """These, and what they cover."""
        last = _last_batches(state)
        return [f for f in self.folders() if f.last <= last.get(f.reader, -1)]

    def size_of(self, folder: BatchFolder) -> int:
        return self.folder.size(_RECORDS, f"folder={folder.name}")

    def last_batch(self, reader: int) -> int:
        """The last batch that a reader has written to its end; -1 without any."""
        return max((f.last for f in self.complete() if f.reader == reader), default=-1)

    def first_offsets(self, reader: Reader, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """{(topic, partition): the first of its offsets} that a reader has written behind the cut, of those topics."""
        if not topics:
            return {}
        last = -1 if reader.last_batch is None else reader.last_batch
        folders = [f for f in effective(self.complete()) if f.reader == reader.number and f.last > last]
        if not folders:
            return {}
        rows = self.records(folders).where(F.col("topic").isin(*topics)).groupBy("topic", "partition")
        return {(row.topic, row.partition): row.first for row in rows.agg(F.min("offset").alias("first")).collect()}

    def kinds(self, folders: Sequence[BatchFolder]) -> frozenset[TopicKind]:
        names = (n for f in folders for n in self.folder.names(_RECORDS, f"folder={f.name}"))
        return frozenset(TopicKind(name.removeprefix(_KIND)) for name in names if name.startswith(_KIND))

    def records(
        self,
        folders: Sequence[BatchFolder],
        *,
        kinds: Sequence[TopicKind] = (),
        behind: Mapping[str, int] | None = None,
    ) -> DataFrame:
        """The records of those folders, of some kinds or of all; one row per record, the columns of `BRONZE`.

        `behind`: {reader: the batch up to which its records are left out}.
        """
        paths = [self.path_of(folder) for folder in folders]
        if not paths:
            nothing = (F.lit(None).cast(f.dataType).alias(f.name) for f in BRONZE)
            return self._spark.range(0).select(*nothing)
        read = our_files(self._spark).schema(BRONZE).option("basePath", self.folder.at(_RECORDS)).parquet(*paths)
        if kinds:
            read = read.where(F.col("kind").isin(*(kind.value for kind in kinds)))
        # A folded folder may hold batches of both kinds.
        for reader, batch in (behind or {}).items():
            if any(f.reader == int(reader) and f.first <= batch for f in folders):
                others = ~F.col("folder").startswith(f"{int(reader):03d}-")
                read = read.where(others | (F.col("batch") > batch))
        return read
