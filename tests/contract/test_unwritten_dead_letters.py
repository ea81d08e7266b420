"""Dead letters that cannot be written or read now, or that take too long together, hold up nothing but their own keys; over memory."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.support.consumers import Stage
from tests.support.lab_memory import DISTANT, MemoryLab
from tests.support.waiting import pause, wait_until
from txlayer.consumer import offsets
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import ReplayKind, ReplayRecord, decode_replay, encode_replay
from txlayer.core.retry import AfterExhausted, HandlerResult, Reject, Retry, RetryPolicy
from txlayer.errors import BrokerUnavailableError, NotAuthorisedError
from txlayer.testing.stage import comes_true

RATE = 2_000_000
"""Bytes a second of a slow line, or of a quota."""
SIZE = 125_000
TRY = timedelta(seconds=0.5)
"""How long a Kafka transaction may take; a twentieth of the default, as are the pauses."""


class Through:
    """Passes everything on."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class StuckPartition(Through):
    """A cluster in which a partition takes neither records nor the markers that end a Kafka transaction, and others do."""

    def __init__(self, inner: Any, place: tuple[str, int]) -> None:
        super().__init__(inner)
        self.place: tuple[str, int] | None = place
        self.left_open: set[str] = set()

    def heal(self) -> None:
        """The partition takes records again."""
        self.place = None

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Any:
        writer = self._inner.make_writer(transactional_id, batch_bytes_max=batch_bytes_max)
        return _StuckWriter(writer, transactional_id, self)


class _StuckWriter(Through):
    def __init__(self, writer: Any, name: str, cluster: StuckPartition) -> None:
        super().__init__(writer)
        self._name = name
        self._cluster = cluster
        self._held = 0

    def initialise(self, *, timeout_s: float) -> None:
        if self._cluster.place is not None and self._name in self._cluster.left_open:
            _spend(timeout_s, or_until=self._is_well)
            raise BrokerUnavailableError("its Kafka transaction is being ended", waited_ms=0)
        self._inner.initialise(timeout_s=timeout_s)

    def produce(self, topic: str, value: Any, key: Any, partition: int, *arguments: Any) -> None:
        if (topic, partition) == self._cluster.place:
            self._held += 1
            self._cluster.left_open.add(self._name)
            return
        self._inner.produce(topic, value, key, partition, *arguments)

    def flush(self, *, timeout_s: float) -> int:
        if self._held:
            _spend(timeout_s, or_until=self._is_well)
        return self._held + int(self._inner.flush(timeout_s=timeout_s))

    def _is_well(self) -> bool:
        return self._cluster.place is None


class NoLeader(Through):
    """A cluster in which a partition has no leader: no broker tells where it begins and ends."""

    place: tuple[str, int] | None = None

    def start_offsets(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        if self.place in places:
            _spend(0.5, or_until=lambda: self.place is None)
            raise BrokerUnavailableError("it has no leader", waited_ms=500)
        return dict(self._inner.start_offsets(places))


class NoTransactions(Through):
    """A cluster in which no transaction coordinator answers, and everything else goes on."""

    is_down = True

    def heal(self) -> None:
        """It answers again."""
        self.is_down = False

    def make_writer(self, *arguments: Any, **named: Any) -> Any:
        return _NoTransactionsWriter(self._inner.make_writer(*arguments, **named), self)


class _NoTransactionsWriter(Through):
    def __init__(self, writer: Any, cluster: NoTransactions) -> None:
        super().__init__(writer)
        self._cluster = cluster

    def initialise(self, *, timeout_s: float) -> None:
        if self._cluster.is_down:
            _spend(timeout_s, or_until=lambda: not self._cluster.is_down)
            raise BrokerUnavailableError("no transaction coordinator", waited_ms=0)
        self._inner.initialise(timeout_s=timeout_s)


class SlowLine(Through):
    """To a cluster behind a line of `RATE`."""

    def make_writer(self, *arguments: Any, **named: Any) -> Any:
        return _SlowWriter(self._inner.make_writer(*arguments, **named))


class _SlowWriter(Through):
    def begin(self) -> None:
        self._bytes = self._count = 0
        self._inner.begin()

    def produce(self, topic: str, value: Any, *arguments: Any) -> None:
        self._bytes += len(value or b"")
        self._count += 1
        self._inner.produce(topic, value, *arguments)

    def flush(self, *, timeout_s: float) -> int:
        pause(min(self._bytes / RATE, timeout_s))
        if self._bytes / RATE > timeout_s:
            return int(self._count)
        return int(self._inner.flush(timeout_s=timeout_s))


def _spend(seconds: float, *, or_until: Callable[[], bool]) -> None:
    """As the client does, which waits so long for its broker."""
    comes_true(or_until, within=seconds)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    at_once(monkeypatch, pause_max_ms=3_000)
    made = Stage(MemoryLab(), partitions=4)
    yield made
    made.close()


def at_once(monkeypatch: pytest.MonkeyPatch, *, pause_max_ms: int) -> None:
    """Allow tries and pauses that are shorter than a real client can have them; in memory nothing needs a second."""
    monkeypatch.setattr(offsets, "PAUSE_MAX_MS", pause_max_ms)
    monkeypatch.setattr("txlayer.config.KAFKA_TRANSACTION_TIMEOUT_MIN", timedelta(0))


def reject_bad(message: ReceivedMessage, _context: Context) -> HandlerResult:
    return Reject("as planned") if message.key == b"bad" else None


@pytest.mark.fault("consumer: a partition of the dead letter topic takes nothing")
@pytest.mark.slow
@pytest.mark.promise("P9")
def test_a_dead_letter_that_cannot_be_written_now_delays_only_its_key(stage: Stage) -> None:
    cluster = StuckPartition(stage.lab.consumer(namespace=stage.namespace), (stage.letters, 0))
    stage.write(b"bad", key=b"bad", partition=0)
    with stage.consumer(
        reject_bad, connect=lambda _: cluster, retry=RetryPolicy(attempt_count_max=1), kafka_transaction_timeout=TRY
    ) as consumer:
        wait_until(lambda: consumer.stats().replaced_count >= 1, within=20, what="a failed try")
        stage.write(*[b"%d" % n for n in range(20)], key=b"good", partition=0)
        for partition in range(1, 4):
            stage.write(b"bad", key=b"bad", partition=partition)
            for n in range(20):
                stage.write(b"%d" % n, key=b"p%d" % partition, partition=partition)
        for partition in range(1, 4):
            stage.wait_stored(21, partition=partition, within=30)
        wait_until(lambda: len(stage.journal.values(b"good")) == 20, within=30, what="its neighbours")
        assert [] == [letter for letter in stage.lab.read(stage.letters) if letter.partition == 0]
        cluster.place = None
        stage.wait_stored(21, partition=0, within=60)

    good = [(seen.partition, seen.value) for seen in stage.journal.seen if seen.value != b"bad"]
    assert len(set(good)) == len(good) == 80  # what had ended was stored before each new beginning
    assert 4 == len(stage.letter_values())


@pytest.mark.fault("consumer: no transaction coordinator answers when the first dead letter is to be written")
@pytest.mark.slow
@pytest.mark.promise("P9")
def test_a_dead_letter_delays_only_its_key_while_no_transaction_coordinator_answers(stage: Stage) -> None:
    cluster = NoTransactions(stage.lab.consumer(namespace=stage.namespace))
    stage.write(b"bad", key=b"bad")
    with stage.consumer(
        reject_bad, connect=lambda _: cluster, retry=RetryPolicy(attempt_count_max=1), kafka_transaction_timeout=TRY
    ) as consumer:
        wait_until(lambda: consumer.stats().replaced_count >= 1, within=20, what="a failed try")
        for partition in range(1, 4):
            for n in range(20):
                stage.write(b"%d" % n, key=b"p%d" % partition, partition=partition)
        for partition in range(1, 4):
            stage.wait_stored(20, partition=partition, within=30)
        cluster.is_down = False
        stage.wait_stored(1, within=60)

    good = [(seen.partition, seen.value) for seen in stage.journal.seen if seen.value != b"bad"]
    assert len(set(good)) == len(good) == 60


@pytest.mark.fault("consumer: a partition of the dead letter topic takes nothing")
@pytest.mark.slow
@pytest.mark.promise("P9")
@pytest.mark.parametrize("kind", [ReplayKind.REPLAY, ReplayKind.PAUSE])
def test_requests_are_answered_beside_a_dead_letter_that_cannot_be_written(stage: Stage, kind: ReplayKind) -> None:
    """Else another key's replay would be handled again at each try, and no pause would ever come into force."""
    cluster = StuckPartition(stage.lab.consumer(namespace=stage.namespace), (stage.letters, 0))
    cluster.place = None
    refused = {b"bad", b"good"}

    def refuse(message: ReceivedMessage, _context: Context) -> HandlerResult:
        return Reject("as planned") if message.key in refused else None

    def answers() -> list[Any]:
        found = [decode_replay(record.value) for record in stage.lab.read(stage.requests)]
        return [each for each in found if getattr(each, "kind", None) is ReplayKind.RESULT]

    is_replay = kind is ReplayKind.REPLAY
    request = ReplayRecord(kind, "r", 0 if is_replay else None, text="zoe: mended")
    with stage.consumer(
        refuse, connect=lambda _: cluster, retry=RetryPolicy(attempt_count_max=1), kafka_transaction_timeout=TRY
    ) as consumer:
        stage.write(b"good", key=b"good")
        stage.wait_stored(1)
        refused.remove(b"good")
        cluster.place = (stage.letters, 0)
        stage.write(b"bad", key=b"bad")
        wait_until(lambda: consumer.stats().replaced_count >= 1, within=20, what="a failed try")
        key = b"good" if is_replay else None
        stage.lab.write(stage.requests, encode_replay(request), key=key, partition=0)
        wait_until(answers, within=30, what="an answer")
        assert stage.stored() == 1  # the other dead letter is still waiting

    assert 1 + is_replay == len(stage.journal.values(b"good"))


@pytest.mark.fault("consumer: a dead letter that is to be replayed cannot be read")
@pytest.mark.promise("P9")
def test_a_dead_letter_that_cannot_be_read_again_delays_only_its_replay(stage: Stage) -> None:
    cluster = NoLeader(stage.lab.consumer(namespace=stage.namespace))
    refused = {b"bad"}

    def refuse(message: ReceivedMessage, _context: Context) -> HandlerResult:
        return Reject("as planned") if message.key in refused else None

    request = ReplayRecord(ReplayKind.REPLAY, "r", 0, text="zoe: mended")
    with stage.consumer(refuse, connect=lambda _: cluster, retry=RetryPolicy(attempt_count_max=1)) as consumer:
        stage.write(b"bad", key=b"bad")
        stage.wait_stored(1)
        refused.clear()
        cluster.place = (stage.letters, 0)
        stage.lab.write(stage.requests, encode_replay(request), key=b"bad", partition=0)
        stage.write(*[b"%d" % n for n in range(20)], key=b"good")
        for partition in range(1, 4):
            for n in range(20):
                stage.write(b"%d" % n, key=b"p%d" % partition, partition=partition)
        stage.wait_stored(21)
        for partition in range(1, 4):
            stage.wait_stored(20, partition=partition)
        assert [b"bad"] == stage.journal.values(b"bad")
        assert 0 == consumer.stats().rebuild_count
        cluster.place = None
        wait_until(lambda: len(stage.journal.values(b"bad")) == 2, within=30, what="the replay")


@pytest.mark.fault("consumer: the dead letters of one batch take longer than a Kafka transaction may")
@pytest.mark.promise("P9")
def test_a_long_parked_key_does_not_keep_the_attempts_of_other_partitions_from_being_stored(stage: Stage) -> None:
    """A Kafka transaction takes 500 dead letters, so 20 of them follow each other here."""
    count = 10_000
    cluster = SlowLine(stage.lab.consumer(namespace=stage.namespace))
    stored_at: list[int] = []

    def act(message: ReceivedMessage, context: Context) -> HandlerResult:
        if message.key == b"late":
            stored_at.append(stage.stored())
        is_first = message.key == b"late" and context.attempt == 1
        return Retry() if is_first else reject_bad(message, context)

    for _ in range(count // 1_000):
        stage.write(*[b"x" * 100] * 1_000, key=b"bad")
    with stage.consumer(
        act, connect=lambda _: cluster, retry=RetryPolicy(2, backoff_first_ms=1, after_exhausted=AfterExhausted.PARK)
    ):
        wait_until(lambda: stage.stored() > 0, within=30, what="the first dead letters")
        stage.write(b"late", key=b"late", partition=1)
        stage.wait_stored(count)
        stage.wait_stored(1, partition=1)

    first, second = stored_at
    assert first <= second < count


@pytest.mark.fault("consumer: the dead letters of one batch take longer than a Kafka transaction may")
@pytest.mark.slow
@pytest.mark.promise("P9", "P11")
def test_a_parked_keys_dead_letters_are_written_however_large_they_are_together(stage: Stage) -> None:
    """20 of 125 KB need 1.25 s at this rate; a Kafka transaction may take 0.5 s, in which 8 of them would go through."""
    count = 20
    stage.write(*[b"x" * SIZE] * count, key=b"bad")
    stage.write(b"good", key=b"good")
    with stage.consumer(
        reject_bad,
        connect=lambda _: SlowLine(stage.lab.consumer(namespace=stage.namespace)),
        kafka_transaction_timeout=TRY,
        retry=RetryPolicy(attempt_count_max=1, after_exhausted=AfterExhausted.PARK),
    ):
        stage.wait_stored(count + 1, within=60)
    assert count == len(stage.letter_values())


class EveryPartition:
    """Equal to each place of a topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and other[0] == self._topic

    def __hash__(self) -> int:
        return hash(self._topic)


class Unreadable(Through):
    """A cluster in which no partition of a topic has a leader: asking for one takes a second."""

    topic = ""

    def start_offsets(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        if any(topic == self.topic for topic, _ in places):
            pause(1.0)
            raise BrokerUnavailableError("no leader", waited_ms=1000)
        return dict(self._inner.start_offsets(places))


@pytest.mark.slow
@pytest.mark.promise("P9")
@pytest.mark.parametrize("partitions", [2, pytest.param(8, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("is_topic", [True, False], ids=["no partition takes records", "no transaction coordinator"])
def test_other_keys_go_on_while_no_dead_letter_can_be_written_anywhere(
    monkeypatch: pytest.MonkeyPatch, partitions: int, *, is_topic: bool
) -> None:
    """As a dead-letter topic, or `__transaction_state`, below its `min.insync.replicas`. All times are a fortieth of the defaults."""
    at_once(monkeypatch, pause_max_ms=1_500)
    stage = Stage(MemoryLab(), partitions=partitions)
    inner, place = stage.lab.consumer(namespace=stage.namespace), cast("tuple[str, int]", EveryPartition(stage.letters))
    cluster = StuckPartition(inner, place) if is_topic else NoTransactions(inner)
    timeout = timedelta(seconds=0.25)
    try:
        for partition in range(partitions):
            stage.write(b"bad", key=b"bad", partition=partition)
        with stage.consumer(
            reject_bad,
            connect=lambda _: cluster,
            retry=RetryPolicy(attempt_count_max=1),
            kafka_transaction_timeout=timeout,
        ) as consumer:
            wait_until(lambda: consumer.stats().replaced_count >= 6, within=90, what="some tries")
            stage.write(b"good", key=b"good", partition=0)
            try:
                wait_until(lambda: stage.journal.values(b"good"), within=5, what="the other key")
            finally:
                cluster.heal()
    finally:
        stage.close()


@pytest.mark.slow
@pytest.mark.promise("P9")
def test_leases_are_kept_while_no_partition_of_the_dead_letter_topic_can_be_read() -> None:
    """A try takes a second here (16 s in Kafka), a lease 9.5 s (57 s): with four partitions in Kafka, all of them are lost."""
    partitions = 12
    stage = Stage(MemoryLab(), partitions=partitions)
    cluster = Unreadable(stage.lab.consumer(namespace=stage.namespace))
    cluster.topic = stage.letters
    request = encode_replay(ReplayRecord(ReplayKind.REPLAY, "r", 0, text="zoe: mended"))
    times: dict[str, Any] = {"lease_expiry": timedelta(seconds=10), "lease_renewal": timedelta(seconds=3)}
    try:
        with stage.consumer(connect=lambda _: cluster, **times) as consumer:
            stage.write(b"first", key=b"a")
            stage.journal.wait_for(1)
            for partition in range(partitions):
                stage.lab.write(stage.requests, request, key=b"k", partition=partition)
            pause(0.5)
            stage.write(b"second", key=b"b")
            wait_until(
                lambda: len(stage.journal.seen) == 2 or consumer.stats().lost_lease_count, within=60, what="the second"
            )
            pause(5.0)
            assert 0 == consumer.stats().lost_lease_count
    finally:
        cluster.topic = ""
        stage.close()


@pytest.mark.promise("P9")
def test_a_right_that_is_withdrawn_beside_a_commit_without_an_answer_has_no_message_given_up_twice() -> None:
    """The consumer ends, and stores nothing over what the Kafka transaction may have stored."""
    lab = MemoryLab()
    stage = Stage(lab)
    settings: dict[str, Any] = {
        "retry": RetryPolicy(attempt_count_max=1, after_exhausted=AfterExhausted.PARK),
        "connect": lambda config: lab.kafka.connect_consumer(config, client=DISTANT),
    }
    lab.lose_answer("EndTxn")
    lab.faults.refuse("EndTxn", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", client=DISTANT, times=1_000)
    stage.write(b"0")

    consumer = stage.plain(**settings)
    consumer.handler(lambda *_: Reject("no"))
    consumer.start()
    wait_until(lambda: consumer.failure is not None, within=10, what="its end")
    with pytest.raises(NotAuthorisedError):
        consumer.close()
    lab.faults.forget()
    stage.write(b"1")
    with stage.consumer(**settings):
        stage.wait_stored(2)

    assert 1 == lab.lost_count("EndTxn")
    assert [b"0", b"1"] == stage.letter_values()
    assert [] == stage.journal.seen, "what was given up, and what follows its parked key, is handled by nobody"
    stage.close()
