"""Queues and keys: leases, pauses and parked keys are shown as the logs have them, and people change them by records."""

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.console_letters import Group
from tests.support.console_site import ADDRESS, Site
from tests.support.waiting import wait_until
from txlayer.console.access import AccessRules, parse_proxy
from txlayer.console.people import Person, Role, User
from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayOutcome, ReplayRecord
from txlayer.core.leases import LockKind
from txlayer.core.progress import Attempts
from txlayer.operate import time_text
from txlayer.operate.replay import ask_queues

HOSTILE = '"><script>alert(1)</script>\x1b[31m'
WRITABLE = AccessRules(is_writable=True, local_name="zoe@desk")
PAUSE = {"group": "loyalty", "topic": "orders", "partition": "", "act": "pause", "reason": "the bank is closed"}


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(WRITABLE)
    with made.browser:
        yield made


def queues(site: Site, query: str = "") -> str:
    site.get("/queues")
    site.wait_for("queues")
    return site.get("/queues" + query)


def test_a_queue_is_shown_with_its_holder_its_token_and_since_when(site: Site) -> None:
    group = Group(site)
    for _ in range(3):
        group.lock(LockKind.RELEASE, token=0)
    token = group.lock()
    site.stage.world.advance(ms=10_000)
    group.lock(LockKind.RENEWAL, token=token)

    page = queues(site)

    assert "host-1/4711/0b7e" in page
    assert f'<td class="number">{token}</td>' in page
    assert '<a href="/queue?name=loyalty%2Forders%2F0"><span class="state state-held">held</span></a>' in page
    assert "expires in" in page
    assert "goes on" in page


def test_what_could_not_be_read_yet_is_not_said_to_be_being_read(site: Site) -> None:
    site.stage.kafka.deny(site.stage.topics.locks)

    page = queues(site)
    overview = site.get("/")

    assert "Not known now: " in page
    assert '<small id="seen" data-live>not known</small>' in page
    assert "leases not known" in overview


def test_what_a_holder_says_of_its_queue_is_shown_beside_it(site: Site) -> None:
    group = Group(site)
    token = group.lock()
    group.lock(LockKind.RENEWAL, token=token, reason=f"breaker open: {HOSTILE}")

    page = queues(site)
    of_queue = site.get("/queue?name=loyalty/orders/0")

    assert '<strong class="warning">breaker open: &#34;&gt;&lt;script&gt;' in page
    assert "<dt>its holder says</dt><dd>breaker open: " in of_queue
    assert "<script>alert" not in page + of_queue


def test_the_overview_counts_leases_pauses_and_parked_keys(site: Site) -> None:
    group = Group(site)
    at = group.letter(key=b"a")
    failing_s = site.stage.world.now_ms() // 1000 - 90
    group.store(parked={b"a": at}, paused=True, failing={0: Attempts(3, failing_s), 4: Attempts(5, failing_s + 60)})
    site.get("/")
    site.wait_for("queues")
    free = site.get("/")
    failing = site.get("/queues")
    site.stage.world.advance(ms=20_000)
    group.lock(LockKind.RENEWAL, token=group.lock(), reason="breaker open")
    site.get("/")
    site.wait_for("queues")
    held = site.get("/")

    assert ">0 of 1 held</a>" in free
    assert "1 paused" in free
    assert "1 parked key<" in free
    assert ">1 of 1 held</a>" in held
    assert "2 messages failing" in free
    assert re.search(
        r">2 failing</span> <small>up to 5 attempts ended, the first <span [^>]+>1 min 30 s</span> ago", failing
    )
    assert "txlayer_consumer_failed_attempts_per_second" in failing
    assert "breaker open in 1</strong>" in held
    assert "breaker open in" not in free


def test_the_time_of_a_claim_that_is_older_than_what_is_folded_is_looked_up(site: Site) -> None:
    group = Group(site)
    site.stage.world.advance(ms=1_000)
    token = group.lock()
    claimed = group.kafka.records(site.stage.topics.locks)[-1].timestamp()[1]
    for _ in range(60):
        site.stage.world.advance(ms=20_000)
        group.lock(LockKind.RENEWAL, token=token)

    page = queues(site)

    assert time_text(claimed) in page


def test_one_queue_shows_its_newest_records_and_what_they_changed(site: Site) -> None:
    group = Group(site)
    token = group.lock()
    group.lock(holder="host-2/1/1", generation=4)
    group.lock(LockKind.RENEWAL, token=token)

    page = site.get("/queue?name=loyalty/orders/0")

    assert "<td>claim</td><td>void</td><td>host-2/1/1</td>" in page
    assert "<td>renewal</td><td>renewed</td>" in page
    assert "does not name this queue" in site.get("/queue?name=loyalty/orders/1", status=404)
    assert "names no queue" in site.get("/queue?name=../../x", status=400)


def test_a_release_is_a_record_with_the_persons_name_and_the_page_shows_what_the_log_says(site: Site) -> None:
    group = Group(site)
    token = group.lock()

    shown = site.get("/queue?name=loyalty/orders/0")
    answer = site.post(shown, "/queues/release", queue="loyalty/orders/0", token=token, reason="host-1 burned down")

    assert (303, "/queue?name=loyalty%2Forders%2F0") == (answer.status_code, answer.headers["location"])
    after = site.get(answer.headers["location"])
    assert "<td>release</td><td>released</td>" in after
    assert "zoe@desk: host-1 burned down" in after
    assert "Release this lease" not in after


def test_a_lease_that_has_changed_meanwhile_is_not_released(site: Site) -> None:
    group = Group(site)
    token = group.lock()
    shown = site.get("/queue?name=loyalty/orders/0")
    group.lock(holder="host-2/1/1", generation=6)

    answer = site.post(shown, "/queues/release", queue="loyalty/orders/0", token=token, reason="gone")

    assert 400 == answer.status_code
    assert "the lease has changed meanwhile" in answer.text
    assert "host-2/1/1" in site.get("/queue?name=loyalty/orders/0")


def test_parked_keys_say_how_many_dead_letters_wait_behind_each(site: Site) -> None:
    group = Group(site)
    group.letter(key=b"a")
    group.letter(key=b"b")
    group.letter(key=b"a", reason=DeadLetterReason.KEY_PARKED, error=("", ""))
    handled = group.letter(key=b"a", reason=DeadLetterReason.KEY_PARKED, error=("", ""))
    group.say(ReplayRecord(ReplayKind.REPLAY, "r1", handled, text="zoe: x"))
    group.say(ReplayRecord(ReplayKind.RESULT, "r1", handled, ReplayOutcome.HANDLED))
    group.store(parked={b"a": handled, b"gone": 99}, stuck=(b"a",))

    page = queues(site)

    rows = [row for row in page.split("<tr>") if "/letters?group=loyalty" in row]
    assert 2 == len(rows)
    (stuck,) = [row for row in rows if "its replay failed" in row]
    assert '<td class="number">2</td>' in stuck
    (gone,) = [row for row in rows if "its replay failed" not in row]
    assert '<td class="number">0</td>' in gone


def test_a_pause_is_asked_for_and_shown_as_done_only_when_the_owner_stored_it(site: Site) -> None:
    group = Group(site)
    fields = {"group": "loyalty", "topic": "orders", "partition": "", "reason": "migration"}

    answer = site.post(queues(site), "/queues/pause", act="pause", **fields)

    assert (303, "/queues?group=loyalty&topic=orders") == (answer.status_code, answer.headers["location"])
    (record,) = group.said()
    assert (ReplayKind.PAUSE, "zoe@desk: migration") == (record.kind, record.text)
    asked = queues(site, "?group=loyalty&topic=orders")
    assert "goes on" in asked
    assert "pause asked" in asked
    group.store(paused=True)
    site.stage.world.advance(ms=20_000)
    taken = queues(site)
    assert '<strong class="warning">paused</strong>' in taken
    assert "not carried out yet" not in taken

    site.post(taken, "/queues/pause", act="resume", **fields)
    assert [ReplayKind.PAUSE, ReplayKind.RESUME] == [each.kind for each in group.said()]


@pytest.mark.parametrize(
    "fields",
    [
        {"act": "stop"},
        {"partition": "-1"},
        {"partition": "7"},
        {"reason": " "},
        {"reason": "x" * 1_001},
        {"group": "../x"},
        {"topic": "a/b"},
    ],
)
def test_a_form_that_makes_no_sense_changes_nothing(site: Site, fields: dict[str, str]) -> None:
    group = Group(site)
    good = {"group": "loyalty", "topic": "orders", "partition": "0", "act": "pause", "reason": "why"}

    answer = site.post(queues(site), "/queues/pause", **good | fields)

    assert 400 == answer.status_code, answer.text
    assert [] == group.said()


def test_a_change_without_an_answer_in_time_is_not_said_to_have_failed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, may_end = Group(site), threading.Event()
    page = queues(site)

    def wait_and_ask(*arguments: Any, **named: Any) -> None:
        assert may_end.wait(30)
        ask_queues(*arguments, **named)

    monkeypatch.setattr("txlayer.console.pages.queues.ask_queues", wait_and_ask)
    monkeypatch.setattr("txlayer.console.acting.DEADLINE_S", 0.05)

    answer = site.post(page, "/queues/pause", **PAUSE)
    may_end.set()

    assert 502 == answer.status_code
    assert "it may be in the log" in answer.text
    wait_until(lambda: len(group.said()) == 1, within=30, what="it was written after all")


def test_who_may_only_look_sees_no_forms_and_can_change_nothing() -> None:
    site = Site(AccessRules())
    with site.browser:
        group = Group(site)
        group.lock()
        shown = queues(site) + site.get("/queue?name=loyalty/orders/0")
        posted = site.browser.post("/queues/pause", data={}, headers={"Origin": "http://127.0.0.1:8480"})

        assert "Pause or resume" not in shown
        assert "Release this lease" not in shown
        assert 403 == posted.status_code


def test_what_others_wrote_is_text(site: Site) -> None:
    group = Group(site)
    token = group.lock(holder=HOSTILE, instance_id=HOSTILE)
    shown = queues(site), site.get("/queue?name=loyalty/orders/0")
    group.lock(LockKind.RELEASE, holder=HOSTILE, token=token, reason=HOSTILE)
    group.say(ReplayRecord(ReplayKind.PAUSE, "r1", None, text=HOSTILE))
    site.stage.world.advance(ms=20_000)

    for page in (*shown, queues(site), site.get("/queue?name=loyalty/orders/0")):
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert " style=" not in page


def test_a_group_that_cannot_be_read_does_not_hide_the_others(site: Site) -> None:
    Group(site).lock()
    for name in ("other.orders.dlq", "other.orders.replay"):
        site.stage.kafka.create_topic(name, partitions=1 if name.endswith("dlq") else 2)

    page = queues(site)

    assert "other orders is not known now" in page
    assert "host-1/4711/0b7e" in page


# --- a second person --------------------------------------------------------------------------------------------------


def test_with_a_second_person_nothing_is_done_before_another_one_confirms() -> None:
    rules = AccessRules(
        proxies=(parse_proxy("10.0.0.5"),),
        identity_header="X-Remote-User",
        is_writable=True,
        needs_second_person=True,
        users={name: User(Person(name, Role.SETTLE), None) for name in ("ada", "ben")},
    )
    site = Site(rules)
    group = Group(site)
    ada, ben = (
        TestClient(site.browser.app, base_url=ADDRESS, client=("10.0.0.5", 1), headers={"X-Remote-User": name})
        for name in ("ada", "ben")
    )
    fields = {"group": "loyalty", "topic": "orders", "partition": "", "act": "pause", "reason": HOSTILE}

    def post(browser: TestClient, page: str, action: str, **data: str) -> Any:
        site.browser = browser
        return site.post(browser.get(page).text, action, **data)

    with ada:
        ada.get("/queues")
        site.wait_for("queues")
        proposed = post(ada, "/queues", "/queues/pause", **fields)
        assert (303, "/waiting") == (proposed.status_code, proposed.headers["location"])
        (waiting,) = site.console.second_person.waiting(now_s=0)
        own = ada.get("/waiting").text
        assert "pause all partitions of orders for loyalty" in own
        assert "Confirm, and do it" not in own
        assert "<script>alert" not in own
        assert "1 action waits" in ada.get("/queues").text
        assert [] == group.said()

        site.stage.kafka.deny("loyalty.orders.replay")
        refused = post(ben, "/waiting", "/waiting/confirm", proposal=waiting.id)
        site.stage.kafka.deny("loyalty.orders.replay", is_denied=False)
        assert (403, []) == (refused.status_code, group.said())
        done = post(ben, "/waiting", "/waiting/confirm", proposal=waiting.id)
        again = ben.post("/waiting/confirm", data={"proposal": waiting.id}, headers={"Origin": ADDRESS})
        assert (303, 403) == (done.status_code, again.status_code)
        (record,) = group.said()
        assert record.text.startswith("ada with ben: ")

        post(ada, "/queues", "/queues/pause", **fields)
        (waiting,) = site.console.second_person.waiting(now_s=0)
        post(ben, "/waiting", "/waiting/withdraw", proposal=waiting.id)
        assert "Nothing waits" in ben.get("/waiting").text
        assert 1 == len(group.said())
