"""The audit shows what people wrote into the logs, newest first, in a window that it names; nothing that a producer or a consumer wrote."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.console_letters import Group
from tests.support.console_site import Site
from tests.support.core_records import op_line, txn_key
from txlayer.core.dead_letters import ReplayKind, ReplayOutcome, ReplayRecord
from txlayer.core.leases import LockKind
from txlayer.core.messages import Source
from txlayer.operate import time_text
from txlayer.operate.audit import Audit, read_audit

HOSTILE = '"><script>alert(1)</script>\x1b[31m'


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    with made.browser:
        yield made


def read(site: Site, **wanted: Any) -> Audit:
    asked = {"until_ms": site.stage.world.now_ms() + 1, "span_ms": 86_400_000, **wanted}
    return read_audit(site.console.clients, **asked)


def operator_line(site: Site, key: str, letter: str = "C", reason: str = "zoe@desk: ticket 12") -> int:
    at = site.stage.half(key)
    site.stage.op(op_line(letter, key, at, source=Source.OPERATOR, reason=reason))
    return at


def everything(site: Site) -> Group:
    """One act of each kind, a second apart."""
    group, world = Group(site), site.stage.world
    for letter in "CRUA":
        operator_line(site, txn_key(f"t{letter}"), letter)
        world.advance(ms=1_000)
    site.stage.commit(txn_key("own"), site.stage.half(txn_key("own")))
    letter_at = group.letter()
    group.say(ReplayRecord(ReplayKind.REPLAY, "r1", letter_at, text="amy: mended"))
    group.say(ReplayRecord(ReplayKind.RESULT, "r1", letter_at, ReplayOutcome.HANDLED))
    world.advance(ms=1_000)
    group.say(ReplayRecord(ReplayKind.DROP, "r2", letter_at, text="amy: a test"))
    world.advance(ms=1_000)
    group.say(ReplayRecord(ReplayKind.PAUSE, "r3", None, text="amy: migration"))
    world.advance(ms=1_000)
    token = group.lock()
    group.lock(LockKind.RENEWAL, token=token)
    group.lock(LockKind.RELEASE, token=token, reason="ben@host: gone")
    return group


def test_every_act_of_a_person_is_listed_and_no_record_of_a_program(site: Site) -> None:
    everything(site)

    found = read(site)

    assert ["release", "pause", "drop", "replay", "abandon", "ask", "rollback", "commit"] == [
        entry.newest.what for entry in found.entries
    ]
    assert [("ben@host", "gone"), ("amy", "migration")] == [
        (entry.newest.operator, entry.newest.reason) for entry in found.entries[:2]
    ]
    assert found.entries[-1].newest.about == "shop"


def test_the_page_names_the_window_and_links_to_what_each_is_about(site: Site) -> None:
    everything(site)

    page = site.get("/audit")

    now_ms = site.stage.world.now_ms()
    assert time_text(now_ms) in page
    assert time_text(now_ms + 60_000 - 86_400_000) in page
    for link in (
        "/queue?name=loyalty%2Forders%2F0",
        "/queues?group=loyalty&amp;topic=orders",
        "/letters/request?group=loyalty&amp;id=r2",
        "/transaction?id=0%3A0",
    ):
        assert f'href="{link}"' in page
    assert "ben@host" in page
    only = site.get("/audit?who=amy&span=1h")
    assert "ben@host" not in only
    assert "migration" in only


def test_many_records_of_one_act_are_one_entry(site: Site) -> None:
    group = Group(site)
    for _ in range(3):
        group.say(ReplayRecord(ReplayKind.REPLAY, "r1", group.letter(), text="amy: mended"))
        site.stage.world.advance(ms=1_000)
    site.stage.world.advance(ms=3_600_000)
    operator_line(site, txn_key("a"))
    site.stage.world.advance(ms=3_600_000)
    operator_line(site, txn_key("b"))

    found = read(site)

    assert [1, 1, 3] == [entry.act_count for entry in found.entries]


def test_older_acts_are_found_page_by_page(site: Site) -> None:
    for number in range(30):
        operator_line(site, txn_key(f"t{number}"), reason=f"zoe@desk: {number}")
        site.stage.world.advance(ms=10_000)

    seen: list[str] = []
    until_ms = site.stage.world.now_ms() + 1
    for _ in range(30):
        found = read(site, until_ms=until_ms, record_count_max=16)
        assert found.record_count <= 16 + 4
        seen += [entry.newest.reason for entry in found.entries]
        until_ms = min(found.since_ms, until_ms - 1)

    assert [str(number) for number in reversed(range(30))] == seen


@pytest.mark.parametrize("ahead_s", [7_200, -7_200])
def test_the_last_hour_is_one_of_the_brokers(site: Site, ahead_s: int) -> None:
    operator_line(site, txn_key("a"))
    site.go_ahead(ahead_s)

    assert "ticket 12" in site.get("/audit?span=1h")


def test_a_topic_that_cannot_be_read_is_said_and_hides_no_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    operator_line(site, txn_key("a"))
    monkeypatch.setattr("txlayer.operate.audit.consumed_pairs", lambda _names: [("loyalty", "gone")])

    page = site.get("/audit")

    assert "loyalty.gone.replay could not be read" in page
    assert "ticket 12" in page


def test_what_others_wrote_is_text(site: Site) -> None:
    group = everything(site)
    operator_line(site, txn_key("x"), reason=f"{HOSTILE}: {HOSTILE}")
    group.say(ReplayRecord(ReplayKind.DROP, "r9", 7, text=f"{HOSTILE}: {HOSTILE}"))
    token = group.lock(holder=HOSTILE)
    group.lock(LockKind.RELEASE, holder=HOSTILE, token=token, reason=f"{HOSTILE}: {HOSTILE}")

    for page in (site.get("/audit"), site.browser.get("/audit", params={"who": HOSTILE}).text):
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert " style=" not in page


@pytest.mark.parametrize("query", ["span=2y", "until=x", "until=-1", "until=" + "9" * 16])
def test_a_window_that_makes_no_sense_is_said(site: Site, query: str) -> None:
    assert "cannot be shown" in site.get("/audit?" + query, status=400)


def test_nothing_is_said_as_such(site: Site) -> None:
    assert "In this time nobody" in site.get("/audit")
