"""`txlayer responder run` as a process: killed and started again, stopped in the middle of an answer, on a database."""

import time
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.check_back import Asker
from tests.support.responders import ResponderProcess
from tests.support.waiting import pause, wait_until
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.sql import SqlBarrier
from txlayer.core.messages import COMMIT, ROLLBACK, Source
from txlayer.producer.producer import TransactionalProducer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

HANDLER = """
import pathlib, time
from txlayer import COMMIT, ROLLBACK

def check(request):
    if request.txn_id.startswith("slow"):
        pathlib.Path("begun").touch()
        while not pathlib.Path("go-on").exists():
            time.sleep(0.02)
    return COMMIT if "paid" in request.txn_id else ROLLBACK
"""
QUICK = {"check_session_timeout": "6s"}
AWAY_S = 10.0


@pytest.fixture(scope="module")
def arena(broker: Broker) -> Arena:
    return make_arena(broker.bootstrap_servers)


@pytest.fixture
def asker(arena: Arena) -> Asker:
    return Asker(arena)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(HANDLER, encoding="utf-8")
    return tmp_path


def started(asker: Asker, folder: Path, name: str, *arguments: str) -> ResponderProcess:
    return ResponderProcess(
        asker.arena.servers,
        asker.arena.namespace,
        asker.group,
        folder=folder,
        name=name,
        arguments=arguments,
        settings=QUICK,
    )


def test_killed_and_started_again_it_goes_on_answering(asker: Asker, folder: Path) -> None:
    with started(asker, folder, "first", "--handler", "shop:check") as first:
        first.wait_for("responder.assigned", within=60)
        asker.ask(asker.question("paid-1"), asker.question("gone-1"))
        asker.wait_for(2)
        first.kill()

    with started(asker, folder, "second", "--handler", "shop:check") as second:
        second.wait_for("responder.assigned", within=60)
        asker.ask(asker.question("paid-2", number=2), asker.question("gone-2", number=2))
        found = {op.key.split("/")[0]: op for op in asker.wait_for(4)}
        second.terminate()
        assert 0 == second.wait()

    assert {"paid-1": COMMIT, "gone-1": ROLLBACK, "paid-2": COMMIT, "gone-2": ROLLBACK} == {
        name: op.resolution for name, op in found.items()
    }
    assert 2 == found["paid-2"].check_number
    ended = second.events("responder.ended")[0]
    assert (2, {"COMMIT": 1, "ROLLBACK": 1}, 2) == (ended["asked"], ended["answered"], ended["stored"])


def test_sigterm_finishes_the_answer_in_flight_and_leaves_the_group(asker: Asker, folder: Path) -> None:
    with started(asker, folder, "only", "--handler", "shop:check") as responder:
        responder.wait_for("responder.assigned", within=60)
        asker.ask(asker.question("slow-paid"))
        wait_until((folder / "begun").exists, within=30, what="the handler was called")

        responder.terminate()
        asker.wait_for_members(0)
        assert responder.is_running
        (folder / "go-on").touch()

        assert 0 == responder.wait()
    assert [COMMIT] == [op.resolution for op in asker.answers()]


def test_a_database_answers_for_a_service_that_is_gone(asker: Asker, folder: Path) -> None:
    url = f"sqlite:///{folder}/shop.db"
    engine = create_engine(url)
    barrier = SqlBarrier(engine)
    barrier.create_table()
    order = asker.arena.targets[0]
    with TransactionalProducer(
        bootstrap_servers=asker.arena.servers, group=asker.group, namespace=asker.arena.namespace, barrier=barrier
    ) as service:
        with service.transaction("done") as tx:
            tx.send(order, value=b"v")
            with Session(engine) as session, session.begin():
                tx.join(session)
        nonce = tx.nonce

    arguments = ("--barrier-url", f"{url}?check_same_thread=false")
    with started(asker, folder, "database", *arguments) as responder:
        responder.wait_for("responder.assigned", within=60)
        # Of something older the row may have been purged: there the barrier says UNKNOWN.
        now_ms = time.time_ns() // 1_000_000
        asker.ask(asker.question("done", nonce=nonce, born_ms=now_ms), asker.question("never", born_ms=now_ms))
        found = [op for op in asker.wait_for(3) if op.check_number]
        responder.terminate()
        assert 0 == responder.wait()

    assert {("done", COMMIT, Source.BARRIER), ("never", ROLLBACK, Source.BARRIER)} == {
        (op.key.split("/")[0], op.resolution, op.source) for op in found
    }
    engine.dispose()


def test_a_broker_that_is_away_for_longer_than_a_session_is_waited_for(
    broker: Broker, local_config: LocalConfig, folder: Path
) -> None:
    del broker  # it skips where no broker can run
    with LocalBroker(config=local_config, data=folder / "broker") as own:
        asker = Asker(make_arena(own.bootstrap_servers))
        with started(asker, folder, "patient", "--handler", "shop:check") as responder:
            responder.wait_for("responder.assigned", within=60)
            asker.ask(asker.question("paid-1"))
            asker.wait_for(1)

            own.stop()
            pause(AWAY_S)
            own.start()
            asker.wait_for_members(1, within=90)

            def is_answered() -> bool:
                # As a coordinator does: what was missed is asked again.
                asker.ask(asker.question("paid-2", number=2))
                return any(op.check_number == 2 for op in asker.answers())

            wait_until(is_answered, within=60, what="an answer after the outage")
            assert responder.is_running
            responder.terminate()
            assert 0 == responder.wait()
