"""A console on a cluster in memory, and a browser without scripts."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from threading import RLock
from typing import Any

from jinja2.bccache import Bucket, BytecodeCache
from starlette.testclient import TestClient

from tests.support.onlooking import Onlooker, still_environment
from tests.support.still_coordinator import StillCoordinator
from tests.support.waiting import wait_until
from txlayer.adapters.memory import memory_clients
from txlayer.adapters.ports import ClusterFacts
from txlayer.config import ConsumerConfig
from txlayer.console.access import AccessRules
from txlayer.console.app import Console, build_app
from txlayer.core.partitions import half_partition
from txlayer.operate.overall import Looks
from txlayer.runtime.environment import Threads

ADDRESS = "http://127.0.0.1:8480"
CLIENT = "10.0.0.5"
"""Where the browser is."""


class CompiledPages(BytecodeCache):
    """The templates of all sites, compiled once: a console compiles those that it shows, which takes longer than to show them."""

    def __init__(self) -> None:
        self._codes: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self._codes:
            bucket.bytecode_from_string(self._codes[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key] = bucket.bytecode_to_string()


COMPILED = CompiledPages()


class Site:
    """A console of a still world, and a browser without scripts."""

    def __init__(
        self, rules: AccessRules | None = None, *, environment: dict[str, Any] | None = None, report_address: str = ""
    ) -> None:
        self.stage = StillCoordinator(doubt_after=timedelta(seconds=2), misplaced_after=timedelta(milliseconds=500))
        self._make_safe_for_threads()
        link = self.stage.kafka._link("console", "console")
        clients = memory_clients(link, self.stage.config)
        self.console = Console(
            self.stage.config,
            clients,
            consumers=ConsumerConfig(namespace=self.stage.config.namespace),
            inspect=self._inspect,
            rules=rules or AccessRules(),
            environment=replace(still_environment(self.stage), **(environment or {})),
            report_address=report_address,
        )
        self.console.templates.bytecode_cache = COMPILED
        self.console.looks = Looks(replace(self.console.environment, background=Threads()))
        self.onlooker = Onlooker(self.stage, view=self.console.view)
        app = build_app(self.console, is_following=False)
        self.browser = TestClient(app, base_url=ADDRESS, raise_server_exceptions=False, client=(CLIENT, 50_000))

    def _make_safe_for_threads(self) -> None:
        """Jobs of the console and the test use the cluster at the same time."""
        world: Any = self.stage.world
        lock, exchange, change = RLock(), world.exchange, world.change

        def locked(call: Callable[..., Any]) -> Callable[..., Any]:
            def under_lock(*arguments: Any) -> Any:
                with lock:
                    return call(*arguments)

            return under_lock

        world.exchange, world.change = locked(exchange), locked(change)

    def _inspect(self) -> ClusterFacts:
        topics = self.stage.config.topics
        return ClusterFacts(
            namespace=topics.namespace,
            half=topics.half,
            op=topics.op,
            now_ms=self.stage.world.now_ms(),
            brokers=(),
            topics=(),
        )

    def go_ahead(self, seconds: float) -> None:
        """Of the brokers' clock, with the clock of the console's machine."""
        console, world = self.console, self.stage.world

        def wall_clock() -> float:
            return world.now_ms() / 1000 + seconds

        console.environment = replace(console.environment, wall_clock=wall_clock)
        console.clients = replace(console.clients, wall_clock=wall_clock)

    def get(self, address: str, *, status: int = 200) -> str:
        answer = self.browser.get(address)
        assert status == answer.status_code, answer.text
        return answer.text

    def post(self, page: str, action: str, /, **fields: Any) -> Any:
        """The answer to a form of this page with this address."""
        found = re.search(rf'action="{action}"><input type="hidden" name="form_token" value="([^"]+)"', page)
        assert found is not None, page
        data = {**fields, "form_token": found[1]}
        return self.browser.post(action, data=data, headers={"Origin": ADDRESS}, follow_redirects=False)

    def values(self, txn_id: str) -> str:
        page = self.browser.get("/transaction", params={"id": txn_id, "since": "1h"})
        answer = self.post(page.text, "/transaction/values", id=txn_id, since="1h")
        assert 200 == answer.status_code, answer.text
        text: str = answer.text
        return text

    def place(self, key: str) -> int:
        """The partition of a transaction without an ordering key."""
        return half_partition(ordering_key=None, txn_id=key.partition("/")[0], partition_count=2)

    def wait_for(self, name: str) -> None:
        """Wait for the end of a job, or of a look."""

        def has_ended() -> bool:
            job, look = self.console.jobs.newest(name), self.console.looks._kept.get(name)
            return (job is not None and not job.is_running) or (look is not None and not look.is_reading)

        wait_until(has_ended, within=30, what=f"the end of {name}")
