"""What a failed Kafka transaction shows: a broker refuses a record, a topic, a question, or this machine's clock.

A transaction whose record is refused is parked. While it is not known which one it is, its partition goes alone, in smaller and
smaller parts. Which topics hold their transactions: txlayer/coordinator/targets.py.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from txlayer.adapters.errors import REFUSED_RECORD_CODES, TOO_LARGE_REASONS, Code
from txlayer.adapters.telemetry import Log
from txlayer.config import SystemTopics
from txlayer.coordinator.metrics import trace_of
from txlayer.coordinator.publish import SLOW_BYTES_MIN, TOO_SLOW, Precautions
from txlayer.coordinator.shard import LogTime
from txlayer.coordinator.targets import Targets
from txlayer.core import codec
from txlayer.core.ledger.batch import NO_LIMIT, Batch, Bisection
from txlayer.core.ledger.transaction import held_bytes
from txlayer.core.messages import ParkReason, txn_id_of
from txlayer.errors import BrokerUnavailableError, ForbiddenTopicError, RefusedRecordError, TxLayerError

logger = Log("txlayer.coordinator")

UNKNOWN_COUNT = 5  # failures of a partition in turn that nothing explains, after which one of its records is suspected
QUIET_S = 10.0
"""A partition that has nothing to do for so long is not suspected any more: what comes back by time has come back by then."""
ASK_AGAIN_S = 600.0  # so long the size of a question counts that the check topic refused; then one of it is tried again

ASK_PAUSE_S = 1.0
ASK_PAUSE_MAX_S = 300.0
"""While the check topic refuses for another reason nothing is asked for 1 s, then for growing intervals, at most 300 s: a try may
make all partitions wait for a time-out. The pause ends early with an outage that concerned other topics, too."""

_TIME_REASON = Code.INVALID_TIMESTAMP.kafka_name
_PARTITION_REASON = Code.LOCAL_UNKNOWN_PARTITION.kafka_name

WATCH_COUNT = 100  # batches after a time-out of which every record is watched: the quick path asks for no reports


class Refusals:
    """What is suspected and what is known. One thread uses it."""

    def __init__(self, topics: SystemTopics, *, clock: Callable[[], float]) -> None:
        self._check_topic, self._op_topic = topics.check, topics.op
        self._clock = clock
        self.reasons: dict[str, ParkReason] = {}
        self.doubt_keys: set[bytes] = set()
        """Records that doubt does not take whole; each is cut to its origin, its reason and its size."""
        # The check topic refused a question one byte larger than this, headers included; believed until then.
        self._question_bytes_max, self._is_limited_until = NO_LIMIT, float("-inf")
        self._ask_pause_s = 0.0  # the last one; 0: the check topic takes questions
        self._ask_again_at = float("-inf")
        self._is_outage = False  # while questions are paused, others got no answer either
        self._line_pause_s, self._lines_again_at = 0.0, float("-inf")  # the same of the coordinator's own op lines
        self.is_clock_doubted = False  # a topic refused a timestamp: this machine's clock may be ahead of its broker's
        self._bisections: dict[int, Bisection] = {}
        self._quiet_since: dict[int, float] = {}  # suspected partitions with nothing to do
        self._unexplained: dict[int, int] = {}  # partition → failures in turn
        self._watch_count = 0

    @property
    def are_questions_paused(self) -> bool:
        """True while nothing is asked, because the check topic refuses."""
        return self._clock() < self._ask_again_at

    @property
    def are_lines_paused(self) -> bool:
        """True while the coordinator decides and releases nothing by itself, because op refuses its lines."""
        return self._clock() < self._lines_again_at

    def precautions(
        self, partitions: Collection[int], *, is_watched: bool, times: Mapping[int, LogTime]
    ) -> Precautions:
        """The precautions of a Kafka transaction for these partitions. `times`: of the partitions, by the brokers' clocks."""
        now = self._clock()
        question_bytes_max = self._question_bytes_max if now < self._is_limited_until else NO_LIMIT
        sure_question_bytes_max = 0 if self._ask_pause_s else self._question_bytes_max
        if self.are_questions_paused:
            question_bytes_max, sure_question_bytes_max = 0, NO_LIMIT
        return Precautions(
            # It must tell which transaction is refused.
            is_careful=any(
                b.is_active and b.line_count_max == 1 and p in partitions for p, b in self._bisections.items()
            ),
            is_watched=is_watched or self._watch_count > 0,
            cut_keys=self.doubt_keys,
            question_bytes_max=question_bytes_max,
            sure_question_bytes_max=sure_question_bytes_max,
            are_lines_sure=self._line_pause_s > 0,
            stamps_ms={p: times[p].peek_ms() for p in partitions} if self.is_clock_doubted else {},
        )

    def line_count_max(self, partition: int, default: int) -> int:
        """How many op lines of a partition the next Kafka transaction may take."""
        bisection = self._bisections.get(partition)
        return min(default, bisection.line_count_max) if bisection is not None and bisection.is_active else default

    def count_max(self, default: int) -> int:
        """How many records a read, and how many moves a batch, may take while a record is suspected."""
        active = [b.line_count_max for b in self._bisections.values() if b.is_active]
        return min([default, *active])

    def partition_in_turn(self, busy: Collection[int]) -> int | None:
        """Which of the partitions that have something to do goes alone now, because it is suspected; None: all go.

        One that has nothing to do stays suspected, and delays no other.
        """
        return next((p for p, b in self._bisections.items() if b.is_active and p in busy), None)

    def passed(self, partition: int, batch: Batch, *, is_asked: bool = True) -> None:
        """A batch went through; without `is_asked` its questions were left out."""
        if batch.checks and is_asked:
            self._ask_pause_s, self._is_outage = 0.0, False
        elif self._is_outage:  # it is over, and may have been all that was wrong with the check topic
            self._is_outage, self._ask_pause_s, self._ask_again_at = False, ASK_PAUSE_S, self._clock()
        if batch.policy_lines:
            self._line_pause_s = 0.0
        self._watch_count = max(0, self._watch_count - 1)
        self._unexplained.pop(partition, None)
        self._quiet_since.pop(partition, None)
        bisection = self._bisections.get(partition)
        if bisection is not None:
            bisection.passed(max(batch.suspect_count, 1))
            if not bisection.is_active:
                del self._bisections[partition]
        for keep in batch.to_doubt.values():
            self.reasons.pop(keep.txn.key, None)
        if self.doubt_keys:
            self.doubt_keys -= _doubt_keys_of(batch)

    def forget_transactions(self) -> None:
        """The assignment ended: another coordinator may have tried and parked them meanwhile, and the next commit is a try."""
        for table in (self.reasons, self.doubt_keys, self._bisections, self._quiet_since, self._unexplained):
            table.clear()
        self.is_clock_doubted = False

    def suspect_largest(self, batches: Sequence[tuple[int, Batch]]) -> None:
        """The smallest batches take too long: have the partition of the largest transaction, or quarantined record, go alone, and
        tell what is acknowledged.
        """
        sizes = {
            partition: max(
                (
                    *(txn.size for txn in (*batch.forwards, *(keep.txn for keep in batch.to_doubt.values()))),
                    *(held_bytes(each.record) for each in batch.quarantined if each.record is not None),
                ),
                default=0,
            )
            for partition, batch in batches
        }
        partition = max(sizes, key=sizes.__getitem__)
        if sizes[partition] >= SLOW_BYTES_MIN:
            self._bisections.setdefault(partition, Bisection()).failed(1)
            self._quiet_since.pop(partition, None)

    def is_quiet(self, partition: int, now: float) -> None:
        """All was applied there, and nothing is left to write: lines that lead to nothing are never counted as passed."""
        if partition not in self._bisections:
            return
        if now - self._quiet_since.setdefault(partition, now) >= QUIET_S:
            del self._bisections[partition], self._quiet_since[partition]

    def learn(
        self, error: TxLayerError, batches: Mapping[int, Batch], targets: Targets, *, unanswered: Collection[str] = ()
    ) -> None:
        """A Kafka transaction failed: what does the error say about its content?

        `unanswered` names the topics that left records without an answer, as far as that was watched.
        """
        busy = {p: b for p, b in batches.items() if not b.is_empty}
        reason = error.reason if isinstance(error, RefusedRecordError) else None
        if not self._is_certain(error, busy):
            return
        if isinstance(error, BrokerUnavailableError):
            self._watch_count = WATCH_COUNT
            self._ask_about_targets(busy, targets)
            targets.unanswered(
                {*unanswered} - {self._check_topic, self._op_topic},
                large=_largest(busy),
                large_bytes_min=SLOW_BYTES_MIN,
            )
            if self._op_topic in unanswered:
                self._pause_lines(error)
            if self._check_topic in unanswered:
                self._pause_questions(error)
            elif self._ask_pause_s:
                self._is_outage = True
        elif isinstance(error, RefusedRecordError) and error.doubt_key is not None:
            self.doubt_keys.add(error.doubt_key)
            self._bisections.clear()
            named = {"doubt_key": error.doubt_key.decode("ascii")}
            logger.error("doubt.refused", extra={**named, "reason": error.detail})
        elif reason == _TIME_REASON and not self.is_clock_doubted:
            # Before any transaction or question is to blame, its time is told by the partition's own clock.
            self.is_clock_doubted = True
            self._bisections.clear()
            logger.error("clock.refused", extra={"reason": str(error)})
        elif (pause := self._pause_after(error)) is not None:
            pause(error)
            self._bisections.clear()
        elif isinstance(error, RefusedRecordError) and error.size_bytes is not None:
            self._question_bytes_max = error.size_bytes - 1
            self._is_limited_until = self._clock() + ASK_AGAIN_S
            self._bisections.clear()
            size = {"size_bytes": error.size_bytes}
            logger.error("question.refused", extra={**size, "reason": error.detail})
        elif isinstance(error, RefusedRecordError) and error.txn_key is not None:
            self._bisections.clear()
            self._refuse(error.txn_key, error, busy, targets)
        elif isinstance(error, ForbiddenTopicError) and error.topic is not None:
            if _is_answered(partial(targets.refused, error.topic)):
                self._bisections.clear()
        elif isinstance(error, RefusedRecordError | ForbiddenTopicError) or not _is_explained(error):
            self._ask_about_targets(busy, targets)
            for partition, batch in busy.items():
                self._bisections.setdefault(partition, Bisection()).failed(batch.suspect_count)
                self._quiet_since.pop(partition, None)

    def _refuse(self, txn_key: str, error: RefusedRecordError, busy: Mapping[int, Batch], targets: Targets) -> None:
        """Park the transaction, unless its message may have a place in its topic by now, or its batch alone may have been too large."""
        txn = next((t for batch in busy.values() for t in batch.forwards if t.key == txn_key), None)
        has_others = error.reason in TOO_LARGE_REASONS and txn is not None and txn.count > 1
        if _may_have_a_place(error, targets) or (has_others and targets.make_batches_smaller()):
            return
        self.reasons[txn_key] = ParkReason.LIMIT if error.reason == TOO_SLOW else ParkReason.REFUSED
        context = None if txn is None else trace_of(txn)
        trace = {} if context is None else {"trace_id": context.trace_id}
        named = {"txn_key": txn_key, "txn_id": txn_id_of(txn_key), **trace}
        logger.error("transaction.refused", extra={**named, "reason": error.detail})

    def _is_certain(self, error: TxLayerError, busy: Collection[int]) -> bool:
        """False for an answer that txlayer does not know: once it means nothing, several times in a row it is a refusal."""
        if _is_explained(error) or (self._ask_pause_s and self._is_about_a_question(error)):
            return True
        for partition in busy:
            self._unexplained[partition] = self._unexplained.get(partition, 0) + 1
        return any(self._unexplained[partition] >= UNKNOWN_COUNT for partition in busy)

    def _is_about_a_question(self, error: TxLayerError) -> bool:
        """True when a careful try found that the check topic refuses."""
        if isinstance(error, ForbiddenTopicError):
            return error.topic == self._check_topic
        return isinstance(error, RefusedRecordError) and error.size_bytes is not None

    def _pause_after(self, error: TxLayerError) -> Callable[[TxLayerError], None] | None:
        """What stops for a while because the check topic, or op, refuses; None: something else is refused."""
        if isinstance(error, RefusedRecordError | ForbiddenTopicError) and error.topic == self._op_topic:
            return self._pause_lines
        is_too_large = isinstance(error, RefusedRecordError) and error.reason in TOO_LARGE_REASONS
        return self._pause_questions if self._is_about_a_question(error) and not is_too_large else None

    def _pause_questions(self, error: TxLayerError) -> None:
        self._ask_pause_s = min(max(self._ask_pause_s * 2, ASK_PAUSE_S), ASK_PAUSE_MAX_S)
        self._ask_again_at = self._clock() + self._ask_pause_s
        logger.error("questions.paused", extra={"pause_s": self._ask_pause_s, "reason": str(error)})

    def _pause_lines(self, error: TxLayerError) -> None:
        self._line_pause_s = min(max(self._line_pause_s * 2, ASK_PAUSE_S), ASK_PAUSE_MAX_S)
        self._lines_again_at = self._clock() + self._line_pause_s
        advice = (
            f"the coordinator needs the right to write {self._op_topic}; until then it parks what a policy would decide"
        )
        logger.error("policy.refused", extra={"pause_s": self._line_pause_s, "reason": str(error), "advice": advice})

    def _ask_about_targets(self, batches: Mapping[int, Batch], targets: Targets) -> None:
        topics = {topic for batch in batches.values() for txn in batch.forwards for topic in txn.topics if topic}
        _is_answered(partial(targets.look_again_at, topics))


def _is_answered(ask: Callable[[], None]) -> bool:
    """Ask the brokers about topics. False: they do not say; after the next failure they are asked again."""
    try:
        ask()
    except TxLayerError as exc:
        logger.info("targets.unknown", extra={"reason": str(exc)})
        return False
    return True


def _may_have_a_place(error: RefusedRecordError, targets: Targets) -> bool:
    """True if a record was refused because its partition is missing, and its topic was made anew or the brokers do not answer: it is tried again."""
    if error.reason != _PARTITION_REASON or error.topic is None:
        return False
    try:
        return targets.was_made_anew(error.topic)
    except TxLayerError as exc:
        logger.info("targets.unknown", extra={"reason": str(exc)})
        return True


def _is_explained(error: TxLayerError) -> bool:
    """False when the client failed, or a record was refused, with a code that txlayer does not know."""
    if isinstance(error, RefusedRecordError) and error.reason is not None:
        return error.reason == TOO_SLOW or error.reason in {code.kafka_name for code in REFUSED_RECORD_CODES}
    return type(error) is not TxLayerError


def _largest(batches: Mapping[int, Batch]) -> dict[str, int]:
    """By real topic, the size of the largest transaction to it that may take too long alone."""
    found: dict[str, int] = {}
    for txn in (txn for batch in batches.values() for txn in batch.forwards if txn.size >= SLOW_BYTES_MIN):
        found.update({topic: max(txn.size, found.get(topic, 0)) for topic in txn.topics})
    return found


def _doubt_keys_of(batch: Batch) -> set[bytes]:
    """Under which keys a batch wrote what doubt may refuse; a summary is written as often as it changes."""
    quarantined = {
        codec.quarantine_key(each.origin, None if each.line is None else each.number) for each in batch.quarantined
    }
    kept = [(keep.txn, keep.content_count) for keep in batch.to_doubt.values()]
    contents = {codec.content_key(t.key, index) for t, n in kept for index in range(t.seen - n, t.seen)}
    return quarantined | contents | {txn.key.encode("ascii") for txn in batch.ends}
