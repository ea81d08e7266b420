"""The console while something is away: it says what, shows what it knew last and since when, and goes on by itself."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import Broker
from tests.support.arena import make_arena
from tests.support.broker import unique_name
from tests.support.processes import ConsoleProcess
from tests.support.raw import RawWriter
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.namespace import Namespace
from txlayer.config import ClientConfig, SystemTopics

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


class Pages:
    """The pages of one console, as a browser without scripts gets them."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str, *, status: int = 200) -> str:
        answer = self._client.get(path)
        assert status == answer.status_code, answer.text
        return answer.text

    def wait_for(self, path: str, *said: str) -> str:
        """The page, once it says all of that."""

        def has_said() -> str:
            text = re.sub(r"<[^>]*>", "", self._client.get(path).text)
            return text if all(each in text for each in said) else ""

        return wait_until(has_said, within=60, what=f"{path} says {said}")

    def wait_until_silent(self, path: str, unsaid: str) -> None:
        wait_until(lambda: unsaid not in self.get(path), within=90, what=f"{path} says {unsaid} no more")


@contextmanager
def opened(servers: str, namespace: str, folder: Path) -> Iterator[Pages]:
    with ConsoleProcess(servers, namespace, log_file=folder / "console.log") as process:
        with httpx.Client(base_url=process.address, timeout=60) as client:
            yield Pages(client)
        process.terminate()
        assert 0 == process.wait()
        assert "Traceback" not in process.output()


def test_a_broker_that_is_away_leaves_what_was_known_and_is_waited_for(
    broker: Broker, local_config: LocalConfig, tmp_path: Path
) -> None:
    del broker  # it skips where no broker can run
    with LocalBroker(config=local_config, data=tmp_path / "broker") as own:
        arena = make_arena(own.bootstrap_servers)
        first = RawWriter(arena).prepare((arena.targets[0], b"k", b"v"))
        with opened(arena.servers, arena.namespace, tmp_path) as pages:
            pages.wait_for("/transactions", first.txn_id, "1 not settled")
            pages.wait_for("/", "no coordinator runs")

            own.stop()
            overview = pages.wait_for("/", "not known now", "Not known now:")  # at the end of every page, too
            assert "The live numbers were true at" in overview
            assert first.txn_id in pages.get("/transactions")
            assert "The cluster does not answer" in pages.get(f"/transaction?id={first.txn_id}", status=503)

            own.start()
            second = RawWriter(arena).prepare((arena.targets[0], b"k", b"v"))
            pages.wait_for("/transactions", first.txn_id, second.txn_id, "2 not settled")
            pages.wait_until_silent("/", "ot known now")
            pages.wait_for(f"/transaction?id={first.txn_id}", "message 1 of 1 stored")


def test_topics_that_are_missing_are_named_until_they_are_there(broker: Broker, tmp_path: Path) -> None:
    topics = SystemTopics(unique_name("ns"))
    config = ClientConfig(bootstrap_servers=broker.bootstrap_servers, namespace=topics.namespace)
    with opened(config.bootstrap_servers, config.namespace, tmp_path) as pages, KafkaAdmin(config) as admin:
        pages.wait_for("/", "not known now", topics.half)

        Namespace(admin, topics=topics).apply(partition_count=2, replication_factor=1)
        pages.wait_for("/", "0 transactions not settled")
        pages.wait_until_silent("/", "ot known now")

        plain = AdminClient({"bootstrap.servers": config.bootstrap_servers})
        plain.delete_topics([topics.op])[topics.op].result(30)
        pages.wait_for("/", "not known now", topics.op)
        pages.wait_for("/transactions", "Not known now")
