"""The demo runs, on a slice of its data, and its comparison finds what is planted into what the demo left."""

import importlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from tests.conftest import LOCAL_CONFIG
from tests.support.programs import run_program
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.local import LocalBroker

ROOT = Path(__file__).resolve().parents[2]
SHOP = ROOT / "examples" / "shop"
PURCHASE_COUNT = 3_000

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]


@dataclass(frozen=True)
class Run:
    """A demo that has ended."""

    exit_code: int
    result: dict[str, Any]
    folder: Path
    progress: str
    programs: list[str]
    """Command lines of this machine's processes when it had ended."""
    console_page: str
    """The list of transactions in the console, when all was over."""


@dataclass(frozen=True)
class Left:
    """What the demo left, with a broker that serves it."""

    folder: Path
    bootstrap_servers: str

    def compare(self, folder: Path) -> tuple[int, str]:
        """Exit code and output of compare.py, on the database of a folder."""
        line = [
            sys.executable,
            str(SHOP / "compare.py"),
            str(folder),
            "--purchases",
            str(PURCHASE_COUNT),
            "--bootstrap-servers",
            self.bootstrap_servers,
        ]
        answer = run_program(line, within=60, env=environment())
        return answer.returncode, answer.stdout + answer.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run for all tests of this file."""
    folder = tmp_path_factory.mktemp("demo") / "kept"
    line = [
        sys.executable,
        str(SHOP / "demo.py"),
        "--json",
        "--console",
        "--keep",
        str(folder),
        "--purchases",
        str(PURCHASE_COUNT),
        "--seed",
        "7",
    ]
    page, progress = "", folder.parent / "progress"

    def is_over() -> bool:
        return demo.poll() is not None or "still open at" in progress.read_text()

    with (
        progress.open("w") as said,
        subprocess.Popen(line, env=environment(), stdout=subprocess.PIPE, stderr=said, text=True) as demo,
    ):
        try:
            wait_until(is_over, within=900, what="the end of the day")
            if (address := re.search(r"still open at (\S+)/;", progress.read_text())) is not None:
                page = wait_until(
                    lambda: text if "true at <time" in (text := get(f"{address[1]}/transactions")) else "",
                    within=60,
                    what="the console has read the logs",
                )
            demo.send_signal(signal.SIGINT)
            result, _ = demo.communicate(timeout=60)
        finally:
            demo.kill()
    assert result, progress.read_text()
    programs = run_program(["ps", "-eo", "command"], within=30, check=True).stdout.splitlines()
    return Run(demo.returncode, json.loads(result), folder, progress.read_text(), programs, page)


def get(address: str) -> str:
    """A page."""
    return httpx.get(address, timeout=30).text


@pytest.fixture(scope="module")
def left(run: Run) -> Iterator[Left]:
    """Its folder and topics."""
    with LocalBroker(data=run.folder / "kafka", config=LOCAL_CONFIG) as broker:
        yield Left(run.folder, broker.bootstrap_servers)


@pytest.fixture
def planted(left: Left, tmp_path: Path) -> Callable[[str], tuple[int, str]]:
    """Exit code and output of the comparison after SQL was run on a copy of the database."""

    def compare(sql: str) -> tuple[int, str]:
        shutil.copy(left.folder / "shop.db", tmp_path)
        database = sqlite3.connect(tmp_path / "shop.db")
        with database:
            changed_count = database.execute(sql).rowcount
        database.close()
        assert changed_count > 0
        return left.compare(tmp_path)

    return compare


def environment() -> dict[str, str]:
    """This process's own, with this checkout's txlayer, and the machine's Java and jars, which no test sees."""
    named = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'spark'}",
        "TXLAYER_HOME": str(LOCAL_CONFIG.home),
        "TXLAYER_KAFKA_HOME": LOCAL_CONFIG.kafka_home,
        "TXLAYER_MAVEN_URL": LOCAL_CONFIG.maven_url,
    }
    return {**os.environ, **{name: value for name, value in named.items() if value}}


def test_the_demo_ends_with_an_equal_database_and_topics(run: Run) -> None:
    comparison = run.result["comparison"]

    assert 0 == run.exit_code
    assert "equal" == run.result["verdict"]
    assert [] == comparison["findings"]
    assert PURCHASE_COUNT == comparison["accepted_count"] + comparison["refused_count"]
    assert comparison["refused_count"] > 0
    accepted_count = comparison["accepted_count"]
    assert {"orders": accepted_count, "loyalty": accepted_count} == comparison["record_counts"]


def test_the_console_is_open_until_ctrl_c_and_shows_that_nothing_is_left(run: Run) -> None:
    assert "0 not settled" in run.console_page


def test_the_demo_kills_each_coordinator_and_the_shop_in_the_middle_of_the_purchases(run: Run) -> None:
    kills = run.result["kills"]

    expected = ["coordinator 1", "coordinator 2", "the loyalty service", "the shop", "the shop", "the shop"]
    assert expected == sorted(kill["who"] for kill in kills)
    # The loyalty service dies in the middle of its own work, and may be behind the shop.
    assert all(0 < kill["sold_count"] < PURCHASE_COUNT for kill in kills if kill["who"] != "the loyalty service")


@pytest.mark.fault(
    "producer: is killed (`kill -9`) before Kafka acknowledges its half messages",
    "producer: is killed between the local commit and its op",
)
def test_what_the_shop_left_in_doubt_is_settled_by_checking_back(run: Run) -> None:
    checks = run.result["checks"]

    # It dies right after a local commit: at least one transaction each time, and those that were only prepared.
    assert checks["committed_count"] >= 3
    assert checks["rolled_back_count"] > 0
    assert checks["checked_count"] >= checks["committed_count"] + checks["rolled_back_count"]


def test_every_order_counts_once_in_the_points_though_handlers_fail_and_their_service_is_killed(run: Run) -> None:
    rewards, accepted_count = run.result["rewards"], run.result["comparison"]["accepted_count"]

    assert [] == rewards["comparison"]["findings"]
    assert accepted_count == rewards["comparison"]["entry_count"]
    assert accepted_count == rewards["handled_count"]
    # It dies right after a local commit: at least that order comes again, and is known.
    assert rewards["again_count"] >= 1
    assert rewards["failed_count"] > rewards["dead_letter_count"]


def test_a_customer_whose_orders_never_succeed_is_parked_in_the_dead_letters_and_replayed(run: Run) -> None:
    rewards = run.result["rewards"]

    assert rewards["dead_letter_count"] > 1
    assert rewards["dead_letter_count"] == rewards["replayed_count"]
    assert rewards["is_complete"]


def test_the_demo_ends_with_sparks_report_on_every_transaction(run: Run) -> None:
    judged, accepted_count = run.result["audit"], run.result["comparison"]["accepted_count"]
    verdicts = judged["verdicts"]

    assert judged["is_good"]
    assert set() == set(verdicts) - {"ok", "rolled_back", "conflicting"}
    # A purchase is one transaction; what the shop was killed over is rolled back, and told so too late now and then.
    assert accepted_count <= verdicts["ok"] + verdicts.get("conflicting", 0)
    page = Path(judged["page"])
    assert run.folder == page.parent
    assert f"{verdicts['ok']:,}" in page.read_text("utf-8")
    assert verdicts == json.loads(page.with_suffix(".json").read_text("utf-8"))["verdicts"]


def test_the_demo_leaves_no_process_behind(run: Run) -> None:
    address = re.findall(r"Kafka is ready at (\S+)", run.progress)

    assert 1 == len(address), run.progress
    # The broker names its folder, the coordinators name the broker.
    assert [] == [line for line in run.programs if str(run.folder) in line or address[0] in line]


REPEAT_CUSTOMER = "(SELECT customer FROM purchases GROUP BY customer HAVING count(*) > 1 LIMIT 1)"


@pytest.mark.parametrize(
    ("sql", "findings"),
    [
        (
            "INSERT INTO purchases VALUES (NULL, 999999, '00001', '19970101', '199701', 1, 1177)",
            ["database: 1 not to be there", "orders: 1 missing", "loyalty: 1 missing"],
        ),
        (
            "DELETE FROM purchases WHERE position = 1",
            ["database: 1 missing", 'orders: 1 of no purchase, such as {"number": '],
        ),
        (
            "UPDATE purchases SET cents = cents + 100 WHERE position = 1",
            ["database: 1 missing", "orders: 1 with other content", "loyalty: 1 with other content"],
        ),
        (
            f"UPDATE purchases SET position = -position WHERE customer = {REPEAT_CUSTOMER}",
            ["orders: 1 customers out of order", "loyalty: 1 customers out of order"],
        ),
    ],
    ids=["a row too many", "a row too few", "another price", "another order"],
)
def test_a_difference_planted_into_the_database_is_found(
    planted: Callable[[str], tuple[int, str]], sql: str, findings: list[str]
) -> None:
    code, output = planted(sql)

    assert 1 == code
    assert [] == [finding for finding in findings if finding not in output], output


@pytest.mark.parametrize(
    ("sql", "findings"),
    [
        ("UPDATE entries SET points = points + 1 WHERE position = 1", ["points: 1 customers with other points"]),
        (
            "DELETE FROM entries WHERE position = 1",
            ["points: 1 customers with other points", "points: 1 orders missing"],
        ),
        (
            "INSERT INTO entries SELECT NULL, number, customer, points FROM entries WHERE points > 0 LIMIT 1",
            ["points: 1 customers with other points", "points: 1 orders more than once"],
        ),
        (
            f"UPDATE entries SET position = -position WHERE customer = {REPEAT_CUSTOMER.replace('purchases', 'entries')}",
            ["points: 1 customers out of order"],
        ),
    ],
    ids=["other points", "an entry too few", "an entry twice", "another order"],
)
def test_a_difference_planted_into_the_points_is_found(run: Run, tmp_path: Path, sql: str, findings: list[str]) -> None:
    for name in ("shop.db", "points.db"):
        shutil.copy(run.folder / name, tmp_path)
    database = sqlite3.connect(tmp_path / "points.db")
    with database:
        changed_count = database.execute(sql).rowcount
    database.close()

    answer = run_program([sys.executable, str(SHOP / "compare_points.py"), str(tmp_path)], within=60, env=environment())

    assert changed_count > 0
    assert 1 == answer.returncode
    assert [] == [finding for finding in findings if finding not in answer.stdout], answer.stdout


def test_messages_planted_into_a_topic_are_found(left: Left) -> None:
    columns = ("number", "customer", "day", "cds", "cents")
    database = sqlite3.connect(left.folder / "shop.db")
    stored = database.execute(f"SELECT {', '.join(columns)} FROM purchases ORDER BY position").fetchall()
    database.close()
    numbers = {number for number, *_ in stored}
    refused = next(number for number in range(1, PURCHASE_COUNT) if number not in numbers)
    twice, customer, *_ = stored[-1]
    order = json.dumps(dict(zip(columns, stored[-1], strict=True)))
    before = left.compare(left.folder)

    producer = Producer({"bootstrap.servers": left.bootstrap_servers})
    for partition in (0, 1):
        producer.produce("orders", key=customer, value=order, partition=partition)
    producer.produce("orders", key="nobody", value=json.dumps({"number": refused}))
    producer.produce("loyalty", value=b"no purchase at all")
    assert 0 == producer.flush(30)
    code, output = left.compare(left.folder)

    assert 0 == before[0], before[1]
    assert 1 == code
    for finding in (
        f"orders: 1 more than once, such as {twice}",
        f"orders: 1 refused and yet visible, such as {refused}",
        f"orders: 1 customers in two partitions, such as {customer}",
        "loyalty: 1 of no purchase, such as no purchase at all",
    ):
        assert finding in output


def test_a_commit_that_nobody_forwards_breaks_a_promise_though_the_auditor_had_read_the_topics_before(
    left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", *filter(lambda name: name.startswith("TXLAYER_"), environment())):
        monkeypatch.setenv(name, environment()[name])
    monkeypatch.syspath_prepend(str(SHOP))
    auditor = importlib.import_module("audit").Auditor
    records = tmp_path / "spark" / "bronze" / "v1" / "records"
    with auditor(bootstrap_servers=left.bootstrap_servers, folder=tmp_path) as opened:
        opened.open()
        wait_until(lambda: len(list(records.glob("*/_SUCCESS"))) == 2, within=120, what="both have read")
        place = plant_commit(left.bootstrap_servers)

        judged = opened.judge()

    assert (1, False) == (judged.verdicts["lost"], judged.is_good)
    assert f"txlayer.half-0@{place}" in Path(judged.page).read_text("utf-8")


def test_an_auditor_that_cannot_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXLAYER_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("TXLAYER_MAVEN_URL", "http://127.0.0.1:9/nowhere")
    monkeypatch.syspath_prepend(str(SHOP))
    module = importlib.import_module("audit")

    with (
        pytest.raises(module.AuditTroubleError, match="could not be fetched"),
        module.Auditor(bootstrap_servers="127.0.0.1:9", folder=tmp_path) as opened,
    ):
        opened.judge()


def plant_commit(bootstrap_servers: str) -> int | None:
    """A half record and its commit in the topics of the demo; where the half record stands in partition 0.

    Its id belongs there, whatever the partition count is: crc32 of it is a multiple of 24.
    """
    places: list[int | None] = []
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(
        "txlayer.half",
        key="k",
        value="v",
        partition=0,
        headers={"txl": b"1|planted-33/00000001|shop|orders|0/1|1|"},
        on_delivery=lambda _error, record: places.append(record.offset()),
    )
    assert 0 == producer.flush(30)
    said = f"1|C|planted-33/00000001|shop|{places[0]}|1|producer||"
    producer.produce("txlayer.op", value=said, partition=0)
    assert 0 == producer.flush(30)
    return places[0]


def test_a_broken_promise_makes_the_demo_fail_though_everything_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SHOP))
    show, audit = importlib.import_module("show"), importlib.import_module("audit")
    nothing = SimpleNamespace(findings=[])

    def report(*, is_good: bool) -> Any:
        judged = audit.Audit(verdicts={"ok": 1}, is_good=is_good, page="report.html", took_s=1.0)
        rewards = SimpleNamespace(is_complete=True, comparison=nothing)
        return show.Report(
            purchase_count=1,
            seed=1,
            kills=[],
            checks=None,
            selling_s=1.0,
            settling_s=1.0,
            whole_s=1.0,
            buying=None,
            forwarding=None,
            comparison=nothing,
            rewards=rewards,
            audit=judged,
        )

    assert (True, False) == (report(is_good=True).is_good, report(is_good=False).is_good)
