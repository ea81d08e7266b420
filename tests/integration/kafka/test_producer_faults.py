"""The producer and what goes wrong around it: no broker, one that dies, wrong credentials, forks, interrupts."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.broker import unique_name
from tests.support.programs import run_program
from tests.support.secured import SecuredServers, credentials
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import COMMIT, Message
from txlayer.errors import BrokerUnavailableError, LifecycleError, NotAuthorisedError, OutcomeUnknownError, TxLayerError
from txlayer.producer.producer import TransactionalProducer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

GROUP = "orders"


@pytest.fixture(scope="module")
def mortal(broker: Broker, local_config: LocalConfig) -> Iterator[LocalBroker]:  # noqa: ARG001 - it skips where no broker can run
    """One for the tests of this file, which may kill it."""
    with LocalBroker(config=local_config) as started:
        yield started


@pytest.fixture
def own_broker(mortal: LocalBroker) -> LocalBroker:
    """That one, which runs, also if the test before has killed it."""
    mortal.start()
    return mortal


def made_for(arena: Arena, **settings: Any) -> TransactionalProducer:
    return TransactionalProducer(bootstrap_servers=arena.servers, group=GROUP, namespace=arena.namespace, **settings)


# --- brokers ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("broker: all brokers are down")
def test_no_broker_at_the_start_is_told_within_its_time() -> None:
    (port,) = free_ports(1)
    producer = TransactionalProducer(
        bootstrap_servers=f"127.0.0.1:{port}", group=GROUP, start_timeout=timedelta(seconds=1)
    )
    began = time.monotonic()

    with pytest.raises(BrokerUnavailableError) as raised:
        producer.start()
    assert f"127.0.0.1:{port}" == raised.value.bootstrap_servers
    assert 5 > time.monotonic() - began
    producer.close()


@pytest.mark.fault("broker: is killed, also one that leads the group or the Kafka transactions")
def test_a_broker_that_dies_makes_unknown_outcomes_in_bounds_and_everything_goes_on_after_it(
    own_broker: LocalBroker,
) -> None:
    arena = make_arena(own_broker.bootstrap_servers)
    message = Message(arena.targets[0], b"k", b"v")
    # A broker that has just started on a busy machine takes seconds for its first records.
    with made_for(arena, prepare_timeout=timedelta(seconds=6)) as producer:
        producer.publish(message)
        with producer.transaction("prepared-before") as tx:
            tx.send(*message[:1], key=b"k", value=b"v")
            tx.prepare()
            own_broker.kill()
        # Committed locally while nobody can be told: it is sent again until somebody is.
        began = time.monotonic()
        with pytest.raises(OutcomeUnknownError) as raised:
            producer.publish(message, txn_id="sent-meanwhile")
        assert ("sent-meanwhile", "half") == (raised.value.txn_id, raised.value.step)
        assert 20 > time.monotonic() - began

        own_broker.start()
        assert COMMIT is tx.result(30).resolution
        assert COMMIT is producer.publish(message).resolution
        (history,) = producer.status("prepared-before")
        assert TxnState.COMMITTED is history.state


@pytest.mark.fault("broker: all brokers are down")
def test_close_gives_up_within_its_time_when_the_broker_is_away(own_broker: LocalBroker) -> None:
    arena = make_arena(own_broker.bootstrap_servers)
    producer = made_for(arena)
    message = Message(arena.targets[0], b"k", b"v")
    producer.publish(message)
    own_broker.kill()
    futures = [producer.submit(message) for _ in range(100)]
    began = time.monotonic()

    with pytest.raises(OutcomeUnknownError, match="100 transactions"):
        producer.close(0.5)
    assert 10 > time.monotonic() - began
    assert set(futures) == wait(futures, timeout=5).done
    assert all(isinstance(future.exception(), TxLayerError) for future in futures)


# --- who may ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("rights: a wrong password, or missing rights")
@pytest.mark.parametrize("password", ["wrong", None])
def test_wrong_credentials_and_missing_rights_are_told_at_the_start(
    secured: SecuredServers, password: str | None
) -> None:
    producer = TransactionalProducer(
        bootstrap_servers=secured.secured_servers, group=GROUP, client_settings=credentials(password=password)
    )
    began = time.monotonic()

    with pytest.raises(NotAuthorisedError):
        producer.start()
    assert 10 > time.monotonic() - began


# --- processes and signals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [None, lambda _: COMMIT], ids=["alone", "answering"])
def test_a_forked_process_is_told_to_make_a_producer_of_its_own(arena: Arena, check: Any) -> None:
    message = Message(arena.targets[0], b"k", b"v")
    with made_for(arena, check=check) as producer:
        producer.publish(message)
        child = os.fork()
        if child == 0:
            os._exit(code_of_a_fork(producer, message))
        ended: list[int] = []
        wait_until(lambda: has_ended(child, ended), within=20, what="the fork ends")
        assert 0 == os.waitstatus_to_exitcode(ended[0])
        assert COMMIT is producer.publish(message).resolution


def code_of_a_fork(producer: TransactionalProducer, message: Message) -> int:
    calls = (
        producer.transaction,
        lambda: producer.publish(message),
        lambda: producer.submit([message, message]),
        lambda: producer.status("a"),
        producer.start,
    )
    for call in calls:
        try:
            call()
        except LifecycleError as exc:
            if "make a new producer after the fork" not in str(exc):
                return 2
        else:
            return 1
    producer.close()
    return 0


def has_ended(child: int, ended: list[int]) -> bool:
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        ended.append(status)
    return bool(pid)


PREPARE_FOR_EVER = """
import signal, sys, threading, time, traceback
from datetime import timedelta
from txlayer import TransactionalProducer
# A run that a shell started in the background ignores SIGINT, and what it starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
servers, namespace, topic = sys.argv[1:]
main = threading.get_ident()

def tell_when_it_waits():
    # Its innermost call is a wait for something else than this thread, and began in `prepare`.
    while True:
        names = [frame.name for frame in traceback.extract_stack(sys._current_frames()[main])]
        if "prepare" in names and names[-1] in ("wait", "acquire", "_wait_until_done"):
            print("waits", flush=True)
            return
        time.sleep(0.01)

with TransactionalProducer(
    bootstrap_servers=servers, group="g", namespace=namespace, close_timeout=timedelta(seconds=1)
) as producer:
    with producer.transaction() as tx:
        tx.send(topic, value="v")
        print("ready", flush=True)
        sys.stdin.readline()
        threading.Thread(target=tell_when_it_waits, daemon=True).start()
        tx.prepare()
"""


@pytest.mark.fault("broker: is frozen for seconds, and requests are sent again late")
def test_an_interrupt_ends_a_wait_for_a_broker_that_hangs(own_broker: LocalBroker) -> None:
    arena = make_arena(own_broker.bootstrap_servers)
    command = [sys.executable, "-c", PREPARE_FOR_EVER, arena.servers, arena.namespace, arena.targets[0]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload] # of a mapping
        assert process.stdin is not None
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
        pid = own_broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            process.stdin.write("go\n")
            process.stdin.flush()
            assert "waits\n" == process.stdout.readline()
            killer = threading.Timer(60, process.kill)
            killer.start()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
            killer.cancel()
        finally:
            os.kill(pid, signal.SIGCONT)
    assert "KeyboardInterrupt" in said
    assert process.returncode not in (0, -signal.SIGKILL)


FORGETS_TO_CLOSE = """
import sys
from txlayer import TransactionalProducer
servers, namespace, topic, txn_id = sys.argv[1:]
producer = TransactionalProducer(bootstrap_servers=servers, group="g", namespace=namespace)
with producer.transaction(txn_id) as tx:
    tx.send(topic, value="v")
    tx.prepare()
"""

FORGETS_TO_CLOSE_A_LOOP = """
import asyncio, sys
from txlayer import AsyncTransactionalProducer
servers, namespace, topic, txn_id = sys.argv[1:]
async def main():
    producer = AsyncTransactionalProducer(bootstrap_servers=servers, group="g", namespace=namespace)
    async with producer.transaction(txn_id) as tx:
        tx.send(topic, value="v")
        await tx.prepare()
asyncio.run(main())
"""


@pytest.mark.parametrize("program", [FORGETS_TO_CLOSE, FORGETS_TO_CLOSE_A_LOOP])
def test_a_program_that_forgets_to_close_still_commits(arena: Arena, program: str) -> None:
    txn_id = unique_name("forgotten")
    arguments = [arena.servers, arena.namespace, arena.targets[0], txn_id]
    answer = run_program([sys.executable, "-c", program, *arguments], within=60, check=True)

    assert "" == answer.stderr
    with made_for(arena) as producer:
        (history,) = producer.status(txn_id)
    assert TxnState.COMMITTED is history.state
