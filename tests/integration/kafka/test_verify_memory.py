"""`txlayer verify` takes no memory that grows with what it reads, also where a little of the log unpacks into much."""

import random
import sys

import pytest
from confluent_kafka import Producer

from tests.conftest import Broker
from tests.support.broker import create_topic, unique_name
from tests.support.planted import Field
from tests.support.programs import run_program

pytestmark = pytest.mark.kafka

PARTITIONS = 4
RECORDS = 60_000
UNEQUAL_BYTES, EQUAL_BYTES = 256, 3_840
"""lz4 packs 240 MB to 17: with 4 MiB asked of each partition, that is one fetch of each reader."""
PEAK_MB_MAX = 250
"""90 where it holds, and 470 with large fetches."""

PROGRAM = """
import sys
from txlayer.cli import run
try:
    run()
finally:
    lines = open("/proc/self/status").read().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("VmHWM")), file=sys.stderr)
"""


def peak_mb(field: Field, topic: str) -> float:
    """The most memory that a verification of this topic had."""
    verify = ["verify", "-b", field.servers, "-n", field.namespace, "--topics", topic, "--json"]
    done = run_program([sys.executable, "-c", PROGRAM, *verify], within=120, check=True)
    return int(done.stderr.split()[-1]) / 1000


def test_what_unpacks_into_much_is_read_in_small_pieces(broker: Broker) -> None:
    field = Field(broker.bootstrap_servers)
    topic = create_topic(field.servers, unique_name("packed"), partitions=PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": field.servers,
            "compression.type": "lz4",
            "queue.buffering.max.kbytes": 1_000_000,
            "linger.ms": 50,
        }
    )
    draw = random.Random(1).randbytes
    for number in range(RECORDS):
        value = draw(UNEQUAL_BYTES) + bytes(EQUAL_BYTES)
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert 0 == producer.flush(60)

    seen_mb = peak_mb(field, topic)

    assert seen_mb < PEAK_MB_MAX
