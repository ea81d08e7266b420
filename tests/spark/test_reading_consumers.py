"""What consumers write, as typed columns: what Spark reads through a real broker is what the codecs say of the same bytes."""

from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.conftest import Broker
from tests.fuzz.mutation import mutated
from tests.support.logs import Headers
from tests.support.spark_reading import (
    LATER,
    MUTATIONS,
    SEED,
    alike,
    is_refused,
    mutations,
    of_next_release,
    rows,
    told,
    written,
)
from tests.support.topic_records import Record
from txlayer.core.dead_letters import (
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    decode_dead_letter,
    decode_replay,
    encode_dead_letter,
    encode_replay,
)
from txlayer.core.leases import LockKind, LockRecord, decode_lock, encode_lock, parse_queue
from txlayer.core.messages import Origin, Undecodable

pytestmark = pytest.mark.kafka

ODD = "Zoë: 1 + 1 | 100 %\n/"
LOCKS = [
    encode_lock(record)
    for record in (
        LockRecord(LockKind.CLAIM, "loyalty/shop.orders/3", 7, "host-1/42"),
        LockRecord(LockKind.CLAIM, "a/b\nc/orders/0", 0, ODD, "static-1", 2**63 - 1),
        LockRecord(LockKind.RENEWAL, "Zoë/orders/2147483647", 7, "host-1/42", token=9),
        LockRecord(LockKind.RELEASE, "loyalty/orders/1", 8, "host-2/1", "", 10, f"zoe: {ODD}"),
    )
]
QUEUES = [
    b"loyalty/orders/1",
    b"orders/1",
    b"/orders/1",
    b"g//1",
    b"g/../1",
    b"g/a b/1",
    b"g/orders/",
    b"g/orders/-1",
    b"g/orders/2147483648",
    b"g/orders/1\n",
    b"\xff/orders/1",
    b"\xed\xa0\x80/orders/1",
    b"//orders/01",
    None,
]
"""Names of queues, good and bad."""


def test_lock_records_are_read_as_the_codec_reads_them(spark: SparkSession, broker: Broker) -> None:
    dice = Random(SEED)
    values = [value for _, value in LOCKS]
    written_ones: list[tuple[bytes | None, bytes | None]] = [
        *LOCKS,
        *((queue, values[0]) for queue in QUEUES),
        *((LOCKS[0][0], value) for value in (LATER, *of_next_release(values))),
        *((LOCKS[0][0], mutated(values, dice)) for _ in range(MUTATIONS)),
        (LOCKS[0][0], None),
    ]
    topic = written(broker, ".locks", lambda name: [Record(name, value, key) for key, value in written_ones])

    found = rows(spark, broker, topic)

    good = 0
    for (key, value), row in zip(written_ones, found, strict=True):
        record = decode_lock(key, value)
        if isinstance(record, Undecodable):
            assert (True, None) == (is_refused(row, value), row.kind), (key, value)
            continue
        good += 1
        group, real_topic, partition = parse_queue(record.queue)
        expected = {
            "kind": record.kind.name,
            "queue": record.queue,
            "consumer_group": group,
            "real_topic": real_topic,
            "real_partition": partition,
            "generation": record.generation,
            "holder": record.holder,
            "instance_id": record.instance_id,
            "token": record.token,
            "reason": record.reason,
            "error": None,
        }
        assert alike(expected) == alike(told(row, expected)), (key, value)
    assert 30 < good < len(written_ones) - 30


def test_dead_letters_are_read_as_the_codec_reads_them(spark: SparkSession, broker: Broker) -> None:
    long = DeadLetter(
        DeadLetterReason.REJECTED, Origin("orders", 2**31 - 1, 2**63 - 1), 1, 2, 3, 4, "E" * 300, "ä" * 600, ODD
    )
    # Whole, although a later version may cut elsewhere.
    uncut = encode_dead_letter(long).replace(b"E" * 200, b"E" * 300)
    letters = mutations("dead-letter", more=(encode_dead_letter(long), uncut))
    user: Headers = [("traceparent", b"00-1"), ("twice", None), ("txl-id", b"t-1"), ("txl-origin", b"x")]
    topic = written(
        broker,
        ".dlq",
        lambda name: [
            *(Record(name, b"value", b"key", [*user, ("txl-dlq", raw)]) for raw in letters),
            Record(name, b"value", b"key", [("txl-id", b"x y")]),
            Record(name, None, None, [("txl-dlq", letters[0]), ("txl-dlq", None)]),
        ],
    )

    found = rows(spark, broker, topic)

    good = 0
    for raw, row in zip(letters, found, strict=False):
        letter = decode_dead_letter(raw)
        assert (b"key", b"value", "t-1") == (bytes(row.key), bytes(row.value), row.txn_id)
        if isinstance(letter, Undecodable):
            assert (True, None) == (is_refused(row, raw), row.reason), raw
            continue
        good += 1
        expected = letter._asdict() | {"reason": letter.reason.value, "error": None}
        origin = expected.pop("origin")
        # Spark takes the id from the message's own header, and does not keep whose message it was.
        del expected["txn_id"], expected["producer_group"]
        expected |= {f"origin_{name}": value for name, value in origin._asdict().items()}
        assert alike(expected) == alike(told(row, expected)), raw
    assert 30 < good < len(letters) - 30
    bare, twice = found[len(letters) :]
    assert [True, True] == [row.error is not None for row in (bare, twice)]
    assert (b"value", None, None) == (bytes(bare.value), bare.txn_id, bare.reason)
    assert [("traceparent", b"00-1"), ("twice", None)] == [
        (name, None if value is None else bytes(value)) for name, value in found[0].headers
    ]


def test_replay_records_are_read_as_the_codec_reads_them(spark: SparkSession, broker: Broker) -> None:
    more = (
        encode_replay(ReplayRecord(ReplayKind.RESULT, "t", None, ReplayOutcome.UNKNOWN, ODD)),
        encode_replay(ReplayRecord(ReplayKind.DROP, "t", 2**63 - 1, text="é" * 1_300)),
        encode_replay(ReplayRecord(ReplayKind.PAUSE, "t", None)),
        b"1|R|t||x",
        b"1|P|t|5|x",
        b"1|E|t|5|odd|x",
        b"2|R|t|5|x",
        b"1|R|t|9223372036854775808|x",
        b"",
    )
    values: list[bytes | None] = [*mutations("replay", more=more), None]
    topic = written(broker, ".replay", lambda name: [Record(name, value, b"customer-7") for value in values])

    found = rows(spark, broker, topic)

    good = 0
    for value, row in zip(values, found, strict=True):
        record = decode_replay(value)
        assert b"customer-7" == bytes(row.key)
        if isinstance(record, Undecodable):
            assert (True, None) == (is_refused(row, value), row.kind), value
            continue
        good += 1
        expected = {
            "kind": record.kind.name,
            "request_id": record.request_id,
            "text": record.text,
            "dead_letter_offset": record.dead_letter_offset,
            "error": None,
            "outcome": None if record.outcome is None else record.outcome.value,
        }
        assert alike(expected) == alike(told(row, expected)), value
    assert 20 < good < len(values) - 30
