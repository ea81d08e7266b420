"""P1-P8 while each component is restarted many times in a row under load: a bounded run, or `make restarts`."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from sqlalchemy import create_engine, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.broker import unique_name
from tests.support.crafted import Crafted
from tests.support.handling_order import Handled, judge_handling
from tests.support.history import History
from tests.support.left_out import raise_if_marker_left_out, run_again_if_marker_left_out
from tests.support.load import Load, new_key
from tests.support.logs import header, read_log
from tests.support.processes import ROOT, CoordinatorProcess, TxlayerProcess
from tests.support.responders import ResponderProcess
from tests.support.run_checker import judge_history
from tests.support.sampler import Sampler
from tests.support.seed import SEED, say
from tests.support.selling import SELLERS
from tests.support.shop import Shop, make_shop
from tests.support.waiting import TimedOutError, wait_until
from tests.support.witness import Witness
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.config import ClientConfig
from txlayer.core import codec
from txlayer.core.dead_letters import dead_letter_topic
from txlayer.core.messages import ROLLBACK, HalfHeader, OpMessage, Resolution, txn_id_of
from txlayer.errors import BarrierRefusedError
from txlayer.operate.topics import GroupTopics

ORPHANS = "orphans"
"""The producer group that has no producer any more."""
PAUSE_S = 0.1
LOCAL_SHARE = 0.6


class Orphans:
    """Transactions of a service that died after its local transaction: only a responder resolves them.

    Half records by a plain client, the row of the barrier where the local transaction was committed, and no op record;
    written from a thread of its own until `stop`.
    """

    def __init__(self, arena: Arena, shop: Shop, *, seed: int) -> None:
        self.keys: list[str] = []
        self._arena = arena
        self._shop = shop
        self._rng = random.Random(seed)
        self._failure: BaseException | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orphans", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """No more of them; raises what ended the thread before its time."""
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def rolled_back_count(self) -> int:
        """How many the responder has rolled back: it alone writes such a row of this group."""
        table = self._shop.barrier.table
        wanted = select(func.count()).where(table.c.producer_group == ORPHANS, table.c.resolution == ROLLBACK.value)
        with self._shop.engine.connect() as connection:
            return connection.execute(wanted).scalar_one()

    def _run(self) -> None:
        arena = self._arena
        writer = Crafted(arena.servers, arena.topics, partition_count=arena.partition_count)
        try:
            while not self._is_over.wait(PAUSE_S):
                key = new_key(self._rng)
                writer.half(key, arena.targets[0], group=ORPHANS, value=key.encode())
                self.keys.append(key)
                if self._rng.random() < LOCAL_SHARE:
                    self._commit_locally(key)
        except BaseException as exc:  # noqa: BLE001 - raised by `stop`
            self._failure = exc

    def _commit_locally(self, key: str) -> None:
        txn_id, nonce = key.split("/")
        try:
            with Session(self._shop.engine) as session, session.begin():
                self._shop.barrier.check_session(session)
                self._shop.barrier.write(session, txn_id=txn_id, nonce=nonce, group=ORPHANS)
        except (BarrierRefusedError, SQLAlchemyError):
            return  # the check-back was first, or the file was busy: this one was never committed


AT_WORK_S = 90.0
"""Until a process that was started works: Python and its imports, a rebalance, and a machine with other load."""
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
            # Readers beside a writer; no wait for the disk, which this test is not about.
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


pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]

TIMES = int(os.environ.get("E2E_RESTARTS", "2"))
BROKER_TIMES = int(os.environ.get("E2E_BROKER_RESTARTS", "0"))
"""0: on the broker of the whole run, which nobody stops; test_broker_crash.py is the bounded one for brokers."""
RATE = 60
RUN_COUNT_MAX = 3
REST_S = 120.0


@pytest.mark.promise("P1", "P2", "P6", "P7", "P8")
def test_restarts_of_each_component_in_a_row_leave_the_promises_true(
    broker: Broker, local_config: LocalConfig, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def one(run: int) -> None:
        folder = tmp_path / f"run-{run}"
        folder.mkdir()
        if BROKER_TIMES:
            with LocalBroker(config=local_config, data=folder / "broker") as own:
                live_through(own, folder)
        else:
            live_through(broker, folder)

    run_again_if_marker_left_out(request, one, run_count_max=RUN_COUNT_MAX)


def live_through(broker: Broker, folder: Path, *, releases: Sequence[Path] = (ROOT,)) -> Company:
    """Restart everything under load, come to rest, and judge; the processes are of these releases in turn."""
    began = time.monotonic()
    with ExitStack() as stack:
        arena = make_arena(broker.bootstrap_servers)
        load = arena.load(rate=RATE, seed=SEED)
        company = Company(arena, folder=folder, stack=stack, seed=SEED, releases=releases)
        with (
            marker_left_out_is_said(broker),
            Witness(arena.servers, arena.targets) as witness,
            Sampler(arena) as sampler,
        ):
            load.start()
            company.orphans.start()
            company.wait_until_at_work()
            say(f"{time.monotonic() - began:.0f} s: everybody is at work")
            done = company.restart_all(TIMES)
            say(f"{time.monotonic() - began:.0f} s: everybody was restarted")
            for number in range(BROKER_TIMES):
                assert isinstance(broker, LocalBroker)
                done.append(restart_broker(broker, is_killed=number % 2 == 0))
                witness.wait_for_more()
            say(f"{time.monotonic() - began:.0f} s: the broker was restarted")
            come_to_rest(company, load)
            sampler.take_last(within=REST_S)
            witness.wait_until_at_end(arena.targets, within=REST_S)
        company.end()
        say(f"{time.monotonic() - began:.0f} s: at rest")

        report(done)
        history = dataclasses.replace(sampler.history(load, witness), local=company.rows())
        verdict = judge_history(history)
        said = verified(arena)
        say(verdict.counts, verdict.doubt_states, f"aborted {arena.aborted_count()}")
        assert ([], [], []) == (verdict.findings[:20], witness.repeated(), load.failures)
        assert [] == [f for f in said["findings"] if f["breaks"]]
        assert {"proved"} == {promise["status"] for promise in said["promises"].values()}
        agree_with_the_database(company, history)
        agree_with_the_handlers(company, history)
        assert TIMES * 4 + BROKER_TIMES == len(done)
        return company


@contextmanager
def marker_left_out_is_said(broker: Broker) -> Iterator[None]:
    """What is late because Kafka forgot a marker says so."""
    try:
        yield
    except TimedOutError as exc:
        if isinstance(broker, LocalBroker):
            raise_if_marker_left_out(broker, exc)
        raise


def come_to_rest(company: Company, load: Load) -> None:
    """Nothing new; what somebody can answer for is decided, what is decided applied, what is visible handled."""
    arena = company.arena
    company.stop_selling()
    load.stop(within=REST_S)

    wait_until_decided(arena)
    arena.wait_until_applied(within=REST_S)
    topic = arena.targets[0]
    visible = {(r.partition, r.offset) for r in read_log(arena.servers, [topic])[topic]}
    wait_until(
        lambda: visible <= {(call.partition, call.offset) for call in company.calls()},
        within=REST_S,
        what="everything is handled",
        growing=lambda: len(company.calls()),
    )


def wait_until_decided(arena: Arena) -> None:
    """Return when the answers to all check-backs are in op; fails with those that nobody answered."""
    left: list[str] = []

    def is_decided() -> bool:
        left[:] = undecided(arena)
        return not left

    try:
        wait_until(is_decided, within=REST_S, what="decided", growing=lambda: -len(left))
    except TimedOutError as exc:
        raise TimedOutError(f"{exc}: {left[:20]}") from exc


def undecided(arena: Arena) -> list[str]:
    """Of the groups that somebody answers for: in half, and without a word in op. Cheap enough to be asked often."""
    half, op = arena.topics.half, arena.topics.op
    read = read_log(arena.servers, [half, op])
    heads = [codec.decode_half_header(header(r.headers, codec.HALF_HEADER) or b"") for r in read[half]]
    lines = [line for record in read[op] for line in (record.value or b"").decode().split("\n")]
    ops = [codec.decode_op(line) for line in lines]
    decided = {op.key for op in ops if isinstance(op, OpMessage) and op.resolution is not Resolution.UNKNOWN}
    return [
        head.key
        for head in heads
        if isinstance(head, HalfHeader) and head.producer_group in (SELLERS, ORPHANS) and head.key not in decided
    ]


def report(done: list[Restart]) -> None:
    """A line per component."""
    for component in dict.fromkeys(one.component for one in done):
        of = [one for one in done if one.component == component]
        killed = sum(one.is_killed for one in of)
        took = sorted(one.took_s for one in of)
        say(
            f"{component:<12} {len(of):>3} restarts, {killed} by SIGKILL; at work again after "
            f"{took[0]:.1f} to {took[-1]:.1f} s"
        )


def verified(arena: Arena) -> Any:
    """What `txlayer verify` says, whose readers are not the tests'."""
    verify = [sys.executable, "-m", "txlayer", "verify", "-b", arena.servers, "-n", arena.namespace]
    words = ["--since", "1h", "--grace", "0ms", "--json"]
    done = subprocess.run([*verify, *words], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    return json.loads(done.stdout)


def agree_with_the_database(company: Company, history: History) -> None:
    """Visible is what the database committed, of those that sold and of those that are gone; and nothing else."""
    rows = company.rows()
    committed = {txn_id_of(key) for key, word in rows.items() if word is Resolution.COMMIT}
    theirs = {txn_id_of(key) for key in company.orphans.keys} | {txn_id_of(key) for key in rows}
    visible = {(header(record.headers, codec.ID_HEADER) or b"").decode() for record in history.logs.real}
    told = {line.split()[1] for line in company.sold.read_text().splitlines()}
    say(f"{len(theirs)} with the database, {len(committed)} committed, {len(told)} told so")
    assert committed == visible & theirs
    assert told <= committed
    assert company.orphans.rolled_back_count() > TIMES


def agree_with_the_handlers(company: Company, history: History) -> None:
    """Each message at least once, those of one key in their order, none given up."""
    topic = company.arena.targets[0]
    visible = [record for record in history.logs.real if record.topic == topic]
    handling = judge_handling(company.calls(), visible)
    say(
        f"{handling.handled_count} handled, {handling.repeated_count} again, {handling.refused_count} with an old token"
    )
    assert [] == handling.findings[:20]
    assert [] == read_log(company.arena.servers, [company.letters])[company.letters]
