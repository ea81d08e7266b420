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
from tests.spark.test_tables import COMMANDS, in_a_process
from tests.support.databases import free_port
from tests.support.planted import Field, Message
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

BUCKET = "audits"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an S3 with one empty bucket, which takes the credentials of the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
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
