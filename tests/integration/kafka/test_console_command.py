"""`txlayer console` on a real broker: what it holds is shown, and SIGTERM ends it cleanly."""

import re
import socket
from pathlib import Path

import httpx
import pytest

from tests.support.arena import Arena
from tests.support.commands import run_txlayer
from tests.support.processes import TxlayerProcess
from tests.support.raw import RawWriter
from tests.support.waiting import wait_until
from txlayer.console.people import Person, Role, user_line

pytestmark = pytest.mark.kafka

PASSWORD = "correct horse battery"


def where(arena: Arena) -> list[str]:
    return ["-b", arena.servers, "-n", arena.namespace]


def address_in(log: Path) -> str:
    """Where the console of this log answers."""
    found = wait_until(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), within=30, what="its address")
    assert found is not None
    return found[0]


def test_what_the_broker_holds_is_shown_until_the_end(arena: Arena, tmp_path: Path) -> None:
    prepared = RawWriter(arena).prepare((arena.targets[0], b"k", b"a value"))
    log = tmp_path / "console.log"

    def page(path: str) -> str:
        return httpx.get(address + path, timeout=30).text

    with TxlayerProcess(["console", "--port", "0", *where(arena)], log_file=log) as process:
        address = address_in(log)
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
        process.terminate()
        assert 0 == process.wait()
    assert "Traceback" not in log.read_text()


def test_an_address_that_is_taken_is_said(arena: Arena, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = run_txlayer("console", "--port", port, *where(arena), capsys=capsys)

    assert 2 == code
    assert "cannot listen" in err


def test_a_person_logs_in_sees_a_page_and_logs_out(arena: Arena, tmp_path: Path) -> None:
    users, log = tmp_path / "users", tmp_path / "console.log"
    users.write_text(user_line(Person("alice", Role.SETTLE), PASSWORD) + "\n")
    txn_id = RawWriter(arena).prepare((arena.targets[0], b"k", b"secret-value")).txn_id
    options = ["--users", str(users), "--allow-writes"]
    with TxlayerProcess(["console", "--port", "0", *options, *where(arena)], log_file=log) as process:
        address = address_in(log)
        with httpx.Client(base_url=address, headers={"Origin": address}, timeout=30) as browser:
            away = browser.get("/transaction", params={"id": txn_id})
            login = browser.get(away.headers["location"])
            fields = {"name": "alice", "password": PASSWORD, "next": f"/transaction?id={txn_id}"}
            entered = browser.post("/login", data={**fields, "form_token": token_of(login, "/login")})
            page = browser.get(entered.headers["location"])
            shown = {"id": txn_id, "form_token": token_of(page, "/transaction/values")}
            values = browser.post("/transaction/values", data=shown)
            left = browser.post("/logout", data={"form_token": token_of(page, "/logout")})
            outside = browser.get("/")
        process.terminate()
        assert 0 == process.wait()
    answers = (away, login, entered, page, values, left, outside)
    logged = log.read_text()

    assert [303, 200, 303, 200, 200, 303, 303] == [each.status_code for each in answers]
    assert txn_id in page.text
    assert "alice" in page.text
    assert "secret-value" not in page.text
    assert "secret-value" in values.text
    assert all("default-src 'none'" in each.headers["content-security-policy"] for each in answers)
    for name in ("console.login", "console.values_shown", "console.logout"):
        (line,) = [line for line in logged.splitlines() if f'"{name}"' in line]
        assert '"person": "alice"' in line
    for secret in (PASSWORD, "secret-value", entered.headers["set-cookie"].partition("=")[2].partition(";")[0]):
        assert secret not in logged


def token_of(page: httpx.Response, action: str) -> str:
    found = re.search(rf'action="{action}"><input type="hidden" name="form_token" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return found[1]
