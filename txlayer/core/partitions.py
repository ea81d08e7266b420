"""Where a transaction lives, and how an ordering key is named. Never another hash for the half partition."""

from __future__ import annotations

import struct
import zlib
from hashlib import blake2b

_MASK = 0xFFFF_FFFF


def half_partition(*, ordering_key: bytes | None, txn_id: str, partition_count: int) -> int:
    """Partition of a transaction's half, op and doubt records, 0 <= p < partition_count.

    zlib.crc32(ordering key, else txn_id in ASCII) % partition_count; pure, stable across releases.

    Source: docs/explanation/protocol.md, "Where a transaction lives".
    """
    # The key alone decides: all decisions of one key must meet in one op log, or P6 has no order to keep.
    return zlib.crc32(txn_id.encode() if ordering_key is None else ordering_key) % partition_count


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
