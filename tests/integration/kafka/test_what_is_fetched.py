"""Records that a client has fetched, and that are not read yet, have a limit in bytes, whatever they consist of."""

import json
from typing import Any

import pytest

from tests.conftest import Broker
from tests.support.broker import create_topic, member_of, unique_name
from tests.support.topic_records import Record, RecordWriter
from tests.support.waiting import wait_until
from txlayer.adapters.kafka import client
from txlayer.config import ClientConfig

pytestmark = pytest.mark.kafka

HEADER = b"x" * 300_000
AHEAD_MAX = 16 + 4 * 1024 * 1024 // len(HEADER) + 1
"""So many wait at most: 15 when the last fetch began, and what one fetch brings."""


@pytest.fixture(params=["member", "reader", "sparing"])
def kind(request: pytest.FixtureRequest) -> str:
    """Whose client it is."""
    return str(request.param)


@pytest.mark.promise("P11")
def test_records_of_headers_alone_are_not_fetched_without_a_limit(
    broker: Broker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client counts the bytes of values alone: by that, all of these would take none."""
    topic, waiting = create_topic(broker.bootstrap_servers, unique_name("topic"), partitions=1), list[int]()
    RecordWriter(broker.bootstrap_servers).write(
        Record(topic, None, b"k", [("large", HEADER)]) for _ in range(AHEAD_MAX * 4)
    )

    def see(said: str) -> None:
        partitions = json.loads(said)["topics"].get(topic, {"partitions": {}})["partitions"]
        waiting.append(partitions.get("0", {"fetchq_cnt": 0})["fetchq_cnt"])

    make = client.new_client

    def watched(of: Any, settings: Any) -> Any:
        return make(of, {**settings, "statistics.interval.ms": 100, "stats_cb": see})

    monkeypatch.setattr(client, "new_client", watched)
    config = ClientConfig(bootstrap_servers=broker.bootstrap_servers)
    reader = member_of(config, topic) if kind == "member" else plain_reader(config, topic, is_sparing=kind == "sparing")
    try:

        def has_waited() -> bool:
            reader.read(record_count_max=1, timeout_s=0.05)
            return sum(count > 0 for count in waiting) >= 10

        wait_until(has_waited, within=60, what="the client said ten times how much waits")
    finally:
        reader.close()

    assert max(waiting) <= AHEAD_MAX


def plain_reader(config: ClientConfig, topic: str, *, is_sparing: bool) -> client.PlainReader:
    """A client that a restart, or a command, reads with."""
    reader = client.PlainReader(config, is_sparing=is_sparing)
    reader.assign({(topic, 0): 0})
    return reader
