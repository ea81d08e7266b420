"""Answers check-backs on its own thread: reads them, calls the handler, writes the answers.

An exception or a time-out of the handler gives UNKNOWN, not COMMIT or ROLLBACK.
"""

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from txlayer.adapters.connect import ProducerConnections
from txlayer.adapters.ports import limits_of
from txlayer.adapters.readers import CheckReader
from txlayer.adapters.telemetry import (
    Family,
    Health,
    Log,
    ObservedRole,
    Sample,
    counter,
    gauge,
    stall_of,
    with_few_labels,
)
from txlayer.config import ProducerConfig
from txlayer.core import codec
from txlayer.core.messages import COMMIT, ROLLBACK, CheckRecord, OpMessage, Resolution
from txlayer.errors import ConfigError, TxLayerError
from txlayer.producer.check_handlers import (
    CallOutcome,
    CallRunner,
    Done,
    ExecutorCallRunner,
    Handling,
    LoopCallRunner,
    ThreadCallRunner,
)
from txlayer.producer.pipeline import Pipeline
from txlayer.producer.questions import OpenLimit, ParkedTransaction, Questions, RefusedResolution, ResponderStats, Skip

logger = Log("txlayer.responder")

OnParked = Callable[[ParkedTransaction, Callable[[object], None]], object]
"""Hears of a parked transaction, and calls the function with what the application says: COMMIT, ROLLBACK, or None for neither."""


class AnswerWriter:
    """Writes answers. The responder's thread adds and writes; delivery reports come on the producer's thread.

    Answers of one partition are packed into one record. A lost answer does no harm: the check-back is asked again.
    """

    def __init__(self, pipeline: Pipeline, *, line_count_max: int) -> None:
        self._pipeline = pipeline
        self._line_count_max = line_count_max
        self._waiting: dict[int, list[str]] = {}
        self._written_count = 0
        # The producer's thread counts; what may not be stored is asked again.
        self.stored_count = 0
        self.lost_count = 0

    @property
    def is_alive(self) -> bool:
        """False if nothing is written any more: the producer is closed or failed."""
        return self._pipeline.is_alive

    @property
    def unreported_count(self) -> int:
        """Answers that are neither stored nor lost yet."""
        waiting_count = sum(map(len, self._waiting.values()))
        return waiting_count + self._written_count - self.stored_count - self.lost_count

    def add(self, partition: int, answer: OpMessage) -> None:
        self._waiting.setdefault(partition, []).append(codec.encode_op(answer))

    def write(self) -> None:
        """Write the added answers; if the client has no room, the rest waits for the next call."""
        for partition in list(self._waiting):
            lines = self._waiting[partition]
            while lines and self._write_one(partition, lines[: self._line_count_max]):
                del lines[: self._line_count_max]
            if lines:
                return
            del self._waiting[partition]

    def _write_one(self, partition: int, lines: list[str]) -> bool:
        count = len(lines)
        try:
            self._pipeline.produce(
                self._pipeline.op_topic, codec.encode_ops(lines), None, partition, partial(self._reported, count)
            )
        except BufferError:
            return False
        except Exception as exc:  # noqa: BLE001 - border to the client; the question comes again
            self._written_count += count
            self.lost_count += count
            logger.warning("answers.not_written", extra={"count": count, "reason": str(exc)})
            return True
        self._written_count += count
        return True

    def _reported(self, count: int, error: Any, _record: Any) -> None:
        # A delivery report: it must not raise.
        if error is None:
            self.stored_count += count
        else:
            self.lost_count += count
            logger.warning("answers.not_acknowledged", extra={"count": count, "reason": str(error)})


READ_COUNT_MAX = 5_000  # records of one read; it limits how long answers wait meanwhile
IDLE_READ_S = 0.2  # how long an idle read may wait; a check-back ends the wait
BUSY_READ_S = 0.01  # the same while calls are in flight, so that their results do not wait for check-backs

RETRY_S = 0.5
RETRY_MAX_S = 15.0  # longest pause before it rejoins the group after an error; pauses grow, and it retries without end
LOOK_S = 0.05  # how often `close` checks whether it has ended


class Answering(NamedTuple):
    """The settings with which a producer answers for its group."""

    handling: Handling
    on_refused: Callable[[RefusedResolution], object] | None = None
    """Called with refused resolutions, on the responder's thread; its exceptions are logged."""
    loop: asyncio.AbstractEventLoop | None = None  # runs an asynchronous handler
    on_parked: OnParked | None = None

    def make_calls(self, group: str, done: Done) -> CallRunner:
        handling, clock = self.handling, time.monotonic
        answer, count_max = handling.answer, handling.call_count_max
        if handling.is_async:
            assert self.loop is not None
            return LoopCallRunner(answer, call_count_max=count_max, done=done, loop=self.loop, clock=clock)
        if handling.executor is not None:
            return ExecutorCallRunner(answer, executor=handling.executor, done=done, clock=clock)
        return ThreadCallRunner(answer, call_count_max=count_max, done=done, name=f"txlayer-check-{group}", clock=clock)


class Responder:
    """One instance that answers for its producer group.

    Its producer calls `start` and `close`; any thread may use `stats`. `on_limit` is called whenever the limit of open transactions
    changes.
    """

    def __init__(
        self,
        answering: Answering,
        *,
        connections: ProducerConnections,
        config: ProducerConfig,
        writer: AnswerWriter,
        group: str,
        on_limit: Callable[[OpenLimit | None], None],
    ) -> None:
        self._group = group
        self._config = config
        self._connections = connections
        self._check_timeout_s = config.check_timeout.total_seconds()
        self._writer = writer
        self._on_limit = on_limit
        self._refused_callback, self._parked_callback = answering.on_refused, answering.on_parked
        self._questions = Questions(
            group=group,
            handling=answering.handling,
            check_timeout_s=self._check_timeout_s,
            on_answer=writer.add,
            on_refused=self._hear_refusal,
            on_parked=None if answering.on_parked is None else self._hear_parking,
        )
        self._settled: deque[tuple[CheckRecord, Resolution]] = deque()
        self._outcomes: deque[CallOutcome] = deque()
        self._calls = answering.make_calls(group, self._outcomes.append)
        self._limit: OpenLimit | None = None
        self._positions: dict[int, int] = {}
        self._reader: CheckReader | None = None
        self._is_ending = threading.Event()
        self._end_at = float("inf")
        self._failure: TxLayerError | None = None
        self._turned_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"txlayer-responder-{group}", daemon=True)

    # --- any thread ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find the ends of the check topic, then start the thread, which joins the group.

        Raises:
            TopicMismatchError: the check topic does not exist. Nothing was started.
            BrokerUnavailableError, NotAuthorisedError: it cannot be read. Nothing was started.
        """
        self._reader = self._opened()
        self._thread.start()

    def begin_close(self) -> None:
        """Stop reading and leave the group; calls in flight are answered. Returns at once."""
        self._is_ending.set()

    def close(self, timeout_s: float) -> None:
        """`begin_close`, and wait up to `timeout_s` for calls in flight. The other check-backs are asked again."""
        self._end_at = time.monotonic() + timeout_s
        self._is_ending.set()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            # The thread keeps to the time limit by itself, except for the time that leaving the group may take.
            self._thread.join(timeout_s + LOOK_S * 4)

    def stats(self) -> ResponderStats:
        tally, writer, reader = self._questions.tally, self._writer, self._reader
        return ResponderStats(
            asked=tally.asked,
            answered=dict(tally.answered),
            unknown=dict(tally.unknown),
            skipped={skip.value: count for skip, count in dict(tally.skipped).items()},
            late=tally.late,
            stored=writer.stored_count,
            lost=writer.lost_count,
            refused=tally.refused,
            own_partitions=() if reader is None else tuple(sorted(reader.own_partitions)),
            is_member=reader is not None and reader.is_member,
            failure=self._failure,
            turned_at=self._turned_at,
        )

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        retry_s = RETRY_S
        try:
            while not self._is_ending.is_set() and self._writer.is_alive:
                self._turned_at = time.monotonic()
                try:
                    if not self._calls.is_able:
                        self._stand_aside()
                        continue
                    if self._reader is None:
                        self._reader = self._opened()
                    self._round(self._reader)
                    if self._reader.is_member:
                        retry_s, self._failure = RETRY_S, None
                except Exception as exc:  # noqa: BLE001 - the loop's border: logged, then retried
                    self._begin_anew(exc, retry_s)
                    retry_s = min(retry_s * 2, RETRY_MAX_S)
            self._finish()
        finally:
            self._set_limit(None)
            level = logging.INFO if self._is_ending.is_set() else logging.ERROR
            logger.log(level, "responder.ended", extra=self._told())

    def _round(self, reader: CheckReader) -> None:
        questions = self._questions
        reader.pause(is_paused=questions.is_full)
        is_busy = questions.open_count or self._outcomes or self._writer.unreported_count
        heard = reader.read(record_count_max=READ_COUNT_MAX, timeout_s=BUSY_READ_S if is_busy else IDLE_READ_S)
        if heard.records:
            questions.hear(heard, time.monotonic())
        self._serve()

    def _serve(self) -> None:
        """Process results, give up slow calls, begin the next ones, write answers, and look at the limit."""
        questions, now = self._questions, time.monotonic()
        while self._settled:
            questions.settle(*self._settled.popleft())
        while self._outcomes:
            questions.take(self._outcomes.popleft())
        for call in questions.overdue(now):
            if self._calls.give_up(call):
                questions.time_out(call)
        while (next_call := questions.next_call(now)) is not None:
            self._calls.begin(next_call)
        self._writer.write()
        self._set_limit(questions.limits.current(now))

    def _begin_anew(self, error: Exception, wait_s: float) -> None:
        is_ours = isinstance(error, TxLayerError)
        self._failure = error if isinstance(error, TxLayerError) else TxLayerError(repr(error))
        logger.error(
            "responder.begins_anew",
            extra={"group": self._group, "reason": str(error) if is_ours else repr(error)},
            exc_info=None if is_ours else error,
        )
        if isinstance(error, ConfigError):
            self._positions.clear()  # they are no longer in the log: start from the end
        self._leave()
        # Answers of calls in flight are written meanwhile.
        end_at = time.monotonic() + wait_s * (0.75 + 0.5 * random.random())  # noqa: S311 - a pause, no secret
        while time.monotonic() < end_at and not self._is_ending.wait(LOOK_S):
            self._serve()

    def _stand_aside(self) -> None:
        """Leave the group while no call can be made here, so that other instances receive the check-backs."""
        if self._reader is not None:
            logger.error("responder.stands_aside", extra={"group": self._group})
            self._leave()
        self._serve()
        self._is_ending.wait(LOOK_S)

    def _finish(self) -> None:
        """Leave the group, so that other instances are asked, then answer the calls in flight."""
        questions = self._questions
        questions.drop_waiting()
        self._leave()
        begun_at = time.monotonic()
        while self._writer.is_alive:
            self._serve()
            questions.drop_unstarted()
            end_at = min(self._end_at, begun_at + self._check_timeout_s)
            is_done = not questions.call_count and not self._writer.unreported_count
            if is_done or time.monotonic() >= end_at:
                break
            time.sleep(LOOK_S)
        self._calls.close(LOOK_S)

    def _opened(self) -> CheckReader:
        topic, topic_limits = self._config.topics.check, self._connections.topic_limits
        reader = CheckReader(
            self._connections.make_check_member(self._group),
            topic=topic,
            count_partitions=lambda: limits_of(topic_limits, topic).partition_count,
            positions=self._positions,
            start_patience_s=self._config.start_timeout.total_seconds(),
        )
        try:
            reader.start()
        except BaseException:
            reader.close()
            raise
        return reader

    def _leave(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            try:
                reader.close()
            except Exception:
                # The session ends by itself; a client that fails to close must not stop the answers.
                logger.warning("responder.not_left", exc_info=True)

    def _set_limit(self, limit: OpenLimit | None) -> None:
        if limit == self._limit:
            return
        if (limit is None) is not (self._limit is None):
            logger.warning(
                "responder.limit",
                extra={"group": self._group, "is_on": limit is not None, **({} if limit is None else limit._asdict())},
            )
        self._limit = limit
        self._on_limit(limit)

    def _hear_refusal(self, refused: RefusedResolution) -> None:
        logger.warning("resolution.refused", extra=refused._asdict())
        if self._refused_callback is None:
            return
        try:
            self._refused_callback(refused)
        except BaseException:
            # The user's code; answering goes on whatever it raises.
            extra = {"txn_id": refused.txn_id, "trace_id": refused.trace_id}
            logger.exception("on_refused.raised", extra=extra)

    def _hear_parking(self, parked: ParkedTransaction, check: CheckRecord) -> None:
        logger.warning("transaction.parked", extra=parked._asdict())
        assert self._parked_callback is not None
        try:
            self._parked_callback(parked, partial(self._settle, check))
        except BaseException:
            # The user's code. The coordinator sends the notice again.
            extra = {"txn_id": parked.txn_id, "trace_id": parked.trace_id}
            logger.exception("on_parked.raised", extra=extra)

    def _settle(self, check: CheckRecord, said: object) -> None:
        if said is COMMIT or said is ROLLBACK:
            self._settled.append((check, said))
        elif not (said is None or said is Resolution.UNKNOWN):
            logger.error("on_parked.returned", extra={"txn_key": check.key, "type": type(said).__name__})

    def _told(self) -> dict[str, object]:
        stats = self.stats()
        names = ("asked", "answered", "unknown", "skipped", "late", "stored", "lost", "refused")
        counts = {name: getattr(stats, name) for name in names}
        return {"group": self._group, **counts, "answered": {r.name: n for r, n in stats.answered.items()}}


OF_STATS: Mapping[str, Family] = {  # {field of `ResponderStats`: its metric}
    "asked": counter("txlayer_responder_questions_total", "Check-backs that this instance had to answer."),
    "late": counter(
        "txlayer_responder_late_results_total", "Results that were dropped because they came after their time-out."
    ),
    "stored": counter("txlayer_responder_answers_stored_total", "Answers that the broker acknowledged."),
    "lost": counter(
        "txlayer_responder_answers_lost_total", "Answers that may not be stored; the coordinator asks again."
    ),
    "refused": counter(
        "txlayer_responder_refusals_total", "Resolutions of the group that came too late and were refused."
    ),
}
ANSWERS = counter("txlayer_responder_answers_total", "Answers to check-backs, by answer.", "answer")
UNKNOWN = counter("txlayer_responder_unknown_answers_total", "UNKNOWN answers, by cause.", "cause")
SKIPPED = counter(
    "txlayer_responder_skipped_records_total",
    "Records of the check topic that this instance did not answer, by reason.",
    "reason",
)
PARTITIONS = gauge("txlayer_responder_partitions", "Partitions of the check topic that this instance answers.")

FAMILIES = (*OF_STATS.values(), ANSWERS, UNKNOWN, SKIPPED, PARTITIONS)


class ObservedResponder(ObservedRole):
    """The metrics and the health of a stand-alone responder for a producer group."""

    role = "responder"

    def __init__(self, *, group: str, **given: Any) -> None:
        super().__init__(name=group, **given)
        self._stats: Callable[[], ResponderStats | None] = lambda: None

    def follow(self, stats: Callable[[], ResponderStats | None] | None) -> None:
        """Use this source from now on; None: its client failed, and a new one is being made."""
        self._stats = stats or (lambda: None)

    def _look(self, now: float) -> tuple[Health, Iterable[Sample]]:
        stats = self._stats()
        return health_of(stats, now=now), () if stats is None else _samples(stats)


def health_of(stats: ResponderStats | None, *, now: float) -> Health:
    """Alive while the loop turns; ready while it is a member of its check group."""
    if stats is None or stats.turned_at is None:
        return Health("", "it waits for a broker")
    stalled = stall_of(stats.turned_at, now)
    if stats.failure is not None:
        # The class only: a broker's message may contain internal names.
        return Health(stalled, f"it hears nothing: {type(stats.failure).__name__}; see the log")
    return Health(stalled, "" if stats.is_member else "it is no member of its check group yet")


def _samples(stats: ResponderStats) -> Iterator[Sample]:
    for field, family in OF_STATS.items():
        yield Sample(family, getattr(stats, field))
    for resolution in Resolution:
        yield Sample(ANSWERS, stats.answered.get(resolution, 0), (resolution.name.lower(),))
    for cause, count in with_few_labels(stats.unknown).items():
        yield Sample(UNKNOWN, count, (cause,))
    for skip in Skip:
        yield Sample(SKIPPED, stats.skipped.get(skip.value, 0), (skip.value,))
    yield Sample(PARTITIONS, len(stats.own_partitions))
