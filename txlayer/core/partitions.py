"""Which partition a record is in: half, op and doubt records by ordering key or transaction id, forwarded messages by their options."""

import struct
import zlib
from collections.abc import Callable, Iterable
from hashlib import blake2b

from txlayer.core.messages import HalfOptions

# --- of half, op and doubt --------------------------------------------------------------------------------------------


def half_partition(*, ordering_key: bytes | None, txn_id: str, partition_count: int) -> int:
    """Partition of a transaction's half, op and doubt records, 0 <= p < partition_count; stable across releases.

    zlib.crc32(ordering key, else txn_id in ASCII) % partition_count: docs/explanation/protocol.md, "Where a transaction lives".
    """
    # Only the key decides: all decisions of one key must meet in one op log, or P6 would have no order to keep.
    return zlib.crc32(txn_id.encode() if ordering_key is None else ordering_key) % partition_count


def share_count(partition_count: int) -> int:
    """Number of shares of `head_share` and `tail_shares` after the modulo, which takes the low bits of a power of two; else 1: they say nothing."""
    return 1 if partition_count & partition_count - 1 else partition_count


def head_share(head: str, *, tail_length: int) -> int:
    """The part of an id's crc32 that comes from its first characters: crc32(head + tail) = head_share ^ tail_share.

    A CRC is linear: for texts of one length, the XOR of the texts has the XOR of their checksums (up to a constant).
    """
    zeros = bytes(tail_length)
    return zlib.crc32(zeros, zlib.crc32(head.encode())) ^ zlib.crc32(bytes(len(head) + tail_length))


def tail_shares(tails: Iterable[bytes], *, head_length: int) -> list[int]:
    """The part of an id's crc32 that comes from each of these last characters; see `head_share`."""
    start, crc32 = zlib.crc32(bytes(head_length)), zlib.crc32
    return [crc32(tail, start) for tail in tails]


def key_hash(ordering_key: bytes) -> str:
    """16 hexadecimal digits that represent an ordering key: its crc32, then 32 bits of BLAKE2b.

    With the first half, a reader checks that a record is in its partition; the second half distinguishes
    keys. Two keys with one hash (1 in 2^64) would only wait for each other.
    """
    return f"{zlib.crc32(ordering_key):08x}{blake2b(ordering_key, digest_size=4).hexdigest()}"


def partition_of_key_hash(key_hash: str, *, partition_count: int) -> int:
    return int(key_hash[:8], 16) % partition_count


# --- of the real topic ------------------------------------------------------------------------------------------------


def target_partition(options: HalfOptions, topic: str, partition_count_of: Callable[[str], int]) -> int:
    """Partition of the real topic that a message is forwarded to: its own; else by its ordering key; else -1.

    -1: the coordinator's client chooses, by the message's key as Java producers do, or at random if it has none.
    """
    if options.partition is not None:
        return options.partition
    if options.key_murmur is not None:
        return options.key_murmur % partition_count_of(topic)
    return -1


def key_murmur_of(ordering_key: bytes | None, *, has_key: bool, partition: int | None) -> int | None:
    """`HalfOptions.key_murmur`: set where the client would choose at random, so that the forwarded record follows the ordering key (P6)."""
    if has_key or partition is not None or ordering_key is None:
        return None
    return murmur2(ordering_key)


_MASK = 0xFFFF_FFFF


def murmur2(key: bytes) -> int:
    """Kafka's hash of a key as a positive number of 31 bits, before the modulo: the value that Java's partitioner computes.

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
