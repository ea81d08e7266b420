"""What settling by hand refuses before a broker is asked, and the sentences that it ends with."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import run_command
from txlayer.cli import tx, tx_rows
from txlayer.core.history import operator_reason
from txlayer.core.messages import OpMessage, Resolution, Source
from txlayer.core.transaction import Transaction
from txlayer.core.transitions import COMMITTING
from txlayer.operate import settle as settling
from txlayer.operate.export import bytes_json
from txlayer.operate.operators import OPERATOR_LENGTH_MAX, REASON_LENGTH_MAX
from txlayer.operate.overview import Standing
from txlayer.operate.settle import Act, Outcome, Result, Said

KEY = "order-1/00000001"


@pytest.mark.parametrize("command", ["commit", "rollback", "abandon"])
def test_without_a_reason_nothing_is_decided(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
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


def outcome(result: Result, state: str | None, **more: object) -> Outcome:
    """An outcome of the one transaction."""
    return Outcome(KEY, "orders", 3, "parked", result, state)._replace(**more)  # type: ignore[arg-type]  # by name


def by(source: Source, reason: str) -> Said:
    """A decision."""
    op = OpMessage(Resolution.COMMIT, KEY, "orders", 7, 900, source, reason=reason)
    return Said((20, 3), 1_700_000_000_007, op)


ZOE = {
    "decision": by(Source.OPERATOR, operator_reason("zoe@desk", "ticket 12")),
    "decided_ms": 1_700_000_000_007,
}
STANDS = "committed at 2023-11-14 22:13:20.007Z by operator zoe@desk (ticket 12)"


@pytest.mark.parametrize(
    ("act", "told", "said"),
    [
        (Act.COMMIT, outcome(Result.DONE, "committed"), "is committed and forwarded"),
        (Act.COMMIT, outcome(Result.DONE, "waiting"), "is committed; it waits for an earlier"),
        (Act.ROLLBACK, outcome(Result.DONE, "rolled-back"), "is rolled back"),
        (Act.ABANDON, outcome(Result.DONE, "rolled-back"), "is abandoned: nobody will see it"),
        (Act.CHECK_NOW, outcome(Result.DONE, "open"), "so far: not asked yet, group orders"),
        (Act.CHECK_NOW, outcome(Result.DONE, "open", checked_count=3), "question 3 was asked"),
        (Act.CHECK_NOW, outcome(Result.ALREADY, "committed", **ZOE), f"meanwhile: {STANDS}"),
        (Act.COMMIT, outcome(Result.ALREADY, "committed"), "was committed already"),
        (Act.COMMIT, outcome(Result.ALREADY, COMMITTING), "already; a coordinator has still to"),
        (Act.ROLLBACK, outcome(Result.REFUSED, "committed", **ZOE), f"refused: it was {STANDS}; the first"),
        (Act.ROLLBACK, outcome(Result.REFUSED, "held", **ZOE), f"it was {STANDS} and is held now; `txlayer"),
        (Act.ABANDON, outcome(Result.REFUSED, COMMITTING), "to carry it out, then look again"),
        (Act.CHECK_NOW, outcome(Result.REFUSED, "held"), "there is nothing to ask"),
        (Act.COMMIT, outcome(Result.REFUSED, None), "--since goes further back"),
        (Act.COMMIT, outcome(Result.NOT_FORWARDED, "held", reason="topic-missing"), "(topic-missing), so it is held"),
        (Act.COMMIT, outcome(Result.IGNORED, "open"), "is open as before"),
        (Act.COMMIT, outcome(Result.WRITTEN, "parked", written_at=(20, 3)), "its line, ns.op-3@20:3, but no coordinator"),
        (Act.COMMIT, outcome(Result.PLANNED, "parked", line="1|C"), "to ns.op-3 would go: 1|C"),
        (Act.COMMIT, outcome(Result.NOT_FOUND, None), "is not found"),
    ],
)  # fmt: skip
def test_every_result_has_its_sentence(act: Act, told: Outcome, said: str) -> None:
    sentence = tx_rows.sentence(act, told, op_topic="ns.op")

    assert sentence.startswith("order-1 / 00000001 ")
    assert said in sentence
    json.dumps(settling.outcome_json(act, told))


def test_a_reason_moves_no_cursor() -> None:
    told = outcome(
        Result.REFUSED, "committed", decision=by(Source.POLICY, "\x1b[2J"), decided_ms=None
    )

    sentence = tx_rows.sentence(Act.ROLLBACK, told, op_topic="ns.op")

    assert r"by policy (\x1b[2J)" in sentence
    assert "\x1b" not in sentence


def test_an_outcome_as_json_tells_who_decided() -> None:
    row = settling.outcome_json(Act.COMMIT, outcome(Result.DONE, "committed", **ZOE))

    assert ("order-1", "00000001", "commit", "done", "parked", "committed") == tuple(
        row[name] for name in ("txn_id", "nonce", "act", "result", "state_before", "state")
    )
    assert {
        "offset": 20, "line": 3, "appended_ms": 1_700_000_000_007, "resolution": "COMMIT", "source": "operator",
        "operator": "zoe@desk", "reason": "ticket 12",
    } == row["decision"]  # fmt: skip


def test_the_nonces_to_choose_from_stand_oldest_first() -> None:
    young = Transaction("order-1/00000002", "orders", "shop", 8, 9_000, "900", (0, 0), None)
    old = Transaction("order-1/00000001", "or\x07ders", "shop", 7, 1_000, "900", (0, 0), None)
    found = [Standing(3, "open", young), Standing(3, "parked", old)]

    text = tx_rows.candidates(found, now_ms=10_000)

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
def test_exported_bytes_are_base64_and_text_where_they_are_text(
    raw: bytes | None, expected: object
) -> None:
    assert expected == bytes_json(raw)
