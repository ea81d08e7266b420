"""A parked key is replayed in order, whatever was asked before; also a partition that is one chain, in which a message without a key followed (P9)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from tests.contract.conftest import IN_MEMORY
from tests.contract.test_letter_choice import AUTHOR, NO_KEY, PARKED, REJECTED, Field, answer, ask, positions
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.dead_letter_stage import make_stage
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.consumer.context import Context, ReceivedMessage
from txlayer.core.dead_letters import (
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_of,
    decode_replay,
    encode_replay,
)
from txlayer.core.messages import Undecodable
from txlayer.core.progress import hash_of_key
from txlayer.core.retry import AfterExhausted, HandlerResult, Reject, RetryPolicy
from txlayer.operate.dead_letters import DeadLetterLog, DeadLetterPosition
from txlayer.operate.replay import (
    Author,
    DeadLetterResult,
    DeadLetterSelection,
    ReplayOrder,
    Request,
    Watch,
    choose,
    freed_by_retention,
    newcomers,
    requests_for,
)
from txlayer.operate.replay import ask as ask_for
from txlayer.runtime.environment import Environment

pytestmark = IN_MEMORY
PARKING = RetryPolicy(attempt_count_max=1, after_exhausted=AfterExhausted.PARK)


@pytest.fixture
def field(lab: Lab) -> Iterator[Field]:
    made = Field(make_stage(lab))
    yield made
    made.close()


@pytest.mark.promise("P9")
@pytest.mark.parametrize("is_dropping", [False, True])
def test_one_without_a_key_that_was_handled_before_hides_no_parked_partition(
    field: Field, *, is_dropping: bool
) -> None:
    (old,) = field.plant((None, REJECTED))
    field.say(ask(old, request_id="a"), answer(old, ReplayOutcome.HANDLED, request_id="a"))
    first, second = field.plant((b"a", REJECTED), (None, PARKED), parked={NO_KEY: 3})

    choice = field.choose(second, is_dropping=is_dropping)

    assert ([] if is_dropping else [first, second]) == positions(choice)


def failed(*letters: DeadLetterPosition, request_id: str) -> list[ReplayRecord]:
    """Their replays were requested, and failed."""
    asked = [ask(each, request_id=request_id) for each in letters]
    return [*asked, *(answer(each, ReplayOutcome.FAILED, request_id=request_id) for each in letters)]


def dropped(letter: DeadLetterPosition) -> list[ReplayRecord]:
    return [ask(letter, request_id="d", kind=ReplayKind.DROP), answer(letter, ReplayOutcome.DROPPED, request_id="d")]


@pytest.mark.promise("P9")
def test_a_request_that_is_repeated_leaves_what_is_behind_one_that_it_has_seen_fail(field: Field) -> None:
    first, second, third = field.plant((b"p", REJECTED), (b"p", PARKED), (b"p", PARKED), parked={hash_of_key(b"p"): 2})
    field.say(*failed(first, second, request_id="r"), *dropped(first))

    by_name, all_there_is = field.choose(third), field.choose()

    for choice in (by_name, all_there_is):
        assert [] == positions(choice)
        assert (third, DeadLetterResult.LEFT) == choice.unable[-1][:2]


@pytest.mark.promise("P9")
def test_nothing_is_replayed_behind_one_whose_turn_comes_before_that_of_an_earlier_one(field: Field) -> None:
    first, second, third = field.plant((b"p", REJECTED), (b"p", PARKED), (b"p", PARKED), parked={hash_of_key(b"p"): 2})
    field.say(*failed(first, request_id="a"), ask(second, request_id="a"))

    choice = field.choose(first)
    field.say(answer(second, ReplayOutcome.FAILED, request_id="a"))
    later = field.choose(first)

    assert ([first], [(third, DeadLetterResult.LEFT)]) == (positions(choice), [each[:2] for each in choice.unable])
    assert [first, second, third] == positions(later)


@pytest.mark.promise("P9")
def test_what_followed_meanwhile_is_left_where_another_key_of_a_parked_partition_failed(field: Field) -> None:
    first, second = field.plant((b"a", REJECTED), (None, PARKED), parked={NO_KEY: 1})
    field.say(ask(first), answer(first, ReplayOutcome.HANDLED), *failed(second, request_id="r"))
    field.plant((b"b", PARKED), parked={NO_KEY: 3})
    log = field.log()
    asked = [found for each in (first, second) if (found := log.at(0, each.offset)) is not None]
    order = ReplayOrder(ReplayKind.REPLAY, field.stage.group, AUTHOR)

    assert [] == newcomers(order, {field.stage.topic: log}, asked).chosen


@pytest.mark.promise("P9")
def test_of_a_key_that_fails_anew_when_it_was_released_nothing_is_replayed_unasked(field: Field) -> None:
    (first,) = field.plant((b"p", REJECTED), parked={hash_of_key(b"p"): 0})
    field.say(ask(first), answer(first, ReplayOutcome.HANDLED))
    field.plant((b"p", REJECTED), parked={hash_of_key(b"p"): 1})
    log, order = field.log(), ReplayOrder(ReplayKind.REPLAY, field.stage.group, AUTHOR)
    asked = [found for found in log.letters() if found.position == first]

    assert 1 == len(asked)
    assert [] == newcomers(order, {field.stage.topic: log}, asked).chosen


def test_what_is_left_first_and_asked_for_later_has_one_result(field: Field) -> None:
    first, second, third = field.plant((b"p", REJECTED), (b"p", PARKED), (b"p", PARKED), parked={hash_of_key(b"p"): 2})
    field.say(ask(second, request_id="a"))
    logs = {field.stage.topic: field.log()}
    order = ReplayOrder(ReplayKind.REPLAY, field.stage.group, AUTHOR, is_all=True, patience_s=10.0)

    class Answering(RecordedWriter):
        def write(self, look: Callable[[], Sequence[Request]]) -> None:
            positions = [
                DeadLetterPosition(each.topic, each.partition, each.record.dead_letter_offset or 0) for each in look()
            ]
            if first in positions:
                field.say(answer(second, ReplayOutcome.FAILED, request_id="a"))
            for each in positions:
                field.say(ask(each), answer(each, ReplayOutcome.HANDLED))

    writer: Any = Answering(field)
    outcomes = ask_for(order, writer, logs, choose(order, logs))

    assert [(each, DeadLetterResult.HANDLED) for each in (first, second, third)] == [
        each[:2] for each in sorted(outcomes)
    ]


@pytest.mark.promise("P9")
def test_the_last_of_a_parked_key_is_not_dropped_by_the_request_that_has_seen_an_earlier_one_fail(field: Field) -> None:
    first, second, third = field.plant((b"p", REJECTED), (b"p", PARKED), (b"p", PARKED), parked={hash_of_key(b"p"): 2})
    field.say(*failed(first, second, request_id="r"), *dropped(first))

    choice = field.choose(third, is_dropping=True)

    assert ([], [(third, DeadLetterResult.LAST_OF_KEY)]) == (positions(choice), [each[:2] for each in choice.unable])


class RecordedWriter:
    """Notes what is asked for, and when; time passes only in a pause."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._now = 0.0
        self.asked: list[tuple[float, int]] = []
        self.environment = Environment(clock=lambda: self._now, sleep=self._pause)

    def _pause(self, seconds: float) -> None:
        self._now += seconds

    def write(self, look: Callable[[], Sequence[Request]]) -> None:
        for each in look():
            self.asked.append((round(self._now, 3), each.record.dead_letter_offset or 0))
            self._field.say(each.record)


def carry_out(
    field: Field, order: ReplayOrder, choice: DeadLetterSelection, writer: RecordedWriter, **more: Any
) -> list[tuple[DeadLetterPosition, DeadLetterResult]]:
    logs = {field.stage.topic: field.log()}
    outcomes = ask_for(order, cast("Any", writer), logs, choice, **more)
    return [each[:2] for each in sorted(outcomes)]


@pytest.mark.promise("P9")
def test_nothing_is_replayed_behind_one_whose_turn_comes_before_that_of_one_that_is_gone(field: Field) -> None:
    """The second's replay fails behind the first; a request about the first, which retention took, lets the third go."""
    key_hash = hash_of_key(b"p")
    first, second, third = field.plant(
        (b"p", REJECTED), (b"p", PARKED), (b"p", PARKED), parked={key_hash: 2}, stuck={key_hash: 0}
    )
    field.say(*failed(first, request_id="a"), ask(second, request_id="a"))
    field.stage.lab.delete_records(field.stage.dead_letters, before=second.offset)
    order = ReplayOrder(ReplayKind.REPLAY, field.stage.group, AUTHOR, is_all=True)
    before, after = RecordedWriter(field), RecordedWriter(field)

    choice = field.choose()
    outcomes = carry_out(field, order, choice, before)
    field.say(answer(second, ReplayOutcome.FAILED, request_id="a"))
    carry_out(field, order, field.choose(), after)

    assert ([], (third, DeadLetterResult.LEFT)) == (before.asked, outcomes[-1])
    assert [first.offset, second.offset, third.offset] == [offset for _, offset in after.asked]


@pytest.mark.promise("P9")
def test_the_last_of_a_parked_key_is_not_dropped_where_others_are_replayed_since_it_was_chosen(field: Field) -> None:
    first, second, third = field.plant((b"p", REJECTED), (b"p", PARKED), (b"p", PARKED), parked={hash_of_key(b"p"): 2})
    choice = field.choose(is_dropping=True)
    # The second fails behind the first, and then the first is dropped.
    field.say(
        *failed(first, request_id="a"), ask(second, request_id="a"), ask(first, request_id="d", kind=ReplayKind.DROP)
    )
    writer = RecordedWriter(field)

    outcomes = carry_out(field, ReplayOrder(ReplayKind.DROP, field.stage.group, AUTHOR, is_all=True), choice, writer)

    assert ([first, second, third], []) == (positions(choice), writer.asked)
    assert (third, DeadLetterResult.LAST_OF_KEY) == outcomes[-1]


@pytest.mark.promise("P9")
def test_a_key_is_released_by_the_drop_of_its_last_dead_letter_although_one_that_failed_is_gone(stage: Stage) -> None:
    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        return Reject("as planned") if message.value == b"bad" else None

    stage.write(b"bad", b"behind", key=b"p")
    with stage.consumer(act, retry=PARKING):
        stage.wait_for_letters([b"bad", b"behind"])
        first, second = (letter.offset for letter in stage.lab.read(stage.letters))
        stage.lab.write(stage.requests, encode_replay(ReplayRecord(ReplayKind.REPLAY, "r", first)), key=b"p")
        wait_until(lambda: len(stage.lab.read(stage.requests)) == 2, within=20, what="it failed again")
        stage.lab.delete_records(stage.letters, before=second)
        asked_count = _ask(stage, ReplayKind.DROP, offset=second)
        wait_until(lambda: len(stage.lab.read(stage.requests)) == 2 + 2 * asked_count, within=20, what="it is dropped")
        stage.write(b"later", key=b"p")
        stage.wait_stored(3)
    assert [b"behind"] == stage.letter_values()
    assert [b"bad", b"bad", b"later"] == stage.journal.values(b"p")


@pytest.mark.promise("P9")
def test_the_drop_of_one_drops_no_other_that_an_open_kafka_transaction_hides(field: Field) -> None:
    """Its key is stuck at the other one, which cannot be read: it is not gone."""
    hidden, key_hash = 99, hash_of_key(b"p")
    (first,) = field.plant((b"p", REJECTED), parked={key_hash: hidden}, stuck={key_hash: hidden})
    order, writer = ReplayOrder(ReplayKind.DROP, field.stage.group, AUTHOR, is_all=True), RecordedWriter(field)

    carry_out(field, order, field.choose(is_dropping=True), writer)

    assert [(0.0, first.offset)] == writer.asked


@pytest.mark.promise("P9")
def test_a_request_waits_for_an_edit_that_is_under_way(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    (letter,) = field.plant((b"a", REJECTED))
    choice, log, writer = field.choose(), field.log(), RecordedWriter(field)
    edit = field.stage.connections.make_writer("an-edit", batch_bytes_max=16_384)
    edit.initialise(timeout_s=10)
    edit.begin()
    drop = ReplayRecord(ReplayKind.DROP, "e", letter.offset, text="kim: x", replaced_by=letter.offset + 1)
    edit.produce(field.stage.replays, encode_replay(drop), b"a", 0, lambda *_: None, None, 0, None)
    assert 0 == edit.flush(timeout_s=10)
    is_hidden = log.is_hidden

    def look(ends: Any) -> bool:
        found = is_hidden(ends)
        if found:
            edit.commit(timeout_s=10)
        return found

    monkeypatch.setattr(log, "is_hidden", look)
    order = ReplayOrder(ReplayKind.REPLAY, field.stage.group, AUTHOR, is_all=True)

    outcomes = ask_for(order, cast("Any", writer), {field.stage.topic: log}, choice)

    assert ([], [(letter, DeadLetterResult.REQUESTED_ALREADY)]) == (writer.asked, [each[:2] for each in outcomes])


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_slow_request_looks_again_and_keeps_to_its_rate(field: Field, *, is_watched: bool) -> None:
    """Another operator drops the last one while the first two are asked for."""
    found = field.plant(*[(b"%d" % n, REJECTED) for n in range(4)])
    order = ReplayOrder(ReplayKind.REPLAY, field.stage.group, AUTHOR, is_all=True, rate=0.25)

    class Dropping(RecordedWriter):
        def write(self, look: Callable[[], Sequence[Request]]) -> None:
            super().write(look)
            if len(self.asked) == 1:
                field.say(*dropped(found[-1]))

    writer = Dropping(field)
    watch = Watch(lambda: False, failed_count_max=0, note=lambda *_: None) if is_watched else None

    outcomes = carry_out(field, order, field.choose(), writer, watch=watch)

    assert [(4.0 * n, each.offset) for n, each in enumerate(found[:-1])] == writer.asked
    assert (found[-1], DeadLetterResult.ALREADY) == outcomes[-1]


@pytest.mark.promise("P9")
def test_what_the_command_asks_for_handles_a_parked_partition_in_order(stage: Stage) -> None:
    """The same with a consumer: a (key a) is refused, n (no key) follows; `dlq replay` of n alone; then a new message."""
    is_mended: list[bool] = []

    def act(message: ReceivedMessage, _context: Context) -> HandlerResult:
        return Reject("as planned") if message.value == b"a" and not is_mended else None

    settings: dict[str, Any] = {"parallel_by": "partition", "retry": PARKING}
    stage.write(b"a", key=b"a")
    stage.write(b"n", key=None)
    with stage.consumer(act, **settings):
        stage.wait_stored(2)
    is_mended.append(True)
    asked_count = _ask(stage, ReplayKind.REPLAY, offset=1)
    with stage.consumer(act, **settings):
        stage.journal.wait_for(2)
        wait_until(lambda: len(stage.lab.read(stage.requests)) == 2 * asked_count, within=20, what="the answers")
        stage.write(b"new", key=b"b")
        stage.wait_stored(3)
    assert [b"a", b"n", b"new"] == [seen.value for seen in stage.journal.seen[1:]]


@pytest.mark.promise("P9")
def test_nothing_is_handled_behind_one_that_no_handler_takes_now(stage: Stage) -> None:
    """A release without the handler of the first one is asked to replay both, and then one that has it."""
    handled: list[Any] = []

    def made(*, has_x: bool, is_mended: bool) -> Any:
        consumer = stage.plain(parallel_by="partition", retry=PARKING)
        if has_x:
            consumer.handler(tags="x")(
                lambda message, _: handled.append(message.value) if is_mended else Reject("as planned")
            )
        consumer.handler(tags="y")(lambda message, _: handled.append(message.value))
        return consumer

    def replay(request_id: str) -> list[ReplayOutcome | None]:
        before = len(stage.lab.read(stage.requests))
        for letter in stage.lab.read(stage.letters):
            request = encode_replay(ReplayRecord(ReplayKind.REPLAY, request_id, letter.offset))
            stage.lab.write(stage.requests, request, key=letter.key)
        wait_until(lambda: len(stage.lab.read(stage.requests)) == before + 4, within=20, what="two answers")
        said = [decode_replay(record.value) for record in stage.lab.read(stage.requests)[before + 2 :]]
        return [None if isinstance(each, Undecodable) else each.outcome for each in said]

    for tag in (b"x", b"y"):
        stage.lab.write_tagged(stage.topic, tag)
    with made(has_x=True, is_mended=False):
        stage.wait_for_letters([b"x", b"y"])
    with made(has_x=False, is_mended=False):
        outcomes = replay("r1")
    with made(has_x=True, is_mended=True):
        outcomes += replay("r2")
    unknown, failed = ReplayOutcome.UNKNOWN, ReplayOutcome.FAILED
    assert [unknown, failed, ReplayOutcome.HANDLED, ReplayOutcome.HANDLED] == outcomes
    assert [b"x", b"y"] == handled


def _ask(stage: Stage, kind: ReplayKind, *, offset: int) -> int:
    """Write what the command asks for about the dead letter at this offset; so many requests."""
    connections = stage.lab.consumer()
    log = DeadLetterLog(
        stage.lab.admin(),
        group=stage.group,
        topic=stage.topic,
        make_reader=lambda: connections.make_reader("read_committed"),
    )
    names = (DeadLetterPosition(stage.topic, 0, offset),)
    logs, order = {stage.topic: log}, ReplayOrder(kind, stage.group, Author("zoe: mended", "ticket-1"), names=names)
    chosen = choose(order, logs).in_turn
    asked = list(requests_for(chosen, freed_by_retention(logs, chosen), kind=kind, request_id="ticket-1", text=""))
    for request in asked:
        stage.lab.write(stage.requests, encode_replay(request.record), key=request.key)
    return len(asked)


def test_a_message_that_followed_its_parked_key_has_no_times_of_attempts(stage: Stage) -> None:
    stage.write(b"1", b"2")
    with stage.consumer(lambda *_: Reject("as planned"), retry=PARKING):
        stage.wait_stored(2)
    _, second = (dead_letter_of(record.headers) for record in stage.lab.read(stage.letters))
    assert not isinstance(second, Undecodable)
    assert DeadLetterReason.KEY_PARKED is second.reason
    assert (0, 0, 0) == (second.attempt_count, second.first_ms, second.last_ms)


@pytest.mark.fault("consumer: retention removes the dead letters of parked keys while no more keys can be parked")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("is_made_anew", [False, True])
def test_keys_whose_dead_letters_are_gone_hold_up_no_partition(stage: Stage, *, is_made_anew: bool) -> None:
    def act(message: ReceivedMessage, _context: Context) -> None:
        if message.value == b"bad":
            raise ValueError

    stage.write(b"bad", key=b"a")
    stage.write(b"bad", key=b"b")
    with stage.consumer(act, retry=PARKING, parked_keys_max=2) as consumer:
        stage.wait_stored(2)
        stage.write(b"bad", key=b"c")
        wait_until(
            lambda: consumer.stats().topics[stage.topic].paused_partitions, within=PATIENCE_S, what="a full partition"
        )
    left = [] if is_made_anew else [b"bad"]
    if is_made_anew:
        make_anew(stage)
    else:
        stage.lab.delete_records(stage.letters, before=1)

    with stage.consumer(act, retry=PARKING, parked_keys_max=2):
        stage.wait_for_letters([*left, b"bad"], within=10)
        stage.write(b"good", key=b"a")
        stage.write(b"good", key=b"b")
        stage.wait_stored(5)

    assert [b"bad", b"good"] == stage.journal.values(b"a")
    assert [b"bad", *([b"good"] if is_made_anew else [])] == stage.journal.values(b"b")


def make_anew(stage: Stage) -> None:
    """Delete the topics of dead letters and of requests, as an operator may, and make them again."""
    for topic in (stage.letters, stage.requests):
        stage.lab.delete_topic(topic)
        stage.lab.create(topic)


@pytest.mark.promise("P9")
def test_a_key_is_released_although_the_topic_of_the_dead_letter_that_failed_was_made_anew(stage: Stage) -> None:
    is_mended: list[bool] = []

    def act(_message: ReceivedMessage, _context: Context) -> HandlerResult:
        return None if is_mended else Reject("as planned")

    def replay(offset: int) -> None:
        before = len(stage.lab.read(stage.requests))
        count = before + 2 * _ask(stage, ReplayKind.REPLAY, offset=offset)
        wait_until(lambda: len(stage.lab.read(stage.requests)) == count, within=20, what="the answers")

    stage.write(b"1", b"2", b"3", key=b"other")
    with stage.consumer(act, retry=PARKING):
        stage.wait_for_letters([b"1", b"2", b"3"])
        stage.write(b"bad", key=b"p")
        stage.wait_for_letters([b"1", b"2", b"3", b"bad"])
        replay(stage.lab.read(stage.letters)[-1].offset)
    make_anew(stage)
    with stage.consumer(act, retry=PARKING):
        stage.write(b"behind", key=b"p")
        stage.wait_for_letters([b"behind"])
        is_mended.append(True)
        replay(0)
        stage.write(b"later", key=b"p")
        stage.wait_stored(6)

    assert [b"behind"] == stage.letter_values()
    assert [b"bad", b"bad", b"behind", b"later"] == stage.journal.values(b"p")
