"""Commands that Ctrl-C or SIGTERM ends while they wait for others: what they wrote takes effect, and they say so."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena
from tests.support.crafted import Crafted
from tests.support.operating import WHY, Tx, new_id, op_ends
from tests.support.planted_letters import Planted
from tests.support.processes import ROOT
from tests.support.programs import run_program
from tests.support.waiting import wait_until
from txlayer.errors import OutcomeUnknownError
from txlayer.operate.replay import RequestWriter

pytestmark = pytest.mark.kafka

PATIENCE_S = 60
# A run that a shell started in the background ignores SIGINT, and what it starts inherits that.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from txlayer.cli import run
run()
"""
CALLED_BACK = """
import os, sys
from txlayer.operate.operators import OperatorWriter
report = OperatorWriter._reported
def reported(*given):
    os.kill(os.getpid(), int(os.environ["SIGNAL"]))
    report(*given)
OperatorWriter._reported = reported
"""
LOCKED = """
import os, signal, sys, threading
from concurrent.futures._base import _AcquireFutures
from txlayer.adapters.kafka.admin import KafkaAdmin
wait = KafkaAdmin._wait_until_done
LOCKING = {threading.Condition.__enter__.__code__, _AcquireFutures.__enter__.__code__}
def interrupted(admin, future):
    def entered(frame, event, _given):
        if event == "return":
            sys.settrace(None)
            number = int(os.environ["SIGNAL"])
            signal.getsignal(number)(number, frame)
        return entered
    def called(frame, _event, _given):
        its = frame.f_locals.get("self") if frame.f_code in LOCKING else None
        return entered if its is not None and (its is future._condition or future in getattr(its, "futures", ())) else None
    sys.settrace(called)
    return wait(admin, future)
KafkaAdmin._wait_until_done = interrupted
"""
REPLACED = """
import os, signal
from txlayer.adapters.kafka import client
make = client.new_client
def interrupted(kind, settings):
    def lost(_settings):
        try:
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
        except BaseException:
            raise TypeError("expected configuration property name as type unicode string") from None
    return make(lost, settings)
client.new_client = interrupted
from txlayer.adapters.kafka import admin
admin.new_client = interrupted
"""
ENDS = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])


def ended(number: int, words: tuple[str, ...], *, once: Callable[[], object]) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command that gets the signal `once` it has written."""
    command = [sys.executable, "-c", PROGRAM, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        try:
            wait_until(once, within=PATIENCE_S, what="it has written")
            process.send_signal(number)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    return process.returncode, out, err


def interrupted(program: str, number: int, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in which `program` has the signal come at a certain place."""
    return run_program(
        [sys.executable, "-c", program + PROGRAM, *words],
        within=PATIENCE_S,
        cwd=ROOT,
        env={**os.environ, "SIGNAL": str(int(number))},
        stdin=subprocess.DEVNULL,
    )


def undecided(arena: Arena) -> tuple[str, tuple[str, ...]]:
    """The id of a transaction that is prepared, and the words that commit it."""
    txn_id = new_id()
    crafted = Crafted(arena.servers, arena.topics, partition_count=arena.partition_count)
    crafted.half(f"{txn_id}/00000001", arena.targets[0])
    return txn_id, ("tx", "commit", txn_id, *WHY, "--wait", "60s", "--json", "-b", arena.servers, "-n", arena.namespace)


@ENDS
def test_a_settlement_that_is_ended_says_that_its_lines_count(
    arena: Arena, operator: Tx, number: int, code: int
) -> None:
    txn_id, words = undecided(arena)
    before = op_ends(arena)

    found = ended(number, words, once=lambda: op_ends(arena) != before)

    assert (code, "") == found[:2]
    assert "ended early: lines that were written take effect; `txlayer tx list`" in found[2]
    assert "already" == operator.json("commit", txn_id, *WHY, "--wait", "0s")[0]["result"]
    assert 1 == sum(op_ends(arena).values()) - sum(before.values())


@ENDS
@pytest.mark.parametrize("act", ["dlq drop", "consumer pause"])
def test_requests_that_were_written_are_said_to_count(
    broker: Broker, capsys: pytest.CaptureFixture[str], act: str, number: int, code: int
) -> None:
    planted = Planted(broker.bootstrap_servers, capsys)
    letter = planted.letter()
    what = ("--group", planted.group, letter) if act == "dlq drop" else (planted.group, planted.topic)
    words = (*act.split(), *what, *WHY, "--request-id", "ticket-12", "--wait", "60s", "--json", "-b", planted.servers)

    found = ended(number, words, once=lambda: planted.seen(planted.replays))

    assert (code, "") == found[:2]
    assert "requests that were written take effect" in found[2]
    assert "--request-id ticket-12" in found[2]


@ENDS
def test_a_signal_that_comes_while_the_client_calls_back_ends_a_command_as_any_other(
    arena: Arena, operator: Tx, number: int, code: int
) -> None:
    """The client loses the exception of the signal's handler, and raises a SystemError."""
    txn_id, words = undecided(arena)

    found = interrupted(CALLED_BACK, number, *words)

    assert (code, "") == (found.returncode, found.stdout), found.stderr
    assert "ended early: lines that were written take effect" in found.stderr
    assert "Traceback" not in found.stderr
    assert "already" == operator.json("commit", txn_id, *WHY, "--wait", "0s")[0]["result"]


@ENDS
def test_a_signal_that_comes_while_the_answer_of_the_cluster_is_locked_ends_a_command(
    arena: Arena, number: int, code: int
) -> None:
    """The client would wait for that lock when it is closed, and the command for the client."""
    found = interrupted(LOCKED, number, "topics", "check", "-b", arena.servers, "-n", arena.namespace)

    assert (code, "", "") == (found.returncode, found.stdout, found.stderr)


@ENDS
@pytest.mark.parametrize("act", ["topics check", "locks list"])
def test_a_signal_that_comes_while_a_client_is_made_is_no_wrong_setting(
    arena: Arena, act: str, number: int, code: int
) -> None:
    """The client replaces the exception of the signal's handler by one of its own."""
    found = interrupted(REPLACED, number, *act.split(), "-b", arena.servers, "-n", arena.namespace)

    assert (code, "", "") == (found.returncode, found.stdout, found.stderr)


@pytest.mark.parametrize("act", ["dlq drop", "consumer pause"])
def test_requests_that_got_no_answer_are_no_finding_and_may_be_said_again(
    broker: Broker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    planted = Planted(broker.bootstrap_servers, capsys)
    letter = planted.letter()
    what = ("--group", planted.group, letter) if act == "dlq drop" else (planted.group, planted.topic)
    words = (*act.split(), *what, *WHY, "--request-id", "ticket-12", "--wait", "0s", "--json")

    def unanswered(*_given: object, **_named: object) -> None:
        raise OutcomeUnknownError("2 requests were not acknowledged and may be stored", step="request")

    with monkeypatch.context() as patch:
        patch.setattr(RequestWriter, "write", unanswered)
        cut = planted.run(*words)
    again = planted.run(*words)

    assert (3, "") == cut[:2]
    assert "the same command with --request-id ticket-12 goes on" in cut[2]
    assert 0 == again[0]
