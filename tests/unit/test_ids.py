"""Transaction ids: their form, and UUIDv7 out of given time and bits."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_page import vectors
from txlayer.core.messages import check_group, check_txn_id, key_tails, uuid7, uuid7_head
from txlayer.errors import UsageError


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


@given(st.integers(0, 2**48 - 2), st.integers(0, 2**90), st.integers(0, 2**90))
def test_a_later_uuid_sorts_behind_an_earlier_one(at_ms: int, first: int, second: int) -> None:
    assert uuid7(at_ms=at_ms, random_bits=first) < uuid7(at_ms=at_ms + 1, random_bits=second)


@given(st.integers(0, 2**48 - 1), st.binary(max_size=200))
def test_keys_made_many_at_once_are_uuids_and_nonces(at_ms: int, random: bytes) -> None:
    tails = key_tails(random.hex())

    assert len(random) * 2 // 27 == len(tails)
    for tail in tails:
        txn_id, _, nonce = f"{uuid7_head(at_ms)}{tail}".partition("/")
        made = uuid.UUID(check_txn_id(txn_id))
        assert (7, uuid.RFC_4122, at_ms) == (made.version, made.variant, made.int >> 80)
        assert 8 == len(bytes.fromhex(nonce)) * 2


def test_keys_made_many_at_once_use_every_digit() -> None:
    zeros, ones = key_tails("0" * 27 + "f" * 27)

    assert "000-8000-000000000000/00000000" == zeros
    assert "fff-bfff-ffffffffffff/ffffffff" == ones


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**90))
def test_a_uuid_is_a_transaction_id(at_ms: int, random_bits: int) -> None:
    made = uuid7(at_ms=at_ms, random_bits=random_bits)

    assert made == check_txn_id(made)


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
def test_anything_else_is_refused_as_a_producer_group(group: str) -> None:
    with pytest.raises(UsageError, match="producer group"):
        check_group(group)
