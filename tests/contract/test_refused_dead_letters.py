"""Dead letters that their topic refuses: kept without their content, and nothing else runs twice; memory and real Kafka."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Literal

import pytest

from tests.conftest import Broker
from tests.contract.conftest import OF_HANDLERS
from tests.support.broker import unique_name
from tests.support.consumers import PATIENCE_S, Stage, numbers
from tests.support.lab import Lab
from tests.support.lab_kafka import KafkaLab
from tests.support.lab_memory import MemoryLab
from tests.support.topic_records import Record, RecordWriter
from tests.support.waiting import wait_until
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import (
    DeadLetter,
    ReplayKind,
    ReplayRecord,
    dead_letter_of,
    decode_replay,
    encode_replay,
    is_cut,
)
from txlayer.core.messages import HEADERS_READ_MAX
from txlayer.core.retry import AfterExhausted, HandlerResult, Reject, RetryPolicy
from txlayer.core.topics import AlterSetting

LARGE = b"x" * 20_000
LARGE_KEY = b"k" * 20_000
GIANT_KEY = b"k" * 3_000_000


@pytest.fixture
def stage(lab: Lab) -> Iterator[Stage]:
    made = Stage(lab)
    lab.delete_topic(made.letters)
    lab.create(made.letters, settings={"max.message.bytes": "5000"})
    yield made
    made.close()


def reject_large(message: ReceivedMessage, _context: Context) -> HandlerResult:
    """Some are small, too."""
    is_bad = message.value == LARGE or message.value == b"small"
    return Reject("as planned") if is_bad else None


@pytest.mark.fault("consumer: a dead letter, or its key alone, is too large for its topic")
@pytest.mark.promise("P9")
def test_a_dead_letter_that_its_topic_refuses_is_kept_without_content_and_nothing_runs_twice(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(50):
        stage.write(b"%d" % n, key=b"k%d" % n)
    stage.write(LARGE, b"after", key=b"bad")
    stage.write(b"small", key=b"other")

    with caplog.at_level(logging.ERROR, "txlayer.consumer"), stage.consumer(reject_large) as consumer:
        stage.wait_stored(53)
        stats = consumer.stats()

    letters = stage.lab.read(stage.letters)
    assert {None, b"small"} == {letter.value for letter in letters}
    assert 2 == len(letters)
    (cut,) = [letter for letter in letters if is_cut(letter.headers, letter.value)]
    said = dead_letter_of(cut.headers)
    assert isinstance(said, DeadLetter)
    assert ((stage.topic, 0, 50), b"bad") == (tuple(said.origin), cut.key)
    assert int(dict(cut.headers)["txl-dlq-cut"] or b"") >= len(LARGE)
    good = [seen.value for seen in stage.journal.seen if seen.value not in (LARGE, b"small")]
    assert len(set(good)) == len(good) == 51
    assert (0, 1) == (stats.rebuild_count, stats.replaced_count)
    assert 1 == [record.getMessage() for record in caplog.records].count("dead_letter.refused")


@pytest.mark.promise("P9")
def test_a_handler_that_runs_while_a_dead_letter_is_refused_may_end_and_runs_once(stage: Stage) -> None:
    refused = threading.Event()

    class Heard(logging.Handler):
        """Hears of the refusal, before anything follows from it."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "dead_letter.refused":
                refused.set()

    def act(message: ReceivedMessage, context: Context) -> HandlerResult:
        if message.value == b"slow":
            assert refused.wait(PATIENCE_S)
        return reject_large(message, context)

    heard = Heard()
    logging.getLogger("txlayer.consumer").addHandler(heard)
    try:
        stage.write(b"slow", key=b"good")
        stage.write(LARGE, key=b"bad")
        with stage.consumer(act, worker_count=4):
            stage.wait_stored(2)
    finally:
        logging.getLogger("txlayer.consumer").removeHandler(heard)

    assert [b"slow"] == stage.journal.values(b"good")


@pytest.mark.fault(
    "consumer: dead letters, answers or claims of leases fit into their topic one by one, and not in one batch"
)
@pytest.mark.promise("P9")
def test_dead_letters_that_fit_one_by_one_are_kept_whole_however_many_come_together(stage: Stage) -> None:
    values = [b"%03d" % n + b"x" * 1_000 for n in range(40)]
    for n, value in enumerate(values):
        stage.write(value, key=b"k%d" % n)
    stage.write(LARGE, key=b"large")
    parking = RetryPolicy(after_exhausted=AfterExhausted.PARK)

    with stage.consumer(lambda *_: Reject("as planned"), retry=parking) as consumer:
        stage.wait_stored(41)
        assert consumer.is_running, consumer.failure

    assert [*values, None] == sorted(stage.letter_values(), key=lambda value: value or b"y")


@pytest.mark.fault(
    "consumer: dead letters, answers or claims of leases fit into their topic one by one, and not in one batch"
)
@pytest.mark.promise("P9")
def test_answers_that_fit_one_by_one_are_written_however_many_come_together(stage: Stage) -> None:
    is_mended, count = False, 40
    stage.lab.delete_topic(stage.requests)
    stage.lab.create(stage.requests, settings={"max.message.bytes": "1000"})
    for n in range(count):
        stage.write(b"bad", key=b"k%d" % n)
    with stage.consumer(lambda *_: None if is_mended else Reject("as planned")) as consumer:
        stage.wait_stored(count)
        for letter in stage.lab.read(stage.letters):
            drop = encode_replay(ReplayRecord(ReplayKind.DROP, unique_name("r"), letter.offset))
            stage.lab.write(stage.requests, drop, key=letter.key)
        wait_until(lambda: len(stage.lab.read(stage.requests)) == 2 * count, within=PATIENCE_S, what="all answers")
        assert 0 == consumer.stats().rebuild_count


@pytest.mark.fault("consumer: the answer to a request is larger than the request, and too large for its topic")
@pytest.mark.promise("P11")
def test_an_answer_that_its_topic_refuses_is_written_without_its_details_and_stops_no_other(stage: Stage) -> None:
    stage.lab.delete_topic(stage.requests)
    stage.lab.create(stage.requests, settings={"max.message.bytes": "1000"})
    stage.write(b"bad", key=b"k")

    def reject(message: ReceivedMessage, _context: Context) -> HandlerResult:
        return Reject("é" * 500) if message.value == b"bad" else None

    def ask(kind: ReplayKind, key: bytes | None, letter: int | None = None) -> None:
        stage.lab.write(stage.requests, encode_replay(ReplayRecord(kind, unique_name("r"), letter)), key=key)

    def answers() -> list[tuple[str, int | None]]:
        said = [decode_replay(record.value or b"") for record in stage.lab.read(stage.requests)]
        return [(s.outcome.value, s.dead_letter_offset) for s in said if isinstance(s, ReplayRecord) and s.outcome]

    def ask_with_the_largest_key() -> None:
        for count in range(1_000, 800, -1):
            with contextlib.suppress(Exception):  # too large for the topic
                ask(ReplayKind.DROP, b"k" * count, 7)
                return

    with stage.consumer(reject) as consumer:
        stage.wait_stored(1)
        ask(ReplayKind.REPLAY, b"k", stage.lab.read(stage.letters)[0].offset)
        ask(ReplayKind.PAUSE, None)
        ask_with_the_largest_key()
        ask(ReplayKind.RESUME, None)
        stage.write(b"good", key=b"other")
        wait_until(lambda: len(answers()) == 4, within=PATIENCE_S, what="all answers")
        stage.wait_stored(2)
        assert 0 == consumer.stats().rebuild_count
    assert {("failed", 0), ("dropped", 7), ("handled", None)} == set(answers())


@pytest.mark.fault(
    "consumer: dead letters, answers or claims of leases fit into their topic one by one, and not in one batch"
)
def test_claims_that_fit_one_by_one_are_written_however_many_queues_there_are(lab: Lab) -> None:
    stage = Stage(lab, partitions=50)
    locks = f"{stage.namespace}.locks"
    lab.delete_topic(locks)
    lab.create(locks, settings={"message.timestamp.type": "LogAppendTime", "max.message.bytes": "1000"})

    with stage.consumer() as consumer:
        wait_until(lambda: len(consumer.stats().partitions) == 50, within=PATIENCE_S, what="it owns all")


def reject_bad(message: ReceivedMessage, _context: Context) -> HandlerResult:
    return Reject("as planned") if message.value == b"bad" else None


@pytest.mark.fault(
    "consumer: a dead letter is refused for another reason than its size",
    "consumer: a dead letter, or its key alone, is too large for its topic",
)
@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    ("setting", "found", "wanted", "key", "tries"),
    [
        # Such a topic takes no record without a key.
        pytest.param("cleanup.policy", "compact", "delete", None, 3, id="whatever its size"),
        # Two rounds: whole, without content, without its key.
        pytest.param("max.message.bytes", "100", "100000", b"bad", 6, id="even without content"),
    ],
)
def test_a_dead_letter_that_its_topic_refuses_waits_and_is_kept_whole(
    lab: Lab, setting: str, found: str, wanted: str, key: bytes | None, tries: int
) -> None:
    stage = Stage(lab)
    lab.delete_topic(stage.letters)
    lab.create(stage.letters, settings={setting: found})
    stage.write(b"bad", key=key)
    stage.write(*numbers(20), key=b"good")

    with stage.consumer(reject_bad) as consumer:
        wait_until(lambda: consumer.stats().replaced_count >= tries, within=PATIENCE_S, what="tries that failed")
        stage.journal.wait_for(21)
        stage.lab.admin().alter_settings([AlterSetting(stage.letters, setting, found, wanted, "mended")])
        stage.wait_stored(21)

    (letter,) = lab.read(stage.letters)
    assert (key, b"bad") == (letter.key, letter.value)
    assert not is_cut(letter.headers, letter.value)
    assert numbers(20) == stage.journal.values(b"good")


@pytest.mark.fault("consumer: a dead letter is refused for another reason than its size")
@pytest.mark.promise("P9")
def test_a_dead_letter_whose_partition_does_not_exist_yet_waits_and_is_kept_whole(lab: Lab) -> None:
    stage = Stage(lab, partitions=2)
    with stage.consumer(reject_bad) as consumer:
        for partition in range(2):
            stage.write(b"first", partition=partition)
            stage.wait_stored(1, partition=partition)
        lab.delete_topic(stage.letters)
        lab.create(stage.letters)
        stage.write(b"bad", key=b"bad", partition=1)
        stage.write(*numbers(20), key=b"good", partition=1)
        wait_until(lambda: consumer.stats().replaced_count >= 3, within=PATIENCE_S, what="three tries that failed")
        stage.journal.wait_for(23)
        lab.delete_topic(stage.letters)
        lab.create(stage.letters, partitions=2)
        stage.wait_stored(22, partition=1)

    (letter,) = lab.read(stage.letters)
    assert (b"bad", b"bad", 1) == (letter.key, letter.value, letter.partition)
    assert numbers(20) == stage.journal.values(b"good")


@pytest.mark.fault("consumer: a dead letter is refused for another reason than its size")
@pytest.mark.promise("P9")
@pytest.mark.slow
@OF_HANDLERS
def test_while_the_dead_letter_topic_is_gone_what_needs_it_waits_and_all_else_goes_on(lab: Lab) -> None:
    stage = Stage(lab)
    stage.write(b"bad", key=b"k")
    with stage.consumer(reject_bad, kafka_transaction_timeout=timedelta(seconds=2)):
        stage.wait_stored(1)
        lab.delete_topic(stage.letters)
        stage.write(b"bad", key=b"bad")
        lab.write(stage.requests, encode_replay(ReplayRecord(ReplayKind.REPLAY, "r", 0, text="zoe: again")), key=b"k")
        for n in range(3):
            stage.write(b"%d" % n, key=b"good")
            stage.journal.wait_for(n + 3)
        lab.create(stage.letters)
        stage.wait_stored(5)
        wait_until(lambda: len(lab.read(stage.requests)) == 2, within=PATIENCE_S, what="the answer")

    (letter,) = lab.read(stage.letters)
    assert (b"bad", b"bad") == (letter.key, letter.value)
    assert [b"0", b"1", b"2"] == stage.journal.values(b"good")


@pytest.mark.fault("consumer: a dead letter is refused for another reason than its size")
@pytest.mark.promise("P9")
def test_a_consumer_starts_without_the_rights_to_its_dead_letters_and_only_those_wait() -> None:
    lab = MemoryLab()
    stage = Stage(lab)
    lab.kafka.deny(stage.letters)
    stage.write(b"bad", key=b"bad")
    stage.write(b"0", key=b"good")

    with stage.consumer(reject_bad, kafka_transaction_timeout=timedelta(seconds=2)):
        stage.journal.wait_for(2)
        lab.kafka.deny(stage.letters, is_denied=False)
        stage.wait_stored(2)

    (letter,) = lab.read(stage.letters)
    assert (b"bad", b"bad") == (letter.key, letter.value)
    assert [b"0"] == stage.journal.values(b"good")


@pytest.mark.fault("consumer: a parked key is replayed of which a dead letter has no content")
@pytest.mark.promise("P9")
def test_later_dead_letters_of_a_parked_key_wait_for_one_without_content_until_it_is_dropped(stage: Stage) -> None:
    is_mended = False

    def act(message: ReceivedMessage, context: Context) -> HandlerResult:
        return None if is_mended else reject_large(message, context)

    def ask(kind: ReplayKind, letter: int) -> None:
        request = encode_replay(ReplayRecord(kind, unique_name("r"), letter))
        stage.lab.write(stage.requests, request, key=b"k")

    def said() -> list[ReplayRecord]:
        found = [decode_replay(record.value or b"") for record in stage.lab.read(stage.requests)]
        return [s for s in found if isinstance(s, ReplayRecord) and s.outcome]

    def answers() -> list[str]:
        return [s.outcome.value for s in said() if s.outcome]

    stage.write(LARGE, b"after")
    with stage.consumer(act, retry=RetryPolicy(after_exhausted=AfterExhausted.PARK)):
        wait_until(lambda: stage.letter_values() == [None, b"after"], within=PATIENCE_S, what="both dead letters")
        is_mended = True
        first, second = (letter.offset for letter in stage.lab.read(stage.letters))
        ask(ReplayKind.REPLAY, first)
        ask(ReplayKind.REPLAY, second)
        wait_until(lambda: len(answers()) == 2, within=PATIENCE_S, what="both answers")
        assert [LARGE] == stage.journal.values(b"k")

        ask(ReplayKind.DROP, first)
        ask(ReplayKind.REPLAY, second)
        wait_until(lambda: len(answers()) == 4, within=PATIENCE_S, what="all answers")
        stage.write(b"last")
        stage.wait_stored(3)

    assert ["unknown", "failed", "dropped", "handled"] == answers()
    assert "an earlier dead letter of its key failed" == said()[1].text, "it was not attempted"
    assert [LARGE, b"after", b"last"] == stage.journal.values(b"k")


def test_a_dead_letter_without_content_cannot_be_replayed(stage: Stage) -> None:
    stage.write(LARGE)

    with stage.consumer(reject_large):
        stage.wait_stored(1)
        before = len(stage.journal.seen)
        (letter,) = stage.lab.read(stage.letters)
        request = encode_replay(ReplayRecord(ReplayKind.REPLAY, unique_name("r"), letter.offset))
        stage.lab.write(stage.requests, request, key=b"k")

        def answers() -> list[str]:
            said = [decode_replay(record.value or b"") for record in stage.lab.read(stage.requests)]
            return [s.outcome.value for s in said if isinstance(s, ReplayRecord) and s.outcome]

        wait_until(lambda: answers() == ["unknown"], within=30, what="the answer")

    assert before == len(stage.journal.seen)


def reject_large_key(message: ReceivedMessage, _context: Context) -> HandlerResult:
    return Reject("as planned") if message.key in (LARGE_KEY, GIANT_KEY) else None


@pytest.mark.fault("consumer: a dead letter, or its key alone, is too large for its topic")
@pytest.mark.promise("P9")
def test_a_dead_letter_whose_key_is_too_large_for_its_topic_is_kept_without_it(stage: Stage) -> None:
    stage.write(b"value", key=LARGE_KEY)
    stage.write(b"0", b"1", key=b"other")

    with stage.consumer(reject_large_key) as consumer:
        stage.wait_stored(3)
        stats = consumer.stats()

    (cut,) = stage.lab.read(stage.letters)
    said = dead_letter_of(cut.headers)
    assert isinstance(said, DeadLetter)
    assert ((stage.topic, 0, 0), None, None) == (tuple(said.origin), cut.key, cut.value)
    assert is_cut(cut.headers, cut.value)
    assert len(LARGE_KEY) + len(b"value") == int(dict(cut.headers)["txl-dlq-cut"] or b"")
    assert (0, 2) == (stats.rebuild_count, stats.replaced_count)


@pytest.mark.promise("P9")
@pytest.mark.parametrize("null_keys", ["ordered", "free"])
def test_a_parked_key_that_its_dead_letter_lacks_is_released_when_that_is_dropped(
    stage: Stage, null_keys: Literal["ordered", "free"]
) -> None:
    is_mended = False

    def act(message: ReceivedMessage, context: Context) -> HandlerResult:
        return None if is_mended else reject_large_key(message, context)

    parking = RetryPolicy(after_exhausted=AfterExhausted.PARK)
    stage.write(b"v", key=LARGE_KEY)
    with stage.consumer(act, retry=parking, null_keys=null_keys):
        stage.wait_stored(1)
        is_mended = True
        (letter,) = stage.lab.read(stage.letters)
        drop = encode_replay(ReplayRecord(ReplayKind.DROP, unique_name("r"), letter.offset))
        stage.lab.write(stage.requests, drop, key=None)
        wait_until(lambda: len(stage.lab.read(stage.requests)) == 2, within=PATIENCE_S, what="the answer")
        stage.write(b"after", key=LARGE_KEY)
        stage.wait_stored(2)

    assert [b"v", b"after"] == stage.journal.values(LARGE_KEY)
    assert 1 == len(stage.lab.read(stage.letters))


@pytest.fixture
def wide(broker: Broker) -> Iterator[Stage]:
    """On a real broker, its dead-letter topic as `topics apply` makes it: twice what the topic takes."""
    lab = KafkaLab(broker.bootstrap_servers)
    made = Stage(lab, partitions=2)
    lab.delete_topic(made.letters)
    lab.create(made.letters, partitions=2, settings={"max.message.bytes": "2097176"})
    yield made
    made.close()
    lab.close()


@pytest.mark.kafka
@pytest.mark.promise("P9")
def test_a_dead_letter_that_would_have_too_many_headers_is_kept_without_them(broker: Broker, wide: Stage) -> None:
    """Kafka's client shows no header at all of a record that has more, and a dead letter has one more than its message."""
    headers: list[tuple[str, bytes | None]] = [("h", b"")] * HEADERS_READ_MAX
    RecordWriter(broker.bootstrap_servers).write([Record(wide.topic, LARGE, b"bad", headers)])

    with wide.consumer(reject_large):
        wide.wait_stored(1)

    (letter,) = wide.lab.read(wide.letters)
    said = dead_letter_of(letter.headers)
    assert isinstance(said, DeadLetter)
    assert ((wide.topic, 0, 0), b"bad") == (tuple(said.origin), letter.key)
    assert is_cut(letter.headers, letter.value)


@pytest.mark.fault("consumer: a dead letter, or its key alone, is too large for its topic")
@pytest.mark.kafka
@pytest.mark.promise("P9")
def test_a_giant_key_that_compresses_well_stops_nobody_else(broker: Broker, wide: Stage) -> None:
    """The broker's limit counts compressed bytes, so any client can write it."""
    writer = RecordWriter(broker.bootstrap_servers, record_bytes_max=10_000_000, compression="zstd")
    writer.write([Record(wide.topic, b"v", GIANT_KEY)])

    with wide.consumer(reject_large_key) as consumer:
        wide.journal.wait_for(1)
        for n in range(200):
            wide.write(b"%d" % n, key=b"other", partition=1)
        wide.wait_stored(200, partition=1)
        wide.wait_stored(1, partition=0)
        assert consumer.is_running, consumer.failure
    assert [None] == [letter.key for letter in wide.lab.read(wide.letters)]
