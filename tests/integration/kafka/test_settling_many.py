"""Many transactions settled by hand at once, chosen by filters, on a real broker and a real coordinator."""

import pytest

from tests.support.arena import Arena
from tests.support.broker import unique_name
from tests.support.commands import run_at_terminal
from tests.support.crafted import Crafted
from tests.support.operating import WHY, Tx, new_id, op_ends, park
from tests.support.waiting import wait_until
from txlayer.core.messages import Resolution

pytestmark = pytest.mark.kafka

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK


def test_many_are_committed_by_filter_a_few_at_a_time_what_is_settled_is_left_alone_and_a_person_is_asked(
    arena: Arena, crafted: Crafted, operator: Tx
) -> None:
    group, other = unique_name("group"), unique_name("group")
    ids = [new_id() for _ in range(13)]
    keys = [f"{txn_id}/00000001" for txn_id in ids]
    park(arena, crafted, keys[:10], arena.targets[0], group=group)
    park(arena, crafted, keys[10:11], arena.targets[0], group=other)
    park(arena, crafted, keys[11:], arena.targets[0], group=unique_name("group"))
    chosen = ("--all", "--reason-code", "misplaced", "--group", group)
    before = op_ends(arena)

    unasked = operator.run("commit", *chosen, *WHY)
    planned = operator.json("commit", *chosen, *WHY, "--dry-run")
    unchanged = before == op_ends(arena)
    first = operator.json("commit", *chosen, *WHY, "--yes", "--limit", "3")
    rest = operator.json("commit", *chosen, *WHY, "--yes")
    code, out, err = operator.run("commit", *chosen, *WHY, "--yes")

    assert 2 == unasked[0]
    assert "10 transactions and no terminal to ask; say --yes" in unasked[2]
    assert {"planned"} == {row["result"] for row in planned}
    assert set(ids[:10]) == {row["txn_id"] for row in planned}
    assert unchanged
    assert (3, 7) == (len(first), len(rest))
    assert {"done"} == {row["result"] for row in [*first, *rest]}
    assert set(ids[:10]) == {row["txn_id"] for row in [*first, *rest]}
    assert (0, "") == (code, err)
    assert "no transaction is as the filters say; nothing was written" in out
    wait_until(
        lambda: all(1 == len(arena.visible(txn_id)) for txn_id in ids[:10]), within=20, what="all are visible once"
    )
    assert set(ids[10:]) <= operator.states().keys()
    assert {"done"} == {r["result"] for r in operator.json("rollback", *ids[11:], *WHY)}

    here = ("--bootstrap-servers", arena.servers, "--namespace", arena.namespace)
    words = ("tx", "commit", "--all", "--parked", "--group", other, *WHY, *here)
    before = op_ends(arena)
    refused, shown = run_at_terminal(*words, answer="n")
    unchanged = before == op_ends(arena)
    agreed, told = run_at_terminal(*words, answer="y")

    assert "commit this transaction? It cannot be taken back." in shown
    assert ids[10] in shown
    assert (True, True) == (refused != 0, unchanged)
    assert 0 == agreed, told
    wait_until(lambda: 1 == len(arena.visible(ids[10])), within=20, what="it is visible once")
