"""An operator's request from the choice to its results: written once each, followed on the replay topic. Never a choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from txlayer.consumer.dead_letter_log import DeadLetterLog
from txlayer.consumer.letter_choice import Chosen
from txlayer.consumer.requests import Request, RequestWriter
from txlayer.core.handling import ReplayKind, ReplayRecord
from txlayer.core.letter_states import LetterState, Said

LOOK_AGAIN_S = 0.2
"""Between two looks at the replay topic."""


class Replaying:
    """Requests of one id about dead letters of one group. One thread uses it."""

    def __init__(
        self,
        logs: Mapping[str, DeadLetterLog],
        writer: RequestWriter,
        *,
        kind: ReplayKind,
        request_id: str,
        text: str,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._logs = logs
        self._writer = writer
        self._kind = kind
        self.request_id = request_id
        self._text = text
        self._clock = clock
        self._pause = pause

    def request(
        self,
        chosen: Iterable[Chosen],
        *,
        rate_max: float | None = None,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> int:
        """Ask for these, in this order, at most `rate_max` a second; how many were asked for.

        Raises: as `RequestWriter.write`. The same request id, chosen again, leaves out those that came through.
        """
        requests = (
            Request(
                each.place.topic, each.place.partition, each.key,
                ReplayRecord(self._kind, self.request_id, each.place.offset, text=self._text),
            )
            for each in chosen
        )  # fmt: skip
        return len(self._writer.write(requests, rate_max=rate_max, on_progress=on_progress))

    def wait(
        self,
        chosen: Sequence[Chosen],
        *,
        patience_s: float,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """Return when all have a result, or when for `patience_s` none came. `on_progress` is told how many have."""
        give_up_at, answered_before = self._clock() + patience_s, -1
        while True:
            for topic in {each.place.topic for each in chosen}:
                self._logs[topic].follow()
            answered = sum(self.result(each) is not None for each in chosen)
            on_progress(answered)
            if answered > answered_before:
                give_up_at, answered_before = self._clock() + patience_s, answered
            if answered >= len(chosen) or self._clock() >= give_up_at:
                return
            self._pause(LOOK_AGAIN_S)

    def result(self, chosen: Chosen) -> Said | None:
        """What the owner of its partition answered, as far as it was read."""
        topic, partition, offset = chosen.place
        return self._logs[topic].states(partition).of(offset).results.get(self.request_id)

    def state(self, chosen: Chosen) -> LetterState:
        """What became of it, as far as it was read."""
        topic, partition, offset = chosen.place
        return self._logs[topic].states(partition).of(offset).state
