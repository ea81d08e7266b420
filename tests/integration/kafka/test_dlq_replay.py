"""`txlayer dlq replay` and `drop` on a real broker, with an owner of the partitions that answers requests."""

import json
import random

import pytest

from tests.support.planted_letters import WHY, Planted
from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayOutcome, ReplayRecord

pytestmark = pytest.mark.kafka

PARKED = DeadLetterReason.KEY_PARKED
NOT_WAITING = ("--wait", "0s")


def handle(request: ReplayRecord) -> ReplayOutcome:
    return ReplayOutcome.DROPPED if request.kind is ReplayKind.DROP else ReplayOutcome.HANDLED


# --- the plain case ---------------------------------------------------------------------------------------------------


@pytest.mark.threat("write `<group>.<topic>.dlq`")
def test_a_named_dead_letter_is_asked_for_answered_and_told(planted: Planted) -> None:
    letter, other = planted.letter(key=b"k1"), planted.letter(key=b"k2")

    with planted.owner(handle):
        code, out, err = planted.dlq("replay", letter, *WHY, "--request-id", "ticket-12")

    assert (0, f"{letter} was handled: as told\n") == (code, out)
    assert "request id ticket-12" in err
    asked = ReplayRecord(ReplayKind.REPLAY, "ticket-12", 0, text="zoe@desk: ticket 12: mended")
    assert (0, b"k1", asked) == planted.requests()[0]
    assert [letter] == planted.asked()
    assert {other: "open"} == {r["letter"]: r["state"] for r in planted.json("list")}


def test_each_result_is_told_and_one_that_is_not_good_ends_with_1(planted: Planted) -> None:
    letters = [planted.letter(key=b"k%d" % n) for n in range(4)]
    outcomes = [ReplayOutcome.HANDLED, ReplayOutcome.FAILED, ReplayOutcome.MISSING, ReplayOutcome.UNKNOWN]

    with planted.owner(lambda request: outcomes[request.dead_letter_offset or 0]):
        code, out, _ = planted.dlq("replay", *letters, *WHY, "--json")

    assert 1 == code
    assert dict(zip(letters, ["handled", "failed", "missing", "unknown"], strict=True)) == {
        row["letter"]: row["result"] for row in json.loads(out)
    }
    states = {row["letter"]: row["state"] for row in planted.json("list", "--all")}
    assert ["handled", "failed", "open", "open"] == [states[letter] for letter in letters]


def test_a_dropped_one_is_not_chosen_again(planted: Planted) -> None:
    letter = planted.letter()

    with planted.owner(handle):
        dropped = planted.results("drop", letter, *WHY)
        again = planted.dlq("drop", letter, *WHY)
        replayed = planted.dlq("replay", letter, *WHY)

    assert {letter: "dropped"} == dropped
    assert (0, f"{letter} was dropped already\n") == again[:2]
    assert 1 == replayed[0]
    assert "was dropped already; --again asks all the same" in replayed[2]
    assert [letter] == planted.asked()


def test_without_an_owner_it_is_said_that_nobody_answered(planted: Planted) -> None:
    letter = planted.letter()

    unheard = planted.dlq("replay", letter, *WHY, "--wait", "1s", "--request-id", "first")
    unasked = planted.dlq("replay", planted.letter(), *WHY, *NOT_WAITING)
    asked = planted.dlq("replay", letter, *WHY, *NOT_WAITING)
    waited = planted.dlq("replay", letter, *WHY, "--wait", "1s")
    dropped = planted.dlq("drop", letter, *WHY, *NOT_WAITING)
    again = planted.dlq("replay", letter, *WHY, *NOT_WAITING, "--again")

    assert 1 == unheard[0]
    assert "no consumer of the group has answered yet" in unheard[2]
    assert 0 == unasked[0]
    assert (0, True, "") == (asked[0], "is asked for already and not answered yet: first" in asked[1], asked[2])
    for other in (waited, dropped):
        assert (1, True) == (other[0], "is asked for already and not answered yet: first" in other[2])
    assert 0 == again[0]
    assert 2 == planted.asked().count(letter)


# --- many -------------------------------------------------------------------------------------------------------------


def test_many_are_chosen_by_filter_shown_first_and_asked_for_only_with_a_yes(planted: Planted) -> None:
    wanted = [planted.letter(key=b"k%d" % n, reason=DeadLetterReason.REJECTED) for n in range(5)]
    planted.letter(key=b"other")
    chosen = ("--all", "--reason-code", "rejected")

    unasked = planted.dlq("replay", *chosen, *WHY)
    plan = planted.results("replay", *chosen, *WHY, "--dry-run")
    nothing = planted.requests()
    with planted.owner(handle):
        few = planted.results("replay", *chosen, *WHY, "--yes", "--limit", "2")
        rest = planted.results("replay", *chosen, *WHY, "--yes")
    none = planted.dlq("replay", *chosen, *WHY, "--yes")

    assert 2 == unasked[0]
    assert "5 dead letters and no terminal to ask; say --yes" in unasked[2]
    assert dict.fromkeys(wanted, "planned") == plan
    assert [] == nothing
    assert dict.fromkeys(wanted[:2], "handled") == few
    assert dict.fromkeys(wanted[2:], "handled") == rest
    assert (0, "no dead letter is as the filters say; nothing was asked for\n") == none[:2]


def test_a_key_as_large_as_its_topic_allows_is_asked_for_beside_others(planted: Planted) -> None:
    """A request has the key of its dead letter: one that the replay topic did not take would stop all others of the command."""
    letters = [planted.letter(key=random.Random(1).randbytes(1_048_000), value=b""), planted.letter(key=b"small")]

    results = planted.results("drop", "--all", "--reason", "why " * 200, "--yes", *NOT_WAITING)

    assert dict.fromkeys(letters, "requested") == results


# --- parked keys ------------------------------------------------------------------------------------------------------


def test_a_parked_key_is_replayed_whole_and_in_order(planted: Planted) -> None:
    first = planted.letter(key=b"parked")
    other = planted.letter(key=b"other")
    followers = [planted.letter(key=b"parked", reason=PARKED) for _ in range(2)]

    with planted.owner(handle):
        code, _, err = planted.dlq("replay", followers[1], *WHY)

    assert 0 == code
    assert "2 more dead letters of 1 parked keys go with them" in err
    assert [first, *followers] == planted.asked()
    assert {other} == {row["letter"] for row in planted.json("list")}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_names_that_name_nothing_are_told(planted: Planted) -> None:
    foreign = planted.record()
    nowhere = f"{planted.topic}/0:99"

    code, _, err = planted.dlq("replay", foreign, nowhere, *WHY)

    assert 1 == code
    assert f"{foreign} is no dead letter of the group" in err
    assert f"{nowhere} is not found" in err
    assert [] == planted.requests()
