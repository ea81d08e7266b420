"""What an operator has at hand in tests: `txlayer tx` on one namespace, and transactions that need a person."""

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.support.arena import Arena
from tests.support.broker import unique_name
from tests.support.commands import run_command
from tests.support.crafted import Crafted, Placed
from tests.support.logs import ends
from tests.support.waiting import wait_until
from txlayer.cli import tx
from txlayer.core.messages import Resolution
from txlayer.testing.stage import RunningCoordinator

NOWHERE = 1_000_000
"""A half offset that no test reaches."""

Row = dict[str, Any]


WHY = ("--reason", "ticket 12: asked the shop", "--operator", "zoe@desk")
"""What an operator says with an act."""


def new_id() -> str:
    """An id that no other test has."""
    return unique_name("order")


def op_ends(arena: Arena) -> dict[tuple[str, int], int]:
    """Where op ends, markers and all."""
    return ends(arena.servers, [arena.topics.op], isolation="read_uncommitted")


def quick_coordinator(arena: Arena) -> RunningCoordinator:
    """One that moves and parks soon, to be run as long as somebody operates."""
    return arena.coordinator(
        session_timeout=timedelta(seconds=3),
        doubt_after=timedelta(seconds=1),
        misplaced_after=timedelta(milliseconds=100),
    )


class Tx:
    """`txlayer tx` on one namespace."""

    def __init__(self, arena: Arena, capsys: pytest.CaptureFixture[str]) -> None:
        self._where = ("-b", arena.servers, "-n", arena.namespace)
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)."""
        return run_command(tx.app, *arguments, *self._where, capsys=self._capsys)

    def json(self, *arguments: str) -> Any:
        """What it answers with --json; what it leaves out is said on stderr."""
        code, out, err = self.run(*arguments, "--json")
        assert 0 == code, f"{out} {err}"
        return json.loads(out)

    def states(self) -> dict[str, tuple[str, str | None, str]]:
        """{id: (state, reason, half or doubt)} of what is not settled."""
        return {
            row["txn_id"]: (row["state"], row["reason"], row["stands_in"])
            for row in self.json("list", "--limit", "10000")
        }


def park(arena: Arena, crafted: Crafted, keys: list[str], target: str, **half: Any) -> list[Placed]:
    """Transactions without a decision, whole and parked: a misplaced line came first, then their half record."""
    for key in keys:
        crafted.op(crafted.home(key, NOWHERE), Resolution.COMMIT)

    def standing(seen: int) -> bool:
        summaries = arena.doubt().summaries
        return all(key in summaries and summaries[key].seen == seen for key in keys)

    wait_until(lambda: standing(0), within=30, what="parked without a half record")
    placed = [crafted.half(key, target, **half) for key in keys]
    wait_until(lambda: standing(1), within=30, what="parked with its half record")
    return placed
