"""What settling by hand refuses before a broker is asked, and the sentences that it ends with."""

import json

import pytest

from tests.support.commands import run_command
from txlayer.cli import tx
from txlayer.core.history import operator_reason
from txlayer.core.ledger.transaction import Transaction
from txlayer.core.ledger.transitions import COMMITTING
from txlayer.core.messages import OpMessage, Resolution, Source
from txlayer.operate import bytes_json
from txlayer.operate import settle as settle_text
from txlayer.operate import settle as settling
from txlayer.operate.operators import OPERATOR_LENGTH_MAX, REASON_LENGTH_MAX
from txlayer.operate.settle import OperatorAction, RecordedLine, SettlementOutcome, SettlementResult
from txlayer.operate.unsettled import UnsettledTransaction

KEY = "order-1/00000001"


@pytest.mark.parametrize("command", ["commit", "rollback", "abandon"])
def test_without_a_reason_nothing_is_decided(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for reason in ([], ["--reason", " "]):
        code, out, err = run_command(tx.app, command, "order-1", *reason, capsys=capsys)

        assert (2, "") == (code, out)
        assert f"error: txlayer tx {command}: say why with --reason" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name transaction ids, or say --all with filters"),
        (["order-1", "--all"], "name transaction ids, or say --all with filters"),
        (["order-1", "--group", "orders"], "filters choose among --all"),
        (["order-1", "--parked"], "filters choose among --all"),
        (["order-1", "--limit", "5"], "--limit goes with --all"),
        (["order-1", "order-2", "--nonce", "00000001"], "--nonce goes with exactly one id"),
        (["--all", "--nonce", "00000001"], "--nonce goes with exactly one id"),
        (["two words"], "transaction id 'two words'"),
        (["order-1", "--operator", " "], "--operator takes a name"),
        (["order-1", "--operator", "zoe: ticket"], "--operator takes a name"),
        (["order-1", "--operator", "z" * (OPERATOR_LENGTH_MAX + 1)], "--operator takes a name"),
        (["order-1", "--reason", "z" * (REASON_LENGTH_MAX + 1)], "--reason takes at most 1,000"),
        (["order-1", "--wait", "a while"], "a length of time"),
        (["order-1", "--since", "yesterday"], "a length of time"),
        (["--all", "--older-than", "old"], "a length of time"),
        (["order-1", "-b", "example.invalid:9092"], "plain text to another machine"),
    ],
)
def test_what_cannot_be_meant_ends_with_2_and_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_command(tx.app, "check-now", *arguments, capsys=capsys)

    assert (2, "") == (code, out)
    assert err.startswith("error: ")
    assert said in err
    assert 1 == err.count("\n")


def outcome(result: SettlementResult, state: str | None, **more: object) -> SettlementOutcome:
    """An outcome of the one transaction."""
    return SettlementOutcome(KEY, "orders", 3, "parked", result, state)._replace(**more)  # type: ignore[arg-type]  # by name


def by(source: Source, reason: str, *, is_abandon: bool = False) -> RecordedLine:
    """A decision."""
    said = Resolution.ROLLBACK if is_abandon else Resolution.COMMIT
    op = OpMessage(said, KEY, "orders", 7, 900, source, is_abandon=is_abandon, reason=reason)
    return RecordedLine((20, 3), 1_700_000_000_007, op)


ZOE = {"decision": by(Source.OPERATOR, operator_reason("zoe@desk", "ticket 12")), "decided_ms": 1_700_000_000_007}
STANDS = "committed at 2023-11-14 22:13:20.007Z by operator zoe@desk (ticket 12)"


@pytest.mark.parametrize(
    ("act", "told", "said"),
    [
        (OperatorAction.COMMIT, outcome(SettlementResult.DONE, "committed"), "is committed and forwarded"),
        (OperatorAction.COMMIT, outcome(SettlementResult.DONE, "waiting"), "is committed; it waits for an earlier"),
        (OperatorAction.ROLLBACK, outcome(SettlementResult.DONE, "rolled-back"), "is rolled back"),
        (OperatorAction.ABANDON, outcome(SettlementResult.DONE, "rolled-back"), "is abandoned: consumers never see it"),
        (
            OperatorAction.ABANDON,
            outcome(SettlementResult.DONE, "rolled-back", is_timed=True),
            "is abandoned: consumers never see what was not visible by then",
        ),
        (OperatorAction.CHECK_NOW, outcome(SettlementResult.DONE, "open"), "so far: not asked yet, group orders"),
        (
            OperatorAction.ABANDON,
            outcome(SettlementResult.ALREADY, "rolled-back", decision=by(Source.OPERATOR, "amy: x", is_abandon=True)),
            "by operator amy (x); consumers never see what was not visible by then",
        ),
        (
            OperatorAction.COMMIT,
            outcome(SettlementResult.REFUSED, "rolled-back", decision=by(Source.OPERATOR, "amy: x", is_abandon=True)),
            "by operator amy (x); consumers never see what was not visible by then",
        ),
        (OperatorAction.CHECK_NOW, outcome(SettlementResult.DONE, "open", checked_count=3), "question 3 was asked"),
        (OperatorAction.CHECK_NOW, outcome(SettlementResult.ALREADY, "committed", **ZOE), f"meanwhile: {STANDS}"),
        (OperatorAction.COMMIT, outcome(SettlementResult.ALREADY, "committed"), "was committed already"),
        (OperatorAction.COMMIT, outcome(SettlementResult.ALREADY, COMMITTING), "already; a coordinator has still to"),
        (
            OperatorAction.ROLLBACK,
            outcome(SettlementResult.REFUSED, "committed", **ZOE),
            f"refused: it was {STANDS}; the first",
        ),
        (
            OperatorAction.ROLLBACK,
            outcome(SettlementResult.REFUSED, "held", **ZOE),
            f"it was {STANDS} and is held now; `txlayer",
        ),
        (OperatorAction.ABANDON, outcome(SettlementResult.REFUSED, COMMITTING), "to carry it out, then look again"),
        (OperatorAction.CHECK_NOW, outcome(SettlementResult.REFUSED, "held"), "there is nothing to ask"),
        (OperatorAction.COMMIT, outcome(SettlementResult.REFUSED, None), "--since goes further back"),
        (
            OperatorAction.COMMIT,
            outcome(SettlementResult.NOT_FORWARDED, "held", reason="topic-missing"),
            "(topic-missing), so it is held",
        ),
        (OperatorAction.COMMIT, outcome(SettlementResult.IGNORED, "open"), "is open as before"),
        (
            OperatorAction.COMMIT,
            outcome(SettlementResult.WRITTEN, "parked", written_at=(20, 3)),
            "its line, ns.op-3@20:3, but no coordinator",
        ),
        (OperatorAction.COMMIT, outcome(SettlementResult.PLANNED, "parked", line="1|C"), "to ns.op-3 would go: 1|C"),
        (OperatorAction.COMMIT, outcome(SettlementResult.NOT_FOUND, None), "is not found"),
        (OperatorAction.CANCEL, outcome(SettlementResult.NOT_SCHEDULED, "held"), "is held: its time has come"),
        (OperatorAction.CANCEL, outcome(SettlementResult.NOT_SCHEDULED, None), "is settled: none of its messages"),
    ],
)
def test_every_result_has_its_sentence(act: OperatorAction, told: SettlementOutcome, said: str) -> None:
    sentence = settle_text.sentence(act, told, op_topic="ns.op")

    assert sentence.startswith("order-1 / 00000001 ")
    assert said in sentence
    json.dumps(settling.outcome_json(act, told))


def test_a_reason_moves_no_cursor() -> None:
    told = outcome(SettlementResult.REFUSED, "committed", decision=by(Source.POLICY, "\x1b[2J"), decided_ms=None)

    sentence = settle_text.sentence(OperatorAction.ROLLBACK, told, op_topic="ns.op")

    assert r"by policy (\x1b[2J)" in sentence
    assert "\x1b" not in sentence


def test_an_outcome_as_json_tells_who_decided() -> None:
    row = settling.outcome_json(OperatorAction.COMMIT, outcome(SettlementResult.DONE, "committed", **ZOE))

    assert ("order-1", "00000001", "commit", "done", "parked", "committed") == tuple(
        row[name] for name in ("txn_id", "nonce", "act", "result", "state_before", "state")
    )
    assert {
        "offset": 20,
        "line": 3,
        "appended_ms": 1_700_000_000_007,
        "resolution": "COMMIT",
        "source": "operator",
        "operator": "zoe@desk",
        "reason": "ticket 12",
    } == row["decision"]


def test_the_nonces_to_choose_from_stand_oldest_first() -> None:
    young = Transaction("order-1/00000002", "orders", "shop", 8, 9_000, "900", (0, 0), None)
    old = Transaction("order-1/00000001", "or\x07ders", "shop", 7, 1_000, "900", (0, 0), None)
    found = [UnsettledTransaction(3, "open", young), UnsettledTransaction(3, "parked", old)]

    text = settle_text.candidates(found, now_ms=10_000)

    assert r"00000001 (parked, 9 s old, group or\x07ders), 00000002 (open, 1 s old" in text


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (None, None),
        (b"", {"base64": "", "text": ""}),
        ("Zoë".encode(), {"base64": "Wm/Dqw==", "text": "Zoë"}),
        (b"\xff", {"base64": "/w==", "text": None}),
    ],
)
def test_exported_bytes_are_base64_and_text_where_they_are_text(raw: bytes | None, expected: object) -> None:
    assert expected == bytes_json(raw)
