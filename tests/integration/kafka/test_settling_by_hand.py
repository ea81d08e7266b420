"""`txlayer tx commit|rollback|abandon|check-now` on a real broker and a real coordinator."""

import random

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.broker import create_topic, unique_name
from tests.support.crafted import Crafted
from tests.support.operating import WHY, Tx, new_id, op_ends, park
from txlayer.core.messages import Resolution

pytestmark = pytest.mark.kafka

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK
NOISE = random.Random(7).randbytes(20_000)


# --- one transaction --------------------------------------------------------------------------------------------------


def test_a_parked_transaction_is_committed_by_hand_and_a_second_call_says_so(
    arena: Arena, crafted: Crafted, operator: Tx
) -> None:
    txn_id = new_id()
    park(arena, crafted, [f"{txn_id}/00000001"], arena.targets[0])

    (row,) = operator.json("commit", txn_id, *WHY)
    code, out, err = operator.run("commit", txn_id, *WHY)

    assert ("done", "parked", "committed") == (row["result"], row["state_before"], row["state"])
    assert ("zoe@desk", "ticket 12: asked the shop", "operator") == tuple(
        row["decision"][name] for name in ("operator", "reason", "source")
    )
    assert 1 == len(arena.wait_until_visible(txn_id))
    assert (0, "") == (code, err)
    assert f"{txn_id} / 00000001 was committed already at 20" in out
    assert "by operator zoe@desk (ticket 12: asked the shop)" in out
    (shown,) = operator.json("show", txn_id)
    assert ("zoe@desk", "ticket 12: asked the shop") == (
        shown["op_lines"][-1]["operator"],
        shown["op_lines"][-1]["reason"],
    )
    assert 1 == len(arena.visible(txn_id))


def test_a_rollback_of_what_was_committed_is_refused_and_writes_nothing(
    arena: Arena, crafted: Crafted, operator: Tx
) -> None:
    settled, held, topic = new_id(), new_id(), unique_name("missing")
    crafted.op(crafted.half(f"{settled}/00000001", arena.targets[0]), COMMIT)
    placed = crafted.half(f"{held}/00000001", topic)
    crafted.op(placed, COMMIT)
    arena.wait_until_visible(settled)
    arena.wait_for_doubt(placed.key, state="held")
    before = op_ends(arena)

    code, out, err = operator.run("rollback", settled, held, *WHY)

    assert (1, "") == (code, out)
    assert f"{settled} / 00000001 refused: it was committed at 20" in err
    assert "by producer; the first decision counts" in err
    assert f"{held} / 00000001 refused: it was committed at 20" in err
    assert "and is held now; `txlayer tx abandon`" in err
    assert before == op_ends(arena)


def test_what_is_committed_and_cannot_be_forwarded_is_abandoned(arena: Arena, crafted: Crafted, operator: Tx) -> None:
    topic = unique_name("missing")
    small = create_topic(arena.servers, unique_name("small"), config={"max.message.bytes": "9000"})
    held, parked = new_id(), new_id()
    crafted.op(crafted.half(f"{held}/00000001", topic), COMMIT)
    crafted.op(crafted.half(f"{parked}/00000001", small, value=NOISE), COMMIT)
    arena.wait_for_doubt(f"{held}/00000001", state="held")
    arena.wait_for_doubt(f"{parked}/00000001", state="parked-committed")

    again = operator.run("commit", parked, *WHY)
    rows = operator.json("abandon", held, parked, *WHY)
    second = operator.run("abandon", held, *WHY)

    assert 1 == again[0]
    # The second time its content is not in memory, so the broker says what was measured before.
    assert "is committed and cannot be forwarded (" in again[2]
    assert "so it is parked-committed on the doubt topic" in again[2]
    assert {held: ("done", "held", "rolled-back"), parked: ("done", "parked-committed", "rolled-back")} == {
        row["txn_id"]: (row["result"], row["state_before"], row["state"]) for row in rows
    }
    assert 0 == second[0]
    create_topic(arena.servers, topic)
    arena.wait_until_applied(within=30)
    assert not {held, parked} & operator.states().keys()
    assert [] == arena.visible(held, topics=[topic, small])


def test_an_id_with_several_open_transactions_asks_which_nonce(arena: Arena, crafted: Crafted, operator: Tx) -> None:
    txn_id = new_id()
    crafted.half(f"{txn_id}/00000001", arena.targets[0])
    crafted.half(f"{txn_id}/00000002", arena.targets[0])
    before = op_ends(arena)

    code, out, err = operator.run("commit", txn_id, *WHY)
    unchanged = before == op_ends(arena)
    (row,) = operator.json("commit", txn_id, "--nonce", "00000002", *WHY)
    missing = operator.run("commit", txn_id, "--nonce", "00000009", *WHY)

    assert (2, "") == (code, out)
    assert f"error: {txn_id} names 2 transactions that are not settled; say with --nonce" in err
    assert "00000001 (open, " in err
    assert "00000002 (open, " in err
    assert unchanged
    assert ("00000002", "done") == (row["nonce"], row["result"])
    assert 1 == missing[0]
    assert ["00000001"] == [row["nonce"] for row in operator.json("list") if row["txn_id"] == txn_id]
    # The other one is settled, so now the id says which is meant.
    assert "done" == operator.json("rollback", txn_id, *WHY)[0]["result"]


def test_an_unknown_id_is_said_to_be_unknown(operator: Tx) -> None:
    code, out, err = operator.run("commit", new_id(), *WHY)

    assert (1, "") == (code, out)
    assert "is not found: nothing of this id is open" in err
    assert "--since" in err


def test_check_now_leaves_the_decision_to_the_producer_group(arena: Arena, crafted: Crafted, operator: Tx) -> None:
    txn_id, committed = new_id(), new_id()
    placed = crafted.half(f"{txn_id}/00000001", arena.targets[0])
    crafted.op(crafted.half(f"{committed}/00000001", arena.targets[0]), COMMIT)
    arena.wait_until_visible(committed)

    (row,) = operator.json("check-now", txn_id)
    nothing = operator.run("check-now", committed)

    assert ("done", "open") == (row["result"], row["state"])
    (shown,) = operator.json("show", txn_id)
    assert ("open", "UNKNOWN", "operator") == (
        shown["state"],
        shown["op_lines"][0]["resolution"],
        shown["op_lines"][0]["source"],
    )
    assert 1 == nothing[0]
    assert "there is nothing to ask" in nothing[2]
    crafted.op(placed, COMMIT)
    arena.wait_until_visible(txn_id)


def test_a_dry_run_shows_the_line_and_writes_nothing(arena: Arena, crafted: Crafted, operator: Tx) -> None:
    txn_id = new_id()
    placed = crafted.half(f"{txn_id}/00000001", arena.targets[0])
    before = op_ends(arena)

    code, out, err = operator.run("commit", txn_id, "--dry-run", *WHY)
    (row,) = operator.json("commit", txn_id, "--dry-run", *WHY)

    assert (0, "") == (code, err)
    assert f"to {arena.topics.op}-{placed.partition} would go: 1|C|{txn_id}/00000001|orders|" in out
    assert "|operator||zoe%40desk%3A ticket 12%3A asked the shop" in row["line"]
    assert "planned" == row["result"]
    assert before == op_ends(arena)
    crafted.op(placed, ROLLBACK)


def test_without_a_coordinator_the_word_is_written_and_waits(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    lonely = make_arena(broker.bootstrap_servers)
    crafted = Crafted(lonely.servers, lonely.topics, partition_count=lonely.partition_count)
    operator = Tx(lonely, capsys)
    crafted.half("one/00000001", lonely.targets[0])
    crafted.half("two/00000001", lonely.targets[0])

    code, out, err = operator.run("commit", "one", "--wait", "300ms", *WHY)
    at_once = operator.run("commit", "two", "--wait", "0s", *WHY)
    again = operator.run("commit", "one", *WHY)

    assert (1, "") == (code, out)
    assert "but no coordinator has come to it yet" in err
    assert 0 == at_once[0]
    assert 0 == again[0]
    assert "a coordinator has still to carry it out" in again[1]
