"""Dead letters, replay records and lock records as bytes: the vectors of the protocol page, round trips, what is cut, and garbage."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.codec_strategies import ANY_BYTES, DEAD_LETTERS, HEADERS, NUMBER, TOPIC, WHOLE, replays
from tests.support.protocol_page import page, vectors
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.consumer.dead_letters import DeadLetterWriter, GivenUpMessage, Truncation
from txlayer.core import dead_letters
from txlayer.core.dead_letters import (
    DLQ_CUT_HEADER,
    DLQ_HEADER,
    MESSAGE_LENGTH_MAX,
    TEXT_LENGTH_MAX,
    TYPE_LENGTH_MAX,
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_of,
    dead_letter_topic,
    decode_dead_letter,
    decode_replay,
    encode_dead_letter,
    encode_replay,
    is_cut,
    original_headers,
    replay_topic,
    source_topic,
)
from txlayer.core.leases import LockKind, LockRecord, decode_lock, encode_lock, lock_partition, parse_queue, queue_name
from txlayer.core.messages import Origin, Undecodable

LETTER = b"1|rejected|orders|3|17|5|2|6|7|ValueError|no%20such|loyalty"


# --- the page ---------------------------------------------------------------------------------------------------------


def letter_of(vector: dict[str, Any]) -> DeadLetter:
    fields = {name: value for name, value in vector.items() if name != "bytes"}
    fields["reason"] = DeadLetterReason(fields["reason"])
    fields["origin"] = Origin(*fields["origin"])
    return DeadLetter(**fields)


def test_a_dead_letter_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("dead-letter"):
        letter = letter_of(vector)

        assert vector["bytes"].encode() == encode_dead_letter(letter)
        assert letter == decode_dead_letter(vector["bytes"].encode())


def test_a_replay_record_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("replay"):
        outcome = None if vector["outcome"] is None else ReplayOutcome(vector["outcome"])
        record = ReplayRecord(
            ReplayKind(vector["kind"]),
            vector["request_id"],
            vector["dead_letter_offset"],
            outcome,
            vector["text"],
            vector.get("replaced_by"),
        )

        assert vector["bytes"].encode() == encode_replay(record)
        assert record == decode_replay(vector["bytes"].encode())


def test_the_protocol_page_names_every_header_reason_kind_and_outcome() -> None:
    text = page()
    headers = [value for name, value in vars(dead_letters).items() if name.endswith("_HEADER")]
    words = [*headers, *(r.value for r in DeadLetterReason), *(o.value for o in ReplayOutcome)]
    kinds = [kind.value for kind in ReplayKind]

    assert [DLQ_HEADER, DLQ_CUT_HEADER] == headers
    assert [] == [word for word in words if f"`{word}`" not in text]
    assert [] == [kind for kind in kinds if f'"kind": "{kind}"' not in text]


# --- round trips ------------------------------------------------------------------------------------------------------


@given(DEAD_LETTERS)
def test_a_dead_letter_comes_back_as_it_was(letter: DeadLetter) -> None:
    assert letter == decode_dead_letter(encode_dead_letter(letter))


@given(replays())
def test_a_replay_record_comes_back_as_it_was(record: ReplayRecord) -> None:
    assert record == decode_replay(encode_replay(record))


def test_an_errors_words_are_cut_to_their_limits() -> None:
    letter = letter_of(vectors("dead-letter")[0])
    long = letter._replace(error_type="T" * 1_000, error_message="é" * 1_000)

    found = decode_dead_letter(encode_dead_letter(long))

    assert isinstance(found, DeadLetter)
    assert "T" * TYPE_LENGTH_MAX == found.error_type
    assert "é" * MESSAGE_LENGTH_MAX == found.error_message


def test_a_lone_surrogate_in_an_error_does_not_stop_its_dead_letter() -> None:
    letter = letter_of(vectors("dead-letter")[0])._replace(error_message="\ud800|")

    found = decode_dead_letter(encode_dead_letter(letter))

    assert isinstance(found, DeadLetter)
    assert "?|" == found.error_message


def test_an_operators_words_are_cut_to_their_limit() -> None:
    record = ReplayRecord(ReplayKind.DROP, "r", 3, text="|" * 5_000)

    assert record._replace(text="|" * TEXT_LENGTH_MAX) == decode_replay(encode_replay(record))


def decode_lock_of_a_queue(value: bytes | None) -> object:
    return decode_lock(KEY, value)


# --- garbage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decoder", "raw", "why"),
    [
        (decode_dead_letter, LETTER.replace(b"1|", b"3|", 1), "unknown version '3'"),
        (decode_dead_letter, LETTER + b"|more", "13 fields where 12 are due"),
        (decode_dead_letter, LETTER.replace(b"rejected", b"tired"), "reason, topic or group"),
        (decode_dead_letter, LETTER.replace(b"orders", b"a b"), "reason, topic or group"),
        (decode_dead_letter, LETTER.replace(b"loyalty", b""), "reason, topic or group"),
        (decode_dead_letter, LETTER.replace(b"|3|", b"|2147483648|"), "no such partition"),
        (decode_dead_letter, LETTER.replace(b"|17|", b"|-1|"), "'-1' is no whole number"),
        (decode_dead_letter, LETTER + b"\xff", "ascii"),
        (decode_replay, None, "unknown version"),
        (decode_replay, b"3|R|r|3|x", "unknown version '3'"),
        (decode_replay, b"1|R|r|3", "4 fields where 5 are due"),
        (decode_replay, b"1|E|r|3|x", "5 fields where 6 are due"),
        (decode_replay, b"1|X|r|3|x", "kind or request id"),
        (decode_replay, b"1|R||3|x", "kind or request id"),
        (decode_replay, b"1|R|r/s|3|x", "kind or request id"),
        (decode_replay, b"1|R|r||x", "offset is missing"),
        (decode_replay, b"1|D|r||x", "offset is missing"),
        (decode_replay, b"1|P|r|3|x", "where none belongs"),
        (decode_replay, b"1|U|r|3|x", "where none belongs"),
        (decode_replay, b"1|R|r|+3|x", "no whole number"),
        (decode_replay, b"1|E|r|3|great|x", "outcome out of form"),
        (decode_lock_of_a_queue, b"3|C|5|holder|||", "unknown version '3'"),
        (decode_lock_of_a_queue, b"1|C|5|holder||", "6 fields where 7 are due"),
        (decode_lock_of_a_queue, b"1|X|5|holder|||", "lock: 'X'"),
        (decode_lock_of_a_queue, b"1|C||holder|||", "is no whole number"),
        (decode_lock_of_a_queue, b"1|C|5||||", "no holder"),
        (decode_lock_of_a_queue, b"1|N|5|holder|||", "no token"),
        (decode_lock_of_a_queue, b"1|R|5|holder|||", "no token"),
        (decode_lock_of_a_queue, b"1|N|5|holder||x|", "is no whole number"),
        (decode_lock_of_a_queue, None, "no value"),
    ],
)
def test_what_is_out_of_form_says_why(decoder: Callable[[bytes | None], object], raw: bytes | None, why: str) -> None:
    found = decoder(raw)

    assert isinstance(found, Undecodable)
    assert why in found.why


# --- headers and names ------------------------------------------------------------------------------------------------


@given(HEADERS)
def test_the_users_headers_come_back_untouched(headers: list[tuple[str, bytes | None]]) -> None:
    letter = [*headers, ("txl-id", b"t"), (DLQ_HEADER, LETTER)]

    assert [*headers, ("txl-id", b"t")] == original_headers(letter)
    assert decode_dead_letter(LETTER) == dead_letter_of(letter)


def test_the_last_of_two_headers_is_the_writers() -> None:
    found = dead_letter_of([(DLQ_HEADER, b"1|forged"), (DLQ_HEADER, LETTER)])

    assert decode_dead_letter(LETTER) == found


@pytest.mark.parametrize("headers", [None, [], [("txl-id", b"t")]])
def test_a_record_without_the_header_is_no_dead_letter(headers: list[tuple[str, bytes | None]] | None) -> None:
    assert Undecodable("no header txl-dlq") == dead_letter_of(headers)


def test_a_null_header_is_no_dead_letter() -> None:
    assert isinstance(dead_letter_of([(DLQ_HEADER, None)]), Undecodable)


def test_topics_are_named_after_group_and_topic() -> None:
    assert "loyalty.shop.orders.dlq" == dead_letter_topic("loyalty", "shop.orders")
    assert "loyalty.shop.orders.replay" == replay_topic("loyalty", "shop.orders")


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("loyalty.shop.orders.dlq", "shop.orders"),
        ("loyalty..dlq", None),
        ("loyalty.dlq", None),
        ("loyalty.orders.replay", None),
        ("other.orders.dlq", None),
    ],
)
def test_a_source_topic_is_read_from_a_name(name: str, topic: str | None) -> None:
    assert topic == source_topic("loyalty", name)


@pytest.mark.parametrize(
    ("headers", "value", "expected"),
    [
        ([(DLQ_CUT_HEADER, b"20000"), ("txl-dlq", b"1|")], None, True),
        ([("tags", b"a"), ("txl-dlq", b"1|")], None, False),
        ([("colour", b"red"), (DLQ_CUT_HEADER, b"1"), ("txl-dlq", b"1|")], None, False),
        ([(DLQ_CUT_HEADER, b"1"), ("txl-dlq", b"1|")], b"a header of its own", False),
        ([(DLQ_CUT_HEADER, b"of its own"), ("txl-dlq", b"1|")], None, False),
        ([(DLQ_CUT_HEADER, None), ("txl-dlq", b"1|")], None, False),
        ([], None, False),
        (None, None, False),
    ],
)
def test_a_cut_dead_letter_has_no_value_and_our_two_headers_alone(
    headers: list[tuple[str, bytes | None]] | None, value: bytes | None, *, expected: bool
) -> None:
    assert expected == is_cut(headers, value)


@pytest.mark.promise("P9")
def test_a_dead_letter_keeps_headers_of_ours_that_its_message_had() -> None:
    # A consumer of another group's dead letters works by the header `txl-dlq` of each.
    theirs = ("txl-dlq", b"why another group gave it up")
    letter = DeadLetter(DeadLetterReason.REJECTED, Origin("orders", 0, 7), 1, 1, 1, 1, "Reject", "no", "loyalty")
    writer = DeadLetterWriter(cast("Any", None), group="loyalty", name="w")
    record = MemoryRecord("orders", 0, b"k", b"v", [theirs], log_offset=7)

    entry = writer._dead_letter(GivenUpMessage(cast("Any", record), letter))

    assert [theirs] == original_headers(entry.headers)
    assert letter == dead_letter_of(entry.headers)


@pytest.mark.promise("P9")
@pytest.mark.parametrize("cut", [Truncation.CONTENT, Truncation.KEY_TOO])
def test_a_dead_letter_without_content_still_says_whose_message_it_is(cut: Truncation) -> None:
    letter = DeadLetter(DeadLetterReason.REJECTED, Origin("orders", 0, 7), 1, 1, 1, 1, "Reject", "no", "loyalty")
    writer = DeadLetterWriter(cast("Any", None), group="loyalty", name="w")
    headers = [("h", b"1"), ("txl-group", b"shop"), ("txl-id", b"x" * 4_000)]
    record = MemoryRecord("orders", 0, b"k", b"v", headers, log_offset=7)

    entry = writer._dead_letter(GivenUpMessage(cast("Any", record), letter, cut))

    assert is_cut(entry.headers, entry.value)
    assert letter._replace(txn_id="x" * 128, producer_group="shop") == dead_letter_of(entry.headers)


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
    "key", [None, b"", b"orders/3", b"/orders/3", b"a/b", b"a/../3", b"a/b/-3", b"a/b/2147483648", b"\xff/b/3"]
)
def test_a_key_that_names_no_queue_is_undecodable(key: bytes | None) -> None:
    assert isinstance(decode_lock(key, b"1|C|5|holder|||"), Undecodable)
