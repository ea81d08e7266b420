"""Dead letters: grouped by what went wrong, shown in full when asked for, replayed and dropped by a request that can be stopped and found again."""

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.support.console_letters import Group
from tests.support.console_site import Site
from tests.support.still_coordinator import appear
from tests.support.waiting import wait_until
from txlayer.console.access import AccessRules
from txlayer.core.dead_letters import (
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    dead_letter_of,
    encode_replay,
)
from txlayer.core.progress import hash_of_key
from txlayer.errors import UsageError
from txlayer.operate.dead_letters import DeadLetterLog, FoundLetter, opened_logs
from txlayer.operate.replay import Author, LettersBeside, replace_value, why_not

HOSTILE = '"><script>alert(1)</script>\x1b[31m'
WRITABLE = AccessRules(is_writable=True, local_name="zoe@desk")
HANDLED, FAILED = ReplayOutcome.HANDLED, ReplayOutcome.FAILED


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site(WRITABLE)
    world = made.stage.world
    made.console.environment = replace(
        made.console.environment, sleep=lambda seconds: world.advance(ms=round(seconds * 1000))
    )
    with made.browser:
        yield made


def everything(site: Site) -> str:
    site.get("/letters")
    site.wait_for("letters")
    return site.get("/letters")


def plan(site: Site, act: str = "replay", view: str = "group=loyalty", **more: Any) -> str:
    return site.get("/letters/plan?" + urlencode({"view": view, "act": act, **more}, doseq=True))


def hidden(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None, page
    return found[1].replace("&amp;", "&")


def begin(site: Site, page: str, **changed: str) -> Any:
    """Do what a plan shows."""
    fields = {name: hidden(page, name) for name in ("act", "view", "letters", "count", "last", "request")}
    fields |= {"reason": "ticket 12", "rate": "1000", "failures": "0", "confirm": fields["count"]}
    return site.post(page, "/letters/start", **fields | changed)


def run(site: Site, group: Group, page: str, judge: Callable[[int], ReplayOutcome], **changed: str) -> str:
    """Do what a plan shows, while the owner answers; the page of the request afterwards."""
    answer = begin(site, page, **changed)
    assert 303 == answer.status_code, answer.text

    def has_ended() -> bool:
        group.answer(judge)
        job = site.console.jobs.newest("letters loyalty")
        return job is not None and not job.is_running

    wait_until(has_ended, within=30, what="the end of the request")
    return site.get(answer.headers["location"])


# --- looking ----------------------------------------------------------------------------------------------------------


def test_dead_letters_are_grouped_by_group_topic_error_and_first_line(site: Site) -> None:
    group = Group(site)
    for _ in range(2):
        group.letter()
    group.letter(error=("KeyError", "'total'"))
    done = group.letter(error=("ValueError", "no such customer"))
    group.say(ReplayRecord(ReplayKind.REPLAY, "r1", done, text="zoe: x"))
    group.say(ReplayRecord(ReplayKind.RESULT, "r1", done, HANDLED))

    page = everything(site)

    rows = [row for row in page.split("<tr>") if "/letters?group=loyalty" in row]
    assert 2 == len(rows)
    assert "ValueError" in rows[0]
    assert "no such customer" in rows[0]
    assert "second line" not in rows[0]
    assert ">2</a>" in rows[0]
    assert "handled</span> 1" in rows[0]
    assert "KeyError" in rows[1]


def test_a_view_of_one_class_has_an_address_and_its_dead_letters(site: Site) -> None:
    group = Group(site)
    first, other = group.letter(), group.letter(error=("KeyError", "'total'"), key=b"b")

    page = site.get("/letters?group=loyalty&error=ValueError&line=no+such+customer&state=open,failed")
    by_key = site.get(f"/letters?group=loyalty&partition=0&hash={hash_of_key(b'b').hex()}")

    assert f">orders/0:{first}</a>" in page
    assert f">orders/0:{other}</a>" not in page
    assert f">orders/0:{other}</a>" in by_key
    assert f">orders/0:{first}</a>" not in by_key


@pytest.mark.parametrize(
    "query",
    ["state=what", "reason=what", "partition=x", "hash=x", "since=x", "group=" + "x" * 1_001, "group=a/b&topic=../x"],
)
def test_what_makes_no_sense_is_said(site: Site, query: str) -> None:
    assert "cannot be shown" in site.get("/letters?group=loyalty&" + query, status=400)


def test_content_is_hidden_until_it_is_asked_for_and_that_is_logged(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group(site)
    at = group.letter(value=b"secret order", key=b"secret key", headers=(("tags", b"secret tag"),))

    page = site.get(f"/letter?group=loyalty&at=orders/0:{at}")
    assert "secret" not in page
    assert "second line" in page
    with caplog.at_level(logging.INFO, "txlayer.console"):
        shown = site.post(page, "/letter/values", view=hidden(page, "view")).text

    for content in ("secret order", "secret key", "secret tag"):
        assert content in shown
    (record,) = [each for each in caplog.records if each.getMessage() == "console.values_shown"]
    assert ("zoe@desk", [f"loyalty orders/0:{at}"]) == (record.person, record.dead_letters)  # type: ignore[attr-defined]  # an extra of the log line


def test_a_dead_letter_that_there_is_none_of_is_said(site: Site) -> None:
    Group(site)

    assert "There is no record" in site.get("/letter?group=loyalty&at=orders/0:7", status=404)
    assert "names no dead letter" in site.get("/letter?group=loyalty&at=../../x", status=400)


@pytest.mark.threat("write `<group>.<topic>.dlq`")
def test_a_record_that_is_no_dead_letter_has_a_page_that_says_so(site: Site) -> None:
    group = Group(site)
    at = site.stage.kafka.append(group.dead_letters, b"not ours", key=HOSTILE.encode(), headers=[("txl-dlq", b"x")])

    page = site.get(f"/letter?group=loyalty&at=orders/0:{at}")
    shown = site.post(page, "/letter/values", view=f"group=loyalty&at=orders/0:{at}")

    assert "no dead letter of the group" in page
    assert (200, True) == (shown.status_code, "not ours" in shown.text)
    assert HOSTILE not in shown.text


def test_what_others_wrote_is_text_and_a_huge_value_is_cut(site: Site) -> None:
    group = Group(site)
    at = group.letter(
        key=HOSTILE.encode(),
        value=HOSTILE.encode() + b"x" * 800_000,
        error=(HOSTILE, HOSTILE),
        headers=((HOSTILE, HOSTILE.encode()),),
    )
    group.say(ReplayRecord(ReplayKind.REPLAY, "r1", at, text=f"{HOSTILE}: {HOSTILE}"))
    group.say(ReplayRecord(ReplayKind.RESULT, "r1", at, FAILED, HOSTILE))
    one = site.get(f"/letter?group=loyalty&at=orders/0:{at}")
    pages = [
        everything(site),
        site.get("/letters?group=loyalty"),
        site.browser.get("/letters", params={"group": "loyalty", "error": HOSTILE, "line": HOSTILE}).text,
        site.browser.get("/letters", params={"group": HOSTILE}).text,
        site.get("/letters?group=loyalty&request=" + "a" * 64),
        one,
        site.post(one, "/letter/values", view=hidden(one, "view")).text,
        plan(site, view=urlencode({"group": "loyalty", "error": HOSTILE})),
        site.get("/letters/request?group=loyalty&id=r1"),
    ]

    for page in pages:
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert 1 == page.count("<script")
        assert " style=" not in page
        assert len(page) < 100_000


# --- replay and drop --------------------------------------------------------------------------------------------------


def test_a_plan_says_what_would_be_asked_for_and_writes_nothing(site: Site) -> None:
    group = Group(site)
    first = group.letter(key=b"a")
    follower = group.letter(key=b"a", reason=DeadLetterReason.KEY_PARKED, error=("", ""))
    group.letter(key=b"b")
    group.store(parked={b"a": follower})

    page = plan(site, letter=[f"orders/0:{first}"])

    assert "<strong>2</strong> would be asked for" in page
    assert "1 of these belong to parked keys" in page
    assert "type 2 to confirm" in page
    assert "<strong>3</strong> would be asked for" in plan(site)
    assert "is the last" not in page
    assert [] == group.said()


@pytest.mark.parametrize("ahead_s", [7_200, -7_200])
def test_what_was_given_up_since_is_told_by_the_brokers_time(site: Site, ahead_s: int) -> None:
    group = Group(site)
    old = group.letter()
    site.stage.world.advance(ms=5 * 1_800_000)
    young = group.letter()
    site.stage.world.advance(ms=120_000)
    site.go_ahead(ahead_s)
    appear(site.stage)

    for page in (site.get("/letters?group=loyalty&since=1h"), plan(site, "drop", "group=loyalty&since=1h")):
        assert f">orders/0:{young}</a>" in page
        assert f">orders/0:{old}</a>" not in page


def test_a_parked_key_is_replayed_whole_and_in_order(site: Site) -> None:
    group = Group(site)
    ats = [group.letter(key=b"a") for _ in range(3)]
    group.store(parked={b"a": ats[-1]})
    view = urlencode({"group": "loyalty", "topic": "orders", "hash": hash_of_key(b"a").hex()})

    page = run(site, group, plan(site, view=view), lambda _at: HANDLED)

    assert [("R", at) for at in ats] == group.requests()
    assert {"zoe@desk: ticket 12"} == {each.text for each in group.said() if each.kind is ReplayKind.REPLAY}
    assert "handled 3" in page
    assert "<dt>replay, handled</dt><dd>3</dd>" in page


def test_a_replay_stops_by_itself_when_new_failures_come(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.operate.replay.STEP_COUNT", 2)
    group = Group(site)
    ats = [group.letter(key=b"%d" % number) for number in range(9)]

    page = run(site, group, plan(site), lambda at: FAILED if at >= ats[3] else HANDLED)

    assert 4 == len(group.requests())
    assert "1 failed again" in page
    assert "left 5" in page
    assert "failed 1" in page
    assert "<dt>replay, failed</dt><dd>1</dd>" in page


def test_a_request_goes_on_with_what_is_left_and_asks_for_nothing_twice(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.operate.replay.STEP_COUNT", 2)
    group = Group(site)
    ats = [group.letter(key=b"%d" % number) for number in range(6)]
    first = plan(site)
    name = hidden(first, "request")
    run(site, group, first, lambda at: FAILED if at == ats[1] else HANDLED)
    assert 2 == len(group.requests())

    again = plan(site, request=name)
    page = run(site, group, again, lambda _at: HANDLED, failures="3")

    assert name == hidden(again, "request")
    assert "were asked for by this request before" in again
    assert [("R", at) for at in ats] == group.requests()
    assert "<dt>replay, handled</dt><dd>5</dd>" in page


def test_a_request_asks_for_nothing_that_another_person_asked_for_since_its_first_step(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.operate.replay.STEP_COUNT", 2)
    group = Group(site)
    ats = [group.letter(key=b"%d" % number) for number in range(6)]

    def judge(at: int) -> ReplayOutcome:
        if at == ats[0]:
            group.say(ReplayRecord(ReplayKind.DROP, "r1", ats[3], text="kim: x"))
            group.say(ReplayRecord(ReplayKind.RESULT, "r1", ats[3], ReplayOutcome.DROPPED))
        return HANDLED

    page = run(site, group, plan(site), judge)

    assert [ats[0], ats[1], ats[2], ats[4], ats[5]] == [at for kind, at in group.requests() if kind == "R"]
    assert "already 1" in page


def test_a_request_is_found_again_by_a_console_that_did_not_begin_it(site: Site) -> None:
    group = Group(site)
    at = group.letter()
    group.say(ReplayRecord(ReplayKind.DROP, "r1", at, text="amy@desk: a test"))

    page = site.get("/letters/request?group=loyalty&id=r1")

    assert "This console does not work on it" in page
    assert "amy@desk" in page
    assert "1 have no answer yet" in page
    assert "request=r1" in page
    assert "no record of this request" in site.get("/letters/request?group=loyalty&id=r2", status=404)


def test_a_person_stops_a_request(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.operate.replay.STEP_COUNT", 2)
    group = Group(site)
    for number in range(6):
        group.letter(key=b"%d" % number)
    form = plan(site)
    answer = begin(site, form)
    wait_until(lambda: 2 == len(group.requests()), within=10, what="the first step")
    sent_again = begin(site, form)
    assert (303, answer.headers["location"]) == (sent_again.status_code, sent_again.headers.get("location"))
    shown = site.get(answer.headers["location"])
    assert "Being worked off" in shown
    second = begin(site, plan(site))
    assert 503 == second.status_code
    assert "another request" in second.text

    name = parse_qs(urlsplit(answer.headers["location"]).query)["id"][0]
    site.post(shown, "/letters/stop", group="loyalty", request=name)
    site.wait_for("letters loyalty")

    page = site.get(answer.headers["location"])
    assert "stopped: a person stopped it" in page
    assert "left 4" in page
    assert 2 == len(group.requests())


def test_without_an_answer_a_request_stops(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.operate.replay.STEP_COUNT", 2)
    monkeypatch.setattr("txlayer.console.pages.letters.PATIENCE_S", 0.05)
    group = Group(site)
    for number in range(3):
        group.letter(key=b"%d" % number)

    begin(site, plan(site))
    site.wait_for("letters loyalty")

    assert 2 == len(group.requests())
    job = site.console.jobs.newest("letters loyalty")
    assert job is not None
    assert "no consumer of the group answered" in job.result[1]


def test_a_drop_is_recorded_with_the_persons_name(site: Site) -> None:
    group = Group(site)
    at = group.letter()

    page = run(site, group, plan(site, "drop"), lambda _at: HANDLED)

    assert [("D", at)] == group.requests()
    assert "<dt>drop, dropped</dt><dd>1</dd>" in page
    assert "zoe@desk: ticket 12" == group.said()[0].text


def test_what_came_since_the_plan_is_not_asked_for_unseen(site: Site) -> None:
    group = Group(site)
    for _ in range(2):
        group.letter()
    page = plan(site)
    group.letter()

    begin(site, page)
    site.wait_for("letters loyalty")

    assert [] == group.said()
    job = site.console.jobs.newest("letters loyalty")
    assert job is not None
    assert "3 dead letters are meant by now, and 2 were confirmed" in job.problem


def test_what_came_since_the_plan_takes_no_place_of_what_was_handled_meanwhile(site: Site) -> None:
    group = Group(site)
    for _ in range(2):
        at = group.letter()
    page = plan(site, "drop")
    group.say(ReplayRecord(ReplayKind.DROP, "r1", at, text="amy: a test"))
    group.say(ReplayRecord(ReplayKind.RESULT, "r1", at, ReplayOutcome.DROPPED))
    group.letter()

    begin(site, page)
    site.wait_for("letters loyalty")

    assert 2 == len(group.said())
    job = site.console.jobs.newest("letters loyalty")
    assert job is not None
    assert "1 came since: look again" in job.problem


@pytest.mark.parametrize(
    "changed",
    [
        {"confirm": "1"},
        {"reason": " "},
        {"rate": "0"},
        {"rate": "1e9"},
        {"failures": "-1"},
        {"act": "what"},
        {"view": "group="},
        {"request": "a b"},
        {"letters": "x"},
    ],
)
def test_a_form_that_makes_no_sense_asks_for_nothing(site: Site, changed: dict[str, str]) -> None:
    group = Group(site)
    for _ in range(2):
        group.letter()

    answer = begin(site, plan(site), **changed)

    assert 400 == answer.status_code, answer.text
    assert [] == group.said()


def test_who_may_only_look_plans_and_cannot_begin() -> None:
    site = Site()
    with site.browser:
        Group(site).letter()
        page = plan(site)

        assert "<strong>1</strong> would be asked for" in page
        assert "/letters/start" not in page
        answer = site.browser.post("/letters/start", headers={"Origin": "http://127.0.0.1:8480"})
        assert 403 == answer.status_code


# --- an edit before the replay ----------------------------------------------------------------------------------------


def editor(site: Site, at: int) -> str:
    page = site.get(f"/letter?group=loyalty&at=orders/0:{at}")
    answer = site.post(page, "/letter/values", view=hidden(page, "view"))
    assert 200 == answer.status_code
    return str(answer.text)


def edit(site: Site, page: str, value: str, **changed: str) -> Any:
    fields = {name: hidden(page, name) for name in ("view", "format", "request")}
    return site.post(page, "/letter/edit", **fields | {"value": value, "reason": "ticket 12: no total"} | changed)


def test_an_edited_copy_takes_the_place_of_a_dead_letter(site: Site) -> None:
    group = Group(site)
    at = group.letter(key=b"a", value=b"line 1\nline 2", headers=(("tags", b"t"),), origin=77)
    group.store(parked={b"a": at}, stuck=(b"a",))
    page = editor(site, at)
    assert "<textarea" in page
    assert "line 1\nline 2</textarea>" in page

    answer = edit(site, page, "line 1\r\nline 3")
    again = edit(site, page, "line 1\r\nline 3")

    assert [303, 303] == [answer.status_code, again.status_code]
    first, copy = group.kafka.records(group.dead_letters)
    assert (b"a", b"line 1\nline 3") == (copy.key(), copy.value())
    assert ("tags", b"t") == next(iter(copy.headers() or ()))
    letter, made = dead_letter_of(first.headers()), dead_letter_of(copy.headers())
    assert isinstance(letter, DeadLetter)
    assert isinstance(made, DeadLetter)
    assert (letter.origin, "edited") == (made.origin, made.error_type)
    assert f"copy of offset {at}: zoe@desk: ticket 12: no total" in made.error_message
    assert [("D", at), ("R", copy.offset())] == group.requests()
    assert 1 == len({each.request_id for each in group.said()})
    assert "zoe@desk" in site.get(answer.headers["location"])


def test_an_edit_that_was_killed_half_way_leaves_nothing_and_is_done_again(site: Site) -> None:
    group = Group(site)
    at = group.letter(key=b"a")
    page = editor(site, at)
    killed = group.open_transaction("loyalty:requests")
    group.letter(key=b"a", value=b"new", error=("edited", "request"), hidden_by=killed)

    assert 303 == edit(site, page, "new").status_code

    first, copy = group.kafka.records(group.dead_letters)
    assert (at, b"new") == (first.offset(), copy.value())
    assert [("D", at), ("R", copy.offset())] == group.requests()


def test_an_edit_is_seen_as_a_whole_or_not_at_all(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(site)
    at = group.letter(key=b"a")
    page = editor(site, at)

    def die(*_: Any) -> bytes:
        raise RuntimeError("killed")

    monkeypatch.setattr("txlayer.operate.replay.encode_replay", die)
    assert 500 == edit(site, page, "new").status_code

    assert [at] == [record.offset() for record in group.kafka.records(group.dead_letters)]
    assert [] == group.said()


@pytest.mark.promise("P9")
def test_no_copy_comes_behind_a_message_of_its_parked_key_that_an_open_kafka_transaction_hides(site: Site) -> None:
    group = Group(site)
    at = group.letter(key=b"a")
    group.store(parked={b"a": at})
    page = editor(site, at)
    consumer = group.open_transaction("loyalty:owner")
    group.letter(key=b"a", reason=DeadLetterReason.KEY_PARKED, error=("", ""), hidden_by=consumer)

    assert 503 == edit(site, page, "new").status_code
    consumer.commit(timeout_s=1.0)
    answer = edit(site, page, "new")

    assert 400 == answer.status_code
    assert "would lose its order" in answer.text
    assert [] == group.said()
    assert 2 == len(group.kafka.records(group.dead_letters))


def test_a_copy_that_would_change_the_order_of_a_parked_key_is_refused(site: Site) -> None:
    group = Group(site)
    at = group.letter(key=b"a")
    page = editor(site, at)
    last = group.letter(key=b"a", reason=DeadLetterReason.KEY_PARKED, error=("", ""))
    group.store(parked={b"a": last})

    answer = edit(site, page, "new")

    assert 400 == answer.status_code
    assert "would lose its order" in answer.text
    assert "It cannot be edited" in editor(site, at)
    assert [] == group.said()
    assert 2 == len(group.kafka.records(group.dead_letters))


def test_of_two_edits_at_a_time_one_is_carried_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    group, clients, environment = Group(site), site.console.clients, site.console.environment
    at = group.letter(key=b"a")
    looks: list[int] = []
    copies: list[int] = []

    def replace_it(request_id: str) -> int:
        with opened_logs(clients, group.name, [group.topic]) as logs:
            log = logs[group.topic]
            found = log.at(0, at)
            assert found is not None
            author = Author("kim: x", request_id)
            return replace_value(log, found, b"new", author=author, connections=clients, environment=environment)

    def look(log: DeadLetterLog, found: FoundLetter, *beside: LettersBeside) -> str:
        looks.append(at)
        if len(looks) == 2:  # the first one has written its copy
            copies.append(replace_it("r2"))
        return why_not(log, found, *beside)

    monkeypatch.setattr("txlayer.operate.replay.why_not", look)

    with pytest.raises(UsageError, match="requested"):
        replace_it("r1")

    assert copies == [replace_it("r2")]
    assert [("D", at), ("R", *copies)] == group.requests()


@pytest.mark.parametrize("is_asked", [False, True])
def test_what_followed_its_key_or_was_asked_meanwhile_ends_the_edit(
    site: Site, monkeypatch: pytest.MonkeyPatch, *, is_asked: bool
) -> None:
    group = Group(site)
    at = group.letter(key=b"a")
    group.store(parked={b"a": at})
    page = editor(site, at)
    looks: list[int] = []

    def look(log: DeadLetterLog, found: FoundLetter, *beside: LettersBeside) -> str:
        reason = why_not(log, found, *beside)
        if not looks and is_asked:
            group.say(ReplayRecord(ReplayKind.REPLAY, "r1", at, text="kim: x"))
        elif not looks:
            group.letter(key=b"a", reason=DeadLetterReason.KEY_PARKED, error=("", ""))
        looks.append(at)
        return reason

    monkeypatch.setattr("txlayer.operate.replay.why_not", look)

    answer = edit(site, page, "new")

    assert 400 == answer.status_code
    assert ("it is requested" if is_asked else "would lose its order") in answer.text
    assert [("R", at)] * is_asked == group.requests()
    assert 1 + (not is_asked) == len(group.kafka.records(group.dead_letters))


@pytest.mark.promise("P9")
@pytest.mark.parametrize("kind", [ReplayKind.DROP, ReplayKind.REPLAY])
def test_what_is_asked_for_in_the_same_instant_ends_the_edit(
    site: Site, monkeypatch: pytest.MonkeyPatch, kind: ReplayKind
) -> None:
    """After the last look, before the edit's own requests: a drop that comes before them would release the key."""
    group = Group(site)
    at = group.letter(key=b"a")
    group.store(parked={b"a": at})
    page = editor(site, at)

    def write(record: ReplayRecord) -> bytes:
        if record.replaced_by is not None:
            group.say(ReplayRecord(kind, "r1", at, text="kim: x"))
        return encode_replay(record)

    monkeypatch.setattr("txlayer.operate.replay.encode_replay", write)

    answer = edit(site, page, "new")

    assert 400 == answer.status_code
    assert "it is requested" in answer.text
    assert [(kind.value, at)] == group.requests()
    assert 1 == len(group.kafka.records(group.dead_letters))


@pytest.mark.parametrize("value", [b"\xff\x00", b"a\r\nb", b"\x1b[2J", None])
def test_a_value_that_a_browser_would_change_is_edited_as_base64(site: Site, value: bytes | None) -> None:
    group = Group(site)
    page = editor(site, group.letter(value=value))
    form = hidden(page, "format")
    shown = page.partition("<textarea")[2].partition(">\n")[2].partition("</textarea>")[0]

    answer = edit(site, page, shown)

    assert ("text" if value is None else "base64") == form
    assert 303 == answer.status_code
    assert (value or b"") == group.kafka.records(group.dead_letters)[-1].value()


def test_what_cannot_be_edited_is_said(site: Site) -> None:
    group = Group(site)
    large, done = group.letter(value=b"x" * 300_000), group.letter(key=b"b")
    page = editor(site, group.letter(key=b"c"))
    group.say(ReplayRecord(ReplayKind.DROP, "r1", done, text="zoe: x"))

    assert "too large to be edited" in editor(site, large)
    assert "It cannot be edited: it is requested" in editor(site, done)
    for changed in ({"format": "base64", "value": "x"}, {"reason": " "}, {"request": "a b"}, {"value": "x" * 300_000}):
        assert 400 == edit(site, page, **{"value": "new"} | changed).status_code
    assert 3 == len(group.kafka.records(group.dead_letters))
