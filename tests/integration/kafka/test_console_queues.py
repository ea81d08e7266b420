"""The console's pages of queues, dead letters and the audit on a real broker: what people do there is in the topics."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from tests.support.arena import Arena
from tests.support.console_site import ADDRESS
from tests.support.planted_letters import Planted
from tests.support.waiting import wait_until
from txlayer.adapters.connect import kafka_clients
from txlayer.config import CoordinatorConfig
from txlayer.console.access import AccessRules
from txlayer.console.app import Console, build_app
from txlayer.core.dead_letters import ReplayKind, ReplayOutcome, ReplayRecord

pytestmark = pytest.mark.kafka

BAD, GOOD = b"bad", b"good"


def post(browser: TestClient, page: str, action: str, **fields: Any) -> str:
    """Send a form of the page; the address to which it leads."""
    form = re.search(rf'action="{action}">(.*?)</form>', page, re.DOTALL)
    assert form is not None, page
    hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form[1]))
    data = {name: value.replace("&amp;", "&") for name, value in hidden.items()} | fields
    answer = browser.post(action, data=data, headers={"Origin": ADDRESS}, follow_redirects=False)
    assert 303 == answer.status_code, answer.text
    return str(answer.headers["location"])


def test_dead_letters_are_found_replayed_edited_and_audited(arena: Arena, capsys: pytest.CaptureFixture[str]) -> None:
    planted = Planted(arena.servers, capsys, partitions=2)
    good = [planted.letter(key=b"k%d" % n, partition=n % 2, value=GOOD) for n in range(3)]
    bad = planted.letter(key=b"other", value=BAD)
    config = CoordinatorConfig(bootstrap_servers=arena.servers, namespace=arena.namespace)
    rules = AccessRules(is_writable=True, local_name="zoe@desk")
    console = Console(config, kafka_clients(config), rules=rules)
    browser = TestClient(build_app(console, is_following=False), base_url=ADDRESS)
    view = urlencode({"group": planted.group, "topic": planted.topic})

    def answer(request: ReplayRecord) -> ReplayOutcome:
        return ReplayOutcome.DROPPED if request.kind is ReplayKind.DROP else ReplayOutcome.HANDLED

    def page(address: str, **query: Any) -> str:
        found = browser.get(address, params=urlencode(query, doseq=True) if query else None)
        assert 200 == found.status_code, found.text
        return str(found.text)

    with browser, planted.owner(answer):
        assert "Queues and keys" in page("/queues")
        everything = wait_until(
            lambda: text if planted.group in (text := page("/letters")) else "", within=30, what="the group"
        )
        assert "no such customer" in everything
        plan = page("/letters/plan", view=view, act="replay", letter=good)
        begun = post(browser, plan, "/letters/start", reason="ticket 12", rate="100", failures="0", confirm="3")
        done = wait_until(lambda: text if "handled 3" in (text := page(begun)) else "", within=30, what="its end")
        assert "<dt>replay, handled</dt><dd>3</dd>" in done
        assert sorted(good) == sorted(planted.asked())

        one = page("/letter", group=planted.group, at=bad)
        assert "bad" not in one.partition("<main")[2]
        at = urlencode({"group": planted.group, "at": bad})
        token = re.search(r'action="/letter/values"><input type="hidden" name="form_token" value="([^"]+)"', one)
        assert token is not None
        fields = {"form_token": token[1], "view": at}
        editor = browser.post("/letter/values", data=fields, headers={"Origin": ADDRESS}).text
        post(browser, editor, "/letter/edit", value="mended", reason="no total")
        edited = [each for each in planted.seen(planted.dead_letters) if each.value == b"mended"]
        assert (b"other", b"mended") == (edited[0].key, edited[0].value)
        wait_until(
            lambda: "handled" in page("/letter", group=planted.group, at=f"{planted.topic}/0:{edited[0].offset}"),
            within=30,
            what="the copy handled",
        )

        paused = wait_until(
            lambda: text if planted.topic in (text := page("/queues", group=planted.group)) else "",
            within=60,
            what="the group's queues",
        )
        where = {"group": planted.group, "topic": planted.topic, "partition": "1", "act": "pause"}
        post(browser, paused, "/queues/pause", reason="migration", **where)
        audit = page("/audit")

    pauses = [(p, record.text) for p, _, record in planted.requests() if record.kind is ReplayKind.PAUSE]
    assert [(1, "zoe@desk: migration")] == pauses
    for text in ("ticket 12", "no total", "migration", "zoe@desk"):
        assert text in audit
