"""Every page of the console in a real browser, on a cluster in memory: light and dark, wide and narrow, and while the console is away."""

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.asgi import served
from tests.support.browser import Visitor, chromium, is_wider_than_its_window, serious
from tests.support.console_letters import Group
from tests.support.console_site import Site
from tests.support.core_records import txn_key
from txlayer.console.access import AccessRules, parse_proxy
from txlayer.console.acting import Note
from txlayer.console.limits import REQUEST_BURST
from txlayer.console.pages import ROUTES
from txlayer.console.people import Person, Role, User, parse_users, user_line
from txlayer.core.dead_letters import ReplayKind, ReplayRecord
from txlayer.core.messages import HalfOptions
from txlayer.operate.replay import DeadLetterResult
from txlayer.operate.settle import OperatorAction
from txlayer.operate.settle_requests import RequestState, SettlementRequest

pytestmark = pytest.mark.slow

PICTURES = os.environ.get("CONSOLE_PICTURES")
"""A folder: each page is kept there as a picture in each width, light and dark."""
WIDTHS = (1280, 1024, 768, 390)
IS_CUT = "[...document.querySelectorAll('.brand, .person')].some((part) => part.scrollWidth > part.clientWidth)"
BROKEN_WORDS = r"""() => {
  const found = new Set(), texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (text.parentElement.closest("td, th") === null || text.parentElement.closest(".id, .place") !== null) continue;
    for (const word of text.data.matchAll(/(?<![\p{L}\\])\p{L}{1,14}(?!\p{L})/gu)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (range.getClientRects().length > 1) found.add(word[0]);
    }
  }
  return [...found];
}"""
"""The words in tables, unless they are very long, that a line ends inside of."""
LONG = "a-service-with-a-name-that-is-as-long-as-people-make-them.eu-central-1"
REFRESH_MS = 2_000  # how often a page asks for itself
GONE = "f" * 11 + "-" + "f" * 8


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests here: each page is opened in a context of its own."""
    with chromium() as started:
        yield started


@contextmanager
def visiting(browser: Browser, site: Site, *, port: int = 0) -> Iterator[Visitor]:
    """A person in front of that console, which ends with the block."""
    with served(site.browser.app, site.console.connections, port=port) as port:
        yield Visitor(browser, f"http://127.0.0.1:{port}", headers={"X-Remote-User": "alice"})


def busy_site() -> Site:
    """A console with two people, which has something to show on every page."""
    people = [Person("alice", Role.SETTLE), Person("bob", Role.SETTLE)]
    users = {person.name: User(person, None) for person in people}
    users |= parse_users(user_line(Person("carol", Role.LOOK), "a long enough password"), name="users")
    site = Site(
        AccessRules(
            proxies=(parse_proxy("127.0.0.1"),),
            identity_header="X-Remote-User",
            users=users,
            is_writable=True,
            needs_second_person=True,
        )
    )
    site.console.templates.globals["report_address"] = "https://reports.example.org/shop.html"
    stage, group = site.stage, Group(site)
    later_ms = stage.world.now_ms() + 3_600_000
    for name, options in (("moved", HalfOptions(deliver_at_ms=later_ms)), ("held", HalfOptions(query_id="invoice 7"))):
        key = txn_key(name)
        stage.commit(key, stage.half(key, options=options, topic="orders" if name == "moved" else "missing"))
    stage.half(txn_key("0190f3c2-7b1e-7cc3-98c4-dc0c0c07398f"), group=LONG)
    stage.work(seconds=6)
    letters = [group.letter(key=b"a"), group.letter(key=b"b", error=("KeyError", f"'{LONG}' is in no table"))]
    group.store(parked={b"a": letters[0]}, paused=True)
    group.say(ReplayRecord(ReplayKind.PAUSE, "p1", None, text="alice: the bank is closed"))
    group.say(ReplayRecord(ReplayKind.REPLAY, "r1", letters[1], text="bob: ticket 12"))
    group.lock()
    stage.half(txn_key("young"))
    site.onlooker.look()
    stage.world.advance(ms=60_000)
    site.onlooker.look()
    return site


def click(label: str, heading: str) -> Callable[[Page], None]:
    """What leads from one page to the next."""

    def act(page: Page) -> None:
        page.click(label)
        expect(page.locator("h1")).to_contain_text(heading)

    return act


def propose(page: Page) -> None:
    click("text=Commit…", "what would happen")(page)
    page.fill("input[name=why]", "ticket 12: the bank says that it is paid")
    click("text=Commit 1", "Waiting for a second person")(page)


LETTER = {"group": "loyalty", "at": "orders/0:0"}
PLAN = {"view": "group=loyalty", "act": "replay", "letter": "orders/0:0"}
PAGES: dict[str, tuple[str, Callable[[Page], None] | None]] = {
    "overview": ("/", None),
    "transactions": ("/transactions", None),
    "no-transactions": ("/transactions?group=none&state=held", None),
    "search": ("/search?by=query&what=invoice+7", None),
    "transaction": ("/transaction?id=held-4", None),
    "scheduled": ("/transaction?id=moved-4", None),
    "values": ("/transaction?id=held-4", click("text=Show keys", "held")),
    "plan": ("/transaction?id=held-4", click("text=Commit…", "what would happen")),
    "move": ("/transaction?id=moved-4", click("text=Move…", "what would happen")),
    "no-transaction": ("/transaction?id=none&since=1h", None),
    "requests": ("/requests", None),
    "no-request": (f"/request?id={GONE}", None),
    "queues": ("/queues", None),
    "queue": ("/queue?name=loyalty/orders/0", None),
    "letters": ("/letters", None),
    "letters-of-group": ("/letters?group=loyalty", None),
    "letter": ("/letter?" + urlencode(LETTER), None),
    "letter-values": ("/letter?" + urlencode(LETTER), click("text=Show key", "Dead letter")),
    "letters-plan": ("/letters/plan?" + urlencode(PLAN), None),
    "letters-request": ("/letters/request?group=loyalty&id=r1", None),
    "audit": ("/audit", None),
    "waiting": ("/transaction?id=young-1&since=1h", propose),
    "login": ("/login", None),
    "missing": ("/none", None),
    "refused": ("/transactions?state=none", None),
}


def test_nothing_on_any_page_keeps_people_from_using_it(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.console.limits.REQUEST_BURST", 10 * REQUEST_BURST)
    site, found, seen = busy_site(), [], set()
    with visiting(browser, site) as visitor:
        for path in ("/", "/letters"):  # what is read beside these pages is there when they are looked at
            with visitor.page(path):
                pass
        for name in ("consumers", "queues", "letters"):
            site.wait_for(name)
        for name, (path, act) in PAGES.items():
            seen.add(path.partition("?")[0])
            with visitor.page(path) as page:
                if act is not None:
                    act(page)
                found += [f"{name} {problem}" for problem in problems_of(page, name)]
    assert not found, "\n".join(found)
    assert [] == visitor.complaints
    assert {route.path for route in ROUTES if "GET" in (route.methods or ())} <= seen | {"/waiting"}


def problems_of(page: Page, name: str) -> Iterator[str]:
    for looks in ("light", "dark"):
        page.emulate_media(color_scheme=looks)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            if PICTURES:
                page.screenshot(path=Path(PICTURES) / f"{name}-{width}-{looks}.png", full_page=True)
            if is_wider_than_its_window(page):
                yield f"is wider than {width}"
            if broken := page.evaluate(BROKEN_WORDS):
                yield f"breaks words in tables at {width}: {', '.join(broken)}"
            if width == max(WIDTHS) and page.evaluate("document.querySelector('header')?.offsetHeight ?? 0") > 60:
                yield f"has a header of two lines at {width}"
            if width == max(WIDTHS) and page.evaluate(IS_CUT):
                yield f"cuts something off in its header at {width}"
        yield from serious(page)


def add_row(site: Site) -> None:
    site.stage.half(txn_key("new"))
    site.onlooker.look()


def test_a_page_that_was_refused_says_so_and_shows_later_what_came_since(browser: Browser) -> None:
    """A proxy answers 502 while its console restarts."""
    site = busy_site()
    with visiting(browser, site) as visitor, visitor.page("/transactions?sort=id") as page:
        rows, lost = page.locator("#list tbody tr"), page.locator("#following [data-when=lost]")
        expect(rows).to_have_count(4)
        page.route("**/transactions?sort=id", lambda route: route.fulfill(status=502))
        expect(lost).to_be_visible()
        add_row(site)
        page.unroute_all()
        expect(rows).to_have_count(5)
        expect(lost).to_be_hidden()
    assert [] == visitor.complaints


def test_a_person_chooses_local_times_the_look_and_whether_a_page_moves(browser: Browser) -> None:
    site = busy_site()
    with visiting(browser, site) as visitor, visitor.page("/login") as page:
        page.clock.install()
        page.goto("/transactions?sort=id")
        with page.expect_request("**/transactions?sort=id"):
            page.clock.run_for(REFRESH_MS)
        page.click("#switch-updates")
        shown = page.locator("#truth time")
        utc = shown.inner_text()
        page.click("#switch-times")
        page.click("#switch-theme")

        local = shown.inner_text()
        assert utc.endswith("Z")
        assert local.endswith("+01:00")
        assert datetime.fromisoformat(utc) == datetime.fromisoformat(local)
        assert utc == shown.get_attribute("title")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        add_row(site)
        page.clock.run_for(10 * REFRESH_MS)
        page.evaluate("fetch('/static/icon.svg')")
        assert ["icon.svg"] == [url.rpartition("/")[2] for url in asked]
        rows = page.locator("#list tbody tr")
        page.click("#switch-updates")
        expect(rows).to_have_count(5)
        assert shown.inner_text().endswith("+01:00")
        # The choices hold for other pages, too.
        page.goto("/queues")
        assert "dark" == page.evaluate("getComputedStyle(document.documentElement).colorScheme")
        assert page.locator("#truth time").inner_text().endswith("+01:00")
    assert [] == visitor.complaints


@pytest.mark.parametrize("name", ["settle", "letters"])
def test_the_button_that_stops_a_request_goes_when_it_has_ended(browser: Browser, name: str) -> None:
    site, may_end = busy_site(), threading.Event()
    asked = SettlementRequest(GONE, OperatorAction.COMMIT, "alice", "ticket 12", 1, (txn_key("young"),))
    result = RequestState(asked) if name == "settle" else (Counter[DeadLetterResult](), "")

    def work(note: Note) -> Any:
        note("working", 0, 1, result)
        assert may_end.wait(60)
        return result

    job = f"settle {GONE}" if name == "settle" else "letters loyalty"
    path = f"/request?id={GONE}" if name == "settle" else f"/letters/request?group=loyalty&id={GONE}"
    site.console.jobs.start(job, work, subject=GONE)
    with visiting(browser, site) as visitor, visitor.page(path) as page:
        stop = page.get_by_role("button", name="Stop", exact=True)
        expect(stop).to_have_count(1)
        may_end.set()
        expect(page.locator("main")).to_contain_text("It ended")
        expect(stop).to_have_count(0)


def test_a_page_says_that_the_console_is_away_and_goes_on_with_the_next_one(browser: Browser) -> None:
    with ExitStack() as stack:
        with visiting(browser, busy_site()) as visitor:
            page = stack.enter_context(visitor.page("/transactions"))
            expect(page.locator("#list tbody tr")).to_have_count(4)
        lost = page.locator("#following [data-when=lost]")
        expect(lost).to_be_visible()
        with visiting(browser, busy_site(), port=int(visitor.address.rpartition(":")[2])):
            expect(lost).to_be_hidden()
            page.close()
