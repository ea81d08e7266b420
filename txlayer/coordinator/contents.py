"""Fetches content that was dropped from memory, in sweeps over half and doubt."""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import TopicPartition
from txlayer.adapters.readers import RUN_GAP_MAX, Range, RangeReader, runs_of
from txlayer.config import CoordinatorConfig
from txlayer.core import codec
from txlayer.core.ledger.batch import Batch
from txlayer.core.ledger.ledger import Ledger
from txlayer.core.ledger.transaction import Content, HalfRecordFit, Transaction, contents_of, goes_now
from txlayer.core.messages import HalfHeader, Headers, ParkReason, Undecodable
from txlayer.errors import InvariantError, RefusedRecordError

PartitionAndKey = tuple[int, str]  # (partition, "id/nonce"): the same key in two partitions means two transactions

Needed = tuple[int, Transaction, int]  # (partition, transaction, number of its contents)


BEYOND_LIMIT = Undecodable("its transaction has more than transaction_bytes_max", ParkReason.LIMIT)


class DoubtRecord:
    """A half record, decoded from its content on the doubt topic."""

    __slots__ = ("_headers", "_key", "_value")

    def __init__(self, value: bytes | None, headers: Headers | None) -> None:
        self._key, self._value, self._headers = codec.decode_content(value=value, headers=headers)

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers

    def __len__(self) -> int:
        """Bytes of the value."""
        return len(self._value or b"")


def is_cut(record: Any) -> bool:
    """True for content that doubt did not take whole: half has the rest."""
    return isinstance(record, DoubtRecord) and codec.is_cut(record.headers())


REST_S = 2.0  # after so long without a fetch the client is closed: it asks the broker for more all the time


class Contents:
    """Fetches the contents that a coordinator's batches need. Its client stays for the next batch, which mostly reads on. One thread uses it."""

    def __init__(
        self,
        config: CoordinatorConfig,
        connections: CoordinatorConnections,
        *,
        clock: Callable[[], float] = time.monotonic,
        read_ahead: Callable[[int, str], list[Content] | None] = lambda _partition, _key: None,
    ) -> None:
        """`read_ahead` returns all contents of a transaction if they were read ahead, by partition and key."""
        self._config, self._connections, self._clock = config, connections, clock
        self._read_ahead = read_ahead
        self._reader: RangeReader | None = None
        self._used_at = 0.0

    def fill(self, batches: list[tuple[int, Batch]], ledgers: Mapping[int, Ledger]) -> None:
        """Fetch the contents that the batches need and that are not in memory, and what their questions carry.

        Raises:
            InvariantError: a content is not where it must be.
            BrokerUnavailableError: no broker answered; nothing was changed.
        """
        # Once each, also one that moves to doubt in the batch that forwards a part of it.
        absent: dict[PartitionAndKey, Needed] = {}
        asked = [(p, batch, txn) for p, batch in batches for txn in _asked_with_details(batch)]
        for p, batch in batches:
            for txn in (keep.txn for keep in batch.to_doubt.values() if keep.txn.joined):
                if txn.extras is not None and ledgers[p].is_beyond_limit(txn):
                    txn.extras.joined = [cut_whole(content, partition=p, count=txn.count) for content in txn.joined]
            needed = [*batch.forwards, *(k.txn for k in batch.to_doubt.values() if k.is_whole)]
            absent |= {(p, t.key): (p, t, t.seen - len(t.joined)) for t in needed if t.content is None or t.joined}
        # One whose messages go in this batch is asked for whole: it was committed behind its question.
        for_questions = [(p, t, 1) for p, _, t in asked if t.content is None and (p, t.key) not in absent]
        found = self._found_ahead(absent, ledgers)
        wanted = [needed for which, needed in absent.items() if which not in found]
        if wanted or for_questions:
            found |= self._fetch(batches, ledgers, wanted, for_questions)
        for p, txn, _ in absent.values():
            ledgers[p].filled(txn, [*found[p, txn.key], *txn.joined])
        for p, batch, txn in asked:
            contents = contents_of(txn) or found[p, txn.key]
            batch.details[txn.key] = codec.encode_details(contents[0].record)

    def _found_ahead(
        self, absent: Mapping[PartitionAndKey, Needed], ledgers: Mapping[int, Ledger]
    ) -> dict[PartitionAndKey, list[Content]]:
        found: dict[PartitionAndKey, list[Content]] = {}
        for which, (p, txn, _) in absent.items():
            contents = self._read_ahead(*which)
            if contents is not None and not ledgers[p].is_beyond_limit(txn):
                found[which] = contents
        return found

    def rest(self) -> None:
        """Close the client if there was nothing to fetch for a while."""
        if self._clock() - self._used_at >= REST_S:
            self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _fetch(
        self,
        batches: list[tuple[int, Batch]],
        ledgers: Mapping[int, Ledger],
        wanted: list[Needed],
        for_questions: list[Needed],
    ) -> dict[PartitionAndKey, list[Content]]:
        config = self._config
        if self._reader is None:
            client = self._connections.make_reader("read_committed", is_sparing=True)
            patience_s = config.kafka_transaction_timeout.total_seconds()
            self._reader = RangeReader(client, patience_s=patience_s, clock=self._clock)
        found = fetch_contents(
            self._reader,
            [*wanted, *for_questions],
            half_topic=config.topics.half,
            doubt_topic=config.topics.doubt,
            # What is only rewritten on doubt, or is due at another time, stays as it is there: half may no longer have the rest of it.
            forwarded={(p, txn.key) for p, batch in batches for txn in batch.forwards},
            to_cut={(p, txn.key) for p, txn, _ in wanted if ledgers[p].is_beyond_limit(txn)},
        )
        self._used_at = self._clock()
        return found


def _asked_with_details(batch: Batch) -> list[Transaction]:
    found = (batch.to_doubt[key].txn for key in batch.checks if key in batch.to_doubt)
    return [txn for txn in found if txn.options.check_with]


def fetch_contents(
    reader: RangeReader,
    wanted: Iterable[Needed],
    *,
    half_topic: str,
    doubt_topic: str,
    forwarded: Collection[PartitionAndKey] | None = None,
    to_cut: Collection[PartitionAndKey] = (),
    are_all_needed: bool = True,
) -> dict[PartitionAndKey, list[Content]]:
    """The contents of transactions whose content is not in memory, all of them whole.

    Without `are_all_needed`, contents that are not where they are looked for first are left out.

    With `forwarded`, only what a batch forwards of these transactions is whole; the other contents are as doubt has them. For those in
    `to_cut`, only the origins of their half records: all contents together would not fit into memory. Contents that only doubt has are
    returned whole.

    `wanted` contains (partition, transaction, number of its contents to fetch). A transaction consists of the records that
    joined it when half was folded: see `Transaction.fit_of`.

    One sweep in offset order: a seek per record would cost 1.2 ms each.

    Raises:
        InvariantError: a content is not where it must be.
        RefusedRecordError: doubt has only the origin of a content, and half no longer has the record. It names the transaction.
        BrokerUnavailableError: no broker answered.
    """
    wanted = list(wanted)
    txns = {(partition, txn.key): txn for partition, txn, _ in wanted}
    missing = {(partition, txn.key): count for partition, txn, count in wanted}
    found: dict[PartitionAndKey, dict[int, Content]] = {which: {} for which in missing}
    all_spans: dict[TopicPartition, list[tuple[int, int]]] = {}
    # On doubt: (the index behind the last content there, the offset up to which it is looked for).
    ends: dict[PartitionAndKey, list[tuple[int, int]]] = {}
    on_doubt: dict[tuple[int, bytes], str] = {}  # by the key of each content
    for partition, txn, count in wanted:
        topic, spans = (doubt_topic if txn.is_in_doubt else half_topic), _spans_of(txn, count)
        all_spans.setdefault((topic, partition), []).extend(span for _, span in spans)
        if txn.is_in_doubt:
            ends[partition, txn.key] = [(until, end) for until, (_, end) in spans]
            on_doubt.update({(partition, codec.content_key(txn.key, index)): txn.key for index in range(count)})
    half_starts = {p: reader.watermarks((half_topic, p))[0] for p in {p for p, _ in to_cut}}

    def take(record: Any) -> None:
        is_doubt = record.topic() == doubt_topic
        if is_doubt and (record.partition(), record.key()) not in on_doubt:
            return
        half = _half_on_doubt(record) if is_doubt else _half_of(record, record.offset())
        if half is None:
            return
        header, offset, held = half
        which = (record.partition(), header.key)
        txn = txns.get(which)
        if (
            txn is not None
            and txn.is_in_doubt is is_doubt
            and (not is_doubt or record.offset() >= txn.ensure_extras().doubt_offset)
            and txn.fit_of(header, offset) is HalfRecordFit.OWN
        ):
            born = str(header.born_ms)
            content = Content(header.index, header.topic, offset, header.options, born, held)
            if which in to_cut and offset >= half_starts[which[0]] and not is_cut(held):
                content = cut_whole(content, partition=which[0], count=header.count)
            found[which][header.index] = content

    def short() -> list[tuple[TopicPartition, int]]:
        incomplete = [which for which in ends if are_all_needed and len(found[which]) < missing[which]]
        return [((doubt_topic, which[0]), _end_of_first_missing(found[which], ends[which])) for which in incomplete]

    for record in _sweep(reader, all_spans, short):
        take(record)
    for (partition, key), count in missing.items():
        if are_all_needed and len(found[partition, key]) < count:
            raise InvariantError(f"{len(found[partition, key])} of {count} contents of {key} are where they must be")
    for which, contents in found.items():
        offsets = {content.offset for content in contents.values() if is_cut(content.record)}
        if forwarded is not None and which in forwarded:
            offsets &= {content.offset for content in contents.values() if goes_now(txns[which], content)}
        if forwarded is None or which in forwarded:
            _make_whole(reader, half_topic, which, contents, offsets)
    return {which: [contents[i] for i in sorted(contents)] for which, contents in found.items()}


def _make_whole(
    reader: RangeReader, half_topic: str, which: PartitionAndKey, contents: dict[int, Content], offsets: Collection[int]
) -> None:
    """Read those at these offsets, which doubt did not take whole, from half."""
    if not offsets:
        return
    half = (half_topic, which[0])
    whole: dict[int, Any] = {}
    start = reader.watermarks(half)[0]
    for run in runs_of((offset, offset + 1) for offset in offsets if offset >= start):
        whole |= {record.offset(): record for record in reader.read({half: run}) if record.offset() in offsets}
    for index, content in contents.items():
        if content.offset in offsets and content.offset not in whole:
            raise RefusedRecordError(
                f"half does not hold record {content.offset} any more, and doubt refused it",
                topic=half_topic,
                txn_key=which[1],
            )
        if content.offset in offsets:
            contents[index] = content._replace(record=whole[content.offset])


def _end_of_first_missing(found: Collection[int], ends: list[tuple[int, int]]) -> int:
    first = next(index for index in itertools.count() if index not in found)
    return next(end for until, end in ends if first < until)


def _spans_of(txn: Transaction, count: int) -> list[tuple[int, Range]]:
    """Where to look for so many contents, in the order of their indexes: (the index behind the last one there, offsets)."""
    if not txn.is_in_doubt:
        return [(count, (txn.first_offset, txn.last_offset + 1))]
    extras = txn.ensure_extras()
    runs = itertools.pairwise([(0, extras.doubt_offset), *extras.further_at, (count, 0)])
    return [(end, (at, at + min(end, count) - first)) for (first, at), (end, _) in runs if first < count]


def _sweep(
    reader: RangeReader,
    spans: Mapping[TopicPartition, list[Range]],
    short: Callable[[], list[tuple[TopicPartition, int]]],
) -> Iterator[Any]:
    """The records of these spans; then on until every content on doubt is found, or the topic ends. `short`: behind which offsets some are missing.

    Transaction markers that were written between the batches of their Kafka transaction took offsets.
    """
    rounds = {tp: runs_of(of_partition) for tp, of_partition in spans.items()}
    while any(rounds.values()):
        yield from reader.read({tp: runs.pop(0) for tp, runs in rounds.items() if runs})
    read_to: dict[TopicPartition, int] = {}
    while True:
        ranges: dict[TopicPartition, Range] = {}
        missing = short()
        for tp in {tp for tp, _ in missing}:
            start = max(read_to.get(tp, 0), min(end for other, end in missing if other == tp))
            read_to[tp] = min(start + RUN_GAP_MAX, reader.watermarks(tp)[1])
            if start < read_to[tp]:
                ranges[tp] = start, read_to[tp]
        if not ranges:
            return
        yield from reader.read(ranges)


def cut_whole(content: Content, *, partition: int, count: int) -> Content:
    """A content of a transaction beyond the limit, with the origin of its half record alone. `count`: of the transaction."""
    record = content.record
    origin = codec.encode_origin(
        partition=partition, offset=content.offset, index=content.index, count=count, born_ms=content.born
    )
    value, headers = codec.encode_content(
        key=record.key(), value=record.value(), headers=record.headers(), origin=origin
    )
    cut = codec.cut_content(value=value, headers=headers, why=BEYOND_LIMIT)
    return content._replace(record=DoubtRecord(*cut))


def _half_on_doubt(record: Any) -> tuple[HalfHeader, int, Any] | None:
    """(header, half offset, half record) of a content on doubt."""
    if record.value() is None:
        return None
    held = DoubtRecord(record.value(), record.headers())
    origin = codec.origin_of(held.headers())
    half = _half_of(held, record.offset() if origin is None else origin[1])
    return half if half is not None and record.key() == codec.content_key(half[0].key, half[0].index) else None


def _half_of(record: Any, offset: int) -> tuple[HalfHeader, int, Any] | None:
    header = codec.half_of(record.headers())
    return None if header is None else (header, offset, record)
