"""Topics as typed columns: what Spark reads through a real broker is what the codec says of the same bytes."""

from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tests.conftest import Broker
from tests.fuzz.mutation import corpus_of, mutated
from tests.support.broker import create_topic, unique_name
from tests.support.logs import Headers
from tests.support.spark_reading import (
    LATER,
    MUTATIONS,
    SEED,
    is_refused,
    mutations,
    of_next_release,
    rows,
    told,
    written,
)
from tests.support.topic_records import Record
from txlayer.core import codec
from txlayer.core.messages import (
    CheckKind,
    CheckRecord,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    OpMessage,
    OrderMode,
    Resolution,
    Source,
    Undecodable,
    UnresolvedAction,
    nonce_of,
    txn_id_of,
)
from txlayer_spark import stream_topic

pytestmark = pytest.mark.kafka

ID = [("txl-id", b"t-1")]
GROUP_LENGTHS = 200, 201
"""The longest producer group, and one that is too long."""

CHECKS = [
    codec.encode_check(CheckRecord(kind, key, "orders", 3, 17, 1_700_000_000_000, 2, text))
    for kind, key, text in (
        (CheckKind.QUESTION, "a/00000001", "orders,loyalty"),
        (CheckKind.LIMIT, "", "on"),
        (CheckKind.PARKED, "a/00000001", "too-old"),
        (CheckKind.REFUSED, "a/00000001", "COMMIT by Zoë + others, 100 %"),
    )
]


def half_columns(header: HalfHeader) -> dict[str, Any]:
    """What a row of a half record must say."""
    options = header.options
    return {
        "txn_id": txn_id_of(header.key),
        "nonce": nonce_of(header.key),
        "producer_group": header.producer_group,
        "real_topic": header.topic,
        "index": header.index,
        "count": header.count,
        "born_ms": header.born_ms,
        "key_hash": options.key_hash,
        "order": options.order.value,
        "immunity_ms": options.immunity_ms,
        "target_partition": options.partition,
        "target_timestamp_ms": options.timestamp_ms,
        "key_murmur": options.key_murmur,
    }


def test_half_records_are_read_as_the_codec_reads_them(spark: SparkSession, broker: Broker) -> None:
    options = [b"1|a/00000001|shop|orders|0/1|5|" + raw for raw in mutations("half-options")]
    groups = [b"1|a/00000001|%b|orders|0/1|5|" % (b"g" * length) for length in GROUP_LENGTHS]
    longest = [groups[0].ljust(length, b"z") for length in (2_048, 2_049)]
    headers = [*mutations("half-header"), *options, *groups, *longest]
    user: Headers = [("traceparent", b"00-1"), ("twice", b"1"), ("twice", None)]
    topic = written(
        broker, ".half", lambda name: [Record(name, b"value", b"key", [*user, ("txl", raw)]) for raw in headers]
    )

    found = rows(spark, broker, topic)

    assert len(headers) == len(found)
    good = 0
    for raw, row in zip(headers, found, strict=True):
        header = codec.decode_half_header(raw)
        if isinstance(header, Undecodable):
            assert is_refused(row, raw), raw
            assert row.txn_id is None
            continue
        good += 1
        expected = half_columns(header)
        assert expected == told(row, expected), (raw, row.error)
        assert row.error is None
    assert 50 < good < len(headers) - 50
    assert [("traceparent", b"00-1"), ("twice", b"1"), ("twice", None)] == [
        (name, None if value is None else bytes(value)) for name, value in found[0].headers
    ]
    assert (b"key", b"value") == (bytes(found[0].key), bytes(found[0].value))


def test_every_line_of_an_op_record_is_a_row_as_the_codec_reads_it(spark: SparkSession, broker: Broker) -> None:
    reason = OpMessage(
        Resolution.ROLLBACK, "a/00000001", "shop", 17, 5, Source.OPERATOR, None, False, "Zoë: 1 + 1 | 100 %"
    )
    values = mutations("op-record", more=(codec.encode_op(reason).encode(),))
    values.append(b"1|R|a/00000001|shop|17|5|operator||100% of +1%20x")
    values += [b"1|C|a/00000001|%b|17|5|producer||" % (b"g" * length) for length in GROUP_LENGTHS]
    topic = written(broker, ".op", lambda name: [Record(name, raw) for raw in values])

    by_offset: dict[int, list[Row]] = {}
    for row in rows(spark, broker, topic):
        by_offset.setdefault(row.offset, []).append(row)

    good = 0
    for offset, raw in enumerate(values):
        found = sorted(by_offset[offset], key=lambda row: row.line)
        split = codec.split_ops(raw)
        if isinstance(split, Undecodable):
            assert [True] == [is_refused(row, raw) for row in found], raw
            continue
        assert list(range(len(split))) == [row.line for row in found]
        for line, row in zip(split, found, strict=True):
            op = codec.decode_op(line)
            if isinstance(op, Undecodable):
                assert is_refused(row, raw), line
                continue
            good += 1
            expected = {
                "resolution": op.resolution.name,
                "txn_id": txn_id_of(op.key),
                "nonce": nonce_of(op.key),
                "producer_group": op.producer_group,
                "last_offset": op.last_offset,
                "born_ms": op.born_ms,
                "source": op.source.value,
                "check_number": op.check_number,
                "is_abandon": op.is_abandon,
                "reason": op.reason,
                "error": None,
            }
            assert expected == told(row, expected), line
    assert good > 100


def test_check_records_are_read_as_the_codec_reads_them(spark: SparkSession, broker: Broker) -> None:
    dice = Random(SEED)
    values = [*CHECKS, LATER, *of_next_release(CHECKS), *(mutated(CHECKS, dice) for _ in range(MUTATIONS))]
    values += [b"1|Q|a/00000001|%b|5|6|7|8|why" % (b"g" * length) for length in GROUP_LENGTHS]
    topic = written(broker, ".check", lambda name: [Record(name, raw) for raw in values])

    found = rows(spark, broker, topic)

    good = 0
    for raw, row in zip(values, found, strict=True):
        check = codec.decode_check(raw)
        if isinstance(check, Undecodable):
            assert is_refused(row, raw), raw
            continue
        good += 1
        expected = {
            "kind": check.kind.value,
            "txn_id": txn_id_of(check.key) or None,
            "nonce": nonce_of(check.key) or None,
            "producer_group": check.producer_group,
            "half_partition": check.partition,
            "last_offset": check.last_offset,
            "born_ms": check.born_ms,
            "number": check.number,
            "text": check.text,
            "error": None,
        }
        assert expected == told(row, expected), raw
    assert good > 20


def test_forwarded_records_are_read_as_the_codec_reads_them(spark: SparkSession, broker: Broker) -> None:
    origins = mutations("origin")
    topic = written(
        broker,
        "",
        lambda name: [
            *(Record(name, b"v", None, [("a", b"1"), ("txl-id", b"t-1"), ("txl-origin", raw)]) for raw in origins),
            Record(name, b"somebody else's", b"k", [("a", b"1")]),
            Record(name, None, b"k"),
            Record(name, b"v", None, [("txl-id", b"t-1")]),
            Record(name, b"v", None, [("txl-id", b"a blank"), ("txl-origin", origins[0])]),
            Record(name, b"v", None, [*ID, ("txl-id", b"t-2"), ("txl-origin", b"0:5|0/1|1")]),
            Record(name, b"v", None, [*ID, ("txl-origin", b"0:5|0/1|1"), ("txl-origin", b"0:5|0/1|1")]),
            Record(name, b"v", None, [*ID, ("txl-origin", b"0:5|3/1|1")]),
        ],
    )

    found = rows(spark, broker, topic)

    for raw, row in zip(origins, found, strict=False):
        origin = codec.decode_origin(raw)
        if isinstance(origin, Undecodable) or origin[2] >= origin[3]:
            assert is_refused(row, raw, says="out of form"), raw
            continue
        names = ("half_partition", "half_offset", "index", "count", "born_ms")
        assert {**dict(zip(names, origin, strict=True)), "txn_id": "t-1", "error": None} == told(
            row, {**dict.fromkeys(names), "txn_id": None, "error": None}
        )
    foreign, tombstone, *broken = found[len(origins) :]
    assert [(None, None)] * 2 == [(row.txn_id, row.error) for row in (foreign, tombstone)]
    assert (None, b"k") == (tombstone.value, bytes(tombstone.key))
    # No origin, an id out of form, two ids, two origins, an index behind its count.
    assert 5 == len(broken)
    assert [None] * 5 == [row.txn_id for row in broken]
    assert all(row.error for row in broken)


SUMMARY = DoubtSummary(
    "a/00000001",
    "held",
    "topic-missing",
    "orders",
    16,
    17,
    2,
    2,
    1_700_000_000_050,
    1_700_000_000_000,
    "028c7948712c936a",
    OrderMode.PREPARE,
    60_000,
    (9, 4),
    1_700_000_001_000,
    ("orders", "loyalty"),
    3,
    2,
    7,
    1,
    (20, 21),
)


def test_doubt_summaries_are_read_as_the_codec_reads_them(spark: SparkSession, broker: Broker) -> None:
    undecided = SUMMARY._replace(state="open", times=(5,), unresolved=UnresolvedAction.COMMIT)
    growing = SUMMARY._replace(state="parked", is_growing=True)
    values = mutations("doubt-summary", more=tuple(map(codec.encode_summary, (SUMMARY, undecided, growing))))
    topic = written(broker, ".doubt", lambda name: [Record(name, raw, b"a/00000001") for raw in values])

    found = rows(spark, broker, topic)

    good = 0
    for raw, row in zip(values, found, strict=True):
        summary = codec.decode_summary("a/00000001", raw)
        if isinstance(summary, Undecodable):
            assert (True, None) == (is_refused(row, raw, says="out of form"), row.summary), raw
            continue
        good += 1
        expected = summary._asdict()
        # Times, what a policy is to do, and whether contents may follow are not read here.
        for name in ("key", "sent_to", "released_to", "times", "committed_at", "unresolved", "is_growing"):
            del expected[name]
        place = expected.pop("decided_at") or (None, None)
        expected |= {
            "decided_offset": place[0],
            "decided_line": place[1],
            "topics": list(summary.topics),
            "twin_offsets": list(summary.twin_offsets),
            "order": summary.order.value,
        }
        assert expected == row.summary.asDict(), raw
        assert ("summary", "a", "00000001", None) == (row.record, row.txn_id, row.nonce, row.error)
    assert good > 10


def test_doubt_contents_ends_and_what_was_kept_aside_are_told_apart(spark: SparkSession, broker: Broker) -> None:
    header = HalfHeader("a/00000001", "shop", "orders", 1, 2, 5, HalfOptions(immunity_ms=7))
    packed = ("txl", codec.encode_half_header(header))
    value, headers = codec.encode_content(key=b"k", value=None, headers=[("a", b"1"), packed])
    why = codec.encode_why(Undecodable("it is no header of ours"))
    keys = [name for name in mutations("doubt-key") if name]
    topic = written(
        broker,
        ".doubt",
        lambda name: [
            Record(name, value, b"a/00000001/1", headers),
            Record(name, None, b"a/00000001/1"),
            Record(name, None, b"a/00000001"),
            Record(name, b"junk", b"origin/ns.op/3/412:1", [("b", b"2"), ("txl-why", why)]),
            Record(name, b"junk", b"origin/ns.half/3/7", [("txl-key", b"k"), ("txl-why", why)]),
            Record(name, b"v", b"a/00000001/0", [("txl", b"no header")]),
            *(Record(name, None, key) for key in keys),
        ],
    )

    content, content_end, end, line, record, wrong, *ended = rows(spark, broker, topic)

    expected = half_columns(header)
    assert expected == told(content, expected)
    assert ("content", b"k", None, [("a", b"1")]) == (
        content.record,
        bytes(content.key),
        content.value,
        [(n, bytes(v)) for n, v in content.headers],
    )
    assert [("content", True, 1), ("summary", True, None)] == [
        (row.record, row.is_tombstone, row["index"]) for row in (content_end, end)
    ]
    assert ("ns.op", 3, 412, 1, "undecodable", "it is no header of ours") == tuple(line.kept_aside)
    assert ("ns.half", 3, 7, None) == tuple(record.kept_aside)[:4]
    assert (b"k", b"junk") == (bytes(record.key), bytes(record.value))
    assert ("content", True) == (wrong.record, wrong.error is not None)
    for key, row in zip(keys, ended, strict=True):
        parsed, aside = codec.parse_doubt_key(key), codec.parse_quarantine_key(key)
        if aside is not None:
            assert ("kept_aside", *aside[0], aside[1]) == (row.record, *tuple(row.kept_aside)[:4]), key
        elif parsed is not None:
            kind = "summary" if parsed[1] is None else "content"
            assert (kind, *parsed[0].split("/"), parsed[1]) == (row.record, row.txn_id, row.nonce, row["index"]), key
        else:
            assert row.error is not None, key


def test_aborted_records_are_not_read(spark: SparkSession, broker: Broker) -> None:
    from confluent_kafka import Producer

    topic = create_topic(broker.bootstrap_servers, unique_name("aborted"))
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for value, end in (
        (b"1", producer.commit_transaction),
        (b"2", producer.abort_transaction),
        (b"3", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        end(30)

    assert [b"1", b"3"] == [bytes(row.value) for row in rows(spark, broker, topic)]


def test_a_stream_gives_what_a_read_gives(spark: SparkSession, broker: Broker, tmp_path: Any) -> None:
    lines = b"\n".join(corpus_of("op-record")[:2])
    topic = written(broker, ".op", lambda name: [Record(name, lines), Record(name, b"\xff")])
    seen: list[Row] = []

    def take(batch: DataFrame, _number: int) -> None:
        seen.extend(batch.collect())

    stream = stream_topic(spark, topic, bootstrap_servers=broker.bootstrap_servers)
    query = (
        stream.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)

    assert sorted(rows(spark, broker, topic), key=lambda r: (r.offset, r.line)) == sorted(
        seen, key=lambda r: (r.offset, r.line)
    )
