"""Tracks real topics: which accept writes, which refuse, and when to ask the broker about them again.

And which partitions of half, op and doubt are not available, and which producer groups have live responders: the broker is asked in the
background, so that a slow answer delays nothing.
"""

import fnmatch
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import TopicLimits
from txlayer.adapters.telemetry import Log
from txlayer.config import CoordinatorConfig, SystemTopics
from txlayer.core.checks import CheckSchedule
from txlayer.core.ledger.transaction import ANY_SIZE, Target, accepting_target
from txlayer.core.messages import ParkReason
from txlayer.errors import InvariantError, NotAuthorisedError, TxLayerError
from txlayer.runtime.environment import Background, Environment
from txlayer.runtime.kafka_transactions import ALONE, SMALL_BATCH_BYTES

logger = Log("txlayer.coordinator")

LOOK_AGAIN_S = 1.0
LOOK_AGAIN_MAX_S = 30.0
"""A refusing topic that a held transaction needs is checked after 1 s, then with growing intervals, at least every 30 s."""
TRY_AGAIN_MAX_S = 300.0
"""The same limit for a topic that no transaction needs, and for one whose metadata are fine but whose writes time out: each try
makes all partitions wait."""
TRUST_AGAIN_S = 120.0
"""After this time of accepting writes, earlier refusals and timeouts of a topic are forgotten, and a leader that was missed before."""
REFRESH_S = 300.0  # interval for asking again about topics that accept: they may have more partitions
LOOK_TIME_S = 0.1
"""Total time for the requests of one turn: half records may name any number of topics, and the loop must go on."""
TARGETS_MAX = 2_000
"""Above this number of names, refusing topics that no transaction waits for are dropped; they are asked about again if needed."""
BATCH_BYTES_MAX = 1_000_000
BATCH_OVERHEAD_BYTES = 512
"""Batches are at most as large as the smallest limit of all known topics, less the batch's own fields."""
SMALLER_S = 300.0
"""How long batches stay smaller after a topic refused a message for its size that may have been in a batch with others."""


class Targets:
    """Real topics as the ledgers see them (`targets`). It survives rebuilds of the ledgers. Not thread-safe.

    A topic that is missing or denied, or has been unreachable for `hold_after`, holds its transactions until it accepts. A
    forbidden one parks them. The rule: `hold_or_park` in txlayer/core/ledger/transaction.py.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        connections: CoordinatorConnections,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.targets: dict[str, Target] = {}
        self._config = config
        self._connections = connections
        self._clock = clock
        self._partition_counts: dict[str, int] = {}
        self._unreachable: dict[str, tuple[float, float]] = {}  # topic → (since when, last seen)
        self._look_again: dict[str, tuple[float, float]] = {}  # topic → (when, interval)
        # Topics that accept again: the last interval, and since when they accept.
        self._waited: dict[str, tuple[float, float]] = {}
        self._unanswered: dict[str, tuple[float, float]] = {}  # topic → (first, last) timeout
        # Topics whose large transactions timed out: (when they are or were tried again, interval), and from which size they are held.
        self._slow: dict[str, tuple[float, float]] = {}
        self._slow_bytes_min: dict[str, int] = {}
        self._looked_at: dict[str, float] = {}
        self._own_bytes_max: dict[str, int | None] = {}  # of system topics that the coordinator writes
        # the largest batch, and until when
        self._batch_bytes_max, self._is_smaller_until = BATCH_BYTES_MAX, float("-inf")
        self._is_refreshing = False
        self._refreshed: deque[tuple[str, TopicLimits]] = deque()  # answers of background requests

    def learn(self, topics: Iterable[str]) -> set[str]:
        """Ask the broker about new topics, for at most `LOOK_TIME_S`. Returns the topics that are known now.

        A list is asked in its order, a set in the order of names.

        Raises:
            BrokerUnavailableError: it did not answer; earlier answers stay.
        """
        known: set[str] = set()
        give_up_at = self._clock() + LOOK_TIME_S
        for topic in topics if isinstance(topics, list) else sorted(topics):
            if topic not in self.targets:
                if known and self._clock() >= give_up_at:
                    continue
                self._set(topic, self._look(topic))
            known.add(topic)
        return known

    @property
    def has_too_many(self) -> bool:
        return len(self.targets) > TARGETS_MAX

    def forget(self, *, needed: Collection[str]) -> None:
        """Drop the oldest refusing topics that are not in `needed`."""
        idle = [t for t, target in self.targets.items() if target.refusal and t not in needed]
        for topic in idle[: len(self.targets) - TARGETS_MAX * 3 // 4]:
            del self.targets[topic]
            for table in (
                self._partition_counts,
                self._unreachable,
                self._look_again,
                self._waited,
                self._unanswered,
                self._slow,
                self._slow_bytes_min,
                self._looked_at,
            ):
                table.pop(topic, None)

    def look_again_at(self, topics: Iterable[str]) -> None:
        """Ask the broker again, for `LOOK_TIME_S`, about topics whose writes failed; those with the oldest answer first."""
        give_up_at = self._clock() + LOOK_TIME_S
        for topic in sorted(set(topics), key=lambda topic: self._looked_at.get(topic, 0.0)):
            self._set(topic, self._look(topic))
            if self._clock() >= give_up_at:
                return

    def has_widened(self, background: Background) -> bool:
        """Ask again in the background about the topic with the oldest answer. Returns True if a topic has more partitions now."""
        now = self._clock()
        oldest = min(((at, topic) for topic, at in self._looked_at.items()), default=(now, ""))
        if not self._is_refreshing and now - oldest[0] >= REFRESH_S:
            self._looked_at[oldest[1]] = now  # at its turn again, whatever the answer
            self._is_refreshing = True
            background.start(partial(self._ask_in_background, oldest[1]), name="txlayer-targets")
        is_wider = False
        while self._refreshed:
            topic, limits = self._refreshed.popleft()
            if limits.partition_count > self._partition_counts.get(topic, limits.partition_count):
                self._partition_counts[topic] = limits.partition_count
                is_wider = True
        return is_wider

    def _ask_in_background(self, topic: str) -> None:
        try:
            limits = self._connections.topic_limits_in_background(topic)
            if limits is not None:
                self._refreshed.append((topic, limits))
        except TxLayerError as exc:
            logger.info("targets.unknown", extra={"reason": str(exc)})
        except Exception:
            logger.exception("targets.unknown")  # as in `GroupPresence._look`
        finally:
            self._is_refreshing = False

    def has_grown(self, topics: set[str]) -> bool:
        """Ask again, for `LOOK_TIME_S`, about topics for which a record is too large. Returns True if one takes larger ones now.

        Those that were asked about leave `topics`.

        Raises:
            BrokerUnavailableError: it did not answer.
        """
        is_grown, give_up_at = False, self._clock() + LOOK_TIME_S
        for topic in sorted(topics):
            if self._clock() >= give_up_at:
                break
            before = self.targets[topic].message_bytes_max
            self._set(topic, self._look(topic))
            is_grown |= self.targets[topic].message_bytes_max > before
            topics.remove(topic)
        return is_grown

    def was_made_anew(self, topic: str) -> bool:
        """Ask again about a topic that lacks a partition. Returns True if it has another number of partitions than before, or refuses all
        messages now.

        Raises:
            BrokerUnavailableError: it did not answer.
        """
        before = self._partition_counts.get(topic)
        now = self._look(topic)
        self._set(topic, now)
        return now.refusal is not None or self._partition_counts.get(topic) != before

    def refused(self, topic: str) -> None:
        """The broker refused a write to `topic` itself: the topic is gone, or a permission is missing."""
        now = self._look(topic)
        self._set(topic, now if now.refusal is not None else Target(0, refusal=ParkReason.TOPIC_DENIED))

    def unanswered(
        self, topics: Iterable[str], *, large: Mapping[str, int] = MappingProxyType({}), large_bytes_min: int = 0
    ) -> None:
        """A timeout left records for `topics` unanswered. Hold topics for which this has lasted for `hold_after`.

        Independent of the metadata: a leader may exist and accept nothing, or be unreachable only from here. `large`: the size of
        the largest transaction to a topic, if it has at least `large_bytes_min` and so may take too long alone. It is held first, and
        smaller ones only if they are not answered either: from half that size on, and so on, then all.
        """
        now = self._clock()
        for topic in sorted(topics):
            since, _ = self._unanswered.get(topic, (now, now))
            self._unanswered[topic] = since, now
            is_over = now - since >= self._config.hold_after.total_seconds()
            is_to_blame = large.get(topic, ANY_SIZE) < self._slow_bytes_min.get(topic, ANY_SIZE)
            is_accepting = self.targets[topic].refusal is None
            if is_to_blame and is_accepting and (is_over or topic in self._slow):
                self._hold_large(topic, large[topic], now, bytes_min=large_bytes_min)
            elif is_over:
                self._set(topic, Target(0, refusal=ParkReason.TOPIC_UNREACHABLE))

    def _hold_large(self, topic: str, size_bytes: int, now: float, *, bytes_min: int) -> None:
        before = self._slow_bytes_min.get(topic)
        if before is None:
            _, wait_s = self._slow.get(topic, (now, LOOK_AGAIN_S / 2))
            wait_s = min(wait_s * 2, TRY_AGAIN_MAX_S)
            self._slow[topic] = now + wait_s, wait_s
        else:  # a smaller one is too slow as well; half each time, or each size would cost a time-out
            size_bytes = max(min(size_bytes, before // 2), bytes_min)
        self._slow_bytes_min[topic] = size_bytes
        self._set(topic, self._accepting(topic, self.targets[topic].message_bytes_max))
        reason = ParkReason.TOPIC_UNREACHABLE.value
        logger.error("topic.held", extra={"topic": topic, "reason": reason, "bytes_min": size_bytes})

    def _accepting(self, topic: str, message_bytes_max: int) -> Target:
        return accepting_target(message_bytes_max, slow_bytes_min=self._slow_bytes_min.get(topic, ANY_SIZE))

    def written(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._unanswered.pop(topic, None)

    @property
    def is_doubtful(self) -> bool:
        """True if a topic with unanswered records counts as accepting."""
        return any(self.targets[topic].refusal is None for topic in self._unanswered)

    def mended(self, needed: Container[str]) -> list[str]:
        """Refusing topics that were due for a check and accept now, for `LOOK_TIME_S`; the longest overdue of `needed` first.

        Held transactions wait for those in `needed`. Half records may have invented the others, which are checked less often.
        """
        now = self._clock()
        self._trust_again(now)
        due = sorted(
            (topic not in needed, at, topic)
            for topic in self._look_again
            if (at := self._due_at(topic, is_needed=topic in needed)) <= now
        )
        mended: list[str] = []
        for is_idle, _, topic in due:
            if self._clock() - now >= LOOK_TIME_S:
                break
            _, wait_s = self._look_again[topic]
            was_unreachable, is_tried = topic in self._unreachable, self._is_tried(topic)
            wait_s = min(wait_s * 2, TRY_AGAIN_MAX_S if is_tried or is_idle else LOOK_AGAIN_MAX_S)
            self._look_again[topic] = (now + wait_s, wait_s)
            target = self._look(topic)
            if target.refusal is not None:
                continue
            if was_unreachable:  # the metadata have changed
                self._unanswered.pop(topic, None)
            elif is_tried:
                self._unanswered[topic] = self._unanswered[topic][0], now
            self._set(topic, target)
            mended.append(topic)
        return mended + self._large_to_try(now)

    def _large_to_try(self, now: float) -> list[str]:
        """Topics whose large transactions are due for another try."""
        due = [
            topic
            for topic in self._slow_bytes_min
            if self._slow[topic][0] <= now and self.targets[topic].refusal is None
        ]
        for topic in due:
            del self._slow_bytes_min[topic]
            self._slow[topic] = now, self._slow[topic][1]
            self._set(topic, self._accepting(topic, self.targets[topic].message_bytes_max))
        return due

    def _due_at(self, topic: str, *, is_needed: bool) -> float:
        at, wait_s = self._look_again[topic]
        if is_needed and not self._is_tried(topic):
            at -= max(wait_s - LOOK_AGAIN_MAX_S, 0.0)  # it was checked seldom while no transaction needed it
        return at

    def _is_tried(self, topic: str) -> bool:
        """True if only a try shows whether it accepts: its metadata were fine while its records were not answered."""
        return topic in self._unanswered and topic not in self._unreachable

    def _trust_again(self, now: float) -> None:
        for table in (self._waited, self._unanswered):
            for topic in [t for t, (_, at) in table.items() if now - at >= TRUST_AGAIN_S]:
                if self.targets[topic].refusal is None:
                    del table[topic]
        for topic in [t for t, (at, _) in self._slow.items() if now - at >= TRUST_AGAIN_S]:
            if topic not in self._slow_bytes_min:
                del self._slow[topic]

    def partition_count_of(self, topic: str) -> int:
        return self._partition_counts[topic]

    def check_allowed(self, topic: str, *, txn_key: str) -> None:
        """Check `topic` a last time before a message is produced, independent of earlier checks.

        Raises:
            InvariantError: `topic` was never asked about, or may never receive forwarded messages.
        """
        target = self.targets.get(topic)
        if target is None or target.is_for_good:
            raise InvariantError(f"a message of {txn_key} may not be forwarded to {topic}")

    def learn_own(self) -> None:
        """Ask what the system topics that the coordinator writes take now; BrokerUnavailableError: no answer."""
        topics = self._config.topics
        for topic in (topics.doubt, topics.op, topics.check):
            try:
                limits = self._connections.topic_limits(topic)
            except NotAuthorisedError:
                limits = None
            self._own_bytes_max[topic] = None if limits is None else limits.message_bytes_max

    def limit_of(self, topic: str) -> int | None:
        """Bytes of the largest record that a system topic took when it was asked last; None: not reported."""
        return self._own_bytes_max.get(topic)

    @property
    def batch_bytes_max(self) -> int:
        """Largest produce batch that every known topic takes: the broker applies the limit to batches as to messages."""
        most = self._batch_bytes_max if self._clock() < self._is_smaller_until else BATCH_BYTES_MAX
        limits = [t.message_bytes_max for t in self.targets.values() if t.refusal is None]
        own = filter(None, self._own_bytes_max.values())
        return max(min([*limits, *own, most]) - BATCH_OVERHEAD_BYTES, ALONE)

    def make_batches_smaller(self) -> bool:
        """Send small batches for a while, then each record alone: a topic takes less than was known. False: they were alone already; that ends now."""
        smaller = next((size for size in (SMALL_BATCH_BYTES, ALONE) if size < self.batch_bytes_max), None)
        self._batch_bytes_max, self._is_smaller_until = smaller or BATCH_BYTES_MAX, self._clock() + SMALLER_S
        return smaller is not None

    def _look(self, topic: str) -> Target:
        forbidden = self._forbidden(topic)
        if forbidden is not None:
            return forbidden
        try:
            limits = self._connections.topic_limits(topic)
        except NotAuthorisedError:
            return Target(0, refusal=ParkReason.TOPIC_DENIED)
        if limits is None:
            self._unreachable.pop(topic, None)
            return Target(0, refusal=ParkReason.TOPIC_MISSING)
        if not limits.is_writable:
            return Target(0, refusal=ParkReason.TOPIC_DENIED)
        self._partition_counts[topic] = limits.partition_count
        self._looked_at[topic] = self._clock()
        if not limits.unavailable:
            self._unreachable.pop(topic, None)
        else:
            now = self._clock()
            since, seen_at = self._unreachable.get(topic, (now, now))
            if now - seen_at >= TRUST_AGAIN_S:
                since = now  # not asked for long: it may have been reachable meanwhile
            self._unreachable[topic] = since, now
            if now - since >= self._config.hold_after.total_seconds():
                return Target(0, refusal=ParkReason.TOPIC_UNREACHABLE)
        return self._accepting(topic, limits.message_bytes_max or ANY_SIZE)

    def _forbidden(self, topic: str) -> Target | None:
        patterns = self._config.target_topics
        is_allowed = not patterns or any(fnmatch.fnmatchcase(topic, pattern) for pattern in patterns)
        if is_allowed and not self._config.topics.is_system(topic):
            return None
        return Target(0, refusal=ParkReason.FORBIDDEN_TOPIC, is_for_good=True)

    def _set(self, topic: str, target: Target) -> None:
        self.targets[topic] = target
        if target.refusal is None or target.is_for_good:
            looked = self._look_again.pop(topic, None)
            if looked is not None:
                self._waited[topic] = looked[1], self._clock()
        elif topic not in self._look_again:
            # Continue with the last interval: the broker may report that a topic accepts, and refuse every write.
            wait_s, _ = self._waited.pop(topic, (LOOK_AGAIN_S, 0.0))
            self._look_again[topic] = (self._clock() + wait_s, wait_s)
            logger.error("topic.held", extra={"topic": topic, "reason": target.refusal.value})


LOOK_S = 2.0  # interval for asking about the groups with due check-backs, and about partitions that are not available


class Availability:
    """Knows which partitions of half, op and doubt have no leader or too few replicas in sync. Not thread-safe."""

    def __init__(self, connections: CoordinatorConnections, topics: SystemTopics, *, environment: Environment) -> None:
        self._connections = connections
        self._topics = (topics.half, topics.op, topics.doubt)
        self._clock = environment.clock
        self._background = environment.background
        self._asked_at = float("-inf")
        self._answer: frozenset[int] | None = None  # of the last question in the background

    def missing(self) -> frozenset[int]:
        """Partitions that are not available now, of one of the topics; BrokerUnavailableError: no broker answered."""
        self._asked_at, self._answer = self._clock(), None
        return self._missing(self._connections.topic_limits)

    def has_any_again(self, partitions: Collection[int]) -> bool:
        """True if one of these is available again, according to the last answer. Asks every `LOOK_S`, in the background."""
        now = self._clock()
        if partitions and now - self._asked_at >= LOOK_S:
            self._asked_at = now
            self._background.start(self._ask_in_background, name="txlayer-availability")
        return self._answer is not None and not self._answer.issuperset(partitions)

    def _ask_in_background(self) -> None:
        try:
            self._answer = self._missing(self._connections.topic_limits_in_background)
        except TxLayerError as exc:
            logger.info("targets.unknown", extra={"reason": str(exc)})
        except Exception:
            logger.exception("targets.unknown")  # as in `GroupPresence._look`

    def _missing(self, limits_of: Callable[[str], TopicLimits | None]) -> frozenset[int]:
        return frozenset(p for topic in self._topics if (limits := limits_of(topic)) for p in limits.unavailable)


BELIEVE_S = 10.0  # maximum age of an answer
GIVE_UP_S = 30.0
"""A request that takes longer hangs (clients have been seen to: docs/explanation/kafka.md); the next one starts in parallel."""


class GroupPresence:
    """Knows which of the groups with due check-backs have members. Not thread-safe."""

    def __init__(self, connections: CoordinatorConnections, topics: SystemTopics, *, environment: Environment) -> None:
        self._connections = connections
        self._topics = topics
        self._clock: Callable[[], float] = environment.clock
        self._background = environment.background
        self._present: frozenset[str] = frozenset()
        self._known_at = 0.0
        self._asked_at = float("-inf")
        self._look_number = 0
        self._is_looking = False

    def of(self, schedules: Iterable[CheckSchedule]) -> frozenset[str]:
        """Groups with due check-backs that had members at the last answer. Asks again, in the background, if that is old."""
        now = self._clock()
        is_time = now - self._asked_at >= (GIVE_UP_S if self._is_looking else LOOK_S)
        # Collected only when it is time to ask: half records may name very many groups.
        groups = {g for s in schedules for g in s.groups_due()} if is_time else None
        if groups:
            if self._is_looking:
                logger.warning("groups.unknown", extra={"reason": f"no answer in {GIVE_UP_S:g} s"})
            self._asked_at = now
            self._is_looking = True
            self._look_number = number = self._look_number + 1
            names = {self._topics.check_group(group): group for group in groups}
            self._background.start(lambda: self._look(names, now, number), name="txlayer-presence")
        # Without an answer no group counts as present: due check-backs stay due.
        return self._present if now - self._known_at < BELIEVE_S else frozenset()

    def _look(self, names: dict[str, str], asked_at: float, number: int) -> None:
        try:
            found = self._connections.groups_with_members(names)
        except TxLayerError as exc:
            logger.warning("groups.unknown", extra={"reason": str(exc)})
        except Exception:
            # Border of a thread whose result is not read: the error is logged here or lost.
            logger.exception("groups.unknown")
        else:
            if number == self._look_number:
                self._present = frozenset(names[name] for name in found)
                self._known_at = asked_at
        finally:
            if number == self._look_number:
                self._is_looking = False
