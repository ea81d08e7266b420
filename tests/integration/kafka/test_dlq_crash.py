"""`txlayer dlq replay` killed in the middle: the same request id goes on, and nothing is asked for twice."""

import subprocess
import sys

import pytest

from tests.support.planted_letters import WHY, Planted
from tests.support.processes import ROOT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

COUNT = 30
PATIENCE_S = 60


def kill_in_the_middle(planted: Planted, arguments: tuple[str, ...], topic: str) -> None:
    """Run the command in a process of its own, and kill it when some of its records stand in `topic`."""
    command = [sys.executable, "-m", "txlayer", "dlq", "replay", *arguments]
    process = subprocess.Popen(
        [*command, "--group", planted.group, "-b", planted.servers, "--rate", "3"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(planted.seen(topic)) >= 5, within=PATIENCE_S, what=f"records in {topic}")
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def test_a_killed_replay_is_taken_up_by_the_same_request(planted: Planted) -> None:
    letters = [planted.letter(key=b"k%d" % n, partition=n % 2) for n in range(COUNT)]
    same = ("--all", "--yes", *WHY, "--request-id", "ticket-12", "--wait", "0s")
    kill_in_the_middle(planted, same, planted.replays)
    asked_before = len(planted.asked())

    results = planted.results("replay", *same)

    assert 5 <= asked_before < COUNT
    assert dict.fromkeys(letters, "requested") == results
    assert sorted(letters) == sorted(planted.asked())
