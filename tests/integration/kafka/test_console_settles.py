"""The console settles transactions on a real broker, and its page says what the log says."""

from __future__ import annotations

import html
import re
from pathlib import Path

import httpx
import pytest

from tests.support.arena import Arena
from tests.support.operating import quick_coordinator
from tests.support.processes import TxlayerProcess
from tests.support.raw import RawWriter
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


class Browser:
    """A browser without scripts."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str) -> str:
        return self._client.get(path).text

    def send(self, page: str, action: str, fields: list[tuple[str, str]]) -> str:
        """The page after a form was sent with these fields beside its hidden ones."""
        form = page.partition(f'<form method="post" action="{action}">')[2].partition("</form>")[0]
        hidden = re.findall(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)"', form)
        data: dict[str, list[str]] = {}
        for name, value in [*((name, html.unescape(value)) for name, value in hidden), *fields]:
            data.setdefault(name, []).append(value)
        answer = self._client.post(action, data=data)
        assert 200 == answer.status_code, answer.text
        return answer.text


def keys(page: str) -> dict[str, str]:
    """{id: "id/nonce"} of what a list offers to choose."""
    found = re.findall(r'name="key_of" value="([^"]+)"', page)
    return {html.unescape(key).partition("/")[0]: html.unescape(key) for key in found}


def settle(browser: Browser, plan: str, *fields: tuple[str, str]) -> str:
    """The page of the request, once it has ended."""
    page = browser.send(plan, "/settle", [("why", "ticket 12"), *fields])
    name = re.search(r'Request <span class="id">([0-9a-f-]+)<', page)
    assert name is not None
    return wait_until(
        lambda: text if "It ended" in (text := browser.get(f"/request?id={name[1]}")) else "",
        within=30,
        what="the end of the request",
    )


@pytest.mark.promise("P4")
def test_people_commit_and_roll_back_and_a_late_line_is_refused(arena: Arena, tmp_path: Path) -> None:
    writer, log = RawWriter(arena), tmp_path / "console.log"
    ids = [writer.prepare((arena.targets[0], b"k", b"v")).txn_id for _ in range(3)]
    command = ["console", "--port", "0", "--allow-writes", "-b", arena.servers, "-n", arena.namespace]

    with quick_coordinator(arena), TxlayerProcess(command, log_file=log) as process:
        found = wait_until(
            lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), within=30, what="its address"
        )
        assert found is not None
        headers = {"Origin": found[0]}
        with httpx.Client(base_url=found[0], headers=headers, timeout=30, follow_redirects=True) as client:
            browser = Browser(client)
            page = wait_until(
                lambda: text if set(ids) <= set(keys(text := browser.get("/transactions"))) else "",
                within=30,
                what="the transactions",
            )
            chosen = keys(page)
            late = browser.send(page, "/settle/plan", [("action", "rollback"), ("key_of", chosen[ids[0]])])
            both = [("key_of", chosen[each]) for each in ids[:2]]
            committed = settle(
                browser, browser.send(page, "/settle/plan", [("action", "commit"), *both]), ("confirm", "2")
            )
            refused = settle(browser, late)
            last = [("action", "rollback"), ("key_of", chosen[ids[2]])]
            rolled_back = settle(browser, browser.send(page, "/settle/plan", last))
            listed = browser.get("/requests")
        process.terminate()
        assert 0 == process.wait()

    assert "<dt>done</dt><dd>2</dd>" in committed
    assert "<dt>refused</dt><dd>1</dd>" in refused
    assert "refused: it was committed" in refused
    assert "<dt>done</dt><dd>1</dd>" in rolled_back
    assert 2 == listed.count('<th scope="row">')  # the late one wrote no line: what it was about was settled
    assert [1, 1, 0] == [len(arena.visible(each)) for each in ids]
    assert "Traceback" not in log.read_text()
