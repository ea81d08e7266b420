"""Lock records on the wire: the page's vectors, round trips, and bytes that are none."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.codec_strategies import ANY_BYTES, NUMBER, TOPIC, WHOLE
from tests.support.protocol_page import vectors
from txlayer.core.leases import LockKind, LockRecord, decode_lock, encode_lock, lock_partition, parse_queue, queue_name
from txlayer.core.messages import Undecodable

WORD = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
QUEUES = st.builds(queue_name, WORD, TOPIC, NUMBER)
LOCKS = st.builds(
    LockRecord, st.sampled_from(LockKind), QUEUES, WHOLE, WORD, st.just("") | WORD, WHOLE, st.just("") | WORD
)
KEY = b"loyalty/orders/3"


def test_a_lock_record_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("lock"):
        fields = {**vector, "kind": LockKind[vector["kind"]]}
        key, value = fields.pop("key").encode(), fields.pop("value").encode()
        record = LockRecord(queue=key.decode(), **fields)

        assert (key, value) == encode_lock(record)
        assert record == decode_lock(key, value)


def test_a_queue_lives_in_the_partition_that_the_protocol_page_says() -> None:
    for vector in vectors("lock-partition"):
        found = lock_partition(vector["queue"], partition_count=vector["partition_count"])

        assert vector["partition"] == found


@given(LOCKS)
def test_a_lock_record_survives_the_wire(record: LockRecord) -> None:
    assert record == decode_lock(*encode_lock(record))


@given(QUEUES, WHOLE, WORD)
def test_a_claim_without_a_token_survives_the_wire(queue: str, generation: int, holder: str) -> None:
    claim = LockRecord(LockKind.CLAIM, queue, generation, holder)

    assert claim == decode_lock(*encode_lock(claim))


@given(WORD, TOPIC, NUMBER)
def test_a_queues_name_tells_its_parts(group: str, topic: str, partition: int) -> None:
    assert (group, topic, partition) == parse_queue(queue_name(group, topic, partition))


@given(st.none() | ANY_BYTES | st.just(KEY), st.none() | ANY_BYTES)
@example(KEY, b"1|C|5|holder||||")
@example(KEY, b"1|C|-5|holder|||")
@example(KEY, b"1|C|5|h\xff|||")
@example(b"loyalty/orders/x", b"1|C|5|holder|||")
def test_no_bytes_stop_the_reader_of_locks(key: bytes | None, value: bytes | None) -> None:
    decoded = decode_lock(key, value)

    if isinstance(decoded, LockRecord):
        assert decoded == decode_lock(*encode_lock(decoded))
    else:
        assert decoded.why


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"3|C|5|holder|||", "unknown version '3'"),
        (b"1|C|5|holder||", "6 fields where 7 are due"),
        (b"1|X|5|holder|||", "lock: 'X'"),
        (b"1|C||holder|||", "is no whole number"),
        (b"1|C|5||||", "no holder"),
        (b"1|N|5|holder|||", "no token"),
        (b"1|R|5|holder|||", "no token"),
        (b"1|N|5|holder||x|", "is no whole number"),
        (None, "no value"),
    ],
)
def test_what_is_wrong_is_said(value: bytes | None, why: str) -> None:
    decoded = decode_lock(KEY, value)

    assert isinstance(decoded, Undecodable)
    assert why in decoded.why


@pytest.mark.parametrize(
    "key", [b"", b"orders/3", b"/orders/3", b"a/b", b"a/../3", b"a/b/-3", b"a/b/2147483648", b"\xff/b/3"]
)
def test_a_key_that_names_no_queue_is_undecodable(key: bytes) -> None:
    assert isinstance(decode_lock(key, b"1|C|5|holder|||"), Undecodable)


def test_a_record_without_a_key_is_undecodable() -> None:
    assert isinstance(decode_lock(None, b"1|C|5|holder|||"), Undecodable)
