"""Requests about dead letters: written once each, and followed on the replay topic to their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from txlayer.adapters.ports import HalfWriter
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, encode_replay, replay_topic
from txlayer.core.progress import NO_KEY, hash_of_key
from txlayer.operate.dead_letters import Chosen, DeadLetterLog, DeadLetterPlace
from txlayer.operate.operators import OperatorWriter

BATCH_BYTES = 16_384
"""One produce batch; requests are small."""


class Request(NamedTuple):
    """A request for the replay topic of `topic`."""

    topic: str
    partition: int
    key: bytes | None  # the dead letter's
    record: ReplayRecord


class WrittenRequest(NamedTuple):
    """An acknowledged request."""

    request: Request
    offset: int


class RequestWriter:
    """Writes requests of one group. One thread uses it."""

    def __init__(
        self,
        make_log_writer: Callable[[int], HalfWriter],
        *,
        group: str,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._make_log_writer = make_log_writer
        self._group = group
        self._clock = clock
        self._pause = pause

    def write(
        self,
        requests: Iterable[Request],
        *,
        rate_max: float | None = None,
        on_progress: Callable[[int], None] = lambda _count: None,
    ) -> list[WrittenRequest]:
        """Write them in this order, at most `rate_max` a second; returns when all are acknowledged.

        Requests of one partition stand there in their order.

        Raises:
            OutcomeUnknownError, NotAuthorisedError, RetriableError, RefusedRecordError: not all are stored; those
                acknowledged before stay. The same requests may be written again, but those that came through.
        """
        writer = OperatorWriter(
            self._make_log_writer(BATCH_BYTES), what="requests", step="request", clock=self._clock, pause=self._pause
        )
        records = (
            (each, replay_topic(self._group, each.topic), each.partition, each.key, encode_replay(each.record))
            for each in requests
        )
        written = writer.write(records, rate_max=rate_max, on_progress=on_progress)
        return [WrittenRequest(request, offset) for request, offset in written]


LOOK_AGAIN_S = 0.2
"""Between two looks at the replay topic."""


class Replaying:
    """Requests of one id about dead letters of one group. One thread uses it."""

    def __init__(
        self, logs: Mapping[str, DeadLetterLog], writer: RequestWriter, *, kind: ReplayKind, request_id: str, text: str
    ) -> None:
        self._logs = logs
        self._writer = writer
        self._kind = kind
        self._request_id = request_id
        self._text = text

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
                each.place.topic,
                each.place.partition,
                each.key,
                ReplayRecord(self._kind, self._request_id, each.place.offset, text=self._text),
            )
            for each in self._behind_those_that_are_gone(chosen)
        )
        return len(self._writer.write(requests, rate_max=rate_max, on_progress=on_progress))

    def _behind_those_that_are_gone(self, chosen: Iterable[Chosen]) -> Iterator[Chosen]:
        statuses = {topic: log.queues() for topic, log in self._logs.items()}
        looked_up: set[DeadLetterPlace] = set()
        for each in chosen:
            topic, partition, _ = each.place
            stuck = statuses[topic][partition].stuck if self._kind is ReplayKind.REPLAY else {}
            hashes = {NO_KEY, hash_of_key(each.key)}
            for offset in (stuck[key_hash] for key_hash in hashes & stuck.keys()):
                place = DeadLetterPlace(topic, partition, offset)
                if place not in looked_up:
                    looked_up.add(place)
                    if self._logs[topic].at(partition, offset) is None:
                        yield each._replace(place=place)
            yield each

    def wait(
        self, chosen: Sequence[Chosen], *, patience_s: float, on_progress: Callable[[int], None] = lambda _count: None
    ) -> None:
        """Return when all have a result, or when for `patience_s` none came. `on_progress` gets how many have."""
        give_up_at, answered_before = time.monotonic() + patience_s, -1
        while True:
            for topic in {each.place.topic for each in chosen}:
                self._logs[topic].follow()
            places = (each.place for each in chosen)
            answered = sum(self._request_id in self._logs[p.topic].history(p).results for p in places)
            on_progress(answered)
            if answered > answered_before:
                give_up_at, answered_before = time.monotonic() + patience_s, answered
            if answered >= len(chosen) or time.monotonic() >= give_up_at:
                return
            time.sleep(LOOK_AGAIN_S)
