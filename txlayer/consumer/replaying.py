"""An operator's request from the choice to its results: written once each, followed on the replay topic. Never a choice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from txlayer.consumer.dead_letter_log import DeadLetterLog, Place
from txlayer.consumer.letter_choice import Chosen
from txlayer.consumer.requests import Request, RequestWriter
from txlayer.core.handling import ReplayKind, ReplayRecord
from txlayer.core.letter_states import LetterState, Said
from txlayer.core.progress_codec import NO_KEY, hash_of_key

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

        Where a key is stuck at a dead letter that retention took, that one is asked for first: its answer, `missing`,
        lets the later ones go.

        Raises: as `RequestWriter.write`. The same request id, chosen again, leaves out those that came through.
        """
        requests = (
            Request(
                each.place.topic, each.place.partition, each.key,
                ReplayRecord(self._kind, self.request_id, each.place.offset, text=self._text),
            )
            for each in self._behind_those_that_are_gone(chosen)
        )  # fmt: skip
        return len(self._writer.write(requests, rate_max=rate_max, on_progress=on_progress))

    def _behind_those_that_are_gone(self, chosen: Iterable[Chosen]) -> Iterator[Chosen]:
        statuses = {topic: log.queues() for topic, log in self._logs.items()}
        looked_up: set[Place] = set()
        for each in chosen:
            topic, partition, _ = each.place
            stuck = statuses[topic][partition].stuck if self._kind is ReplayKind.REPLAY else {}
            hashes = {NO_KEY, NO_KEY if each.key is None else hash_of_key(each.key)}
            for offset in (stuck[key_hash] for key_hash in hashes & stuck.keys()):
                place = Place(topic, partition, offset)
                if place not in looked_up:
                    looked_up.add(place)
                    if self._logs[topic].at(partition, offset) is None:
                        yield each._replace(place=place)
            yield each

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
