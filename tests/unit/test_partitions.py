"""Where a transaction lives; the numbers are part of the protocol and stable across releases."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.protocol_page import vectors
from txlayer.core.partitions import half_partition, key_hash, murmur2, partition_of_key_hash


def test_a_partition_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("partition"):
        key = vector["ordering_key"]
        computed = half_partition(
            ordering_key=None if key is None else key.encode(),
            txn_id=vector["txn_id"],
            partition_count=vector["partition_count"],
        )
        assert vector["partition"] == computed


def test_a_key_hash_is_the_one_on_the_protocol_page() -> None:
    for vector in vectors("key-hash"):
        assert vector["key_hash"] == key_hash(vector["ordering_key"].encode())


@given(st.one_of(st.none(), st.binary()), st.text("a1!~", min_size=1, max_size=128), st.integers(1, 4096))
def test_a_partition_is_one_of_the_topics(ordering_key: bytes | None, txn_id: str, count: int) -> None:
    partition = half_partition(ordering_key=ordering_key, txn_id=txn_id, partition_count=count)

    assert partition in range(count)


@given(st.binary(), st.integers(1, 4096))
def test_the_ordering_key_alone_decides_where_there_is_one(ordering_key: bytes, count: int) -> None:
    partitions = {
        half_partition(ordering_key=ordering_key, txn_id=txn_id, partition_count=count) for txn_id in ("a", "b", "c")
    }

    assert 1 == len(partitions)


def test_murmur2_is_the_one_of_java_producers() -> None:
    for vector in vectors("murmur2"):
        assert vector["murmur2"] == murmur2(vector["key"].encode())


@given(st.binary())
def test_murmur2_is_positive_and_has_31_bits(key: bytes) -> None:
    assert 0 <= murmur2(key) < 2**31


@given(st.binary(), st.integers(1, 4096))
def test_a_key_hash_names_the_partition_of_its_key(ordering_key: bytes, count: int) -> None:
    named = partition_of_key_hash(key_hash(ordering_key), partition_count=count)

    assert half_partition(ordering_key=ordering_key, txn_id="x", partition_count=count) == named


def test_keys_with_one_crc32_have_different_key_hashes() -> None:
    # "plumless" and "buckeroo" are a known collision of crc32.
    first, second = key_hash(b"plumless"), key_hash(b"buckeroo")

    assert first[:8] == second[:8]
    assert first != second
