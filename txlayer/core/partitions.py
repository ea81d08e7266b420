"""Where a transaction lives, and how an ordering key is named. Never another hash for the half partition."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from hashlib import blake2b

_MASK = 0xFFFF_FFFF


def half_partition(*, ordering_key: bytes | None, txn_id: str, partition_count: int) -> int:
    """Partition of a transaction's half, op and doubt records, 0 <= p < partition_count.

    zlib.crc32(ordering key, else txn_id in ASCII) % partition_count; pure, stable across releases.

    Source: docs/explanation/protocol.md, "Where a transaction lives".
    """
    # The key alone decides: all decisions of one key must meet in one op log, or P6 has no order to keep.
    return zlib.crc32(txn_id.encode() if ordering_key is None else ordering_key) % partition_count


def share_count(partition_count: int) -> int:
    """How many shares `head_share` and `tail_share` have after the modulo; 1: the partition cannot be chosen by them.

    With a power of two the modulo takes the low bits, and XOR goes bit by bit.
    """
    return 1 if partition_count & partition_count - 1 else partition_count


def head_share(head: str, *, tail_length: int) -> int:
    """What an id's first characters give to its crc32: crc32(head + tail) = head_share ^ tail_share.

    A CRC is linear: of texts of one length, XOR of the texts is XOR of their checksums (but for a constant).
    """
    zeros = bytes(tail_length)
    return zlib.crc32(zeros, zlib.crc32(head.encode())) ^ zlib.crc32(bytes(len(head) + tail_length))


def tail_shares(tails: Iterable[bytes], *, head_length: int) -> list[int]:
    """What each of these last characters gives to the crc32 of its id; see `head_share`."""
    start, crc32 = zlib.crc32(bytes(head_length)), zlib.crc32
    return [crc32(tail, start) for tail in tails]


def key_hash(ordering_key: bytes) -> str:
    """16 hexadecimal digits that stand for an ordering key: its crc32, then 32 bits of BLAKE2b.

    The first half lets a reader check that a record lies in its partition; the second keeps different keys
    apart. Two keys with one hash (1 in 2^64) would only wait for each other.
    """
    return f"{zlib.crc32(ordering_key):08x}{blake2b(ordering_key, digest_size=4).hexdigest()}"


def partition_of_key_hash(key_hash: str, *, partition_count: int) -> int:
    """The half partition that belongs to a `key_hash`."""
    return int(key_hash[:8], 16) % partition_count


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key as a positive number of 31 bits, before the modulo: what Java's partitioner computes.

    Source: Apache Kafka, org.apache.kafka.common.utils.Utils.murmur2 and toPositive.
    """
    m = 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for (k,) in struct.iter_unpack("<I", key[:whole]):
        k = k * m & _MASK  # noqa: PLW2901 - the mixing steps of the source
        k = (k ^ k >> 24) * m & _MASK  # noqa: PLW2901 - the same
        h = h * m & _MASK ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & _MASK
    h = (h ^ h >> 13) * m & _MASK
    return (h ^ h >> 15) & 0x7FFF_FFFF
