"""A consumer killed inside a dead letter's Kafka transaction: the dead letter and its offset are both there, or neither."""

import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import Broker
from tests.support.broker import unique_name
from tests.support.dead_letter_stage import make_stage
from tests.support.dead_letter_victim import COMMITTED, PLACES
from tests.support.lab_kafka import KafkaLab
from tests.support.processes import ROOT
from txlayer.adapters.ports import StoredOffset

pytestmark = pytest.mark.kafka

END_S = 60
TAKE_OVER_S = 7.0
"""Below the Kafka transaction's time-out of 10 s, which it would take without fencing."""


@pytest.mark.promise("P1")
@pytest.mark.promise("P9")
@pytest.mark.parametrize("place", PLACES)
def test_a_dead_letter_of_a_consumer_that_was_killed_stands_there_once(broker: Broker, place: str) -> None:
    lab = KafkaLab(broker.bootstrap_servers)
    namespace, name = unique_name("ns"), unique_name("victim")
    stage = make_stage(lab, namespace=namespace)
    stage.reader.close()
    victim = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.support.dead_letter_victim",
            broker.bootstrap_servers,
            namespace,
            stage.topic,
            name,
            place,
        ],
        cwd=ROOT,
        timeout=END_S,
        check=False,
        capture_output=True,
        text=True,
    )
    assert -signal.SIGKILL == victim.returncode, victim.stderr

    where = (stage.topic, 0)
    began = time.monotonic()
    stored = stage.stored_after_fencing(where)[where]
    took_s = time.monotonic() - began

    next_offset = 2 if place == COMMITTED else 1
    assert StoredOffset(next_offset, name) == stored
    assert took_s < TAKE_OVER_S
    stage.wait_for(*(f"message {n}".encode() for n in range(next_offset)))
    # Nothing stays open: who reads what is committed sees what comes behind it.
    lab.write(stage.dead_letters, b"behind it")
    stage.wait_for(*(f"message {n}".encode() for n in range(next_offset)), b"behind it")
    lab.close()
