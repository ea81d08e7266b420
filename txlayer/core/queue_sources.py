"""The progress of a queue in its topic and in the requests to replay, as both are stored. Never who may start."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from txlayer.core.attempts import GiveUp
from txlayer.core.handling import ReplayKind
from txlayer.core.items import Item, ItemSource, More, NullKeys, Order, QueueSettings, R, Start
from txlayer.core.progress import Progress, Snapshot


class QueueSources:
    """Both progresses, and what else the metadata say of the partition."""

    def __init__(
        self, *, topic: Start, replays: Start, settings: QueueSettings, now_ms: int
    ) -> None:
        limit = settings.metadata_bytes_max
        self._policy, self._taken_over_ms = settings.policy, now_ms
        self.topic = Progress(
            *topic, metadata_bytes_max=limit, parked_keys_max=settings.parked_keys_max,
            ends_by_key=settings.order is Order.KEY, orders_null_keys=settings.null_keys is NullKeys.ORDERED,
        )  # fmt: skip
        self.replays = Progress(*replays, metadata_bytes_max=limit)
        self.is_paused = topic.stored.is_paused
        self.writer = ""
        self.token = topic.stored.token
        self._is_full = dict.fromkeys(ItemSource, False)
        self._arrivals: deque[tuple[int, int]] = deque()  # (first offset, when) of what was added

    @property
    def is_full(self) -> bool:
        """True when the last snapshot of one was."""
        return any(self._is_full.values())

    @property
    def oldest_added_ms(self) -> int | None:
        """When the oldest unfinished record of the topic was added, as of its last snapshot."""
        return self._arrivals[0][1] if self._arrivals and self.topic.unfinished_count else None

    def of(self, source: ItemSource) -> Progress:
        """The progress in that source."""
        return self.topic if source is ItemSource.TOPIC else self.replays

    def remember(self, item: Item[R]) -> None:
        """Give the item what is stored of its attempts, and its back-off anew."""
        attempts = self.of(item.source).attempts(item.offset)
        if attempts is not None:
            item.more = item.more or More()
            item.more.remember(
                attempts, self._policy, offset=item.offset, taken_over_ms=self._taken_over_ms
            )

    def added(self, first_offset: int, *, now_ms: int) -> None:
        """Records of the topic from this offset on were added."""
        self._arrivals.append((first_offset, now_ms))

    def snapshot(
        self,
        source: ItemSource,
        *,
        uncounted: Mapping[tuple[ItemSource, int], Item[R]],
        parked: Mapping[bytes, int],
        stuck: Mapping[bytes, int],
        is_paused: bool,
        ended: Collection[int] = (),
    ) -> Snapshot:
        """What is to be stored of `source`, as if the items at the offsets `ended` had ended.

        `uncounted` are the items whose last attempt's count is not stored yet.
        """
        behind: set[int] = set()
        given_up: set[int] = set()
        for (where, offset), item in uncounted.items():
            if where is source and item.more is not None:
                if not item.more.is_waiting:
                    behind.add(offset)
                if isinstance(item.more.verdict, GiveUp):
                    given_up.add(offset)
        if source is ItemSource.TOPIC:
            taken = self.topic.snapshot(
                ended=ended, behind=behind, given_up=given_up, parked=parked, stuck=stuck, writer=self.writer,
                is_paused=is_paused, token=self.token,
            )  # fmt: skip
            while len(self._arrivals) > 1 and self._arrivals[1][0] <= taken.offset:
                self._arrivals.popleft()
        else:
            taken = self.replays.snapshot(ended=ended, given_up=given_up)
        self._is_full[source] = taken.is_full
        return taken

    def paused_after(self, items: Sequence[Item[R]]) -> bool:
        """Whether the partition is paused when these items have ended."""
        is_paused = self.is_paused
        for item in items:
            request = item.more.request if item.more is not None else None
            if request is not None and request.kind in (ReplayKind.PAUSE, ReplayKind.RESUME):
                is_paused = request.kind is ReplayKind.PAUSE
        return is_paused
