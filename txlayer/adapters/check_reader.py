"""One instance's view of the check topic: it reads all of it, and knows which part the group gave it to answer.

Limits and refusals concern every instance of a producer group, a question only one. So each instance reads every
partition, and the consumer group's assignment says only whose questions are whose. Never: what a record says.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from txlayer.adapters.ports import Assignment, GroupReader, Record, TopicPartition
from txlayer.errors import RetriableError

logger = logging.getLogger("txlayer.responder")

ENDS_TIMEOUT_S = 10.0
"""How long one question for a partition's end may take."""

RETRY_S = 0.1
"""Between two of them."""


class Heard(NamedTuple):
    """What one read brought."""

    records: Sequence[Record]
    own_partitions: frozenset[int]
    """Whose questions were this instance's to answer when the records were read."""


class CheckReader:
    """Reads all partitions of the check topic as a member of a group. One thread uses it; no callback raises.

    Args:
        member: of the producer group's check group, not started.
        topic: the check topic.
        count_partitions: asks how many partitions it has now.
        positions: where to go on, by partition; kept up to date here, so that the next reader finds them. A partition
            that is not there is read from its end: what was missed is asked again.
    """

    def __init__(
        self,
        member: GroupReader,
        *,
        topic: str,
        count_partitions: Callable[[], int],
        positions: dict[int, int],
        start_patience_s: float = ENDS_TIMEOUT_S,
    ) -> None:
        self._member = member
        self._start_patience_s = start_patience_s
        self._topic = topic
        self._count_partitions = count_partitions
        self._positions = positions
        self._own: frozenset[int] = frozenset()
        self._is_assigned = False
        self._is_paused = False

    @property
    def own_partitions(self) -> frozenset[int]:
        """What the group gave to this instance; empty while it shares anew."""
        return self._own

    @property
    def is_member(self) -> bool:
        """True from the first assignment on, while the group has not taken it back."""
        return self._is_assigned

    def start(self) -> None:
        """Find the ends and join the group; a broker that may just be coming up is asked again for `start_patience_s`.

        Raises:
            TopicMismatchError: there is no such topic. Nothing was joined.
            RetriableError, NotAuthorisedError: nobody said. Nothing was joined.
        """
        # The ends first: whoever sees a member may ask, and that question must be heard.
        self._find_ends(self._count_partitions(), patience_s=self._start_patience_s)
        self._member.start([self._topic])

    def read(self, *, record_count_max: int, timeout_s: float) -> Heard:
        """Records as they come; serves the group.

        Raises:
            ConfigError: a position is not in the log any more.
            TxLayerError: anything else that stops reading. Close this reader and make a new one.
        """
        own = self._own
        records = self._member.read(record_count_max=record_count_max, timeout_s=timeout_s)
        for record in records:
            self._positions[record.partition()] = record.offset() + 1
        if self._member.take_revocation():
            self._own = frozenset()
            self._is_assigned = False
        share = self._member.take_assignment()
        if share is not None:
            self._take(share)
        return Heard(records, own)

    def pause(self, *, is_paused: bool) -> None:
        """Stop reading, or go on; the group is served either way."""
        if is_paused is not self._is_paused:
            self._is_paused = is_paused
            if self._is_assigned:
                self._apply_pause()

    def close(self) -> None:
        """Leave the group."""
        self._own = frozenset()
        self._is_assigned = False
        self._member.close()

    def _take(self, share: Assignment) -> None:
        try:
            self._find_ends(self._count_partitions(), patience_s=ENDS_TIMEOUT_S)
        except RetriableError:
            # Those that were known are read; a new one is found at the next assignment.
            logger.warning("responder.ends_unknown", exc_info=True)
        self._own = frozenset(partition for _, partition in share.partitions)
        self._member.resume_at({(self._topic, p): at for p, at in self._positions.items()})
        self._is_assigned = True
        if self._is_paused:
            self._apply_pause()
        logger.info(
            "responder.assigned",
            extra={"partitions": sorted(self._own), "generation": share.generation},
        )

    def _apply_pause(self) -> None:
        places: list[TopicPartition] = [(self._topic, p) for p in self._positions]
        if self._is_paused:
            self._member.pause(places)
        else:
            self._member.resume(places)

    def _find_ends(self, partition_count: int, *, patience_s: float) -> None:
        give_up_at = time.monotonic() + patience_s
        for partition in range(partition_count):
            if partition not in self._positions:
                self._positions[partition] = self._end_of((self._topic, partition), give_up_at)

    def _end_of(self, place: TopicPartition, give_up_at: float) -> int:
        while True:
            try:
                return self._member.watermarks(place, timeout_s=ENDS_TIMEOUT_S)[1]
            except RetriableError:
                # A leader that moves, or is just made, answers so for a moment.
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(RETRY_S)
