"""The reference model: what each transaction is and what is wrong, from the records alone.

It is slow and plain on purpose. It imports nothing of the product and was written from docs/explanation/protocol.md, so it
shares no assumption with the code that it judges. `judge(history)` is the whole interface.

Three ideas carry it:

1. Half and op decide. What must be visible follows from them; doubt only says where a transaction waits, and with what.
2. A line of op may be impossible to place (its half record is gone, for example). Then every reading that one coordinator may
   have had is tried, and the transaction is blamed only for what is wrong in all of them. Where it counts and half lacks a part of the transaction, nothing is
   certain: it is out of the window.
3. A fault must be certain. What retention or compaction may have taken is NOT_JUDGED: neither lost nor fine.

What the model decides where the page is silent:

* A line in the middle of a transaction on doubt counts before the move and not after it: idea 2. So does a line that was ahead of half,
  and one at what was the last half record on doubt until a further one joined.
* Where one reading says that a transaction is settled and doubt has it still, another one is right if it says why.
* Commit first, abandon later, nothing visible: abandoned. The records cannot tell it from a loss that was abandoned afterwards.
* What was forwarded from doubt may name every half offset from its first to its last one.
* Visible before its decision: judged by append times alone, less the difference of two brokers' clocks.
* Two attempts of one id that are both visible are told, and break nothing. A certain fault goes before what is out of the window.
* What was parked, or was incomplete, gave up its place in the order of its key, and is not held to any.
* Of what an abandon gave up, the records do not tell whether it had been forwarded: released messages may be visible then, or not.
* The parts of a transaction that follow its first one may have gone with an earlier part: they are held to no order.
* One in the order of decisions and one in the order of half have no order by their decisions: only half's is kept.
"""

import enum
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.reference.wire import (
    NUMBER_MAX,
    STATES,
    Bounds,
    HalfMessage,
    History,
    Line,
    Origin,
    Record,
    Summary,
    murmur2,
    parse_content,
    parse_half,
    parse_line,
    parse_origin,
    parse_summary,
)

# ---------------------------------------------------------------------------- what comes out


class Kind(enum.StrEnum):
    """What a finding says. The first group breaks a promise, the second only tells."""

    LOST = "lost"  # P1: committed, and neither on its real topic nor rightly on doubt
    TORN = "torn"  # P5: only some of its messages are visible
    NOT_WHOLE = "not whole on doubt"  # P1: it stands on doubt without all of its contents
    FORGOTTEN = "forgotten"  # P7: it was ended on doubt although nobody decided it
    CONTRADICTED = "contradicted by doubt"  # P4: doubt says another state than half and op
    DOUBLED = "doubled"  # P2
    LEAKED = "leaked"  # P3, P4: in the log although rolled back, undecided, incomplete or forbidden
    EARLY = "early"  # P3: in the log before its decision
    CORRUPT = "corrupt"  # P3: topic, key, value, headers or timestamp differ
    WRONG_PARTITION = "wrong partition"  # P6: not where its key or the user's wish says
    OUT_OF_ORDER = "out of order"  # P6
    PHANTOM = "phantom"  # P3: it carries our headers, and no half record is its origin

    NOT_JUDGED = "not judged"  # what would be needed is gone, or was not read
    REFUSED = "refused"  # a contrary decision came too late
    NOT_ENDED = "not ended on doubt"  # settled, and still on doubt
    TWO_ATTEMPTS = "two attempts"  # two transactions of one id are visible
    OVERDUE = "overdue"

    @property
    def is_broken_promise(self) -> bool:
        return list(Kind).index(self) <= list(Kind).index(Kind.PHANTOM)


#: Why a record is a phantom whatever it names: the headers of ours on it are not those that a coordinator writes.
BROKEN_HEADERS = "its headers of ours are broken"


@dataclass(frozen=True)
class Finding:
    kind: Kind
    txn_key: str | None  # id/nonce
    places: tuple[str, ...]  # topic-partition@offset, with :line for a line of op
    detail: str = ""
    index: int | None = None  # of the message, where it is about one


@dataclass
class Reading:
    """What half and op say, under one reading of the lines that cannot be placed for certain."""

    txn_key: str
    #: An older line may be gone, so the records do not say what was decided.
    is_unknown: bool = False
    #: The first commit, rollback or abandon that counts.
    decision: Line | None = None
    #: The first commit that is complete and allowed: from here the transaction may be visible.
    released: Line | None = None
    #: An abandon after the commit.
    abandoned: Line | None = None
    #: By index of the message, the line from which on it may be visible.
    released_by: dict[int, Line] = field(default_factory=dict)
    #: The times that are left, after the lines that were read.
    times: list[int] = field(default_factory=list)
    effects: list[tuple[Line, str]] = field(default_factory=list)
    state: str = "unknown"
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_commit(self) -> bool:
        return self.decision is not None and self.decision.resolution == "C"

    @property
    def is_broken(self) -> bool:
        return any(finding.kind.is_broken_promise for finding in self.findings)

    def find(self, kind: Kind, *places: str, detail: str = "", index: int | None = None) -> None:
        self.findings.append(Finding(kind, self.txn_key, places, detail, index))


@dataclass
class Transaction:
    """One transaction, and in the end what it is."""

    partition: int
    key: str
    #: By index, the first copy.
    messages: dict[int, HalfMessage] = field(default_factory=dict)
    #: By half offset, second copies too.
    at: dict[int, HalfMessage] = field(default_factory=dict)
    #: With each line: "counts", "maybe", or why it does not count.
    lines: list[tuple[Line, str]] = field(default_factory=list)
    #: All summaries that are known, oldest first.
    summaries: list[Summary] = field(default_factory=list)
    summaries_at_ms: list[int] = field(default_factory=list)
    #: What is on doubt now.
    doubt: Summary | None = None
    doubt_at_ms: int = 0
    contents: dict[int, HalfMessage] = field(default_factory=dict)
    #: By index, where doubt says that its half record was, ended or not.
    kept_at: dict[int, int | None] = field(default_factory=dict)
    was_on_doubt: bool = False
    may_have_been_parked: bool = False
    #: Its records on real topics, with their index.
    shown: list[tuple[Record, int]] = field(default_factory=list)
    reading: Reading = field(default_factory=lambda: Reading(""))

    @property
    def state(self) -> str:
        """open, parked; committing, waiting, held, parked-committed, committed, lost; rolled-back, abandoned; unknown."""
        return self.reading.state

    @property
    def findings(self) -> list[Finding]:
        return self.reading.findings

    @property
    def history(self) -> list[str]:
        """Its life, for a person."""
        return [
            *(f"half {self.partition}@{o}: {m.index}/{m.count}" for o, m in sorted(self.at.items())),
            *(f"op {x.place}: {x.resolution} by {x.source} {how}" for x, how in self.reading.effects),
            *(f"doubt: {summary.state} {summary.reason}".rstrip() for summary in self.summaries),
            *(f"{record.place}: message {index}, {record.kafka}" for record, index in self.shown),
        ]

    @property
    def committed_shown(self) -> list[tuple[Record, int]]:
        return [(record, index) for record, index in self.shown if record.kafka == "committed"]

    @property
    def id(self) -> str:
        return self.key.split("/")[0]

    @property
    def ends(self) -> set[int]:
        """The offsets that a line may name once it is on doubt: the first, the last, second copies."""
        firsts = [m.offset for m in self.messages.values() if m.offset is not None]
        ends = {*firsts[:1], *firsts[-1:], *(set(self.at) - set(firsts))}
        for summary in self.summaries:
            if not self.at or summary.seen:  # else the coordinator did not know them
                ends |= {summary.first_offset, summary.last_offset, *summary.copy_offsets}
        return ends

    def went_on_behind(self, offset: int) -> bool:
        """Whether this was the last one of `ends`, and a further half record joined: doubt kept it only until then."""
        firsts = [m.offset for m in self.messages.values() if m.offset is not None]
        lasting = {*firsts[:1], *(set(self.at) - set(firsts))}
        lasting.update(*({summary.first_offset, *summary.copy_offsets} for summary in self.summaries))
        own_later = offset in firsts and max(firsts) > offset
        told_later = any(summary.seen and summary.last_offset > offset for summary in self.summaries)
        return offset not in lasting and (own_later or told_later)

    @property
    def first_offset(self) -> int:
        return min(self.ends, default=0)

    @property
    def begins_at(self) -> int:
        """Its place in half. Without its first half record there, or perhaps without it, it is before all that are there."""
        is_first_gone = bool(self.at) and not self.is_first_known
        return -1 if is_first_gone else self.first_offset

    @property
    def is_cut_off(self) -> bool:
        """Whether half has its first record no more, or lacks one of those that were there."""
        return self.is_cut_off_in(self.reading)

    def is_cut_off_in(self, reading: Reading) -> bool:
        here = {message.index for message in self.at.values()}
        return 0 not in here or (reading.released is not None and len(here) < self.count)

    @property
    def is_timed(self) -> bool:
        return any("d" in message.options for message in self.messages.values())

    @property
    def may_have_no_place(self) -> bool:
        """Whether it may have given up its place in the order of its key: it was parked, or its first commit was incomplete."""
        reading = self.reading
        is_late = reading.is_commit and (self.is_timed or reading.released is not reading.decision)
        return self.may_have_been_parked or is_late

    @property
    def may_be_waited_for(self) -> bool:
        """Whether it is undecided, and half may have lost its first record: it has a place, and the check does not know which."""
        return self.reading.decision is None and not self.is_first_known and not self.may_have_been_parked

    @property
    def left_ms(self) -> list[int]:
        """When it was decided, and when it was parked for the first time."""
        times = [
            at_ms for summary, at_ms in zip(self.summaries, self.summaries_at_ms, strict=True) if summary.may_be_parked
        ]
        decision = self.reading.decision
        return times[:1] + ([decision.record.timestamp_ms] if decision else [])

    @property
    def is_first_known(self) -> bool:
        """False where half may have been shortened behind its first record."""
        is_there = any(m.index == 0 for m in self.at.values()) or bool(self.summaries)
        # A line that asks, or has a time, decides nothing, whether it counts or not.
        said = ((line, counts) for line, counts in self.lines if line.resolution != "U" and line.time_ms is None)
        return is_there and not any(counts == "maybe" and line.last_offset not in self.at for line, counts in said)

    @property
    def last_offset(self) -> int:
        return max(self.ends, default=0)

    @property
    def count(self) -> int:
        counts = [message.count for message in self.messages.values()]
        return [*counts, *(summary.count for summary in self.summaries), 0][0]

    @property
    def producer_group(self) -> str | None:
        groups = [message.producer_group for message in self.messages.values()]
        return [*groups, *(summary.producer_group for summary in self.summaries), None][0]

    @property
    def key_hash(self) -> str:
        """Empty without an ordering key."""
        hashes = [m.options.get("k", "") for m in self.messages.values()]
        return [*hashes, *(summary.key_hash for summary in self.summaries), ""][0]

    @property
    def is_prepare_order(self) -> bool:
        modes = ["o" in m.options for m in self.messages.values()]
        return bool(self.key_hash) and [*modes, *(summary.is_prepare_order for summary in self.summaries), False][0]


@dataclass
class KeyQueue:
    """What the transactions of one ordering key wait for, taken in the order of half."""

    transactions: list[Transaction] = field(default_factory=list)
    #: When the last one left the queue: it was decided or parked, and let those behind it go.
    blocked_until_ms: int = 0
    #: Who goes first and is undecided; those that were parked hold nobody.
    undecided: list[Transaction] = field(default_factory=list)
    #: Of those in the order of decisions: the line that lets a transaction go.
    goes_at: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def has_unknown(self) -> bool:
        # What doubt alone knows was there, and so was what waited for it; one that is scheduled holds back no other.
        here = [t for t in self.transactions if t.at and not (t.doubt and t.doubt.state == "scheduled")]
        return any(txn.state == "unknown" or txn.is_cut_off or txn.may_be_waited_for for txn in here)


@dataclass
class Report:
    """What `judge` returns."""

    transactions: dict[tuple[int, str], Transaction]  # by half partition and id/nonce
    findings: list[Finding]  # all, with those of the transactions

    @property
    def broken(self) -> list[Finding]:
        """What breaks a promise. Of a transaction that is out of the window nothing is certain."""
        uncertain = [f for txn in self.transactions.values() if txn.is_cut_off for f in txn.findings]
        return [f for f in self.findings if f.kind.is_broken_promise and f not in uncertain]

    def of(self, txn_key: str) -> Transaction:
        return next(txn for (_, key), txn in self.transactions.items() if key == txn_key)

    def kinds(self, txn_key: str | None) -> set[Kind]:
        return {finding.kind for finding in self.findings if finding.txn_key == txn_key}


# ---------------------------------------------------------------------------- the fold


class World:
    """Everything that was read, sorted by transaction."""

    def __init__(self, history: History) -> None:
        self.settings = history.settings
        self.bounds = history.bounds
        self.records = sorted(history.records, key=lambda r: (r.topic, r.partition, r.offset))
        names = ("half", "op", "doubt", "check", "locks")
        self.half, self.op, self.doubt, *_ = (f"{self.settings.namespace}.{name}" for name in names)
        self.system_topics = {f"{self.settings.namespace}.{name}" for name in names}
        self.transactions: dict[tuple[int, str], Transaction] = {}
        self.half_at: dict[tuple[int, int], HalfMessage] = {}  # every half record in form, by place
        self.strangers: set[tuple[int, int]] = set()  # those of them that belong to no transaction
        #: What records claim on their own real topics whose half record is gone: partition, topic, id, index, count, born.
        self.gone_claims: set[tuple[int, str, str, int, int, int]] = set()
        self.kept_aside = {r.key for r in self.readable(self.doubt) if r.key is not None and r.key.count(b"/") == 3}
        self.findings: list[Finding] = []

    def readable(self, topic: str) -> Iterator[Record]:
        """What a read_committed reader gets of a topic, in the order of the log."""
        return (r for r in self.records if r.topic == topic and self.is_readable(r))

    def is_readable(self, record: Record) -> bool:
        """Whether read_committed readers see a record now."""
        bounds = self.bounds_of(record.topic, record.partition)
        is_there = bounds.start <= record.offset < bounds.readable_end
        return record.kafka == "committed" and is_there

    def bounds_of(self, topic: str, partition: int) -> Bounds:
        return self.bounds.get((topic, partition), Bounds(0, NUMBER_MAX))

    def partitions(self, topic: str) -> list[int]:
        return sorted(partition for name, partition in self.bounds if name == topic)

    def transaction(self, partition: int, txn_key: str) -> Transaction:
        new = Transaction(partition, txn_key, may_have_been_parked=txn_key in self.settings.parked)
        return self.transactions.setdefault((partition, txn_key), new)

    def find(self, kind: Kind, txn_key: str | None, *places: str, detail: str = "") -> None:
        self.findings.append(Finding(kind, txn_key, places, detail))

    def is_young(self, at_ms: int) -> bool:
        return self.settings.now_ms is not None and at_ms >= self.settings.now_ms - self.settings.grace_ms

    def is_shortened(self, txn: Transaction) -> bool:
        return self.bounds_of(self.half, txn.partition).start > 0


def promised_counts(world: World) -> dict[tuple[int, str], int]:
    """How many messages each transaction has, as the summaries on doubt say."""
    parsed = ((r, parse_summary(r.value)) for r in world.readable(world.doubt))
    return {
        (r.partition, (r.key or b"").decode("latin-1")): summary.count
        for r, summary in parsed
        if summary is not None and summary.seen
    }


def read_half(world: World) -> None:
    promised = promised_counts(world)
    former = world.settings.former_partition_counts.get(world.half, ())
    counts = {max(1, len(world.partitions(world.half))), *former}
    for record in world.readable(world.half):
        half = parse_half(record)
        if half is None:
            continue
        place = (record.partition, record.offset)
        world.half_at[place] = half
        key_hash = half.options.get("k")
        crc = int(key_hash[:8], 16) if key_hash else zlib.crc32(half.txn_key.split("/")[0].encode())
        is_here = record.partition in {crc % count for count in counts}
        txn = world.transactions.get((record.partition, half.txn_key))
        if txn is None and half.index and world.bounds_of(world.half, record.partition).start == 0:
            world.strangers.add(place)  # nothing of it began
            continue
        is_due = txn is None or half.index == max(txn.messages) + 1
        # Where half was shortened, what is there of the first ones may be second copies: those between are gone.
        is_due |= txn is not None and half.index > min(txn.messages) and world.is_shortened(txn)
        is_known = txn is not None and half.index in txn.messages
        # Where half was shortened, doubt may know what the first half record said.
        wanted_count = txn.count if txn else promised.get((record.partition, half.txn_key))
        is_count_right = wanted_count in (None, half.count)
        is_here &= f"origin/{record.topic}/{record.partition}/{record.offset}".encode() not in world.kept_aside
        if not is_here or not is_count_right or not (is_due or is_known):
            world.strangers.add(place)
            continue
        txn = world.transaction(record.partition, half.txn_key)
        txn.at[record.offset] = half
        txn.messages.setdefault(half.index, half)


def read_doubt(world: World) -> None:
    for record in world.readable(world.doubt):
        parts = (record.key or b"").decode("latin-1").split("/")
        if len(parts) not in (2, 3):
            continue  # quarantined
        txn = world.transaction(record.partition, "/".join(parts[:2]))
        txn.was_on_doubt = True
        txn.may_have_been_parked |= world.doubt in world.settings.compacted_topics
        if len(parts) == 2:
            txn.doubt = parse_summary(record.value)
            txn.doubt_at_ms = record.timestamp_ms
            if txn.doubt is not None:
                txn.summaries.append(txn.doubt)
                txn.summaries_at_ms.append(record.timestamp_ms)
                txn.may_have_been_parked |= txn.doubt.may_be_parked
        else:
            content = parse_content(record)
            if content is None or f"{content.txn_key}/{content.index}".encode() != record.key:
                txn.contents = {i: c for i, c in txn.contents.items() if str(i) != parts[2]}
            else:
                txn.contents[content.index] = content
                txn.kept_at[content.index] = content.origin_offset
                txn.messages.setdefault(content.index, content)


def forget_ended(world: World) -> None:
    """Null values alone say only that a transaction was settled: it has no state."""
    gone = [place for place, txn in world.transactions.items() if not (txn.messages or txn.summaries or txn.lines)]
    for place in gone:
        del world.transactions[place]


def read_op(world: World) -> None:
    for record in world.readable(world.op):
        if not record.value or not record.value.isascii():
            continue
        for number, text in enumerate(record.value.split(b"\n")):
            line = parse_line(text, record, number)
            if line is None:
                continue
            counts = place_line(world, line)
            txn = world.transactions.get((record.partition, line.txn_key))
            if txn is not None:
                txn.lines.append((line, counts))


def place_line(world: World, line: Line) -> str:
    """Whether a line counts: "counts", "maybe", or why it does not."""
    partition = line.record.partition
    bounds = world.bounds_of(world.half, partition)
    origin = f"origin/{world.op}/{partition}/{line.record.offset}:{line.number}"
    if origin.encode() in world.kept_aside:
        return "it was given up"
    txn = world.transactions.get((partition, line.txn_key))
    if txn is None and line.last_offset < bounds.start:
        world.transaction(partition, line.txn_key)
        return "maybe"
    if txn is None or txn.producer_group not in (None, line.producer_group):
        return "no such transaction, or another producer group"
    half = txn.at.get(line.last_offset)
    latest_ms = line.record.timestamp_ms + world.settings.clock_error_ms
    if half is not None and half.stored_at_ms > latest_ms:
        return "maybe"  # the line was there first: it waited for its half record
    is_known = line.last_offset in txn.ends and not txn.went_on_behind(line.last_offset)
    if half is not None:
        return "counts" if is_known or not txn.was_on_doubt else "maybe"
    if line.last_offset in txn.ends:
        return "counts" if is_known else "maybe"
    is_between = txn.first_offset < line.last_offset < txn.last_offset
    if line.last_offset < bounds.start and (is_between or not txn.summaries):
        return "maybe"
    return "no half record of its transaction is there"


def read_real(world: World) -> None:
    for record in world.records:
        names = [name for name, _ in record.headers]
        if record.topic in world.system_topics or not {"txl-id", "txl-origin"} & set(names):
            continue
        if "txl-dlq" in names and record.topic.endswith(".dlq"):
            continue  # a dead letter
        bounds = world.bounds_of(record.topic, record.partition)
        if not bounds.start <= record.offset < bounds.end:
            continue
        origins = [parse_origin(value) for name, value in record.headers if name == "txl-origin"]
        ids = [value for name, value in record.headers if name == "txl-id"]
        has_others = any(name.startswith("txl") and name not in ("txl-group", "txl-id", "txl-origin") for name in names)
        if len(ids) != 1 or len(origins) != 1 or origins[0] is None or has_others:
            world.find(Kind.PHANTOM, None, record.place, detail=BROKEN_HEADERS)
        else:
            attach(world, record, (ids[0] or b"").decode("latin-1"), origins[0])


def attach(world: World, record: Record, txn_id: str, origin: Origin) -> None:
    """Find the transaction of a record on a real topic."""
    claimed = (txn_id, origin.index, origin.count, origin.born_ms)
    place = (origin.partition, origin.offset)
    half = world.half_at.get(place)
    if half is not None and half.claim == claimed:
        if place not in world.strangers:
            world.transaction(origin.partition, half.txn_key).shown.append((record, origin.index))
        else:
            detail = "its half record belongs to no transaction"
            world.find(Kind.LEAKED, half.txn_key, record.place, detail=detail)
        return
    possible = []
    for txn in world.transactions.values():
        # On doubt the half offsets between the first and the last one are forgotten.
        is_between = txn.first_offset <= origin.offset <= txn.last_offset
        is_possible = txn.was_on_doubt and txn.partition == origin.partition and is_between
        message = txn.messages.get(origin.index)
        if is_possible and message is not None and message.claim == claimed:
            possible.append(txn)
    if possible:
        # Two attempts of one id may claim the same, and doubt names the half record of one of them.
        named = [t for t in possible if origin.offset in {*t.ends, *t.kept_at.values()}]
        (named or possible)[0].shown.append((record, origin.index))
        return
    is_known = origin.partition in world.partitions(world.half)
    if is_known and origin.offset < world.bounds_of(world.half, origin.partition).start:
        world.find(Kind.NOT_JUDGED, None, record.place, detail="its half record is gone")
        world.gone_claims.add((origin.partition, record.topic, *claimed))
    else:
        world.find(Kind.PHANTOM, None, record.place, detail="no half record is its origin")


# ---------------------------------------------------------------------------- the decision


#: So many lines that may count are looked at one by one; what is behind them goes with the last of them.
MAYBE_MAX = 6


def ways_to_know(offsets: list[int], forgotten: int = -1) -> list[list[bool]]:
    """Which lines that name these offsets a coordinator may have known together: true counts. All of them come first.

    `forgotten`: once one did not count, doubt has lost every offset up to this.
    """
    if not offsets:
        return [[]]
    offset, *others = offsets
    counting = ways_to_know(others, forgotten) if offset > forgotten else []
    ignoring = ways_to_know(others, max(offset, forgotten))
    return [[True, *way] for way in counting] + [[False, *way] for way in ignoring]


def readings_of(world: World, txn: Transaction) -> list[Reading]:
    """What half and op say, once for each choice of lines that may have counted together."""
    maybe = [
        line for line, counts in txn.lines if counts == "maybe" and (line.resolution != "U" or line.time_ms is not None)
    ]
    ways = ways_to_know([line.last_offset for line in maybe[:MAYBE_MAX]])
    ignored = [{line.place for number, line in enumerate(maybe) if not way[min(number, MAYBE_MAX - 1)]} for way in ways]
    return [decide(world, txn, ignored=places) for places in ignored]


def decide(world: World, txn: Transaction, *, ignored: set[str]) -> Reading:
    """Fold the lines in the order of op, but those at these places: the first commit or rollback that counts wins."""
    reading = Reading(txn.key, is_unknown=may_lack_lines(world, txn) or not txn.messages)
    for line, counts in txn.lines:
        if counts not in ("counts", "maybe") or line.place in ignored:
            effect = f"does not count: {counts}"
        elif line.time_ms is not None:
            effect = take_time(txn, reading, line)
        elif line.resolution == "U":
            effect = "asks"
        elif reading.decision is None:
            reading.decision = line
            effect = "decides"
        elif not reading.is_commit or reading.abandoned is not None:
            effect = "is refused" if line.resolution == "C" else "repeats"
        elif line.resolution == "A":
            reading.abandoned = line
            effect = "abandons"
        else:
            effect = "is refused" if line.resolution == "R" else "repeats"
        is_commit_now = effect in ("decides", "repeats") and line.resolution == "C"
        is_ready = is_complete(world, txn, line.last_offset)
        if is_commit_now and is_ready and reading.released is None:
            reading.released = line
            reading.times = sorted({message.time_ms for message in txn.messages.values()})
            if reading.times[:1] == [0]:
                release(txn, reading, line)
            effect += " and releases"
        reading.effects.append((line, effect))
    return reading


def take_time(txn: Transaction, reading: Reading, line: Line) -> str:
    """What a line with a time does."""
    assert line.time_ms is not None
    if reading.released is None or reading.abandoned is not None or not reading.times:
        return "has no effect"
    if line.resolution == "U":
        reading.times = [line.time_ms]
        return "sets another time"
    if line.resolution != "C" or line.time_ms != reading.times[0] or line.record.timestamp_ms < line.time_ms:
        return "has no effect"
    release(txn, reading, line)
    return "releases"


def release(txn: Transaction, reading: Reading, line: Line) -> None:
    """From this line on the messages with the first time that is left may be visible; with the last time, all that are left."""
    time_ms, *reading.times = reading.times
    for index, message in txn.messages.items():
        if message.time_ms <= time_ms or not reading.times:
            reading.released_by.setdefault(index, line)


def is_complete(world: World, txn: Transaction, offset: int) -> bool:
    """Whether all half records are at or before an offset; what retention took is believed."""
    if offset < world.bounds_of(world.half, txn.partition).start:
        # Unless doubt tells of a half record behind it.
        return not any(summary.seen and summary.last_offset > offset for summary in txn.summaries)
    places = {
        index: message.origin_offset if message.offset is None else message.offset
        for index, message in txn.messages.items()
    }
    here = {index for index, place in places.items() if place is None or place <= offset}
    return len(here | gone_indexes(world, txn)) == txn.count


def gone_indexes(world: World, txn: Transaction) -> set[int]:
    """The messages of a transaction that are gone before another one of it, where half begins in the middle of it."""
    if not world.is_shortened(txn):
        return set()
    return set(range(max(txn.messages, default=0))) - set(txn.messages)


def may_lack_lines(world: World, txn: Transaction) -> bool:
    """Whether op may have been shortened behind the transaction's first half record."""
    if world.bounds_of(world.op, txn.partition).start == 0:
        return False
    stored = [m.stored_at_ms for m in txn.messages.values() if m.offset is not None]
    stored += [summary.appended_ms for summary in txn.summaries]
    lines = [r.timestamp_ms for r in world.readable(world.op) if r.partition == txn.partition]
    return not lines or not stored or min(stored) <= lines[0] + world.settings.clock_error_ms


# ---------------------------------------------------------------------------- the judgement


def judge(history: History) -> Report:
    """Say what each transaction is, and what is wrong."""
    world = World(history)
    read_half(world)
    read_doubt(world)
    read_op(world)
    forget_ended(world)
    read_real(world)
    queues: dict[tuple[int, str], KeyQueue] = {}
    for txn in sorted(world.transactions.values(), key=lambda t: (t.partition, t.begins_at)):
        queue = queues.setdefault((txn.partition, txn.key_hash or txn.key), KeyQueue())
        readings = readings_of(world, txn)
        for reading in readings:
            judge_one(world, txn, reading, queue)
        txn.reading = readings[0]
        # Of what half lacks a part of nothing is certain, so no other reading is the better one.
        is_wrong = readings[0].is_broken or is_settled_on_doubt(txn, readings[0])
        if is_wrong and not txn.is_cut_off:
            txn.reading = min(readings, key=lambda reading: doubts_about(txn, reading))
        judge_shown(world, txn, txn.reading)
        acquire_slot(txn, queue)
        queue.transactions.append(txn)
    for queue in queues.values():
        judge_order(world, queue)
    judge_attempts(world)
    of_transactions = [f for txn in world.transactions.values() for f in txn.findings]
    return Report(world.transactions, world.findings + of_transactions)


def is_settled_on_doubt(txn: Transaction, reading: Reading) -> bool:
    """Whether doubt has what this reading calls settled: what settles a transaction ends it on doubt."""
    return txn.doubt is not None and reading.state in ("committed", "rolled-back", "abandoned")


def doubts_about(txn: Transaction, reading: Reading) -> int:
    """How little a reading explains: 0 everything, 2 a broken promise."""
    if txn.is_cut_off_in(reading):
        return 1
    is_unsure = any(finding.kind is Kind.NOT_JUDGED for finding in reading.findings)
    return 2 if reading.is_broken else int(is_unsure or is_settled_on_doubt(txn, reading))


def judge_one(world: World, txn: Transaction, reading: Reading, queue: KeyQueue) -> None:
    """Fill in the state of one transaction, and its findings, under one reading of its lines."""
    for line, effect in reading.effects:
        if effect == "is refused":
            reading.find(Kind.REFUSED, line.place, detail=f"{line.resolution} by {line.source}")
    if reading.is_unknown:
        reading.find(Kind.NOT_JUDGED, detail="half records or op lines of it are gone")
    else:
        judge_visibility(world, txn, reading)
        judge_fate(world, txn, reading, queue)
    decided_at_ms = reading.decision.record.timestamp_ms if reading.decision else 0
    if txn.doubt is None:
        return
    if reading.state not in ("committed", "rolled-back", "abandoned"):
        judge_whole(txn, reading)
    elif not world.is_young(max(txn.doubt_at_ms, decided_at_ms)):
        reading.find(Kind.NOT_ENDED, detail=f"as {txn.doubt.state}")


def judge_shown(world: World, txn: Transaction, reading: Reading) -> None:
    """Find doubles, reversals and what differs from the half messages, whatever was decided."""
    last: dict[tuple[str, int, bytes | None, int], tuple[int, Record]] = {}
    seen: dict[int, Record] = {}
    for record, index in sorted(txn.committed_shown, key=lambda s: s[0].log_order):
        message = txn.messages[index]
        if index in seen:
            reading.find(Kind.DOUBLED, seen[index].place, record.place, index=index)
        differences = differences_of(record, message, clock_error_ms=world.settings.clock_error_ms)
        if differences:
            reading.find(Kind.CORRUPT, record.place, detail=", ".join(differences), index=index)
        wanted = wanted_partitions(world, message)
        if record.topic == message.topic and record.partition not in wanted:
            reading.find(Kind.WRONG_PARTITION, record.place, index=index)
        if not txn.key_hash and record.key is None:
            seen.setdefault(index, record)
            continue  # nothing orders it
        lane = (record.topic, record.partition, None if txn.key_hash else record.key, message.time_ms)
        highest, witness = last.get(lane, (-1, record))
        if index in seen or index > highest:
            last[lane] = max((highest, witness), (index, record), key=lambda pair: pair[0])
        else:
            detail = "within the transaction"
            reading.find(Kind.OUT_OF_ORDER, witness.place, record.place, detail=detail, index=index)
        seen.setdefault(index, record)


def differences_of(record: Record, message: HalfMessage, *, clock_error_ms: int) -> list[str]:
    """What of a record on a real topic is not as it was stored."""
    headers = [(n, v) for n, v in record.headers if n not in ("txl-group", "txl-id", "txl-origin")]
    wanted_ms = int(message.options.get("t", "0"))
    is_cut_time = message.stored_at_ms - clock_error_ms <= record.timestamp_ms < wanted_ms
    is_wrong_time = wanted_ms != 0 and record.timestamp_ms != wanted_ms and not is_cut_time
    if message.is_cut:  # half had it
        return []
    is_different = {
        "topic": record.topic != message.topic,
        "key": record.key != message.key,
        "value": record.value != message.value,
        "headers": headers != message.user_headers,
        "timestamp": is_wrong_time and not record.is_append_time,
    }
    return [name for name, is_wrong in is_different.items() if is_wrong]


def wanted_partitions(world: World, message: HalfMessage) -> set[int]:
    """The partitions of its real topic where a message may be."""
    if "n" in message.options:
        return {int(message.options["n"])}
    partitions = world.partitions(message.topic)
    if world.settings.is_topic_wide:
        return set(partitions)
    if message.key is not None:
        hashed = murmur2(message.key)
    elif "m" in message.options:
        hashed = int(message.options["m"])
    else:
        return set(partitions)
    counts = {len(partitions), *world.settings.former_partition_counts.get(message.topic, ())}
    return {hashed % count for count in counts if count}


def judge_visibility(world: World, txn: Transaction, reading: Reading) -> None:
    """Find what was in the log and never may have been, or before it might, aborted or not (P3)."""
    released = reading.released
    visible = {index for _, index in txn.committed_shown}
    if released is None and 0 < len(visible) < txn.count:
        reading.find(Kind.TORN, *(record.place for record, _ in txn.committed_shown))
    for record, index in txn.shown:
        if released is None:
            reading.find(Kind.LEAKED, record.place, detail=record.kafka, index=index)
        elif index not in reading.released_by:
            reading.find(Kind.EARLY, record.place, detail="its time has not come", index=index)
        elif record.is_append_time:
            line = reading.released_by[index]
            earliest_ms = line.record.timestamp_ms - world.settings.clock_error_ms
            if record.timestamp_ms < earliest_ms:
                reading.find(Kind.EARLY, record.place, line.place, index=index)


def judge_fate(world: World, txn: Transaction, reading: Reading, queue: KeyQueue) -> None:
    """Set the state on which half, op, doubt and the real topics agree, and find what contradicts."""
    doubt_state = txn.doubt.state if txn.doubt else None
    was_ended_without_half = bool(txn.summaries) and not any(summary.seen for summary in txn.summaries)
    if reading.decision is None and was_ended_without_half and doubt_state is None:
        reading.state = "rolled-back"  # by a line that doubt alone told of
    elif reading.decision is None:
        reading.state = doubt_state if doubt_state == "parked" else "open"
        if doubt_state not in (None, "open", "parked") and doubt_state in STATES:
            reading.find(Kind.CONTRADICTED, detail=f"{doubt_state}, and no decision is there")
        elif txn.was_on_doubt and doubt_state is None:
            reading.find(Kind.FORGOTTEN)
        judge_age(world, txn, reading)
    elif not reading.is_commit:
        reading.state = "abandoned" if reading.decision.resolution == "A" else "rolled-back"
    else:
        judge_committed(world, txn, reading, queue, doubt_state)


def judge_age(world: World, txn: Transaction, reading: Reading) -> None:
    """Tell of what should be settled by now."""
    now_ms, overdue_after_ms = world.settings.now_ms, world.settings.overdue_after_ms
    stored_at_ms = min(message.stored_at_ms for message in txn.messages.values())
    if now_ms is None or overdue_after_ms is None:
        return
    if stored_at_ms < now_ms - overdue_after_ms:
        reading.find(Kind.OVERDUE, detail=reading.state)


def judge_committed(world: World, txn: Transaction, reading: Reading, queue: KeyQueue, doubt_state: str | None) -> None:
    """Say where a committed transaction is: visible, rightly waiting, on its way, or lost."""
    assert reading.decision is not None
    # Counted: how many messages there are is what a writer says, who may say any number.
    shown = {i for i in txn.messages if is_shown(txn, i)}
    is_invisible = not shown
    kept = {"held", "waiting", "parked-committed"} if reading.released else {"parked-committed"}
    # An incomplete commit does not wait, and what was on doubt waits there until it is settled.
    may_wait = is_invisible and txn.is_prepare_order and reading.released is reading.decision and not txn.was_on_doubt
    last_ms = max(written_ms(txn, reading), queue.blocked_until_ms if may_wait else 0)
    if reading.abandoned and (is_invisible or reading.released is None):
        reading.state = "abandoned"
    elif txn.is_timed and reading.released and (reading.abandoned or reading.times or len(shown) < txn.count):
        judge_times(world, txn, reading, queue, shown, doubt_state)
    elif reading.released and len(shown) == txn.count:
        reading.state = "committing" if is_blocked(world, txn) else "committed"
    elif doubt_state is not None and (doubt_state in kept or doubt_state not in STATES) and is_invisible:
        reading.state = doubt_state if doubt_state in STATES else "held"  # a later release's, which may say any word
        if doubt_state == "held":
            judge_age(world, txn, reading)
    elif world.is_young(last_ms):
        reading.state = "committing"
    elif may_wait and is_waiting(world, queue):
        reading.state = "waiting"
    elif may_wait and may_wait_for_unknown(world, txn, queue):
        reading.find(Kind.NOT_JUDGED, detail="what it waits for is not known")
    else:
        judge_missing(world, txn, reading, shown)


def is_blocked(world: World, txn: Transaction) -> bool:
    """Whether a message is there only behind an open Kafka transaction, whose end is not known."""
    seen = {index for record, index in txn.shown if world.is_readable(record)}
    return any(r.kafka != "aborted" and i not in seen for r, i in txn.shown)


def judge_times(
    world: World, txn: Transaction, reading: Reading, queue: KeyQueue, shown: set[int], doubt_state: str | None
) -> None:
    """Say where a committed transaction is of which not every message is visible, and messages have times."""
    released = set(reading.released_by)
    parts: dict[tuple[int, int], set[int]] = {}
    for index, line in reading.released_by.items():
        parts.setdefault(line.position, set()).add(index)
    behind = released - shown
    hidden = {index for index in behind if may_be_hidden(world, txn, index)}
    gone = {index for index in behind if may_be_gone(world, txn, index, reading.released_by[index])} | hidden
    may_wait = not shown and txn.is_prepare_order and reading.released is reading.decision and not txn.was_on_doubt
    is_young = world.is_young(max(written_ms(txn, reading), queue.blocked_until_ms if may_wait else 0))
    in_part = [part - shown for part in parts.values() if part & shown and part - shown]
    for missing in in_part if not is_young else ():
        for index in missing if not missing & gone else ():
            reading.find(Kind.TORN, *(record.place for record, _ in txn.shown), index=index)
        for index in (missing & gone) - hidden if reading.abandoned else ():
            reading.find(Kind.NOT_JUDGED, detail="it may have been on its real topic", index=index)
    kept = {"held", "waiting", "parked-committed"} if behind else set()
    kept |= set() if behind - gone else {"scheduled"}
    if reading.abandoned:
        is_going = is_blocked(world, txn) or (
            bool(in_part) and (is_young or not hidden.isdisjoint(set().union(*in_part)))
        )
        reading.state = "committing" if is_going else "committed"
    elif doubt_state is not None and (doubt_state in kept or doubt_state not in STATES):
        reading.state = doubt_state if doubt_state in STATES else "held"
        now_ms, overdue_after_ms = world.settings.now_ms, world.settings.overdue_after_ms
        is_late = (
            now_ms is not None and overdue_after_ms is not None and reading.times[:1] < [now_ms - overdue_after_ms]
        )
        for index in gone - hidden if doubt_state == "scheduled" else ():
            reading.find(Kind.NOT_JUDGED, detail="it may have been on its real topic", index=index)
        if reading.state == "scheduled" and is_late:
            reading.find(Kind.OVERDUE, detail=reading.state)
        elif reading.state == "held":
            judge_age(world, txn, reading)
    elif is_young:
        reading.state = "committing"
    elif len(shown) == txn.count:
        reading.state = "committed"  # too early: that is found with its visible messages
    elif may_wait and is_waiting(world, queue):
        reading.state = "waiting"  # its first part waits in half for an earlier one of its key
    elif may_wait and may_wait_for_unknown(world, txn, queue):
        reading.find(Kind.NOT_JUDGED, detail="what it waits for is not known")
    else:
        judge_missing(world, txn, reading, shown)


def is_shown(txn: Transaction, index: int) -> bool:
    """Whether a message is on its own real topic, or may be when an open Kafka transaction ends."""
    topic = txn.messages[index].topic if index in txn.messages else None
    return any(i == index and r.topic == topic and r.kafka != "aborted" for r, i in txn.shown)


def judge_missing(world: World, txn: Transaction, reading: Reading, shown: set[int]) -> None:
    """Find what is lost, unless retention or compaction may have taken it."""
    reading.state = "unknown"
    decisive = reading.released or reading.decision
    assert decisive is not None
    missing = sorted({*txn.messages, *gone_indexes(world, txn)} - shown)
    gone = {index for index in missing if reading.released and may_be_gone(world, txn, index, decisive)}
    hidden = {index for index in missing if reading.released and may_be_hidden(world, txn, index)}
    if hidden and hidden.issuperset(missing) and not gone:
        reading.state = "committing"
    for index in missing:
        if index in hidden:
            continue
        if index in gone:
            detail = "it may have been on its real topic"
            reading.find(Kind.NOT_JUDGED, detail=detail, index=index)
        else:
            reading.find(Kind.LOST, decisive.place, index=index)
            reading.state = "lost"
    if reading.state == "lost" and shown:
        reading.find(Kind.TORN, *(record.place for record, _ in txn.shown))


def may_be_gone(world: World, txn: Transaction, index: int, released: Line) -> bool:
    """Whether a message may have been visible and is gone from its real topic, or was not read."""
    message = txn.messages.get(index)
    if message is None or not world.partitions(message.topic):
        return True
    if message.topic in world.settings.compacted_topics:
        return True
    if (txn.partition, message.topic, *message.claim) in world.gone_claims:
        return True  # visible under the offset of its first copy, which half has no more
    decided_at_ms = released.record.timestamp_ms - world.settings.clock_error_ms
    is_topic_wide = world.settings.is_topic_wide
    for partition in world.partitions(message.topic) if is_topic_wide else wanted_partitions(world, message):
        start = world.bounds_of(message.topic, partition).start
        here = (r for r in world.records if (r.topic, r.partition) == (message.topic, partition))
        # Retention takes the oldest. Where a record from before the decision survived it, the
        # message, which came behind that record, would have survived, too.
        survivors = (r for r in here if r.offset >= start and r.is_append_time)
        if start > 0 and not any(r.timestamp_ms < decided_at_ms for r in survivors):
            return True
    return False


def may_be_hidden(world: World, txn: Transaction, index: int) -> bool:
    """Whether a message that is not visible may be behind an open Kafka transaction, for a judge who does not see what is there."""
    topic = txn.messages[index].topic if index in txn.messages else ""
    ends = (world.bounds_of(topic, partition).stable_end for partition in world.partitions(topic))
    return world.settings.is_topic_wide and any(end is not None for end in ends)


def judge_whole(txn: Transaction, reading: Reading) -> None:
    """What is on doubt is there with every message, as it was stored."""
    assert txn.doubt is not None
    last = txn.doubt.last_offset
    stored = {
        i: message for i, message in txn.messages.items() if message.offset is not None and message.offset <= last
    }
    wrong = [
        index
        for index, message in stored.items()
        if index not in txn.contents or not is_as_stored(txn.contents[index], message, txn.doubt)
    ]
    here = {message.index for message in txn.at.values()}
    wrong += [i for i, content in txn.contents.items() if content.is_cut and i not in here]
    if wrong or len(txn.contents) < txn.doubt.seen:
        detail = f"{len(txn.contents)} contents, {txn.doubt.seen} promised, wrong: {wrong}"
        reading.find(Kind.NOT_WHOLE, detail=detail)


def is_as_stored(content: HalfMessage, message: HalfMessage, doubt: Summary) -> bool:
    """Whether a content on doubt is that of a half record. Of the first message half may have a second copy alone, whatever that holds."""
    is_copy = message.index == 0 and message.offset != doubt.first_offset
    return is_copy or content.is_cut or content.stored == message.stored


# ---------------------------------------------------------------------------- order


def written_ms(txn: Transaction, reading: Reading) -> int:
    """When the last of its records in half, op and doubt was written: what left doubt a moment ago may be on its way."""
    lines = [
        line.record.timestamp_ms for line, how in reading.effects if not how.startswith(("does not count", "asks"))
    ]
    return max([txn.doubt_at_ms, *lines, *(message.stored_at_ms for message in txn.at.values())])


def is_waiting(world: World, queue: KeyQueue) -> bool:
    """Whether a committed transaction may wait outside doubt: behind undecided ones, all in half."""
    ahead = [t for t in queue.undecided if t.state != "parked"]
    return bool(ahead) and all(t.doubt is None or world.is_young(t.doubt_at_ms) for t in ahead)


def may_wait_for_unknown(world: World, txn: Transaction, queue: KeyQueue) -> bool:
    """Whether it may wait for one of which nothing is known; not where all of it may be behind an open Kafka transaction."""
    is_hidden = all(may_be_hidden(world, txn, index) for index in txn.messages)
    has_unknown = queue.has_unknown or txn.partition in world.settings.hiding_waits
    return not txn.is_first_known or (has_unknown and not is_hidden)


def acquire_slot(txn: Transaction, queue: KeyQueue) -> None:
    """Note when a transaction may go, and what that means for those behind it in half."""
    reading = txn.reading
    if reading.is_unknown or not txn.key_hash or txn.is_cut_off:
        return
    is_in_place = txn.is_first_known and not txn.may_have_no_place
    if txn.is_prepare_order and queue.undecided and is_in_place:
        for record, index in txn.committed_shown if reading.released else []:
            detail = f"{queue.undecided[0].key} goes first and is undecided"
            reading.find(Kind.OUT_OF_ORDER, record.place, detail=detail, index=index)
    is_at_once = reading.released is not None and reading.released is reading.decision
    if is_at_once and not txn.is_prepare_order and not txn.may_have_been_parked:
        assert reading.released is not None
        if not txn.is_timed:
            queue.goes_at[txn.key] = reading.released.position
        elif reading.released_by:
            queue.goes_at[txn.key] = min(line.position for line in reading.released_by.values())
    if is_in_place and reading.decision is None:
        queue.undecided.append(txn)
    if txn.is_first_known:
        queue.blocked_until_ms = max([queue.blocked_until_ms, *txn.left_ms])


def judge_order(world: World, queue: KeyQueue) -> None:
    """Find messages of one ordering key that overtook others in a partition (P6)."""
    entries: list[tuple[tuple[str, int], float, str, Transaction, int]] = []
    for txn in (t for t in queue.transactions if not t.is_cut_off):
        firsts: dict[int, Record] = {}
        for record, index in sorted(txn.committed_shown, key=lambda s: s[0].log_order):
            firsts.setdefault(index, record)
        entries += [((r.topic, r.partition), r.offset, r.place, txn, index) for index, r in firsts.items()]
        if txn.state == "held" and not world.settings.is_topic_wide:  # it will come behind everything that is there
            lanes = {
                (message.topic, partition)
                for message in txn.messages.values()
                for partition in wanted_partitions(world, message)
            }
            entries += [(lane, math.inf, "doubt", txn, -1) for lane in lanes]
    highest: dict[tuple[str, int], tuple[tuple[int, int], str]] = {}
    furthest: dict[tuple[str, int], tuple[int, str]] = {}
    never = (NUMBER_MAX, 0)  # of those that are held, the first decided one will come first
    for lane, _, place, txn, index in sorted(
        entries, key=lambda entry: (entry[0], entry[1], queue.goes_at.get(entry[3].key, never))
    ):
        goes_at = queue.goes_at.get(txn.key)
        if goes_at is not None and is_first_part(txn, index, goes_at):
            latest, witness = highest.get(lane, (goes_at, place))
            if goes_at < latest:
                txn.reading.find(Kind.OUT_OF_ORDER, place, witness, detail="order of decisions")
            highest[lane] = max((latest, witness), (goes_at, place))
        if txn.is_first_known and not txn.may_have_no_place and not txn.reading.is_unknown and not txn.is_timed:
            # Who asked for the order of half is behind everything that is before it in half.
            first, witness = furthest.get(lane, (-1, place))
            if txn.first_offset < first:
                txn.reading.find(Kind.OUT_OF_ORDER, place, witness, detail="order of half")
            if txn.is_prepare_order and txn.first_offset > first:
                furthest[lane] = (txn.first_offset, place)


def is_first_part(txn: Transaction, index: int, goes_at: tuple[int, int]) -> bool:
    """Whether a message goes with the first line that releases messages of its transaction."""
    line = txn.reading.released_by.get(index)
    return not txn.is_timed or (line is not None and line.position == goes_at)


def judge_attempts(world: World) -> None:
    by_id: dict[str, list[Transaction]] = {}
    for txn in world.transactions.values():
        if txn.committed_shown and not txn.is_cut_off:
            by_id.setdefault(txn.id, []).append(txn)
    for attempts in by_id.values():
        for txn in attempts if len(attempts) > 1 else []:
            txn.reading.find(Kind.TWO_ATTEMPTS)


# ---------------------------------------------------------------------------- for comparisons

#: The verdicts of docs/howto/reconcile.md; a transaction gets the first that fits. Without its first half record it is out
#: of the window; but for that a fault that is certain goes before what cannot be judged.
VERDICTS: tuple[tuple[str, frozenset[Kind]], ...] = (
    ("leaked", frozenset({Kind.LEAKED, Kind.EARLY})),
    ("duplicate", frozenset({Kind.DOUBLED, Kind.TWO_ATTEMPTS})),
    ("torn", frozenset({Kind.TORN})),
    ("corrupt", frozenset({Kind.CORRUPT, Kind.WRONG_PARTITION})),
    ("out_of_order", frozenset({Kind.OUT_OF_ORDER})),
    ("lost", frozenset({Kind.LOST, Kind.NOT_WHOLE, Kind.FORGOTTEN, Kind.CONTRADICTED})),
    ("out_of_window", frozenset({Kind.NOT_JUDGED})),
)
STATE_VERDICTS = {
    "committed": "ok",
    "rolled-back": "rolled_back",
    "abandoned": "rolled_back",
    "parked": "parked",
    "parked-committed": "parked",
}


def verdict(txn: Transaction) -> str:
    """The one word that `txlayer verify` and Spark should have for a transaction."""
    if txn.is_cut_off:
        return "out_of_window"  # a half record of it is older than what was there to be read
    kinds = {finding.kind for finding in txn.findings}
    for word, wanted in VERDICTS:
        if kinds & wanted:
            return word
    word = STATE_VERDICTS.get(txn.state, "overdue" if Kind.OVERDUE in kinds else "open")
    return "conflicting" if word in ("ok", "rolled_back") and Kind.REFUSED in kinds else word
