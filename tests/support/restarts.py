"""Everything that belongs to txlayer around one cluster, as processes under load, each restarted many times in a row.

Who comes must have been at work before it goes: a process that is ended while it starts was not restarted.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from sqlalchemy import create_engine, select

from tests.support.arena import Arena
from tests.support.broker import unique_name
from tests.support.handling_order import Handled
from tests.support.orphans import ORPHANS, Orphans
from tests.support.processes import ROOT, CoordinatorProcess, TxlayerProcess
from tests.support.responders import ResponderProcess
from tests.support.selling import SELLERS
from tests.support.shop import make_shop
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker
from txlayer.config import ClientConfig
from txlayer.core.dead_letters import dead_letter_topic
from txlayer.core.messages import Resolution
from txlayer.operate.topics import GroupTopics

AT_WORK_S = 90.0
"""Until whoever was started does its work: Python and its imports, a rebalance, and a machine that does much else."""
END_S = 60.0
COORDINATORS = {
    "session_timeout": "1500ms",
    "doubt_after": "500ms",
    "check_immunity": "500ms",
    "check_interval": "1s",
    "check_interval_max": "2s",
}
RESPONDERS = {"check_session_timeout": "2s"}

CONSUMER = """
import os
from datetime import timedelta
from txlayer import OrderedConsumer

consumer = OrderedConsumer(
    bootstrap_servers={servers!r}, group={group!r}, topics=[{topic!r}], namespace={namespace!r},
    start_at="earliest", session_timeout=timedelta(seconds=2),
)
journal = os.open({journal!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

@consumer.handler
def handle(message, context):
    os.write(journal, f"{{os.getpid()}} {{message.partition}} {{message.offset}} {{context.token}}\\n".encode())
"""


class Restart(NamedTuple):
    """One that happened."""

    component: str
    is_killed: bool
    took_s: float  # until the successor was at work


class Post:
    """One place where a process works, and is replaced by the next."""

    def __init__(
        self, component: str, start: Callable[[], TxlayerProcess], is_at_work: Callable[[TxlayerProcess], bool]
    ) -> None:
        self.component = component
        self._start = start
        self._is_at_work = is_at_work
        self.process = start()

    def wait_until_at_work(self) -> None:
        """Return when its process does what it is for."""

        def works() -> bool:
            assert self.process.is_running, self.process.output()[-3000:]
            return self._is_at_work(self.process)

        wait_until(works, within=AT_WORK_S, what=f"a {self.component} at work")

    def restart(self, *, is_killed: bool) -> Restart:
        """SIGKILL, or SIGTERM and a clean end; then the successor, until it is at work."""
        began = time.monotonic()
        if is_killed:
            assert self.process.is_running, self.process.output()[-3000:]
            self.process.kill()
        else:
            self.end()
        self.process = self._start()
        self.wait_until_at_work()
        return Restart(self.component, is_killed, time.monotonic() - began)

    def end(self) -> None:
        """SIGTERM, and a clean end."""
        self.process.terminate()
        assert self.process.wait(within=END_S) == 0, self.process.output()[-3000:]


class Company:
    """Two coordinators, a responder, two ordered consumers of one group, a producer: all that can be restarted.

    Journals and logs are in `folder`. Killed at the end of `stack` at the latest.
    """

    def __init__(
        self, arena: Arena, *, folder: Path, stack: ExitStack, seed: int, releases: Sequence[Path] = (ROOT,)
    ) -> None:
        """The processes of each component are of these releases in turn; each is the folder that has its code."""
        self.arena = arena
        self.started: dict[str, list[Path]] = {}
        """{component: the release of each process, in their order}."""
        self._releases = releases
        self.group = unique_name("group")
        self.sold, self.handled = folder / "sold", folder / "handled"
        self._folder = folder
        self._stack = stack
        self._numbers = count()
        self._database = f"sqlite:///{folder / 'shop.db'}"
        self.shop = make_shop(create_engine(self._database))
        stack.callback(self.shop.engine.dispose)
        with self.shop.engine.connect() as connection:
            # Readers beside a writer; and no wait for the disk, which is nobody's subject here.
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        self.orphans = Orphans(arena, self.shop, seed=seed)
        self._make_consumer()
        self._rolled_back = 0
        self.posts = [
            Post("coordinator", self._coordinator, lambda p: bool(p.events("partitions.taken_over"))),
            Post("coordinator", self._coordinator, lambda p: bool(p.events("partitions.taken_over"))),
            Post("responder", self._responder, self._has_answered),
            Post("consumer", self._consumer, partial(_stands_in, self.handled)),
            Post("consumer", self._consumer, partial(_stands_in, self.handled)),
            Post("producer", self._producer, partial(_stands_in, self.sold)),
        ]

    def restart_all(self, times: int) -> list[Restart]:
        """Each component so many times in a row, the components beside each other; killed and stopped in turns."""
        posts: dict[str, list[Post]] = {}
        for post in self.posts:
            posts.setdefault(post.component, []).append(post)

        def in_a_row(of: Sequence[Post]) -> list[Restart]:
            return [of[n // 2 % len(of)].restart(is_killed=n % 2 == 0) for n in range(times)]

        with ThreadPoolExecutor(len(posts)) as pool:
            return [one for done in list(pool.map(in_a_row, posts.values())) for one in done]

    def wait_until_at_work(self) -> None:
        """Return when everybody does what it is for."""
        for post in self.posts:
            post.wait_until_at_work()

    def stop_selling(self) -> None:
        """Nothing new; those who can answer check-backs still do."""
        self.orphans.stop()
        for post in self.posts:
            if post.component == "producer":
                os.kill(post.process.pid, signal.SIGUSR1)

    def end(self) -> None:
        """A clean end of everybody that is left."""
        for post in self.posts:
            post.end()

    # --- what they wrote down -----------------------------------------------------------------------------------------

    def calls(self) -> list[Handled]:
        """Of handlers, in their order."""
        lines = self.handled.read_text().splitlines() if self.handled.exists() else []
        return [Handled.parse(line) for line in lines]

    def rows(self) -> dict[str, Resolution]:
        """{"id/nonce": what the database says}."""
        table = self.shop.barrier.table
        with self.shop.engine.connect() as connection:
            found = connection.execute(select(table.c.txn_id, table.c.nonce, table.c.resolution))
            return {f"{row.txn_id}/{row.nonce}": Resolution(row.resolution) for row in found}

    # --- processes ----------------------------------------------------------------------------------------------------

    def _next_release(self, component: str) -> Path:
        started = self.started.setdefault(component, [])
        started.append(self._releases[len(started) % len(self._releases)])
        return started[-1]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}-{next(self._numbers)}.log"

    def _coordinator(self) -> TxlayerProcess:
        arena = self.arena
        log_file = self._log("coordinator")
        return self._stack.enter_context(
            CoordinatorProcess(
                arena.servers,
                arena.namespace,
                log_file=log_file,
                settings=COORDINATORS,
                folder=self._folder,
                root=self._next_release("coordinator"),
            )
        )

    def _responder(self) -> TxlayerProcess:
        self._rolled_back = self.orphans.rolled_back_count()
        url = f"{self._database}?check_same_thread=false"
        return self._stack.enter_context(
            ResponderProcess(
                self.arena.servers,
                self.arena.namespace,
                ORPHANS,
                folder=self._folder,
                name=self._log("responder").stem,
                arguments=["--barrier-url", url],
                settings=RESPONDERS,
                root=self._next_release("responder"),
            )
        )

    def _has_answered(self, _: TxlayerProcess) -> bool:
        # The one before is gone: no other process rolls an orphan back.
        return self.orphans.rolled_back_count() > self._rolled_back

    def _consumer(self) -> TxlayerProcess:
        command = ["consumer", "run", "loyalty:consumer"]
        log_file = self._log("consumer")
        root = self._next_release("consumer")
        return self._stack.enter_context(TxlayerProcess(command, log_file=log_file, folder=self._folder, root=root))

    def _producer(self) -> TxlayerProcess:
        arena = self.arena
        command = [arena.servers, arena.namespace, arena.targets[0], self._database, str(self.sold)]
        log_file = self._log(SELLERS)
        return self._stack.enter_context(
            TxlayerProcess(
                command,
                log_file=log_file,
                folder=self._folder,
                module="tests.support.selling",
                root=self._next_release("producer"),
            )
        )

    def _make_consumer(self) -> None:
        arena = self.arena
        with KafkaAdmin(ClientConfig(bootstrap_servers=arena.servers)) as admin:
            topics = [arena.targets[0]]
            GroupTopics(admin, group=self.group, topics=topics).apply()
        program = CONSUMER.format(
            servers=arena.servers,
            group=self.group,
            topic=arena.targets[0],
            namespace=arena.namespace,
            journal=str(self.handled),
        )
        (self._folder / "loyalty.py").write_text(program, encoding="utf-8")

    @property
    def letters(self) -> str:
        """The topic that must stay empty."""
        return dead_letter_topic(self.group, self.arena.targets[0])


def _stands_in(journal: Path, process: TxlayerProcess) -> bool:
    return journal.exists() and f"\n{process.pid} " in "\n" + journal.read_text()


# --- the brokers ------------------------------------------------------------------------------------------------------


def restart_broker(cluster: LocalBroker, *, is_killed: bool) -> Restart:
    """SIGKILL or SIGTERM; then the broker again, until every replica is in sync."""
    began = time.monotonic()
    if is_killed:
        cluster.kill()
    else:
        cluster.stop()
    cluster.start()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})

    def is_in_sync() -> bool:
        with suppress(KafkaException):
            topics = admin.list_topics(timeout=5).topics.values()
            partitions = [p for topic in topics for p in topic.partitions.values()]
            return all(len(p.isrs) == len(p.replicas) for p in partitions)
        return False

    wait_until(is_in_sync, within=AT_WORK_S, what="all replicas are in sync")
    return Restart("broker", is_killed, time.monotonic() - began)
