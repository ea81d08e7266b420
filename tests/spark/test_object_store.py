"""Bronze, the ledger and the tables in an object store: an S3 of the test's own. `make object-store` runs it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.conftest import Broker
from tests.spark.test_tables import COMMANDS, in_a_process, plant_a_swap
from tests.support.databases import free_port
from tests.support.planted import Field, Message
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BUCKET = "audits"
STORE = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

store, left = DomainDispatcherApplication(create_backend_app), -1

def limited(environ, start_response):
    # PUT /-/7: what changes something is refused from the eighth request on.
    global left
    if environ["PATH_INFO"].startswith("/-/"):
        left = int(environ["PATH_INFO"].rpartition("/")[2])
        start_response("200 OK", [])
        return []
    if environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE") and left >= 0:
        if not left:
            start_response("403 Forbidden", [])
            return []
        left -= 1
    return store(environ, start_response)

run_simple("127.0.0.1", int(sys.argv[1]), limited, threaded=True)
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an S3 with one empty bucket, which takes the credentials of the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-c", STORE, str(port)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    address = f"http://127.0.0.1:{port}"

    def has_bucket() -> bool:
        with suppress(OSError), urlopen(Request(f"{address}/{BUCKET}", method="PUT")) as answer:
            return bool(answer.status == 200)
        return False

    try:
        wait_until(has_bucket, within=60, what="an object store")
        yield address
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def settings(store: str) -> list[str]:
    """What a session needs for that store."""
    given = {
        "endpoint": store,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    options = [f"spark.hadoop.fs.s3a.{name}={value}" for name, value in given.items()]
    return [part for option in (*options, "spark.sql.shuffle.partitions=2") for part in ("--spark-setting", option)]


def keys(store: str, prefix: str) -> list[str]:
    """The names of the objects under a prefix."""
    with urlopen(f"{store}/{BUCKET}?list-type=2&max-keys=1000&prefix={prefix}") as answer:
        return re.findall(r"<Key>([^<]+)</Key>", answer.read().decode())


def test_an_audit_and_its_tables_in_an_object_store(broker: Broker, store: str, tmp_path: Path) -> None:
    field, data, given = Field(broker.bootstrap_servers), f"s3a://{BUCKET}/audit", settings(store)
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
    """The store refuses what comes after its first request, its second, …; Hadoop deletes one file after the other."""
    plant_a_swap(tmp_path)
    planted = {
        str(path.relative_to(tmp_path)): path.read_text("ascii") for path in tmp_path.rglob("*") if path.is_file()
    }
    options = dict(part.partition("=")[::2] for part in settings(store)[1::2])
    options |= {"spark.hadoop.fs.s3a.bulk.delete.page.size": "1", "spark.hadoop.fs.s3a.attempts.maximum": "0"}

    shown = in_a_process(KILLED, f"{store}/{BUCKET}", store, json.dumps(planted), json.dumps(options))

    assert 15 < len(shown)
    assert [["1", "2", "3", "4", "new"]] * len(shown) == shown


KILLED = """
import json, re, sys
from urllib.request import Request, urlopen
from py4j.protocol import Py4JJavaError
from txlayer_spark import session
from txlayer_spark.catalog import Folder
from txlayer_spark.jobs.tables import Table, TableSettings

bucket, store, planted, options = sys.argv[1:]
spark = session(master="local[1]", memory="1g", s3=True, settings=json.loads(options))

def ask(address, method="GET", body=None):
    # A body of a form, which it would be by default, the store takes for none.
    headers = {"Content-Type": "application/octet-stream"}
    with urlopen(Request(address, method=method, data=body, headers=headers)) as answer:
        return answer.read().decode()

shown, is_killed, step = [], True, 0
while is_killed:
    for name, rows in json.loads(planted).items():
        ask(f"{bucket}/{step}/bronze/{name}", "PUT", rows.encode())
    table = Table(spark, TableSettings(data="", into=f"s3a://audits/{step}"), "bronze")
    ask(f"{store}/-/{step}", "PUT")
    try:
        table.finish()
        is_killed = False
    except Py4JJavaError:
        ask(f"{store}/-/-1", "PUT")
        table.finish()
    ask(f"{store}/-/-1", "PUT")
    keys = re.findall("<Key>([^<]+.parquet)</Key>", ask(f"{bucket}?list-type=2&prefix={step}/bronze/day="))
    bucket_folder = Folder(spark, "s3a://audits")
    shown.append(sorted(row for key in keys for row in bucket_folder.read_text(key).split()))
    step += 1
print(json.dumps(shown))
"""
