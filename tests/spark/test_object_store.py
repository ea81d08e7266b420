"""Bronze, the ledger and the tables in an object store: an S3 of the test's own. `make object-store` runs it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import Request, urlopen

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.conftest import Broker
from tests.spark.conftest import SETTINGS
from tests.spark.test_kills import FAULTS
from tests.spark.test_tables import COMMANDS, in_a_process, plant_a_swap
from tests.support import object_store
from tests.support.databases import free_port
from tests.support.debian import IS_CI, skip_or_fail
from tests.support.pages import ROOT
from tests.support.planted import Field, Message, Transaction
from tests.support.spark_processes import killed_when
from tests.support.waiting import wait_until
from txlayer.errors import UsageError
from txlayer_spark import read_ledger, session
from txlayer_spark.catalog import Catalog, Folder
from txlayer_spark.jobs.bronze import BronzeSettings, compact, expire, read_new
from txlayer_spark.jobs.ledger import LedgerSettings, compact_ledger, update_ledger
from txlayer_spark.jobs.tables import Table, TableSettings

pytestmark = [pytest.mark.kafka, pytest.mark.nightly]

MOTO = ROOT / "build" / "moto"
BUCKET = "audits"
DAY_MS = 86_400_000


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an S3 with one empty bucket, which takes the credentials of the environment."""
    if not MOTO.is_dir():
        if not IS_CI:
            skip_or_fail("no object store: make object-store installs one beside the environment")
        subprocess.run(["make", "build/moto"], cwd=ROOT, check=True, timeout=300)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-P", object_store.__file__, str(port)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(MOTO)},
    )
    address = f"http://127.0.0.1:{port}"

    def has_bucket() -> bool:
        with suppress(OSError):
            ask(f"{address}/{BUCKET}", "PUT")
            return True
        return False

    try:
        wait_until(has_bucket, within=60, what="an object store")
        yield address
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def ask(address: str, method: str = "GET", body: bytes | None = None) -> str:
    """What the store answers."""
    # A body of a form, which it would be by default, the store takes for none.
    headers = {"Content-Type": "application/octet-stream"}
    with urlopen(Request(address, method=method, data=body, headers=headers)) as answer:
        return str(answer.read().decode())


def changes(store: str) -> list[str]:
    """What changed it."""
    found: list[str] = json.loads(ask(f"{store}/-/"))["changes"]
    return found


def options(store: str) -> dict[str, str]:
    """What a session needs for that store."""
    given = {
        "endpoint": store,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in given.items()}


def keys(store: str, prefix: str) -> list[str]:
    """The names of the objects under a prefix."""
    return re.findall(r"<Key>([^<]+)</Key>", ask(f"{store}/{BUCKET}?list-type=2&max-keys=1000&prefix={prefix}"))


def test_an_audit_and_its_tables_in_an_object_store(broker: Broker, store: str, tmp_path: Path) -> None:
    field, data = Field(broker.bootstrap_servers), f"s3a://{BUCKET}/audit"
    settings = [f"{name}={value}" for name, value in options(store).items()]
    given = [part for each in (*settings, "spark.sql.shuffle.partitions=2") for part in ("--spark-setting", each)]
    field.whole(Message(field.orders, b"customer-7", b"where it lives"), Message(field.stock))
    audit = ["audit", "-b", field.servers, "-n", field.namespace, "--grace", "0s", "--page", f"{tmp_path}/page.html"]
    query = "SELECT verdict, count(*) AS n FROM transactions GROUP BY verdict"

    first = in_a_process(
        COMMANDS, data, json.dumps([[*command, *given] for command in ([*audit, "--json"], ["tables"])])
    )
    assert (0, 0) == tuple(code for code, _ in first), first
    field.whole()
    lost = field.prepare()
    field.commit(lost)
    commands = [[*audit, "--json"], ["tables"], ["compact"], ["sql", query], ["erase", "--key", "customer-7"]]
    again = in_a_process(COMMANDS, data, json.dumps([[*command, *given] for command in commands]))

    codes, said = zip(*again, strict=True)
    assert (1, 0, 0, 0, 0) == codes, said
    assert '"ok": 2' in said[0]
    assert "tables: run 2" in said[1]
    assert {"ok\t2", "lost\t1"} <= set(said[3].splitlines())
    # customer-7: half and orders, once each.
    assert "records erased in bronze: 2, in the tables: 2" in said[4]
    tables = [key for key in keys(store, "audit/parquet/") if key.endswith(".parquet")]
    assert [] == [key for key in tables if "/_" in key]
    assert {"bronze", "events", "ledger"} == {key.split("/")[2] for key in tables}


@pytest.mark.fault("Spark: tables on an object store are killed while the files of a day are moved one by one")
def test_a_day_in_an_object_store_has_each_row_once_wherever_it_is_killed(store: str, tmp_path: Path) -> None:
    """The store is put back to what its first change left, its second, …; Hadoop deletes one file after the other."""
    plant_a_swap(tmp_path)
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        ask(f"{store}/{BUCKET}/bronze/{path.relative_to(tmp_path)}", "PUT", path.read_bytes())

    shown = in_a_process(OF_ITS_OWN, days.__name__, store)

    assert 15 < len(shown)
    assert [["1", "2", "3", "4", "new"]] * len(shown) == shown


@pytest.mark.fault("Spark: a job on an object store is killed at any of its changes")
@pytest.mark.timeout(900)
def test_wherever_a_job_on_an_object_store_is_killed_the_next_one_says_the_same(
    broker: Broker, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store is put back to what a kill leaves, and of each job one kill is by the system itself, while there is time.

    What the jobs behind one kill say, they say behind each kill at which the store would have answered them the same.
    """
    seed = time.time_ns() % 1_000_000

    found = in_a_process(OF_ITS_OWN, kills.__name__, store, broker.bootstrap_servers, str(tmp_path), str(seed))

    assert [] == found["wrong"], f"seed {seed}"
    assert {"bronze", "ledger", "compact", "expire"} == found["tried"].keys()
    with capsys.disabled():
        sys.stdout.write(f"\nkills judged: {found['judged']} of {found['of']}, by {found['tried']}\n")


OF_ITS_OWN = (
    "import sys; from tests.spark import test_object_store; getattr(test_object_store, sys.argv[1])(*sys.argv[2:])"
)
"""A function of this file, in a process whose session has S3."""


def session_of(store: str) -> SparkSession:
    """One that deletes one object after the other."""
    given = {**SETTINGS, **options(store), "spark.hadoop.fs.s3a.bulk.delete.page.size": "1"}
    return session(master="local[2]", memory="1g", s3=True, settings=given)


def days(store: str) -> None:
    """Print the rows that a day has wherever its move was killed."""
    spark, rows = session_of(store), list[list[str]]()
    bucket = Folder(spark, f"s3a://{BUCKET}")
    table = Table(spark, TableSettings(data="", into=f"s3a://{BUCKET}"), "bronze")
    begin = len(changes(store))
    table.finish()
    for step in range(begin, len(changes(store)) + 1):
        ask(f"{store}/-/{step}", "PUT")
        table.finish()
        parts = [key for key in keys(store, "bronze/day=") if key.endswith(".parquet")]
        rows.append(sorted(row for part in parts for row in bucket.read_text(part).split()))
    sys.stdout.write(f"{json.dumps(rows)}\n")


CHAIN = ("bronze", "ledger", "bronze", "ledger", "compact", "bronze", "ledger", "expire")
WORKS_S = 390.0
Shown = tuple[dict[str, str], int, int]


def kills(
    store: str, servers: str, folder: str, seed: str
) -> None:  # one chain of jobs and its kills, kept in one piece
    """Print how often each job was killed, and where what followed was wrong."""
    end, rng, field = time.monotonic() + WORKS_S, Random(int(seed)), Field(servers)
    spark = session_of(store)
    jobs = jobs_of(spark, field.servers, field.namespace)
    ends, seen = [len(changes(store))], list[Shown]()
    waiting = list[Transaction]()
    parked = field.prepare(Message(field.orders), Message(field.stock))
    field.commit(replace(parked, offsets=parked.offsets[:1]))
    field.doubt(parked, "parked-committed", "incomplete")
    for job in CHAIN:
        if job == "bronze":
            for txn in waiting[-1:]:
                field.commit(txn)
                field.forward(txn)
            field.whole(Message(field.orders), Message(field.stock), ordering_key=b"k")
            waiting.append(field.prepare(Message(field.orders), Message(field.stock), ordering_key=b"k"))
        jobs[job]()
        ends.append(len(changes(store)))
        seen.append(shown(spark))
    tried, wrong = Counter[str](), list[object]()

    def is_held() -> bool:
        return bool(json.loads(ask(f"{store}/-/"))["is_held"])

    def judge(at: int, step: int) -> None:
        """Let a ledger run behind the kill, and then do the job again."""
        job = CHAIN[at]
        tried[job] += 1
        if at and job != "ledger":
            jobs["ledger"]()
        before = shown(spark)[0]
        jobs[job]()
        if job == "bronze":
            jobs["ledger"]()
            is_good, expected = not FAULTS & set(before.values()), seen[-2]
        else:
            is_good, expected = before in (seen[at - 1][0], seen[at][0]), seen[at]
        found = shown(spark)
        if not is_good or expected != found:
            wrong.append((job, step, named[step - 1 : step + 1], before, found, expected))

    named = changes(store)
    left = {(at, step) for at in range(len(CHAIN)) for step in range(ends[at], ends[at + 1] + 1)}
    count = len(left)

    def judge_at(at: int, step: int) -> None:
        """Put the store back and judge this kill, and with it those that the jobs cannot tell from it."""
        ask(f"{store}/-/{step}", "PUT")
        judge(at, step)
        left.difference_update((at, same) for same in json.loads(ask(f"{store}/-/{ends[at]}/{ends[at + 1]}")))
        assert (at, step) not in left

    # Not near its end: another run of it may make a few changes less.
    early = [(at, step) for at, step in sorted(left) if 4 * (step - ends[at]) < 3 * (ends[at + 1] - ends[at])]
    rng.shuffle(early)
    first = [next(found for found in early if CHAIN[found[0]] == job) for job in dict.fromkeys(CHAIN)]
    for place in first:
        judge_at(*place)
    for number, (at, step) in enumerate(first):
        if number and time.monotonic() > end:
            break
        ask(f"{store}/-/{ends[at]}/{step - ends[at]}", "PUT")
        given = (one.__name__, store, servers, field.namespace, CHAIN[at])
        with killed_when(is_held, OF_ITS_OWN, *given, folder=Path(folder)):
            pass
        ask(f"{store}/-/", "PUT")
        judge(at, step)
    while left and time.monotonic() < end:
        judge_at(*rng.choice(sorted(left)))
    sys.stdout.write(f"{json.dumps({'tried': tried, 'judged': count - len(left), 'of': count, 'wrong': wrong})}\n")


def one(store: str, servers: str, namespace: str, job: str) -> None:
    """One job, until it is killed."""
    jobs_of(session_of(store), servers, namespace)[job]()


def jobs_of(own: SparkSession, servers: str, namespace: str) -> Mapping[str, Callable[[], object]]:
    """The jobs by their names, two days after whatever was written."""
    bronze = BronzeSettings(root=f"s3a://{BUCKET}/bronze", namespace=namespace, bootstrap_servers=servers)
    ledger = LedgerSettings(bronze=bronze.root, root=f"s3a://{BUCKET}/ledger")

    def fold() -> None:
        # The second one ends what the first one took the place of.
        for _ in range(2):
            compact(own, bronze.root, folders_min=2)
        compact_ledger(own, ledger.root, runs_min=1)

    def end() -> None:
        expire(own, bronze.root, keep_ms=DAY_MS)
        compact_ledger(own, ledger.root, keep_ms=9 * DAY_MS)

    return {
        "bronze": lambda: read_new(own, bronze, now_ms=lambda: time.time_ns() // 1_000_000 + 2 * DAY_MS),
        "ledger": lambda: update_ledger(own, ledger),
        "compact": fold,
        "expire": end,
    }


def shown(own: SparkSession) -> Shown:
    """The verdicts by id, how many records bronze has, and how many places of records."""
    catalog = Catalog(own, f"s3a://{BUCKET}/bronze")
    records = catalog.records(catalog.cut(catalog.state()))
    row: Any = records.agg(F.count("*"), F.count_distinct("topic", "partition", "offset")).first()
    verdicts = {}
    with suppress(UsageError):
        ledger = read_ledger(own, f"s3a://{BUCKET}/ledger").select("txn_id", "verdict")
        verdicts = {row.txn_id: row.verdict for row in ledger.collect()}
    return verdicts, *row
