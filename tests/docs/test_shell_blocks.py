"""Every block of shell on a page is typed here, on one broker; or a named test runs it; or the reason why not stands here."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.support.broker import create_topic
from tests.support.page_stages import (
    MINUTE_MS,
    mended_consumer,
    plant_dead_letters,
    waiting_for_a_person,
    writers_times,
)
from tests.support.pages import ROOT, blocks
from tests.support.shell import Block, Terminal, shell_blocks
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.adapters.namespace import Namespace
from txlayer.config import ClientConfig, SystemTopics

HOWTO = "docs/howto/"
BY_BENCH = "measures for minutes on a machine of its own; bench/README.md is what they printed"
BY_PIP = "asks a package index; tests/integration/test_package.py installs the wheel and its extras"

CREATE_BARRIER = "txlayer barrier create --url postgresql+psycopg://shop@db/shop"
"""As docs/howto/barrier.md says it in a sentence."""

TYPED_HERE = {
    f"{HOWTO}barrier.md": 1,
    f"{HOWTO}check-back.md": 2,
    f"{HOWTO}consumers.md": 3,
    f"{HOWTO}dead-letters.md": 5,
    f"{HOWTO}django.md": 1,
    f"{HOWTO}faststream.md": 1,
    f"{HOWTO}inbox.md": 1,
    f"{HOWTO}local-broker.md": 1,
    f"{HOWTO}locks.md": 1,
    f"{HOWTO}metrics.md": 2,
    f"{HOWTO}on-call.md": 1,
    f"{HOWTO}run-a-coordinator.md": 3,
    f"{HOWTO}secure.md": 1,
    f"{HOWTO}settle-by-hand.md": 4,
    f"{HOWTO}tracing.md": 2,
}
"""How many blocks of a page this file types."""

RUN_ELSEWHERE = {
    (f"{HOWTO}scheduled-messages.md", "txlayer tx list --scheduled"): "tests/integration/kafka/test_scheduled.py",
    ("README.md", "txlayer broker start"): "tests/docs/test_readme.py",
    (
        f"{HOWTO}doctor.md",
        "txlayer doctor --bootstrap-servers 127.0.0.1:9092 --namespace txlayer",
    ): "tests/docs/test_doctor_and_verify_pages.py",
    (
        f"{HOWTO}doctor.md",
        "txlayer doctor -b 127.0.0.1:9092 -n txlayer --json",
    ): "tests/docs/test_doctor_and_verify_pages.py",
    (
        f"{HOWTO}verify.md",
        "txlayer verify --since 2h --bootstrap-servers 127.0.0.1:9092 --namespace txlayer",
    ): "tests/docs/test_doctor_and_verify_pages.py",
    (
        f"{HOWTO}verify.md",
        "txlayer verify --since 24h --until 12h -b 127.0.0.1:9092 -n txlayer",
    ): "tests/docs/test_doctor_and_verify_pages.py",
    (f"{HOWTO}install.md", "python3 -m venv shop"): "tests/docs/test_install_page.py",
    (f"{HOWTO}install.md", "pip wheel --no-deps --wheel-dir dist ./txlayer"): "tests/docs/test_install_page.py",
    (
        f"{HOWTO}secure.md",
        "export TXLAYER_BOOTSTRAP_SERVERS=broker-1:9093",
    ): "tests/integration/security/test_secure_page.py",
    (f"{HOWTO}secure.md", "txlayer topics apply --namespace shop"): "tests/integration/security/test_secure_page.py",
    (f"{HOWTO}upgrade.md", "txlayer topics accept --off"): "tests/integration/kafka/test_upgrading.py",
    (f"{HOWTO}upgrade.md", "txlayer topics accept --on"): "tests/integration/kafka/test_upgrading.py",
    (f"{HOWTO}upgrade.md", "txlayer topics drain --timeout 60s"): "tests/integration/kafka/test_upgrading.py",
    (
        f"{HOWTO}upgrade.md",
        "txlayer topics widen --partitions 16 --dry-run",
    ): "tests/integration/kafka/test_upgrading.py",
    (
        f"{HOWTO}upgrade.md",
        "txlayer topics apply --namespace shop --partitions 16",
    ): "tests/integration/kafka/test_upgrading.py",
    ("docs/tutorial.md", None): "tests/docs/test_tutorial.py",
}
"""Blocks that another test runs, which reads the page; None: all of them."""

NOT_RUN = {
    ("docs/CONTRIBUTING.md", "make check"): "the tests themselves, and the linters",
    ("docs/explanation/restarts.md", "make restarts"): "many minutes; tests/e2e/test_restarts.py runs bounded",
    (
        f"{HOWTO}who-can-read.md",
        "kafka-configs.sh --bootstrap-server HOST:PORT --alter --topic orders --add-config compression.type=zstd",
    ): "a command of Kafka's own, for a broker of the reader's",
    (
        f"{HOWTO}deploy.md",
        "make images",
    ): "needs a daemon of Docker and base images; tests/docs/test_images.py says what was built",
    (
        f"{HOWTO}deploy.md",
        "cd compose",
    ): "needs a daemon of Docker; tests/docs/test_compose_files.py has docker-compose read the files",
    (
        f"{HOWTO}deploy.md",
        "python3 -m venv /opt/txlayer",
    ): "writes to the system and needs systemd; tests/docs/test_unit_files.py reads the units",
    (
        f"{HOWTO}deploy.md",
        "kubectl create secret generic txlayer-administrator --from-file=ca.crt --from-file=client-settings=administrator-settings",
    ): "needs a cluster; tests/docs/test_kubernetes_files.py reads the manifests",
    (
        f"{HOWTO}console.md",
        'pip install "txlayer[console]"',
    ): "serves until it is stopped; tests/integration/kafka/test_console_command.py starts it",
    (
        f"{HOWTO}console.md",
        "txlayer console user alice --role settle >> users",
    ): "asks for passwords, and serves until it is stopped; tests/console/test_access_options.py makes such lines",
    (f"{HOWTO}django.md", 'pip install "txlayer[sql]" django'): BY_PIP,
    (f"{HOWTO}fastapi.md", 'pip install "txlayer[sql]" fastapi uvicorn aiosqlite'): BY_PIP,
    (
        f"{HOWTO}fastapi.md",
        "uvicorn app:app",
    ): "uvicorn is no dependency; tests/docs/test_framework_pages.py sends the same request to the app",
    (f"{HOWTO}faststream.md", 'pip install "txlayer[sql]" "faststream[cli,confluent]" aiosqlite'): BY_PIP,
    (f"{HOWTO}install.md", 'pip install "txlayer[cli]"'): "no index has it before the release, as the page says",
    (
        f"{HOWTO}reconcile.md",
        "txlayer-spark audit -b 127.0.0.1:9092 -n txlayer",
    ): "starts Spark; tests/spark/test_commands.py does",
    (
        f"{HOWTO}reconcile.md",
        """txlayer-spark compare --against orders.parquet --topic orders --published-id "get_json_object(value, '$.order')\"""",
    ): "starts Spark, and needs somebody's own table; tests/spark/test_against.py compares",
    (
        f"{HOWTO}run-a-coordinator.md",
        "export TXLAYER_BOOTSTRAP_SERVERS=broker-1:9093",
    ): "a cluster with passwords; tests/integration/security/test_secure_page.py has one",
    (
        f"{HOWTO}spark-cluster.md",
        'spark-submit --master spark://master:7077 --jars "$(txlayer-spark jars)" "$(txlayer-spark program)" audit -b kafka:9092 -n txlayer --data s3a://audit/txlayer',
    ): "other machines; tests/spark/test_cluster.py has a cluster of Spark's on one",
    (
        f"{HOWTO}spark-cluster.md",
        "txlayer-spark audit -b kafka:9092 -n txlayer --data s3a://audits/txlayer --spark-setting spark.hadoop.fs.s3a.endpoint=https://s3.example.com",
    ): "needs an object store; tests/spark/test_object_store.py has one",
    (
        f"{HOWTO}spark-jobs.md",
        'spark-submit --jars "$(txlayer-spark jars)" examples/spark/revenue.py -b 127.0.0.1:9092 --topic orders --into revenue',
    ): "starts Spark; tests/spark/test_live.py runs the program",
    (f"{HOWTO}spark-questions.md", None): "starts Spark; tests/spark/test_tables.py asks every question of the page",
    (f"{HOWTO}spark-tables.md", None): "starts Spark; tests/spark/test_tables.py runs these commands",
    (f"{HOWTO}test-your-service.md", 'pip install "txlayer[testing]"'): BY_PIP,
    (f"{HOWTO}tune.md", "make bench"): BY_BENCH,
}
"""Why a block is typed nowhere."""


def here(page: str) -> list[Block]:
    """The page's blocks that are typed here."""
    return [b for b in shell_blocks() if b.page == page and not is_elsewhere(b)]


def is_elsewhere(block: Block) -> bool:
    """True when a list above says so."""
    return any(name in listed for listed in (RUN_ELSEWHERE, NOT_RUN) for name in (block.name, (block.page, None)))


# --- every block has its place ----------------------------------------------------------------------------------------


def test_every_block_is_run_or_says_why_not() -> None:
    typed = {page: len(here(page)) for page in {block.page for block in shell_blocks()}}

    assert TYPED_HERE == {page: count for page, count in typed.items() if count}


def test_the_lists_name_no_block_that_is_not_there() -> None:
    names = {block.name for block in shell_blocks()} | {(b.page, None) for b in shell_blocks()}

    assert [] == [name for name in (*RUN_ELSEWHERE, *NOT_RUN) if name not in names]


def test_every_file_that_is_named_is_there() -> None:
    reasons = [*NOT_RUN.values(), *RUN_ELSEWHERE.values()]
    words = [word.strip(";,") for reason in reasons for word in reason.split()]

    assert [] == [w for w in words if w.startswith(("tests/", "bench/")) and not (ROOT / w).exists()]


# --- typed here, on one broker ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers(local_config: LocalConfig) -> Iterator[str]:
    """A cluster of its own: pages use the default names, which no other test may share."""
    with LocalBroker(config=local_config) as broker:
        made = broker.bootstrap_servers
        for name in ("orders", "shop.orders", "shop.orders.mended", "points"):
            create_topic(made, name, partitions=4)
        with KafkaAdmin(ClientConfig(bootstrap_servers=made)) as admin:
            for name in ("txlayer", "settle", "shop"):
                namespace = Namespace(admin, topics=SystemTopics(name))
                namespace.apply(partition_count=2, replication_factor=1)
        yield made


@pytest.fixture
def terminal(
    servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Terminal]:
    """Where a page is typed; its services end with the test."""
    monkeypatch.setenv("TXLAYER_BOOTSTRAP_SERVERS", servers)
    monkeypatch.setenv("TXLAYER_SESSION_TIMEOUT", "3s")
    words = {"127.0.0.1:9092": servers, "broker-1:9092": servers}
    with Terminal(tmp_path, monkeypatch, capsys, words=words).closing() as made:
        yield made


def program(page: str, number: int, *, servers: str) -> str:
    """One of the page's programs, at this broker."""
    text = blocks(ROOT / page, "python")[number]
    return text.replace("127.0.0.1:9092", servers)


@pytest.mark.kafka
def test_check_back(terminal: Terminal, servers: str) -> None:
    page = f"{HOWTO}check-back.md"
    handler, _ = program(page, 0, servers=servers).split("producer =")
    (terminal.folder / "shop").mkdir()
    (terminal.folder / "shop" / "checks.py").write_text(f"{handler}\norders = {{}}\n", "utf-8")

    terminal.type(CREATE_BARRIER)
    for block in here(page):
        terminal.type_block(block)


@pytest.mark.kafka
@pytest.mark.parametrize("page", ["django", "barrier", "inbox"])
def test_what_needs_a_database(terminal: Terminal, page: str) -> None:
    terminal.type(CREATE_BARRIER)
    for block in here(f"{HOWTO}{page}.md"):
        terminal.type_block(block)


@pytest.mark.kafka
@pytest.mark.slow
def test_consumers_and_locks(terminal: Terminal, servers: str) -> None:
    consumers, locks = f"{HOWTO}consumers.md", f"{HOWTO}locks.md"
    (terminal.folder / "loyalty.py").write_text(program(consumers, 0, servers=servers), "utf-8")
    make, run, look = here(consumers)
    terminal.type_block(make)
    terminal.type_block(run)

    def held() -> list[str]:
        listed = json.loads(terminal.type("txlayer locks list --group loyalty --json"))
        return [row["queue"] for row in listed if row["state"] == "held"]

    terminal.type("txlayer consumer run loyalty:consumer")
    wait_until(lambda: len(held()) == 4, within=30, what="its leases are held")
    terminal.type_block(look)
    for block in here(locks):
        terminal.type_block(block, answers={"locks release": "y"})


@pytest.mark.kafka
@pytest.mark.slow
def test_dead_letters(terminal: Terminal, servers: str) -> None:
    make, look, replay, drop, pause = here(f"{HOWTO}dead-letters.md")
    plant = partial(plant_dead_letters, servers, group="loyalty", topic="shop.orders", partition=3)
    terminal.type_block(make)
    with writers_times(servers, "loyalty.shop.orders.dlq"):
        plant(count=30, age_ms=30 * MINUTE_MS)

    looked = terminal.type_block(look)
    with mended_consumer(servers, group="loyalty", topic="shop.orders") as handled:
        terminal.type_block(replay, answers={"--limit 1000": "y"})
        assert 30 == len(handled)
        plant(count=3, age_ms=0)
        terminal.type_block(drop)
        terminal.type_block(pause)

    assert "shop.orders/3:17" in looked
    assert "an order" in looked
    assert [] == json.loads((terminal.folder / "done.json").read_text(encoding="utf-8"))


@pytest.mark.kafka
@pytest.mark.slow
def test_settling_by_hand_and_looking(terminal: Terminal, servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXLAYER_NAMESPACE", "settle")
    find, decide, bulk, export = here(f"{HOWTO}settle-by-hand.md")
    look = here(f"{HOWTO}run-a-coordinator.md")[-1]
    (on_call,) = here(f"{HOWTO}on-call.md")
    orders = [f"order-{number}" for number in range(4711, 4715)]
    with waiting_for_a_person(servers, namespace="settle", group="orders", topic="orders") as stage:
        stage.park(orders)
        found = terminal.type_block(find)
        decided = terminal.type_block(decide)
        stage.park(["order-5001", "order-5002"])
        exported = terminal.type_block(export)
        terminal.words["--older-than 3d"] = "--older-than 0s"  # nothing here is as old
        carried_out = terminal.type_block(bulk, answers={"--limit 100": "y"})
        looked = terminal.type_block(look, codes={"tx show 7:16": 1}) + terminal.type_block(on_call)

    assert [] == [order for order in orders if order not in found]
    assert "checks-exhausted" in found
    assert "order-4711" in decided
    assert "order-5002" in carried_out
    assert 2 == len((terminal.folder / "parked.jsonl").read_text("utf-8").splitlines())
    assert "settle.coordinator" in looked
    assert exported


@pytest.mark.kafka
@pytest.mark.slow
def test_coordinators_start(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, servers: str) -> None:
    plan, run, _ = here(f"{HOWTO}run-a-coordinator.md")
    terminal.words["--partitions 4"] = "--partitions 2"  # as the namespace was made
    terminal.type_block(plan)
    terminal.type_block(run)
    for block in here(f"{HOWTO}secure.md"):
        terminal.type_block(block)
    terminal.stop()

    terminal.words["9464"] = str(free_ports(1)[0])
    start, ask = here(f"{HOWTO}metrics.md")
    terminal.type_block(start)
    assert "txlayer_ready 1.0" in wait_until(
        lambda: said if "txlayer_ready 1.0" in (said := terminal.type_block(ask)) else "", within=30, what="it is ready"
    )
    terminal.stop()

    (terminal.folder / "loyalty.py").write_text(program(f"{HOWTO}consumers.md", 0, servers=servers), "utf-8")
    for signal in ("TRACES", "METRICS", "LOGS"):
        monkeypatch.setenv(f"OTEL_{signal}_EXPORTER", "none")  # instead of a collector
    launch, formats = here(f"{HOWTO}tracing.md")
    terminal.type("txlayer topics apply --group loyalty --topic orders")
    terminal.type_block(launch)
    terminal.type_block(formats)


@pytest.mark.kafka
def test_a_service_of_faststream(terminal: Terminal, servers: str) -> None:
    page = f"{HOWTO}faststream.md"
    (terminal.folder / "app.py").write_text(program(page, 0, servers=servers), "utf-8")
    with closing(sqlite3.connect(terminal.folder / "loyalty.db")) as database, database:
        database.executescript(blocks(ROOT / page, "sql")[0])

    for block in here(page):
        terminal.type_block(block)


@pytest.mark.kafka
def test_a_local_broker(terminal: Terminal) -> None:
    (port,) = free_ports(1)
    (block,) = here(f"{HOWTO}local-broker.md")
    terminal.words |= {
        "broker start": f"broker start --port {port} --data broker",
        "broker status": "broker status --data broker",
        "broker stop": "broker stop --data broker",
        "broker wipe": "broker wipe --data broker",
    }

    said = terminal.type_block(block, answers={"broker wipe": "y"})

    assert f"127.0.0.1:{port}" in said
    assert not (terminal.folder / "broker").exists()
