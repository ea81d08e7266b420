"""Half records and op lines for tests of the core. Every factory has keyword overrides."""

from collections.abc import Sequence
from typing import Any

from txlayer.adapters.memory.log import APPEND_TIME, MemoryRecord
from txlayer.core import codec
from txlayer.core.messages import (
    NO_OPTIONS,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    Headers,
    OpMessage,
    OrderMode,
    Resolution,
    Source,
)
from txlayer.core.partitions import half_partition, key_hash

PARTITION_COUNT = 2
"""Two, so that a record can be in the wrong one."""

PARTITION = 0
"""The one that tests look at."""

GROUP = "shop"
BORN_MS = 1_700_000_000_000
FAR_AWAY = 1_000_000_000
"""A half offset that no test reaches."""


def plain_record(
    *,
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: Headers | None = None,
    topic: str = "txlayer.half",
    offset: int = -1,
    appended_ms: int = 0,
) -> MemoryRecord:
    """A record of the partition under test, as the cluster in memory gives it."""
    return MemoryRecord(
        topic, PARTITION, key, value, list(headers or ()), (APPEND_TIME, appended_ms), log_offset=offset
    )


def txn_key(name: str, *, nonce: str = "0000000a", is_home: bool = True) -> str:
    """The "id/nonce" of a transaction that belongs into the partition under test (or, not `is_home`, into the other)."""
    return f"{_name_in_partition(name, is_home=is_home)}/{nonce}"


def ordering_key(name: str) -> bytes:
    """An ordering key whose transactions belong into the partition under test."""
    return _name_in_partition(name, is_home=True).encode()


def _name_in_partition(name: str, *, is_home: bool) -> str:
    for number in range(100):
        found = name if number == 0 else f"{name}-{number}"
        partition = half_partition(ordering_key=None, txn_id=found, partition_count=PARTITION_COUNT)
        if (partition == PARTITION) is is_home:
            return found
    raise AssertionError(name)


def options(
    name: str | None = None, *, order: OrderMode = OrderMode.COMMIT, immunity_ms: int | None = None
) -> HalfOptions:
    """The options of a transaction whose ordering key is `ordering_key(name)`."""
    hashed = None if name is None else key_hash(ordering_key(name))
    return HalfOptions(hashed, order, immunity_ms)


def half_header(
    key: str,
    *,
    group: str = GROUP,
    topic: str = "orders",
    index: int = 0,
    count: int = 1,
    born_ms: int = BORN_MS,
    options: HalfOptions = NO_OPTIONS,
) -> bytes:
    """The value of the header `txl`."""
    return codec.encode_half_header(HalfHeader(key, group, topic, index, count, born_ms, options))


def half_record(
    raw: bytes | None,
    *,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> MemoryRecord:
    """A half record whose `txl` is `raw` (None: it has none)."""
    ours = [] if raw is None else [(codec.HALF_HEADER, raw)]
    return plain_record(key=key, value=value, headers=[*headers, *ours])


def half_bytes(key: str, *, value: bytes | None = b"v", **header: Any) -> int:
    """What a half record of `half_record` counts for: 64 bytes beside its key, value and header."""
    raw = half_header(key, **header)
    return 64 + len(b"k") + len(value or b"") + len("txl") + len(raw) + 2


def summary(key: str, **changes: Any) -> DoubtSummary:
    """What doubt says of an undecided transaction with one half record, at offset 7."""
    plain = DoubtSummary(
        key, "open", "", GROUP, 7, 7, 1, 1, 1_000, BORN_MS, None, OrderMode.COMMIT, None, None, 0, ("orders",)
    )
    return plain._replace(**changes)


def op_line(
    resolution: str,
    key: str,
    last_offset: int,
    *,
    group: str = GROUP,
    born_ms: int = BORN_MS,
    source: Source = Source.PRODUCER,
    check_number: int | None = None,
    reason: str = "",
) -> str:
    """An op line; `resolution` is C, R, U, or A for an operator's abandon."""
    is_abandon = resolution == "A"
    said = Resolution.ROLLBACK if is_abandon else Resolution(resolution)
    return codec.encode_op(OpMessage(said, key, group, last_offset, born_ms, source, check_number, is_abandon, reason))
