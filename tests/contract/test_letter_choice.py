"""Which dead letters a command is about, over both logs: filters, what was asked before, parked keys."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from hashlib import blake2b

import pytest

from tests.contract.clients import PATIENCE_S
from tests.contract.conftest import OF_HANDLERS
from tests.support.dead_letter_stage import Stage, make_stage
from tests.support.lab import Lab
from tests.support.waiting import wait_until
from txlayer.adapters.ports import StoredOffset
from txlayer.consumer.dead_letters import Answered
from txlayer.core.dead_letters import DeadLetterReason, DeadLetterState, ReplayKind, ReplayOutcome, ReplayRecord
from txlayer.core.progress import KEY_HASH_BYTES, StoredProgress, encode, fixed_part
from txlayer.core.topics import CreateTopic
from txlayer.errors import TopicMismatchError, UsageError
from txlayer.operate.dead_letters import DeadLetterFilter, DeadLetterLog, DeadLetterPosition, topics_of
from txlayer.operate.replay import (
    Author,
    DeadLetterResult,
    DeadLetterSelection,
    ReplayOrder,
    RequestWriter,
    choose,
    still_able,
)
from txlayer.operate.replay import ask as carry_out

AUTHOR = Author("zoe: mended", "r")
REJECTED, PARKED = DeadLetterReason.REJECTED, DeadLetterReason.KEY_PARKED
NO_KEY = bytes(KEY_HASH_BYTES)


class Field:
    """A stage on which letters are planted by a dead-letter writer, and what is asked of it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._writer = stage.writer(recycle_after_s=600.0)
        self._count = 0

    def plant(
        self,
        *letters: tuple[bytes | None, DeadLetterReason],
        parked: Mapping[bytes, int] | None = None,
        stuck: Mapping[bytes, int] | None = None,
    ) -> list[DeadLetterPosition]:
        """Dead letters of (key, reason) in partition 0; `parked` and `stuck` are what the group stores with them."""
        given = []
        for key, reason in letters:
            self._count += 1
            one = self.stage.given_up(self._count, key=key)
            given.append(one._replace(letter=one.letter._replace(reason=reason)))
        fixed = fixed_part(self._count + 1, StoredProgress(parked=parked or {}, stuck=stuck or {}))
        text = encode(self._count + 1, (), fixed, bytes_max=4096).text
        offsets = self._writer.write_letters(
            given, offsets=self.stage.behind(self._count, metadata=text), member=self.stage.member
        )
        self._wait_for(self.stage.dead_letters, count=self._count)
        return [DeadLetterPosition(self.stage.topic, 0, offset) for offset in offsets]

    def say(self, *records: ReplayRecord) -> None:
        """Records on the replay topic."""
        answers = [Answered(self.stage.topic, 0, b"k", record) for record in records]
        before = len(self.stage.lab.read(self.stage.replays))
        stored = {(self.stage.replays, 0): StoredOffset(1, "")}
        self._writer.write_letters([], answers, offsets=lambda _: stored, member=self.stage.member)
        self._wait_for(self.stage.replays, count=before + len(records))

    def _wait_for(self, topic: str, *, count: int) -> None:
        """Markers are written behind the answer."""
        wait_until(
            lambda: len(self.stage.lab.read(topic)) == count, within=PATIENCE_S, what=f"{count} records in {topic}"
        )

    def log(self) -> DeadLetterLog:
        """Fresh eyes."""
        connections = self.stage.connections
        return DeadLetterLog(
            self.stage.lab.admin(),
            group=self.stage.group,
            topic=self.stage.topic,
            make_reader=lambda: connections.make_reader("read_committed"),
        )

    def choose(
        self,
        *names: DeadLetterPosition,
        wanted: DeadLetterFilter | None = None,
        limit: int | None = None,
        is_again: bool = False,
        is_dropping: bool = False,
    ) -> DeadLetterSelection:
        """What the request `r` would be about."""
        order = ReplayOrder(
            ReplayKind.DROP if is_dropping else ReplayKind.REPLAY,
            self.stage.group,
            AUTHOR,
            names=names,
            wanted=wanted or DeadLetterFilter(),
            limit=limit,
            is_again=is_again,
        )
        return choose(order, {self.stage.topic: self.log()})

    def close(self) -> None:
        """Leave."""
        self._writer.close()
        self.stage.reader.close()


@pytest.fixture
def field(lab: Lab) -> Iterator[Field]:
    made = Field(make_stage(lab))
    yield made
    made.close()


def ask(position: DeadLetterPosition, *, request_id: str = "r", kind: ReplayKind = ReplayKind.REPLAY) -> ReplayRecord:
    return ReplayRecord(kind, request_id, position.offset, text="zoe: mended")


def answer(position: DeadLetterPosition, outcome: ReplayOutcome, *, request_id: str = "r") -> ReplayRecord:
    return ReplayRecord(ReplayKind.RESULT, request_id, position.offset, outcome)


def positions(choice: DeadLetterSelection) -> list[DeadLetterPosition]:
    return [each.position for each in choice.in_turn]


def key_hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=KEY_HASH_BYTES).digest()


def test_a_filter_chooses_among_those_that_nobody_asked_for(field: Field) -> None:
    handled, failed, asked, ours, free = field.plant(*((b"k%d" % n, REJECTED) for n in range(5)))
    field.say(
        ask(handled, request_id="a"),
        answer(handled, ReplayOutcome.HANDLED, request_id="a"),
        ask(failed, request_id="a"),
        answer(failed, ReplayOutcome.FAILED, request_id="a"),
        ask(asked, request_id="a"),
        ask(ours),
    )

    choice = field.choose()

    assert [failed, free] == positions(choice)
    assert [ours] == [each.position for each in choice.asked_before]


@pytest.mark.parametrize("is_named", [False, True])
def test_a_request_id_that_asked_for_a_replay_asks_for_no_drop(field: Field, *, is_named: bool) -> None:
    (failed,) = field.plant((b"k", REJECTED))
    field.say(ask(failed), answer(failed, ReplayOutcome.FAILED))
    names = [failed] if is_named else []

    with pytest.raises(UsageError, match="request r asked for a replay of"):
        field.choose(*names, is_dropping=True)

    assert [failed] == [each.position for each in field.choose(*names).asked_before]


@OF_HANDLERS
def test_what_is_named_is_chosen_or_said_to_be_unable(field: Field) -> None:
    handled, asked, free = field.plant(*((b"k%d" % n, REJECTED) for n in range(3)))
    field.say(
        ask(handled, request_id="a"), answer(handled, ReplayOutcome.HANDLED, request_id="a"), ask(asked, request_id="a")
    )
    nowhere, elsewhere = (DeadLetterPosition(field.stage.topic, 0, 9_999), DeadLetterPosition("other", 0, 0))

    choice = field.choose(free, handled, asked, nowhere, elsewhere)
    again = field.choose(handled, asked, is_again=True)

    assert [free] == positions(choice)
    assert [
        (handled, DeadLetterResult.ALREADY),
        (asked, DeadLetterResult.REQUESTED_ALREADY),
        (nowhere, DeadLetterResult.NOT_FOUND),
        (elsewhere, DeadLetterResult.NOT_FOUND),
    ] == [(position, why) for position, why, *_ in choice.unable]
    assert sorted([handled, asked]) == positions(again)


def test_a_parked_key_that_the_stored_offset_names_is_chosen_whole(field: Field) -> None:
    first, second, other = field.plant((b"p", REJECTED), (b"p", REJECTED), (b"o", REJECTED), parked={key_hash(b"p"): 1})

    assert [first, second] == positions(field.choose(second))
    assert [other] == positions(field.choose(other))


@pytest.mark.fault(
    "consumer: the last dead letter of a parked key is dropped while an earlier one is open, or retention removes a failed one"
)
@pytest.mark.promise("P9")
@pytest.mark.parametrize(
    ("before", "last", "parked"), [(b"p", b"p", key_hash(b"p")), (b"a", b"b", NO_KEY), (b"a", None, NO_KEY)]
)
@OF_HANDLERS
def test_the_last_of_a_parked_key_or_partition_is_not_dropped_while_an_earlier_one_is_open(
    field: Field, before: bytes, last: bytes | None, parked: bytes
) -> None:
    first, second = field.plant((before, REJECTED), (last, PARKED), parked={parked: 1})

    last_alone = field.choose(second, is_dropping=True)
    first_alone = field.choose(first, is_dropping=True)
    both = field.choose(first, second, is_dropping=True)

    assert ([], [(second, DeadLetterResult.LAST_OF_KEY)]) == (
        positions(last_alone),
        [(position, why) for position, why, *_ in last_alone.unable],
    )
    assert ([first], [first, second]) == (positions(first_alone), positions(both))


@pytest.mark.fault(
    "consumer: the last dead letter of a parked key is dropped while an earlier one is open, or retention removes a failed one"
)
@pytest.mark.promise("P9")
@OF_HANDLERS
def test_the_last_of_a_parked_key_is_not_dropped_while_the_replay_of_an_earlier_one_has_no_answer(field: Field) -> None:
    first, second, third = field.plant((b"p", REJECTED), (b"p", PARKED), (b"p", PARKED), parked={key_hash(b"p"): 2})
    field.say(ask(first, request_id="a"), ask(second, request_id="a"))

    before = field.choose(third, is_dropping=True)
    all_before = field.choose(is_dropping=True)
    field.say(*(answer(each, ReplayOutcome.FAILED, request_id="a") for each in (first, second)))
    field.say(*(ask(each, request_id="b", kind=ReplayKind.DROP) for each in (first, second)))
    behind_drops = field.choose(third, is_dropping=True)

    # It may fail, and the others with it: then the end of the first would release the key past the second.
    for choice in (before, all_before):
        assert ([], [(third, DeadLetterResult.LAST_OF_KEY)]) == (
            positions(choice),
            [(position, why) for position, why, *_ in choice.unable],
        )
    assert [third] == positions(behind_drops)


@OF_HANDLERS
def test_a_limit_does_not_tear_a_parked_key(field: Field) -> None:
    first, second, other, third = field.plant((b"p", REJECTED), (b"p", PARKED), (b"o", REJECTED), (b"p", PARKED))

    choice = field.choose(limit=1)

    assert [first, second, third] == positions(choice)
    assert 2 == choice.added_count
    assert other not in positions(choice)


@OF_HANDLERS
def test_a_request_that_is_taken_up_again_keeps_within_its_limit(field: Field) -> None:
    first, second, _, _ = field.plant((b"a", REJECTED), (b"b", REJECTED), (b"c", REJECTED), (b"d", REJECTED))
    field.say(ask(first))

    killed = field.choose(limit=2)
    field.say(ask(second))

    assert [second] == positions(killed)
    assert [] == positions(field.choose(limit=2))


@OF_HANDLERS
def test_of_a_parked_key_those_that_are_over_are_left_alone(field: Field) -> None:
    handled, dropped, second, third = field.plant((b"p", REJECTED), (b"p", PARKED), (b"p", PARKED), (b"p", PARKED))
    field.say(
        ask(handled, request_id="a"),
        answer(handled, ReplayOutcome.HANDLED, request_id="a"),
        ask(dropped, request_id="b"),
        answer(dropped, ReplayOutcome.DROPPED, request_id="b"),
    )

    assert [second, third] == positions(field.choose(third))


@OF_HANDLERS
def test_null_keys_are_parked_together(field: Field) -> None:
    first, keyed, second = field.plant((None, REJECTED), (b"k", REJECTED), (None, PARKED), parked={NO_KEY: 2})

    assert [first, second] == positions(field.choose(first))
    assert [keyed] == positions(field.choose(keyed))


@OF_HANDLERS
def test_where_a_partition_has_one_order_all_its_keys_are_parked_together(field: Field) -> None:
    first, second, third = field.plant((b"a", REJECTED), (b"b", PARKED), (None, PARKED), parked={NO_KEY: 2})

    for named in (first, third):  # the last one has no key
        assert [first, second, third] == positions(field.choose(named))


@OF_HANDLERS
def test_what_somebody_asked_for_meanwhile_is_not_asked_for_again(field: Field) -> None:
    first, second = field.plant((b"k1", REJECTED), (b"k2", REJECTED))
    log = field.log()
    logs = {field.stage.topic: log}
    chosen = choose(ReplayOrder(ReplayKind.REPLAY, field.stage.group, AUTHOR), logs).in_turn
    field.say(ask(first, request_id="a"))

    able, taken = still_able(logs, chosen, is_again=False)

    assert ([second], [first]) == ([c.position for c in able], [c.position for c in taken])
    assert DeadLetterState.REQUESTED is taken[0].history.state
    assert 2 == len(still_able(logs, chosen, is_again=True)[0])


@pytest.mark.parametrize("is_again", [False, True])
@OF_HANDLERS
def test_what_the_same_request_asked_for_meanwhile_is_not_asked_for_again(field: Field, *, is_again: bool) -> None:
    """A person runs a command a second time while the first one is still on its way."""
    (first,) = field.plant((b"k", REJECTED))
    logs = {field.stage.topic: field.log()}
    order = ReplayOrder(ReplayKind.REPLAY, field.stage.group, AUTHOR, names=(first,), is_again=is_again)
    choice = choose(order, logs)
    field.say(ask(first), answer(first, ReplayOutcome.FAILED))

    with closing(RequestWriter(field.stage.connections, group=field.stage.group)) as writer:
        outcomes = carry_out(order, writer, logs, choice)

    assert [(first, DeadLetterResult.FAILED)] == [each[:2] for each in outcomes]
    assert 2 == len(field.stage.lab.read(field.stage.replays))


@OF_HANDLERS
def test_the_topics_of_a_group_are_found_by_their_names(field: Field) -> None:
    assert [field.stage.topic] == topics_of(field.stage.lab.admin(), field.stage.group)


@OF_HANDLERS
def test_other_partitions_than_the_dead_letters_have_are_refused(lab: Lab) -> None:
    stage = make_stage(lab, with_dead_letters=False)
    lab.admin().create([CreateTopic(stage.dead_letters, 2, 1, {}, why="somebody did")])
    stage.reader.close()

    with pytest.raises(TopicMismatchError, match="txlayer topics check"):
        _ = Field(stage).log().partition_count
