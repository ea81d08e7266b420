"""`txlayer console` on a real broker: what it holds is shown, and SIGTERM ends it cleanly."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import httpx
import pytest

from tests.support.arena import Arena
from tests.support.commands import run_command
from tests.support.processes import TxlayerProcess
from tests.support.raw import RawWriter
from tests.support.waiting import wait_until
from txlayer.cli.main import build_app

pytestmark = pytest.mark.kafka


def where(arena: Arena) -> list[str]:
    return ["-b", arena.servers, "-n", arena.namespace]


def test_what_the_broker_holds_is_shown_until_the_end(arena: Arena, tmp_path: Path) -> None:
    prepared = RawWriter(arena).prepare((arena.targets[0], b"k", b"a value"))
    log = tmp_path / "console.log"

    def page(path: str) -> str:
        return httpx.get(address + path, timeout=30).text

    with TxlayerProcess(["console", "--port", "0", *where(arena)], log_file=log) as process:
        found = wait_until(
            lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), within=30, what="its address"
        )
        assert found is not None
        address = found[0]
        wait_until(lambda: prepared.txn_id in page("/transactions"), within=30, what="the transaction")
        overview = wait_until(
            lambda: text if "no responder answers" in (text := page("/")) or "no coordinator runs" in text else "",
            within=30,
            what="what is wrong",
        )
        assert "headline error" in overview
        transaction = page(f"/transaction?id={prepared.txn_id}")
        assert "message 1 of 1 stored" in transaction
        assert "a value" not in transaction
        with httpx.stream("GET", address + "/events", timeout=30) as events:
            assert "event: changed" == next(events.iter_lines())
        process.terminate()
        assert 0 == process.wait()
    assert "Traceback" not in log.read_text()


def test_an_address_that_is_taken_is_said(arena: Arena, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = run_command(build_app(), "console", "--port", port, *where(arena), capsys=capsys)

    assert 2 == code
    assert "cannot listen" in err
