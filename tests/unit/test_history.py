"""The records of one id, folded to a history per nonce."""

from typing import Any

import pytest

from tests.support.core_records import summary
from txlayer.core import codec
from txlayer.core.history import HistoryFold, TransactionHistory, operator_reason, split_operator_reason
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import (
    NO_OPTIONS,
    CheckKind,
    CheckRecord,
    HalfHeader,
    HalfOptions,
    OpMessage,
    Resolution,
    Source,
)

WORDS = {"C": Resolution.COMMIT, "R": Resolution.ROLLBACK, "U": Resolution.UNKNOWN}
TWO = "half 0 count=2, half 1 index=1 count=2"
ID, KEY, OTHER = "order-1", "order-1/00000001", "order-1/00000002"


class Logs:
    """Three topics of one partition, written by hand."""

    def __init__(self) -> None:
        self.fold = HistoryFold(ID)

    def half(
        self, offset: int, *, key: str = KEY, index: int = 0, count: int = 1, options: HalfOptions = NO_OPTIONS
    ) -> None:
        header = HalfHeader(key, "g", "orders", index, count, 900, options)
        headers = [("h", b"1"), (codec.HALF_HEADER, codec.encode_half_header(header))]
        self.fold.half(partition=3, offset=offset, appended_ms=1_000 + offset, headers=headers)

    def op(
        self,
        offset: int,
        resolution: Resolution,
        *,
        last: int = 0,
        key: str = KEY,
        is_abandon: bool = False,
        reason: str = "",
        source: Source = Source.PRODUCER,
        group: str = "g",
        time_ms: int | None = None,
    ) -> None:
        op = OpMessage(resolution, key, group, last, 900, source, None, is_abandon, reason, time_ms)
        other = OpMessage(Resolution.COMMIT, "order-11/00000001", "g", 5, 900)
        lines = [codec.encode_op(other), codec.encode_op(op)]
        self.fold.op(partition=3, offset=offset, appended_ms=2_000 + offset, value=codec.encode_ops(lines))

    def doubt(self, state: str, *, reason: str = "", at_ms: int = 3_000, copies: tuple[int, ...] = ()) -> None:
        said = summary(
            KEY,
            state=state,
            reason=reason,
            producer_group="g",
            first_offset=0,
            last_offset=0,
            born_ms=900,
            moved_ms=at_ms,
            twin_offsets=copies,
        )
        self.fold.doubt(partition=3, appended_ms=at_ms, key=KEY.encode(), value=codec.encode_summary(said))
        self.fold.doubt(partition=3, appended_ms=at_ms, key=f"{KEY}/0".encode(), value=b"content")

    def check(self, offset: int, kind: CheckKind, number: int, *, key: str = KEY) -> None:
        record = CheckRecord(kind, key, "g", 3, 0, 900, number, "orders")
        value = codec.encode_check(record)
        self.fold.check(partition=1, offset=offset, appended_ms=2_500 + offset, value=value)

    def settled(self, *, at_ms: int = 4_000) -> None:
        self.fold.doubt(partition=3, appended_ms=at_ms, key=KEY.encode(), value=None)

    def write(self, steps: str) -> None:
        """One after the other: `half 0 index=0 count=2 at=2003`, `C 5 reason last=0 at=2003`, `doubt held reason copies=4`, `settled`."""
        for step in steps.split(", "):
            word, *rest = step.split()
            given: dict[str, Any] = {name: int(n) for name, n in (each.split("=") for each in rest if "=" in each)}
            at_ms = given.pop("at", None)
            plain = [each for each in rest if "=" not in each] + [""]
            if word == "half":
                self.half(int(plain[0]), options=HalfOptions(deliver_at_ms=at_ms), **given)
            elif word == "doubt":
                self.doubt(plain[0], reason=plain[1], copies=tuple(given.values()))
            elif word == "settled":
                self.settled()
            else:
                said = WORDS.get(word, Resolution.ROLLBACK)
                self.op(int(plain[0]), said, is_abandon=word == "A", reason=plain[1], time_ms=at_ms, **given)

    def only(self) -> TransactionHistory:
        (history,) = self.fold.histories()
        return history


@pytest.fixture
def logs() -> Logs:
    return Logs()


def test_other_ids_and_garbage_are_passed_over(logs: Logs) -> None:
    logs.half(0, key="order-11/00000001")
    logs.half(1, key="order-/00000001")
    logs.fold.half(partition=3, offset=2, appended_ms=0, headers=None)
    logs.fold.half(partition=3, offset=3, appended_ms=0, headers=[("txl", b"1|order-1/x")])
    logs.fold.op(partition=3, offset=0, appended_ms=0, value=None)
    logs.fold.op(partition=3, offset=1, appended_ms=0, value=b"\xff|order-1/")
    logs.fold.op(partition=3, offset=2, appended_ms=0, value=b"1|order-1/")
    logs.check(0, CheckKind.QUESTION, 1, key="order-11/00000001")
    logs.fold.check(partition=1, offset=1, appended_ms=0, value=None)
    logs.fold.check(partition=1, offset=2, appended_ms=0, value=b"1|Q|order-1/")
    logs.fold.doubt(partition=3, appended_ms=0, key=None, value=b"")
    logs.fold.doubt(partition=3, appended_ms=0, key=b"order-1/00000001/0", value=b"")
    logs.fold.doubt(partition=3, appended_ms=0, key=b"origin/a/0/1", value=b"")

    assert [] == logs.fold.histories()


def test_an_open_transaction_tells_where_and_since_when_it_stands(logs: Logs) -> None:
    logs.half(1, index=1, count=2)
    logs.half(0, index=0, count=2)

    history = logs.only()
    assert (ID, "00000001", "g", 3, 2) == (
        history.txn_id,
        history.nonce,
        history.producer_group,
        history.partition,
        history.message_count,
    )
    assert (TxnState.OPEN, "", None, 1_000, 900) == (
        history.state,
        history.reason,
        history.decided_at,
        history.appended_ms,
        history.born_ms,
    )
    assert [(0, "orders", 0), (1, "orders", 1)] == [
        (half.offset, half.topic, half.index) for half in history.half_records
    ]
    assert not history.is_decided


@pytest.mark.fault("data: an op line of another producer group")
@pytest.mark.parametrize("stands_on", ["half", "doubt"])
def test_a_line_of_another_producer_group_says_nothing(logs: Logs, stands_on: str) -> None:
    if stands_on == "half":
        logs.half(0)
    else:
        logs.doubt("open")
    logs.op(5, Resolution.COMMIT, group="strangers")
    logs.op(6, Resolution.ROLLBACK)

    history = logs.only()
    assert "g" == history.producer_group
    assert (TxnState.ROLLED_BACK, (6, 1)) == (history.state, history.decided_at)
    assert [False, True] == [line.is_counted for line in history.op_lines]


def test_a_decision_is_told_as_it_is_carried_out(logs: Logs) -> None:
    logs.half(0)
    assert logs.only().decision is None
    logs.doubt("held")
    logs.op(5, Resolution.COMMIT)
    assert Resolution.COMMIT is logs.only().decision
    logs.op(6, Resolution.ROLLBACK, is_abandon=True)
    assert Resolution.ROLLBACK is logs.only().decision


@pytest.mark.parametrize(
    ("steps", "state", "reason", "decided_at", "counted"),
    [
        # The first commit or rollback decides, and a later contrary line is shown.
        ("half 0, U 5, C 6 why", TxnState.COMMITTED, "why", (6, 1), [True, True]),
        ("half 0, U 5, R 6 why", TxnState.ROLLED_BACK, "why", (6, 1), [True, True]),
        ("half 0, U 5, U 6", TxnState.OPEN, "", None, [True, True]),
        ("half 0, C 5, R 6", TxnState.COMMITTED, "", (5, 1), [True, True]),
        ("half 0, A 6 gone", TxnState.ROLLED_BACK, "gone", (6, 1), [True]),
        # A line that names another half record says nothing; one that names a second copy decides, also on doubt.
        ("half 0, R 5 last=7, C 6", TxnState.COMMITTED, "", (6, 1), [False, True]),
        ("half 0, half 4, doubt open copies=4, C 5 last=4", None, "", (5, 1), [True]),
        # What doubt says after a commit is the state; a decision after parking is the newer word.
        ("half 0, C 5, doubt held topic-missing", TxnState.HELD, "topic-missing", (5, 1), [True]),
        ("half 0, C 5, doubt parked-committed limit", TxnState.PARKED_COMMITTED, "limit", (5, 1), [True]),
        ("half 0, C 5, doubt waiting", TxnState.WAITING, "", (5, 1), [True]),
        ("doubt parked too-old, C 9", TxnState.COMMITTED, "", (9, 1), [True]),
        ("settled", None, "", None, []),  # by a line that is older than what was read
        # An abandon after a commit acts on what is on doubt alone.
        ("half 0, C 5, doubt held topic-missing, A 6 gone", TxnState.ROLLED_BACK, None, (5, 1), None),
        ("half 0, C 5, A 6 gone", TxnState.COMMITTED, None, (5, 1), None),
        (f"{TWO}, C 5 last=1, A 6 gone last=1", TxnState.COMMITTED, None, (5, 1), None),
        (f"{TWO}, C 5 last=0, C 6 last=1, A 7 gone last=1", TxnState.COMMITTED, None, (5, 1), None),
        # Or while messages wait for their time, also where no coordinator has worked since.
        ("half 0 at=2003, C 5, A 7 gone", TxnState.ROLLED_BACK, None, (5, 1), None),
        ("half 0 at=2003, C 5, C 6 at=2003, A 7 gone", TxnState.COMMITTED, None, (5, 1), None),
    ],
)
def test_what_became_of_it(
    logs: Logs,
    steps: str,
    state: TxnState | None,
    reason: str | None,
    decided_at: tuple[int, int] | None,
    counted: list[bool] | None,
) -> None:
    logs.write(steps)

    history = logs.only()
    assert state in (history.state, None)
    assert decided_at == history.decided_at
    assert history.is_decided or decided_at is None
    assert reason in (history.reason, None)
    assert counted in ([line.is_counted for line in history.op_lines], None)


@pytest.mark.promise("P4")
def test_an_abandon_behind_a_commit_that_is_incomplete_rolls_back(logs: Logs) -> None:
    # No coordinator worked yet, or compaction took the record on doubt that says so.
    logs.write(f"{TWO}, C 5 last=0, A 6 gone last=1, C 7 last=1")

    history = logs.only()
    assert (TxnState.ROLLED_BACK, "gone") == (history.state, history.reason)
    assert history.ending is not None
    assert (6, 1) == (history.ending.offset, history.ending.line)


def test_what_was_released_is_committed_by_a_line_before_those_that_were_read(logs: Logs) -> None:
    logs.op(5, Resolution.COMMIT, source=Source.POLICY, time_ms=1_000)
    history = logs.only()

    assert (TxnState.COMMITTED, None, None) == (history.state, history.decided_at, history.ending)


def test_a_line_whose_half_records_were_not_read_is_believed(logs: Logs) -> None:
    logs.op(5, Resolution.ROLLBACK, last=7)

    history = logs.only()
    assert (TxnState.ROLLED_BACK, None, None) == (history.state, history.message_count, history.appended_ms)
    assert ("g", 900) == (history.producer_group, history.born_ms)


def test_two_nonces_of_one_id_are_two_histories(logs: Logs) -> None:
    logs.half(1, key=OTHER)
    logs.half(0)
    logs.op(5, Resolution.COMMIT, key=OTHER, last=1)

    first, second = logs.fold.histories()
    assert ("00000001", TxnState.OPEN) == (first.nonce, first.state)
    assert ("00000002", TxnState.COMMITTED) == (second.nonce, second.state)


@pytest.mark.parametrize("state", [TxnState.OPEN, TxnState.PARKED])
def test_what_doubt_says_without_a_decision_is_the_state(logs: Logs, state: TxnState) -> None:
    logs.doubt(state.value, reason="too-old")

    history = logs.only()
    assert (state, "too-old", 1, 1_000) == (history.state, history.reason, history.message_count, history.appended_ms)
    assert not history.is_decided


def test_what_stands_on_doubt_alone_tells_its_times(logs: Logs) -> None:
    logs.doubt("parked")

    history = logs.only()

    assert (900, 1_000, ()) == (history.born_ms, history.appended_ms, history.half_records)


def test_a_summary_that_nobody_can_read_is_passed_over(logs: Logs) -> None:
    logs.half(0)
    logs.fold.doubt(partition=3, appended_ms=1, key=KEY.encode(), value=b"\xff")

    assert TxnState.OPEN is logs.only().state


def test_questions_and_refusals_are_told_apart_and_stand_in_the_order_of_their_time(logs: Logs) -> None:
    logs.half(0)
    logs.check(2, CheckKind.QUESTION, 2)
    logs.check(1, CheckKind.QUESTION, 1)
    logs.check(3, CheckKind.REFUSED, 0)

    history = logs.only()
    assert [1, 2] == [question.number for question in history.questions]
    assert [(1, 3, 2_503, "orders")] == [
        (note.partition, note.offset, note.appended_ms, note.text) for note in history.refusals
    ]
    assert (TxnState.OPEN, 3) == (history.state, history.partition)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (operator_reason("zoe@desk", "ticket 12: lost"), ("zoe@desk", "ticket 12: lost")),
        (operator_reason("zoe@desk", ""), ("zoe@desk", "")),
        ("ticket 12", ("", "ticket 12")),
    ],
)
def test_an_operators_line_says_who_and_why(text: str, told: tuple[str, str]) -> None:
    assert told == split_operator_reason(text)


def test_a_line_that_doubt_keeps_as_given_up_decides_nothing(logs: Logs) -> None:
    """Its half record came too late: the transaction stays open, or the next line decides it."""
    logs.op(3, Resolution.COMMIT)
    logs.half(0)
    line = codec.encode_op(OpMessage(Resolution.COMMIT, KEY, "g", 0, 900, Source.PRODUCER)).encode()
    logs.fold.doubt(partition=3, appended_ms=2_900, key=b"origin/txlayer.op/3/3:1", value=line)
    assert (TxnState.OPEN, None) == (logs.only().state, logs.only().decided_at)

    logs.op(5, Resolution.ROLLBACK)
    assert (TxnState.ROLLED_BACK, (5, 1)) == (logs.only().state, logs.only().decided_at)
    assert [False, True] == [line.is_counted for line in logs.only().op_lines]
    # An operator ended what was kept: that changes nothing.
    logs.fold.doubt(partition=3, appended_ms=9_000, key=b"origin/txlayer.op/3/3:1", value=None)
    assert TxnState.ROLLED_BACK is logs.only().state


def test_what_doubt_keeps_of_another_partition_or_id_changes_nothing(logs: Logs) -> None:
    logs.half(0)
    logs.op(3, Resolution.COMMIT)
    line = codec.encode_op(OpMessage(Resolution.COMMIT, KEY, "g", 0, 900, Source.PRODUCER)).encode()
    logs.fold.doubt(partition=2, appended_ms=2_900, key=b"origin/txlayer.op/2/3:1", value=line)
    logs.fold.doubt(partition=3, appended_ms=2_900, key=b"origin/txlayer.half/3/3", value=b"|order-1/")
    logs.fold.doubt(partition=3, appended_ms=2_900, key=b"origin/txlayer.op/3/x:1", value=line)
    logs.fold.doubt(partition=3, appended_ms=2_900, key=b"origin/txlayer.op/3/3:1", value=line.replace(b"-1/", b"-2/"))

    assert TxnState.COMMITTED is logs.only().state
