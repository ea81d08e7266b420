"""Where a transaction lives, and how an ordering key is named. Never another hash for the half partition."""

from __future__ import annotations

import zlib
from hashlib import blake2b


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
