"""Ids, nonces and places of transactions: their form, and numbers that are part of the protocol."""

import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_page import vectors
from txlayer.core import codec
from txlayer.core.messages import (
    TAIL_DIGITS,
    HalfOptions,
    Message,
    OrderMode,
    check_group,
    check_txn_id,
    key_tails,
    uuid7_head,
)
from txlayer.core.partitions import half_partition, key_hash, murmur2, partition_of_key_hash
from txlayer.errors import UsageError
from txlayer.producer.identity import ANYWHERE, OF_MESSAGES, Identity

AT_MS = 1_700_000_000_123


def test_every_random_digit_reaches_the_key() -> None:
    digits = "0123456789abcdef" * TAIL_DIGITS
    tails = key_tails(digits)

    assert 16 == len(tails)
    for number, tail in enumerate(tails):
        given = digits[number * TAIL_DIGITS :][:TAIL_DIGITS]
        variant = "89ab"[int(given[3], 16) % 4]
        assert f"{given[:3]}-{variant}{given[4:7]}-{given[7:19]}/{given[19:]}" == tail


def test_the_head_changes_with_the_time() -> None:
    identity = Identity(partition_count=8)

    assert uuid7_head(AT_MS) == identity.draw(None, AT_MS)[:15]
    assert uuid7_head(AT_MS + 1) == identity.draw(None, AT_MS + 1)[:15]


@pytest.mark.parametrize("partition_count", [1, 2, 8, 64])
def test_ids_drawn_close_together_live_in_one_partition_then_in_the_next(partition_count: int) -> None:
    identity = Identity(partition_count=partition_count)
    step_ms = 8
    start_ms = AT_MS - AT_MS % step_ms

    seen = []
    for at_ms in range(start_ms, start_ms + 3 * step_ms):
        keys = [identity.draw(None, at_ms) for _ in range(5)]
        seen += [identity.partition(ANYWHERE, key) for key in keys]

    first = seen[0]
    expected = [(first + n) % partition_count for n in range(3) for _ in range(5 * step_ms)]
    assert expected == seen


@pytest.mark.parametrize("partition_count", [8, 12])
def test_an_id_that_is_drawn_with_its_place_hashes_to_it(partition_count: int) -> None:
    identity = Identity(partition_count=partition_count)

    for at_ms in range(AT_MS, AT_MS + 100):
        key, partition = identity.draw_with_partition(at_ms)
        assert identity.partition(ANYWHERE, key) == partition


def test_with_a_count_that_is_no_power_of_two_ids_are_spread() -> None:
    identity = Identity(partition_count=12)

    partitions = {identity.draw_with_partition(AT_MS)[1] for _ in range(500)}

    assert set(range(12)) == partitions


def test_tails_that_are_seldom_asked_for_do_not_pile_up() -> None:
    identity = Identity(partition_count=8)

    for _ in range(20_000):
        identity.draw(None, AT_MS)  # one partition only: seven of eight tails wait

    assert 8 * 512 >= sum(map(len, identity._tails))


def test_threads_never_draw_the_same_id() -> None:
    identity = Identity(partition_count=8)
    drawn: list[str] = []

    def draw() -> None:
        drawn.extend(identity.draw(None, AT_MS) for _ in range(5_000))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 20_000 == len(set(drawn))


def test_one_id_drawn_twice_has_two_nonces() -> None:
    identity = Identity(partition_count=8)

    first, second = identity.draw("order-1", AT_MS), identity.draw("order-1", AT_MS)

    assert first != second
    assert first.startswith("order-1/")
    assert second.startswith("order-1/")


@pytest.mark.parametrize("key", ["customer-7", b"customer-7"])
def test_the_ordering_key_gives_partition_and_options(key: str | bytes) -> None:
    identity = Identity(partition_count=8)

    place = identity.placement(key, "prepare", timedelta(minutes=1))

    expected = half_partition(ordering_key=b"customer-7", txn_id="any", partition_count=8)
    assert expected == identity.partition(place, "any/01234567")
    options = HalfOptions(key_hash(b"customer-7"), OrderMode.PREPARE, immunity_ms=60_000)
    assert codec.encode_options(options) == place.options


@pytest.mark.parametrize("order", ["commit", OrderMode.COMMIT])
def test_nothing_asked_for_is_one_place(order: str | OrderMode) -> None:
    assert ANYWHERE is Identity(partition_count=8).placement(None, order, None)


@pytest.mark.parametrize(
    ("has_key", "partition", "timestamp_ms", "expected"),
    [
        (False, None, 5, HalfOptions(timestamp_ms=5, key_murmur=murmur2(b"customer-7"))),
        (False, 2, None, HalfOptions(partition=2)),
        (True, None, None, HalfOptions()),
    ],
    ids=["without a key it follows the ordering key", "a partition was asked for", "a key keeps its own partition"],
)
def test_the_ordering_key_places_messages_that_nothing_else_places(
    *, has_key: bool, partition: int | None, timestamp_ms: int | None, expected: HalfOptions
) -> None:
    place = Identity(partition_count=8).placement("customer-7", "commit", None)

    options = place.options_of(has_key=has_key, partition=partition, timestamp_ms=timestamp_ms)

    assert expected._replace(key_hash=key_hash(b"customer-7")) == codec.decode_options(options)


@pytest.mark.parametrize(
    ("ordering_key", "order", "immunity"),
    [
        (7, "commit", None),
        (bytearray(b"a"), "commit", None),
        ("\ud800", "commit", None),
        ("a", "latest", None),
        ("a", ["commit"], None),
        (None, "prepare", None),
        (None, "commit", timedelta(0)),
        (None, "commit", timedelta(days=7, milliseconds=1)),
        (None, "commit", 6_000),
    ],
)
def test_wishes_that_cannot_be_are_refused(ordering_key: Any, order: Any, immunity: Any) -> None:
    with pytest.raises(UsageError):
        Identity(partition_count=8).placement(ordering_key, order, immunity)


@pytest.mark.parametrize("txn_id", ["", "a b", "a|b", "a/b", "a" * 129, "ä"])
def test_an_id_out_of_form_is_refused(txn_id: str) -> None:
    with pytest.raises(UsageError, match="transaction id"):
        Identity(partition_count=8).draw(txn_id, AT_MS)


@pytest.mark.promise("P7")
@pytest.mark.parametrize("key", [b"customer-7", None])
def test_the_immunity_that_was_asked_for_counts_whoever_gives_the_ordering_key(key: bytes | None) -> None:
    identity, week = Identity(partition_count=8), timedelta(days=7)

    place = identity.placement_of(identity.placement(OF_MESSAGES, "commit", week), [Message("orders", key, b"v")])

    options = codec.decode_options(place.options)
    assert isinstance(options, HalfOptions)
    assert 7 * 24 * 3_600_000 == options.immunity_ms


def test_a_partition_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("partition"):
        key = vector["ordering_key"]
        computed = half_partition(
            ordering_key=None if key is None else key.encode(),
            txn_id=vector["txn_id"],
            partition_count=vector["partition_count"],
        )
        assert vector["partition"] == computed


def test_hashes_are_those_on_the_protocol_page_and_of_java_producers() -> None:
    for vector in vectors("key-hash"):
        assert vector["key_hash"] == key_hash(vector["ordering_key"].encode())
    for vector in vectors("murmur2"):
        assert vector["murmur2"] == murmur2(vector["key"].encode())


@given(st.binary(), st.integers(1, 4096))
def test_a_key_hash_names_the_partition_of_its_key(ordering_key: bytes, count: int) -> None:
    named = partition_of_key_hash(key_hash(ordering_key), partition_count=count)

    assert half_partition(ordering_key=ordering_key, txn_id="x", partition_count=count) == named


def test_keys_with_one_crc32_have_different_key_hashes() -> None:
    # "plumless" and "buckeroo" are a known collision of crc32.
    first, second = key_hash(b"plumless"), key_hash(b"buckeroo")

    assert first[:8] == second[:8]
    assert first != second


def uuid7(*, at_ms: int, random_bits: int) -> str:
    """The id that a producer makes of these random bits, which the protocol page numbers from the lowest."""
    third, fourth, fifth = random_bits & 0xFFF, random_bits >> 12 & 0x3FFF, random_bits >> 26 & (1 << 48) - 1
    digits = f"{third:03x}{fourth >> 12:x}{fourth & 0xFFF:03x}{fifth:012x}"
    (tail,) = key_tails(digits.ljust(TAIL_DIGITS, "0"))
    return f"{uuid7_head(at_ms)}{tail}".partition("/")[0]


def test_a_uuid_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("uuid7"):
        made = uuid7(at_ms=vector["at_ms"], random_bits=int(vector["random_bits"], 16))
        assert vector["uuid"] == made


@given(at_ms=st.integers(0, 2**48 - 1), random_bits=st.integers(0, 2**74 - 1))
def test_a_uuid_holds_its_time_and_all_its_bits(at_ms: int, random_bits: int) -> None:
    made = uuid.UUID(uuid7(at_ms=at_ms, random_bits=random_bits))

    assert (7, uuid.RFC_4122) == (made.version, made.variant)
    assert at_ms == made.int >> 80
    low = made.int & (2**62 - 1)
    assert random_bits == (made.int >> 64 & 0xFFF) | (low >> 48) << 12 | (low & (2**48 - 1)) << 26


@given(st.integers(0, 2**48 - 1), st.binary(max_size=200))
def test_keys_made_many_at_once_are_uuids_and_nonces(at_ms: int, random: bytes) -> None:
    tails = key_tails(random.hex())

    assert len(random) * 2 // 27 == len(tails)
    for tail in tails:
        txn_id, _, nonce = f"{uuid7_head(at_ms)}{tail}".partition("/")
        made = uuid.UUID(check_txn_id(txn_id))
        assert (7, uuid.RFC_4122, at_ms) == (made.version, made.variant, made.int >> 80)
        assert 8 == len(bytes.fromhex(nonce)) * 2


@pytest.mark.parametrize("txn_id", ["a", "order-4711", "A" * 128, "!\"#$%&'()*+,-.:;<=>?@[\\]^_`{}~"])
def test_printable_ascii_is_a_transaction_id(txn_id: str) -> None:
    assert txn_id == check_txn_id(txn_id)


@pytest.mark.parametrize("txn_id", ["", "a" * 129, "a b", "a|b", "a/b", "ä", "a\n", "a\x7f", "٣", "\ud800"])
def test_anything_else_is_refused_as_a_transaction_id(txn_id: str) -> None:
    with pytest.raises(UsageError, match="transaction id"):
        check_txn_id(txn_id)


def test_a_transaction_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError):
        check_txn_id(4711)  # type: ignore[arg-type] # users' code has no type checker
    with pytest.raises(UsageError):
        check_group(None)  # type: ignore[arg-type] # the same


@pytest.mark.parametrize("group", ["orders", "shop.orders_2-b", "g" * 200])
def test_what_can_name_a_consumer_group_is_a_producer_group(group: str) -> None:
    assert group == check_group(group)


@pytest.mark.parametrize("group", ["", "g" * 201, "a b", "a|b", "a/b", "é", "a\n"])
def test_anything_else_is_refused_as_a_group_of_producers_or_consumers(group: str) -> None:
    with pytest.raises(UsageError, match=r"^group "):
        check_group(group)
