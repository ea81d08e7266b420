"""What the coordinator stores with its offsets: (offset, metadata) ↔ Positions. Never storing them.

half's offset is the low-water mark, with the metadata `1|writer|copies from|time`, op's the next op record; the rest stands in
the metadata of op's, as `1|writer|half next|op line|replay offset:line|doubt low`. An empty metadata (made by `topics apply` and `coordinator
reset`) says that nothing is needed from before the two offsets.
"""

from __future__ import annotations

from typing import NamedTuple

from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import SystemTopics
from txlayer.core.batch import Positions
from txlayer.core.fields import NEXT_VERSION, VERSION, known_fields, whole
from txlayer.errors import ConfigError

_OP_FIELDS = 6


class StoredPositions(NamedTuple):
    """Where one partition stands, and who said so."""

    positions: Positions
    writer: str  # "" when nobody wrote yet
    time_ms: int = 0  # what time it was in the partition then; 0: not known


def encode_stored(
    positions: Positions, *, writer: str, topics: SystemTopics, partition: int, time_ms: int = 0
) -> dict[TopicPartition, StoredOffset]:
    """The two offsets of one partition."""
    p = positions
    metadata = f"{VERSION}|{writer}|{p.half_next}|{p.op_line}|{p.replay_offset}:{p.replay_line}|{max(p.doubt_low, 0)}"
    return {
        (topics.half, partition): StoredOffset(
            p.low_water, f"{VERSION}|{writer}|{p.copies_from}|{time_ms}"
        ),
        (topics.op, partition): StoredOffset(p.op_offset, metadata),
    }


def decode_stored(
    half: StoredOffset | None, op: StoredOffset | None, *, partition: int
) -> StoredPositions:
    """The positions of one partition.

    Raises:
        ConfigError: nothing is stored, or not by us. Nothing was read; the message names the command that mends it.
    """
    if half is None or op is None:
        raise ConfigError(
            f"no stored offset for partition {partition}: a new namespace needs `txlayer topics apply`; after a loss say "
            "where to begin with `txlayer coordinator reset --to earliest|latest|TIME`",
            name="stored offsets",
            value=None,
            expected="an offset for half and op",
        )
    if not op.metadata:
        low_water, op_next = half.offset, op.offset
        return StoredPositions(
            Positions(low_water, low_water, op_next, 0, op_next, 0, 0, low_water), ""
        )
    try:
        known = known_fields(op.metadata.split("|"), _OP_FIELDS)
        if known is None:
            raise ValueError(f"metadata {op.metadata[:20]!r}")
        version, *of_half = half.metadata.split("|")
        _, copies_from, time_ms, *_ = [*of_half, "", "", ""]
        if version not in (VERSION, NEXT_VERSION):
            copies_from = time_ms = ""
        _, writer, half_next, line, replay, doubt_low = known
        replay_offset, _, replay_line = replay.partition(":")
        return StoredPositions(
            Positions(
                half.offset,
                whole(half_next),
                op.offset,
                whole(line),
                whole(replay_offset),
                whole(replay_line),
                whole(doubt_low),
                whole(copies_from or str(half.offset)),
            ),
            writer,
            whole(time_ms or "0"),
        )
    except ValueError as exc:
        raise ConfigError(
            f"the stored offset of partition {partition} was not written by this coordinator; "
            "`txlayer coordinator reset` says where to begin",
            name="offset metadata",
            value=op.metadata[:200],
            expected="1|writer|…",
        ) from exc
