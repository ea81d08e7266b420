"""Where a consumer group, or the coordinators, go on with their topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from txlayer.adapters.ports import Administration, StoredOffset, TopicPartition
from txlayer.core.progress import Progress, StoredProgress, decode
from txlayer.errors import LifecycleError, TopicMismatchError

StartPosition = Literal["earliest", "latest"] | int
"""Where to begin: at the first or the next record, or at the first record of a time in milliseconds since 1970."""


class GroupReset(NamedTuple):
    """What a group has stored for its partitions, and what it would have."""

    before: dict[TopicPartition, StoredOffset | None]
    after: dict[TopicPartition, StoredOffset]


def plan_reset(
    admin: Administration,
    group: str,
    topics: Sequence[str],
    *,
    to: StartPosition,
    of_coordinators: bool = False,
    token_above: int | None = None,
) -> GroupReset:
    """Let a group go on elsewhere; `admin.store_offsets` of `after` carries it out.

    Of consumers a pause stays, and fencing tokens go on from the highest one stored, or from `token_above` where that is higher.

    Raises:
        LifecycleError: a member of the group runs.
        TopicMismatchError: there is no such topic.
    """
    found = admin.group(group)
    if found.is_active:
        members = "coordinators" if of_coordinators else "consumers"
        raise LifecycleError(f"{group} has running {members}; stop them first", state=found.state)
    after = _positions(admin, topics, to)
    before = dict(admin.stored_offsets(group, list(after)))
    stored = {
        place: StoredOffset(
            offset, "" if of_coordinators else _metadata(offset, before[place], token_above)
        )
        for place, offset in after.items()
    }
    return GroupReset(before, stored)


def _metadata(offset: int, before: StoredOffset | None, token_above: int | None) -> str:
    """What is stored with a new offset: an operator's pause, and the highest token so far, or that one."""
    found = None if before is None else decode(before.offset, before.metadata)
    known = found if isinstance(found, StoredProgress) else StoredProgress()
    token = max((t for t in (known.token, token_above) if t is not None), default=None)
    if token is None and not known.is_paused:
        return ""
    return Progress(offset).snapshot(token=token, is_paused=known.is_paused).metadata


def _positions(
    admin: Administration, topics: Sequence[str], position: StartPosition
) -> dict[TopicPartition, int]:
    places: list[TopicPartition] = []
    for topic in topics:
        count = admin.partition_count(topic)
        if count is None:
            raise TopicMismatchError(
                "no such topic; `txlayer topics apply` creates a namespace's",
                topic=topic,
                expected="one",
                found="none",
            )
        places += [(topic, p) for p in range(count)]
    if position == "earliest":
        return admin.start_offsets(places)
    if position == "latest":
        return admin.end_offsets(places)
    return admin.offsets_at(places, at_ms=position)
