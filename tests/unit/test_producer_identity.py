"""Ids, nonces and places of new transactions."""

import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest

from txlayer.core import codec
from txlayer.core.codec import is_key
from txlayer.core.messages import NONCE_LENGTH, TAIL_DIGITS, HalfOptions, Message, OrderMode, key_tails, uuid7_head
from txlayer.core.partitions import half_partition, key_hash, murmur2
from txlayer.errors import UsageError
from txlayer.producer.identity import ANYWHERE, OF_MESSAGES, Identity

AT_MS = 1_700_000_000_123


def test_a_drawn_id_is_a_uuid_of_version_7_with_its_time() -> None:
    key = Identity(partition_count=8).draw(None, AT_MS)

    made = uuid.UUID(key[: -NONCE_LENGTH - 1])
    assert (7, uuid.RFC_4122) == (made.version, made.variant)
    assert AT_MS == made.int >> 80
    assert is_key(key)


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


def test_without_an_ordering_key_the_id_alone_gives_the_partition() -> None:
    identity = Identity(partition_count=8)
    key = identity.draw("order-1", AT_MS)

    expected = half_partition(ordering_key=None, txn_id="order-1", partition_count=8)
    assert expected == identity.partition(ANYWHERE, key)


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


def test_a_message_without_a_key_follows_the_ordering_key() -> None:
    place = Identity(partition_count=8).placement("customer-7", "commit", None)

    options = codec.decode_options(place.options_of(has_key=False, partition=None, timestamp_ms=5))
    assert murmur2(b"customer-7") == options.key_murmur
    assert 5 == options.timestamp_ms
    assert key_hash(b"customer-7") == options.key_hash


def test_a_partition_asked_for_needs_no_ordering_key() -> None:
    place = Identity(partition_count=8).placement("customer-7", "commit", None)

    options = codec.decode_options(place.options_of(has_key=False, partition=2, timestamp_ms=None))
    assert (2, None) == (options.partition, options.key_murmur)


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


def test_a_message_with_a_key_keeps_the_partition_of_its_own_key() -> None:
    place = Identity(partition_count=8).placement("customer-7", "commit", None)

    options = place.options_of(has_key=True, partition=None, timestamp_ms=None)

    assert codec.decode_options(options) == HalfOptions(key_hash=key_hash(b"customer-7"))


@pytest.mark.promise("P7")
@pytest.mark.parametrize("key", [b"customer-7", None])
def test_the_immunity_that_was_asked_for_counts_whoever_gives_the_ordering_key(key: bytes | None) -> None:
    identity, week = Identity(partition_count=8), timedelta(days=7)

    place = identity.placement_of(identity.placement(OF_MESSAGES, "commit", week), [Message("orders", key, b"v")])

    options = codec.decode_options(place.options)
    assert isinstance(options, HalfOptions)
    assert 7 * 24 * 3_600_000 == options.immunity_ms
