"""`txlayer-spark` as a process: what it prints, what it leaves, and how it ends."""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.request import urlopen

import pytest
from confluent_kafka import OFFSET_END
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stub forgets NewPartitions

import txlayer
from tests.conftest import Broker
from tests.support.broker import create_topic
from tests.support.commands import run_command
from tests.support.databases import free_port
from tests.support.planted import PARTITIONS, Field, Message
from tests.support.spark_processes import environment, run_python
from tests.support.waiting import wait_until
from txlayer.cli.spark import ObservedAudit, RunResult, _run_observed, app
from txlayer.errors import TopicMismatchError
from txlayer_spark.jobs.bronze import BronzeSettings

APPEND = {"message.timestamp.type": "LogAppendTime"}
RUN = "from txlayer.cli import run_spark; run_spark()"
_SETTINGS = ("spark.sql.shuffle.partitions=2", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
SMALL = ("--master", "local[2]", "--memory", "1g", *(part for each in _SETTINGS for part in ("--spark-setting", each)))


def txlayer_spark(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, in a folder of the test's own."""
    return run_python(RUN, *arguments, folder=folder)


@pytest.mark.kafka
@pytest.mark.slow
def test_an_audit_ends_with_its_page_and_says_by_its_exit_code_that_a_promise_broke(
    broker: Broker, tmp_path: Path
) -> None:
    field = Field(broker.bootstrap_servers)
    good, lost = field.whole(), field.prepare()
    field.commit(lost)

    audit = ("audit", "-b", field.servers, "-n", field.namespace, "--grace", "0s", "--json", *SMALL)
    done = txlayer_spark(*audit, folder=tmp_path)

    assert (1, {"ok": 1, "lost": 1}) == (done.returncode, json.loads(done.stdout)["verdicts"]), done.stderr
    page = Path(json.loads(done.stdout)["page"])
    assert page.parent == tmp_path
    assert good.txn_id not in page.read_text("utf-8")
    assert f"{field.namespace}.half-{lost.partition}@{lost.offsets[0]}" in page.read_text("utf-8")
    found = json.loads(page.with_suffix(".json").read_text("utf-8"))
    assert [("lost", lost.txn_id)] == [(f["verdict"], f["txn_id"]) for f in found["findings"]]


def test_the_command_says_its_version_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_command(app, "--version", capsys=capsys)

    assert (0, f"txlayer-spark {txlayer.__version__}\n", "") == answer


@pytest.mark.slow
def test_log_lines_of_a_command_cannot_be_forged(tmp_path: Path) -> None:
    program = """
import logging
from txlayer.cli import spark
spark.guard = lambda _app: logging.getLogger("txlayer.spark").warning("seen", extra={"topic": "a\\nERROR forged"})
spark.main()
"""
    done = run_python(program, folder=tmp_path)

    (line,) = done.stderr.splitlines()
    assert line.endswith(r"WARNING seen topic=a\nERROR forged")


def test_plain_text_to_another_machine_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = txlayer_spark("bronze", "-b", "kafka.example:9092", folder=tmp_path)

    assert 2 == done.returncode
    assert done.stderr.startswith("error: plain text to another machine")
    assert 1 == len(done.stderr.splitlines())


def test_an_audit_goes_on_when_a_topic_was_deleted_while_it_was_read() -> None:
    spark: Any = None
    settings = BronzeSettings(root="", namespace="n", bootstrap_servers="127.0.0.1:9")
    audit = ObservedAudit(pause_s=60, record_count=lambda: 0, name="n", version="1")

    def run(_: object) -> NoReturn:
        raise TopicMismatchError("there is no such topic: stock")

    with pytest.raises(TopicMismatchError):
        _run_observed(spark, settings, run, audit)
    audit.complete(RunResult(1.0, {}, {}, {}))
    _run_observed(spark, settings, run, audit)

    found = {(sample.family.name, sample.labels): sample.value for sample in audit.samples()}
    assert 1 == found["txlayer_audit_runs_total", ("failed",)]


@pytest.mark.kafka
@pytest.mark.nightly
@pytest.mark.timeout(1800)  # six runs, one behind the other: on a busy machine more than a minute each
def test_an_audit_runs_until_it_is_stopped_and_shows_what_it_found(broker: Broker, tmp_path: Path) -> None:
    field = Field(broker.bootstrap_servers)
    field.whole()
    port = free_port()
    arguments = ["audit", "-b", field.servers, "-n", field.namespace, "--every", "1s", "--metrics-port", str(port)]

    def shown() -> str:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return str(answer.read().decode())
        return ""

    audit = subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments, "--master", "local[2]"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
    )

    def wait_for(*lines: str, what: str) -> None:
        wait_until(lambda: all(line in shown() for line in lines), within=300, what=what)

    def ok(count: int) -> str:
        return f'txlayer_audit_transactions{{verdict="ok"}} {count}.0'

    later = f"{field.orders}-later"
    try:
        wait_for(ok(1), 'txlayer_audit_transactions{verdict="lost"} 0.0', what="a first run")
        field.whole()
        wait_for(ok(2), f'txlayer_audit_behind_records{{topic="{field.orders}"}} 0.0', what="a later run")
        assert "txlayer_audit_records_total 0.0" not in shown()
        # A topic comes, then it is widened; another one is emptied.
        create_topic(field.servers, later, config=APPEND)
        waiting = field.prepare(Message(later))
        field.whole(Message(field.stock))
        wait_for(ok(3), f'txlayer_audit_behind_records{{topic="{later}"}} 0.0', what="a further topic")
        field.admin.create_partitions([NewPartitions(later, 2)])[later].result(30)
        field.take(*((field.stock, partition, OFFSET_END) for partition in range(PARTITIONS)))
        field.commit(waiting)
        field.forward(waiting, partition=1)
        field.whole(Message(field.stock))
        wait_for(ok(5), f'txlayer_audit_behind_records{{topic="{later}"}} 0.0', what="what came behind these changes")
        # One is retired, and comes again.
        field.delete(later)
        field.whole()
        wait_until(
            lambda: ok(6) in shown() and f'topic="{later}"' not in shown(),
            within=300,
            what="a run without the retired topic",
        )
        create_topic(field.servers, later, config=APPEND)
        field.whole(Message(later))
        wait_for(ok(7), f'txlayer_audit_behind_records{{topic="{later}"}} 0.0', what="the topic that came again")
        assert 'txlayer_audit_transactions{verdict="lost"} 0.0' in shown()
        assert audit.poll() is None
    finally:
        audit.send_signal(signal.SIGINT)
        ended = audit.wait(60)
    assert ended != 0
