"""The pages show what the topics hold, on a cluster in memory; what others wrote is text in them and nothing else."""

import asyncio
import html
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests.support.console_letters import Group
from tests.support.console_site import Site
from tests.support.core_records import half_header, op_line, options, ordering_key, txn_key
from tests.support.waiting import wait_until
from txlayer.adapters.ports import StoredOffset
from txlayer.console import show
from txlayer.console.access import AccessRules
from txlayer.console.acting import LONG_COUNT_MAX, THREAD_COUNT, Desk, Jobs
from txlayer.core.codec import HALF_HEADER, encode_op
from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayOutcome, ReplayRecord
from txlayer.core.leases import LockKind
from txlayer.core.messages import HalfOptions, OpMessage, Resolution, Source, txn_id_of
from txlayer.errors import BrokerUnavailableError, RetriableError
from txlayer.operate import time_text
from txlayer.operate.dead_letters import consumed_pairs
from txlayer.operate.live import Minute
from txlayer.operate.unsettled import Filter, Overview

HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    with made.browser:
        yield made


def test_the_overview_says_in_one_line_whether_it_is_well(site: Site) -> None:
    assert "the logs are being read" in site.get("/")
    site.stage.half(txn_key("a"))
    site.onlooker.look()
    site.stage.world.advance(ms=60_000)
    site.onlooker.look()

    page = site.get("/")

    assert 'class="headline error"' in page
    assert "no coordinator runs" in page
    assert "no responder" in page
    assert '<a href="/transactions?group=shop">shop</a>' in page


def test_the_first_lines_say_what_keeps_consumers_from_their_messages(site: Site) -> None:
    group, stage = Group(site), site.stage
    stage.kafka.append("orders", b"v")
    group.store(parked={b"a": group.letter(key=b"a")}, paused=True)
    group.lock(LockKind.RENEWAL, token=group.lock(), reason="breaker open")
    site.onlooker.look()
    site.get("/")
    for name in ("consumers", "queues"):
        site.wait_for(name)

    page = site.get("/")

    said = re.findall(r'<span class="level">warning</span> ([^<]*)<', page)
    assert [
        "no consumer runs, and at most 1 message not finished: loyalty",
        "breaker open in 1 queue: loyalty",
        "1 queue paused: loyalty",
        "1 parked key: loyalty",
    ] == said


def test_the_age_of_the_oldest_in_doubt_is_none_of_a_scheduled_one(site: Site) -> None:
    stage = site.stage
    later = txn_key("later")
    due_ms = stage.world.now_ms() + 90 * 86_400_000
    stage.commit(later, stage.half(later, options=HalfOptions(deliver_at_ms=due_ms)))
    stage.work(seconds=5)
    stage.world.advance(ms=86_400_000)
    stage.half(txn_key("young"), group="till")
    site.onlooker.look()
    page = site.get("/")

    assert re.search(r"2 transactions not settled, 1 of them scheduled, the oldest \d+ (ms|s) old", page)
    assert re.search(r'>shop</a></th>.*?scheduled</span> 1</a> </td>\s*<td class="number"></td>', page, re.DOTALL)


def test_the_list_shows_what_is_not_settled_and_each_view_has_an_address(site: Site) -> None:
    held, young = txn_key("held"), txn_key("young")
    site.stage.commit(held, site.stage.half(held, topic="missing"))
    site.stage.work(seconds=5)
    site.stage.half(young)
    site.onlooker.look()

    everything = site.get("/transactions")
    only = site.get("/transactions?state=held&sort=-age&reason=topic-missing")

    assert held.partition("/")[0] in everything
    assert young.partition("/")[0] in everything
    assert held.partition("/")[0] in only
    assert young.partition("/")[0] not in only
    assert 'href="?state=held&amp;reason=topic-missing&amp;sort=age"' in only


def test_a_list_of_more_than_a_page_has_a_next_one(site: Site) -> None:
    for number in range(120):
        site.stage.half(txn_key(f"t{number:03d}"))
    site.onlooker.look()

    first = site.get("/transactions?sort=id")
    (link,) = [
        part.partition('"')[0] for part in first.split('<a href="')[1:] if 'rel="next"' in part.partition(">")[0]
    ]
    second = site.get("/transactions" + html.unescape(link))

    assert 100 == first.count('<th scope="row">')
    assert 20 == second.count('<th scope="row">')


def test_each_page_links_to_the_report_of_spark_if_its_address_is_named(site: Site) -> None:
    address = "https://proofs.example.org/txlayer-report.html"
    named = Site(report_address=address)

    assert [True, True] == [f'href="{address}"' in named.get(page) for page in ("/", "/transactions")]
    assert ">Report</a>" not in site.get("/")


@pytest.mark.parametrize(
    "address",
    [
        "/transactions?state=what",
        "/transactions?reason=what",
        "/transactions?sort=what",
        "/transactions?after=what",
        "/transactions?older=what",
        "/transactions?group=" + 2_001 * "x",
        "/transaction",
        "/transaction?id=a/b",
        "/transaction?id=%0a",
        "/transaction?id=" + 200 * "x",
        "/transaction?id=x&since=what",
    ],
)
def test_what_makes_no_sense_is_said(site: Site, address: str) -> None:
    assert 'role="alert"' in site.get(address, status=400)


def test_a_page_that_there_is_none_of_is_said(site: Site) -> None:
    assert "There is no such page" in site.get("/what", status=404)
    assert 405 == site.browser.get("/transaction/values").status_code


def test_one_transaction_is_shown_from_its_half_record_to_its_end(site: Site) -> None:
    key = txn_key("order-1")
    at = site.stage.half(key, value=b"secret-value")
    site.stage.op(op_line("U", key, at))
    site.stage.world.advance(ms=2_000)
    site.stage.op(op_line("C", key, at, source=Source.OPERATOR, reason="zoe: she asked"))
    site.stage.work(seconds=3)
    site.stage.op(op_line("R", key, at))
    site.onlooker.look()

    page = site.get("/transaction?id=" + key.partition("/")[0])

    for said in ("message 1 of 1 stored, for orders", "unknown by producer", "commit by operator", "operator zoe"):
        assert said in page
    assert "reason: she asked; decides" in page
    assert page.index("stored, for orders") < page.index("unknown by") < page.index("commit by")
    assert "secret-value" not in page
    assert "12 bytes" in page
    by_position = site.get(f"/transaction?id=0:{at}")
    assert "commit by operator" in by_position


@pytest.mark.parametrize(
    ("first", "late", "says"),
    [
        ("R", "C", "commit by producer</strong>{} refused: the rollback came first"),
        ("C", "R", "rollback by producer</strong>{} refused: the commit came first"),
    ],
)
def test_a_resolution_that_contradicts_the_decision_is_said_to_be_refused(
    site: Site, first: str, late: str, says: str
) -> None:
    key = txn_key("a")
    at = site.stage.half(key)
    site.stage.op(op_line(first, key, at))
    site.stage.work(seconds=2)
    site.stage.op(op_line(late, key, at))
    site.stage.op(op_line(first, key, at))
    site.stage.work(seconds=2)

    page = site.get(f"/transaction?id={txn_id_of(key)}")

    said = re.sub(r' <span class="place">[^<]*</span> <span class="detail">', "{} ", page)
    assert 1 == said.count(says)
    assert 1 == said.count("came first")


def said_of(page: str) -> list[tuple[str, str]]:
    """(what, detail) of each op line of a timeline."""
    rows = re.findall(
        r'<strong>([^<]*)</strong> <span class="place">op [^<]*</span>(?: <span class="detail">([^<]*)<)?', page
    )
    return [(html.unescape(what), html.unescape(detail)) for what, detail in rows]


def test_an_abandon_after_a_commit_says_what_it_gives_up(site: Site) -> None:
    key = txn_key("a")
    site.stage.commit(key, site.stage.half(key, count=2))
    at = site.stage.half(key, index=1, count=2)
    site.stage.op(op_line("A", key, at, source=Source.OPERATOR, reason="zoe: she asked"))
    address = f"/transaction?id={txn_id_of(key)}"

    before = said_of(site.get(address))
    site.stage.work(seconds=2)
    after = said_of(site.get(address))

    given_up = "operator zoe; reason: she asked; gives up what was committed and not forwarded"
    assert [("commit by producer", "decides"), ("abandon by operator", given_up)] == after
    assert [*after[:1], ("abandon by operator", f"{given_up}; no coordinator has carried it out")] == before


def test_a_line_with_a_time_is_no_resolution(site: Site) -> None:
    key, due_ms = txn_key("a"), site.stage.world.now_ms() + 60_000
    at = site.stage.half(key, options=HalfOptions(deliver_at_ms=due_ms))
    site.stage.commit(key, at)
    moved = OpMessage(Resolution.UNKNOWN, key, "shop", at, 5, Source.OPERATOR, reason="zoe: later", time_ms=due_ms + 1)
    site.stage.op(encode_op(moved))
    site.stage.work(seconds=70)

    said = said_of(site.get(f"/transaction?id={txn_id_of(key)}"))

    assert ["commit by producer", "another time by operator", "release by policy"] == [what for what, _ in said]
    assert all(f"time: {time_text(due_ms + 1)}" in detail for _, detail in said[1:])


def test_of_a_scheduled_one_what_is_visible_is_shown_also_if_the_rest_is_cancelled(site: Site) -> None:
    key, due_ms = txn_key("a"), site.stage.world.now_ms() + 60_000
    site.stage.half(key, count=2)
    at = site.stage.half(key, index=1, count=2, options=HalfOptions(deliver_at_ms=due_ms))
    site.stage.commit(key, at)
    site.stage.work(seconds=2)
    scheduled = site.get(f"/transaction?id={txn_id_of(key)}")
    site.stage.op(op_line("A", key, at, source=Source.OPERATOR, reason="zoe: paid"))
    site.stage.work(seconds=2)
    cancelled = site.get(f"/transaction?id={txn_id_of(key)}")

    assert [1, 1] == [page.count("forwarded to orders") for page in (scheduled, cancelled)]


@pytest.mark.threat("write `<ns>.op`")
def test_of_very_many_lines_about_one_transaction_a_page_shows_the_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.console.pages.transactions.EVENTS_SHOWN_MAX", 5)
    key = txn_key("a")
    at = site.stage.half(key)
    site.stage.op(*(op_line("U", key, at) for _ in range(20)))

    page = site.get(f"/transaction?id={txn_id_of(key)}")

    assert "message 1 of 1 stored" in page
    assert 4 == page.count("unknown by producer")
    assert "16 later events are not shown" in page


@pytest.mark.threat("write `<ns>.half`")
def test_of_very_many_attempts_of_one_id_a_page_shows_those_that_are_not_settled_and_the_newest(site: Site) -> None:
    keys = [txn_key("a", nonce=f"{number:08x}") for number in range(30)]
    for key in keys:
        at = site.stage.half(key)
        if key != keys[0]:
            site.stage.commit(key, at)
    site.stage.work(seconds=5)
    site.onlooker.look()

    page = site.get(f"/transaction?id={txn_id_of(keys[0])}")

    assert [key.partition("/")[2] for key in (*keys[-9:], keys[0])] == re.findall(r"<h2>[^<]*<small>/(\w+)<", page)
    assert "20 other attempts of this id are not shown" in page


def test_where_no_half_message_was_read_it_is_not_said_that_the_real_topics_lack_it(site: Site) -> None:
    key = txn_key("a")
    at = site.stage.half(key)
    site.stage.work(seconds=5)
    site.stage.world.advance(ms=2 * 3_600_000)
    site.stage.commit(key, at)
    site.stage.work(seconds=2)

    page = site.get(f"/transaction?id={txn_id_of(key)}")

    assert [txn_id_of(key)] == site.stage.visible()
    assert "The real topics do not have" not in page
    assert "None of its half messages was read" in page
    assert "The real topics do not have" not in site.get(f"/transaction?id={txn_id_of(key)}&since=1d")


@pytest.mark.parametrize("is_in_view", [True, False])
def test_what_is_on_doubt_for_days_is_shown_from_its_first_half_message_on(site: Site, *, is_in_view: bool) -> None:
    key = txn_key("a")
    at = site.stage.half(key)
    site.stage.op(op_line("U", key, at))
    site.stage.work(seconds=5)
    site.stage.world.advance(ms=3 * 86_400_000)
    site.stage.half(txn_key("b"))
    if is_in_view:
        site.onlooker.look()

    page = site.get(f"/transaction?id={txn_id_of(key)}")

    for said in ("message 1 of 1 stored, for orders", "unknown by producer", "moved to doubt"):
        assert said in page


def test_an_id_that_looks_like_a_position_leads_to_its_own_page_and_buttons() -> None:
    site = Site(AccessRules(is_writable=True, local_name="zoe"))
    at_position, key = txn_key("at-position"), "0:0/0000000b"
    site.stage.half(at_position)
    site.stage.half(key, partition=site.place(key))
    site.onlooker.look()

    with site.browser:
        (link,) = re.findall(r'href="(/transaction\?[^"]*)">0:0<', site.get("/transactions"))
        page = site.get(html.unescape(link))
        form = {"id": "0:0", **dict(re.findall(r'name="(by|since)" value="([^"]*)"', page))}
        values = site.post(page, "/transaction/values", **form).text
        by_position = site.get("/transaction?id=0:0")

    for each in (page, values):
        assert 'value="0%3A0/0000000b"' in each
        assert at_position not in html.unescape(each).replace("%3A", ":")
    assert at_position in by_position
    assert 'href="/transaction?id=0%3A0&amp;by=id"' in by_position


def test_values_are_shown_when_they_are_asked_for_and_that_is_logged(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    key = txn_key("order-1")
    site.stage.half(key, value=b"secret-\x1bvalue")
    site.onlooker.look()
    txn_id = key.partition("/")[0]

    with caplog.at_level(logging.INFO, "txlayer.console"):
        page = site.values(txn_id)

    assert "secret-\\x1bvalue" in page
    (record,) = [record for record in caplog.records if record.getMessage() == "console.values_shown"]
    assert [key] == record.__dict__["transactions"]
    assert "secret" not in str(record.__dict__)


def test_messages_of_what_is_on_doubt_are_shown_when_half_has_lost_them(site: Site) -> None:
    key, topics = txn_key("a"), site.stage.topics
    for index in range(2):
        site.stage.half(key, index=index, count=2, value=b"secret-%d" % index)
    site.stage.work(seconds=5)
    site.onlooker.look()
    shown = []
    for before in (0, 1, 2):
        site.stage.kafka.delete_records(topics.half, 0, before=before)
        page = site.get(f"/transaction?id={txn_id_of(key)}")
        rows = page.partition('aria-label="messages"')[2].partition("</table>")[0]
        shown.append(re.findall(r'<th scope="row" class="number">(\d+)</th>|(\d+) bytes', rows))

    assert [[("0", ""), ("", "8"), ("1", ""), ("", "8")]] * 3 == shown
    assert "secret-1" in site.values(txn_id_of(key))


TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_the_id_of_a_trace_is_a_link_where_an_address_for_traces_is_configured(site: Site) -> None:
    keys = [txn_key("traced"), txn_key("forged")]
    for key, named in zip(keys, [f"00-{TRACE}-b7ad6b7169203331-01", "00-javascript:alert(1)-b-01"], strict=True):
        headers = [("traceparent", named.encode()), (HALF_HEADER, half_header(key))]
        site.stage.kafka.append(site.stage.topics.half, b"v", headers=headers)

    without = site.get(f"/transaction?id={txn_id_of(keys[0])}")
    site.console.trace_address = "https://traces.example.org/trace/{trace_id}?of=shop"
    linked, forged = (site.get(f"/transaction?id={txn_id_of(key)}") for key in keys)

    assert f"<code>{TRACE}</code>" in without
    assert f'<a href="https://traces.example.org/trace/{TRACE}?of=shop" rel="noreferrer">{TRACE}</a>' in linked
    assert "traces.example.org" not in forged


def test_an_id_that_is_found_nowhere_is_said(site: Site) -> None:
    site.onlooker.look()

    assert "Nothing found" in site.get("/transaction?id=nowhere", status=404)


def test_what_another_programs_kafka_transaction_hides_is_not_said_to_be_missing(site: Site) -> None:
    stage = site.stage
    stranger = stage.kafka.connect_coordinator(stage.config, client="stranger")
    writer = stranger.make_writer("stranger", batch_bytes_max=10_000)
    writer.initialise(timeout_s=1)
    writer.begin()
    writer.produce(stage.topics.half, b"not yet", None, site.place("hidden/0000000a"))
    assert 0 == writer.flush(timeout_s=1)
    stage.half("hidden/0000000a", partition=site.place("hidden/0000000a"))

    page = site.get("/transaction?id=hidden")

    assert "Not all is shown: a Kafka transaction is open on txlayer.half-" in page


def test_the_search_leads_to_ids_positions_and_ordering_keys(site: Site) -> None:
    ours = txn_key("a")
    site.stage.half(ours, options=options("customer"))
    site.onlooker.look()
    key = ordering_key("customer").decode()

    found = site.browser.get("/search", params={"by": "key", "what": key})
    empty = site.browser.get("/search", params={"by": "id", "what": "  "})

    assert ours.partition("/")[0] in found.text
    assert "/transactions" == empty.url.path


@pytest.mark.parametrize("is_on_doubt", [False, True])
@pytest.mark.parametrize("is_seen_young", [False, True])
def test_the_search_finds_a_transaction_by_the_users_own_id(
    site: Site, *, is_on_doubt: bool, is_seen_young: bool
) -> None:
    ours, other, own = txn_key("ours"), txn_key("other"), "invoice 7/2026 & Zoë"
    site.stage.half(ours, options=HalfOptions(query_id=own))
    site.stage.half(other, options=HalfOptions(query_id="invoice 8"))
    if is_seen_young:
        site.onlooker.look()
    if is_on_doubt:
        site.stage.world.advance(ms=5_000)
        site.stage.work(seconds=10)
    site.onlooker.look()

    found = site.browser.get("/search", params={"by": "query", "what": own})

    assert "/transactions" == found.url.path
    assert ours.partition("/")[0] in found.text
    assert other.partition("/")[0] not in found.text
    (row,) = site.onlooker.page(filter=Filter(query_id=own)).rows
    assert (own, is_on_doubt) == (row.query_id, row.txn.is_in_doubt)
    with closing(site.stage.kafka.connect_coordinator(site.stage.config, client="overview")) as connections:
        assert {ours: own, other: "invoice 8"} == {u.txn.key: u.query_id for u in Overview(connections).unsettled()}


def test_the_search_finds_a_settled_transaction_by_the_users_own_id(site: Site) -> None:
    ours = txn_key("ours")
    site.stage.commit(ours, site.stage.half(ours, options=HalfOptions(query_id="invoice 7")))
    site.stage.work(seconds=5)
    site.onlooker.look()

    found = site.browser.get("/search", params={"by": "query", "what": "invoice 7"})
    nothing = site.browser.get("/search", params={"by": "query", "what": "invoice 8"})
    site.stage.world.advance(ms=7_200_000)
    site.stage.half(txn_key("young"))  # by the time of the brokers
    site.onlooker.look()
    older = site.browser.get("/search", params={"by": "query", "what": "invoice 7"})
    (further,) = re.findall(r'<a href="(/search\?[^"]*since=1d)"', older.text)
    found_again = site.browser.get(html.unescape(further))
    refused = site.browser.get("/search", params={"by": "query", "what": "invoice 7", "since": "what"})

    assert "/transaction" == found.url.path
    assert "<dt>your own id</dt><dd>invoice 7</dd>" in found.text
    assert ours.partition("/")[0] in found.text
    assert ("/transactions", "Nothing of this kind" in nothing.text) == (nothing.url.path, True)
    assert "The search found no settled one in the last 1h." in older.text
    assert "/transaction" == found_again.url.path
    assert "commit by producer" in found_again.text
    assert 400 == refused.status_code


@pytest.mark.threat("write `<ns>.half`", "write `<ns>.op`")
def test_what_others_wrote_is_text_and_nothing_else(site: Site) -> None:
    key = HOSTILE.replace("/", "").replace(" ", "") + "\x1b[31m/0000000a"
    partition = site.place(key)
    at = site.stage.half(key, group=HOSTILE.replace("/", ""), partition=partition)
    site.stage.op(
        op_line("R", key, at, group=HOSTILE.replace("/", ""), source=Source.OPERATOR, reason=f"{HOSTILE}: {HOSTILE}"),
        partition=partition,
    )
    stuck = txn_key("stuck")
    site.stage.half(stuck, group=HOSTILE.replace("/", ""))
    site.onlooker.look()
    site.stage.world.advance(ms=60_000)
    site.onlooker.look()

    pages = [
        site.get("/"),
        site.get("/transactions"),
        site.browser.get("/transactions", params={"group": HOSTILE, "topic": HOSTILE, "key": HOSTILE}).text,
        site.browser.get("/transactions", params={"state": HOSTILE}).text,
        site.browser.get("/transaction", params={"id": key.partition("/")[0], "since": "1h"}).text,
        site.browser.get("/transaction", params={"id": HOSTILE}).text,
        site.values(key.partition("/")[0]),
    ]

    for page in pages:
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert 1 == page.count("<script")
    assert "rollback by operator" in pages[4]


@pytest.mark.threat("write `<ns>.half`")
def test_keys_headers_and_values_are_text_and_a_huge_value_is_cut(site: Site) -> None:
    key, script = txn_key("order-1"), HOSTILE.encode()
    at = site.stage.kafka.append(
        site.stage.topics.half,
        script + b"x" * 1_000_000,
        key=script,
        headers=[(HALF_HEADER, half_header(key)), (HOSTILE, script), ("tags", script), ("\x1b[2J\r\n", b"\x1b[2J\r\n")],
    )
    site.onlooker.look()

    shown = site.get(f"/transaction?id=0:{at}")
    values = site.values(key.partition("/")[0])

    for page in (shown, values):
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert 1 == page.count("<script")
    assert 3 <= values.count("&lt;script&gt;alert(1)&lt;/script&gt;")
    assert len(values) < 100_000


@pytest.mark.parametrize(
    "what",
    [
        "../../etc/passwd",
        "%2e%2e%2f",
        "..%2f..%2fcommit",
        "a/../b",
        "//evil.example",
        "a?b#c",
        "a%00b",
        "%0d%0aSet-Cookie:x",
    ],
)
def test_an_id_is_no_path(site: Site, what: str) -> None:
    found = site.browser.get("/transaction", params={"id": what}, follow_redirects=False)
    searched = site.browser.get("/search", params={"by": "id", "what": what}, follow_redirects=False)
    as_path = site.browser.get(f"/static/{what}", follow_redirects=False)

    assert found.status_code in (400, 404)
    assert searched.headers["location"].startswith("/transaction?id=")
    assert "set-cookie" not in searched.headers
    assert as_path.status_code in (404, 405)


def test_no_page_has_code_or_style_of_its_own(site: Site) -> None:
    key = txn_key("a")
    site.stage.commit(key, site.stage.half(key))
    site.stage.half(txn_key("b"))
    site.onlooker.look()

    for page in (site.get("/"), site.get("/transactions"), site.get("/transaction?id=" + key.partition("/")[0])):
        assert " style=" not in page
        assert "<style" not in page
        assert re.search(r"<[^>]+\son\w+=", page) is None
        assert '<script src="/static/console.js"></script>' in page


@pytest.mark.parametrize("name", ["console.css", "console.js", "icon.svg"])
def test_what_pages_load_is_part_of_the_package(site: Site, name: str) -> None:
    assert site.get(f"/static/{name}")


@pytest.mark.parametrize("address", ["/", "/transactions", "/transactions?group=shop"])
def test_nothing_is_said_to_wait_only_once_the_logs_are_read(site: Site, address: str) -> None:
    site.stage.kafka.delete_topic(site.stage.topics.doubt)
    assert not site.onlooker.view.step()

    before = site.get(address)
    site.stage.kafka.create_topic(site.stage.topics.doubt, partitions=2)
    site.onlooker.look()
    after = site.get(address)

    claims = re.compile("Nothing( of this kind)? is (waiting|prepared)")
    assert (None, True) == (claims.search(before), claims.search(after) is not None)
    assert "Not known yet" in before


def test_pages_stay_when_the_broker_is_away(site: Site) -> None:
    key = txn_key("a")
    site.stage.half(key)
    site.onlooker.look()
    site.stage.kafka.stop()
    site.stage.world.advance(ms=30_000)
    site.console.view.step()

    assert "not known now" in site.get("/")
    assert key.partition("/")[0] in site.get("/transactions")
    assert "Not known now" in site.get("/transactions")
    assert "The cluster does not answer now" in site.get("/transaction?id=x", status=503)


def test_the_charts_show_nothing_of_a_time_of_which_nothing_is_known(site: Site) -> None:
    site.onlooker.look()
    site.stage.world.advance(ms=30_000)
    site.stage.half(txn_key("a"))
    site.stage.world.advance(ms=10_000)
    site.onlooker.look()
    before = site.get("/")
    site.stage.kafka.stop()
    site.stage.world.advance(ms=300_000)
    site.console.view.step()

    after = site.get("/")

    assert re.findall(r"<figure>.*?</figure>", before) == re.findall(r"<figure>.*?</figure>", after)
    assert "prepared 0.1/s" in before


def test_a_page_says_when_its_reading_began(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    key, world = txn_key("a"), site.stage.world
    site.stage.half(key)
    site.onlooker.look()
    ask = Desk.call

    async def ask_slowly(desk: Desk, *arguments: Any, **named: Any) -> Any:
        answer = await ask(desk, *arguments, **named)
        world.advance(ms=9_000)  # what was read may have changed since
        return answer

    monkeypatch.setattr(Desk, "call", ask_slowly)
    letter = Group(site).letter()
    for address in (f"/transaction?id={txn_id_of(key)}", "/requests", f"/letter?group=loyalty&at=orders/0:{letter}"):
        began_ms = world.now_ms()
        assert re.search(rf"read <time [^>]*>{time_text(began_ms)}</time></small></h1>", site.get(address)), address


def test_a_right_that_is_missing_is_no_mistake_of_the_person(site: Site) -> None:
    topics = site.stage.topics
    site.onlooker.look()
    site.stage.kafka.deny(topics.half)

    page = site.get("/transaction?id=x", status=403)

    assert "The broker refuses these credentials" in page
    assert topics.half in page
    site.stage.kafka.deny(topics.half, is_denied=False)
    site.get("/transaction?id=x", status=404)


def test_rights_that_go_while_it_runs_are_said_on_every_page_until_they_are_back() -> None:
    site = Site(AccessRules(is_writable=True, local_name="zoe@desk"))
    op = site.stage.topics.op

    def page(path: str) -> str:
        site.stage.world.advance(ms=20_000)
        site.console.view.step()
        site.get(path)
        site.wait_for("rights")
        return site.get(path)

    with site.browser:
        site.onlooker.look()
        assert "Changes are allowed." in page("/")
        site.stage.kafka.deny(op)
        without = [page(path) for path in ("/", "/transactions", "/queues", "/letters")]
        site.stage.kafka.deny(op, is_denied=False)
        site.onlooker.look()
        again = page("/")

    for text in without:
        assert "Not known now:" in text
        assert re.search(rf"The broker refuses changes now: [^<]*{op}", text)
        assert "Changes are refused by the broker." in text
    assert "Not known now:" not in again
    assert "Changes are allowed." in again


def test_a_group_that_cannot_be_described_hides_no_other(site: Site) -> None:
    for group in ("a", "loyalty"):
        for name in (f"{group}.orders.dlq", f"{group}.orders.replay"):
            site.stage.kafka.create_topic(name)
    site.stage.kafka.deny("a.orders.dlq")
    site.onlooker.look()
    site.get("/")
    site.wait_for("consumers")

    page = site.get("/")

    assert re.search(
        r'scope="row">a</th><td>orders</td>\s*<td colspan="3" class="warning">not known now: [^<]+dlq', page
    )
    assert '<th scope="row">loyalty</th><td>orders</td>\n<td class="number"><strong class="error">none' in page


def test_a_defect_shows_nothing_of_itself(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(site.console.view.rows, "counts", fail)

    page = site.get("/", status=500)

    assert "defect of txlayer" in page
    assert "secret" not in page


@pytest.mark.parametrize("ahead_s", [0, 3_600])
def test_verify_runs_beside_the_page(site: Site, ahead_s: int) -> None:
    site.go_ahead(ahead_s)
    key = txn_key("a")
    site.stage.commit(key, site.stage.half(key))
    site.stage.work(seconds=3)
    site.onlooker.look()

    answer = site.post(site.get("/"), "/run/verify")
    site.wait_for("verify")

    assert (303, "/#verify") == (answer.status_code, answer.headers["location"])
    page = site.get("/")
    assert "records read" in page
    assert '<span class="level">proved</span> P1 ' in page
    assert 403 == site.browser.post("/run/what").status_code


def test_the_doctor_runs_beside_the_page(site: Site) -> None:
    answer = site.post(site.get("/"), "/run/doctor")
    site.wait_for("doctor")

    assert (303, "/#doctor") == (answer.status_code, answer.headers["location"])
    assert "checks in order" in site.get("/")


@pytest.mark.parametrize("name", ["verify", "verdict"])
def test_without_scripts_a_page_that_shows_progress_asks_for_itself_again(site: Site, name: str) -> None:
    key, may_end = txn_key("a"), threading.Event()
    site.stage.half(key)
    site.onlooker.look()
    address = "/" if name == "verify" else f"/transaction?id={txn_id_of(key)}"
    before = site.get(address)

    site.console.jobs.start(name, lambda _note: may_end.wait(30), subject=txn_id_of(key))
    during = site.get(address)
    may_end.set()

    # Without the address a browser stays where it is, because the form led to a fragment of the page.
    again = f'<noscript><meta http-equiv="refresh" content="3; url={address}"></noscript>'
    assert [False, True] == [again in page for page in (before, during)]


# --- work that takes its time -----------------------------------------------------------------------------------------


def test_a_page_waits_for_an_answer_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.console.acting.DEADLINE_S", 0.01)
    monkeypatch.setattr("txlayer.console.acting.WAITING_MAX", 1)

    async def ask() -> None:
        desk, gate = Desk(), threading.Event()
        with pytest.raises(BrokerUnavailableError):
            await desk.call(gate.wait)
        with pytest.raises(RetriableError, match="many pages wait"):
            await desk.call(gate.wait)
        gate.set()
        desk.close()

    asyncio.run(ask())


def test_pages_that_read_far_back_leave_threads_to_the_others(site: Site) -> None:
    site.stage.half(txn_key("a"))
    with ExitStack() as others:
        for _ in range(LONG_COUNT_MAX):
            others.enter_context(site.console.desk.reading(7 * 86_400_000))
        for address in ("/transaction?id=x&since=7d", "/search?by=query&what=x&since=7d", "/requests?since=7d"):
            assert "try again" in site.get(address, status=503)
        site.get("/transaction?id=x&since=1h", status=404)
    site.get("/transaction?id=x&since=7d", status=404)
    assert LONG_COUNT_MAX < THREAD_COUNT


def test_a_job_runs_once_at_a_time_and_says_how_it_failed() -> None:
    jobs, gate = Jobs(lambda: 7), threading.Event()

    def work(note: Any) -> None:
        note("reading", 1, 2)
        gate.wait()
        raise RetriableError("no luck")

    assert jobs.start("a", work)
    assert not jobs.start("a", work)
    gate.set()
    wait_until(lambda: (job := jobs.newest("a")) is not None and not job.is_running, within=10, what="the job's end")
    job = jobs.newest("a")
    assert job is not None
    assert "no luck" in job.problem


def test_a_job_that_is_asked_to_stop_ends_with_what_it_has() -> None:
    jobs = Jobs(lambda: 7)

    def work(note: Any) -> list[int]:
        note("counting", 1, 9, [1])
        wait_until(lambda: note.should_stop, within=10, what="the stop")
        return [1, 2]

    jobs.start("count a", work)
    wait_until(lambda: jobs.named("count ")[0].result == [1], within=10, what="what it has so far")
    jobs.stop("count a")
    wait_until(lambda: not jobs.named("count ")[0].is_running, within=10, what="the job's end")

    (job,) = jobs.named("count ")
    assert (True, [1, 2], "") == (job.is_stopping, job.result, job.problem)


def test_only_so_many_jobs_that_have_ended_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.console.acting.ENDED_COUNT_MAX", 2)
    jobs = Jobs(partial(next, count()))
    for number in range(5):
        jobs.start(f"a {number}", lambda _note: None)
        wait_until(lambda: not jobs.named("a ")[0].is_running, within=10, what="the job's end")

    assert ["a 4", "a 3", "a 2"] == [job.name for job in jobs.named("a ")]


# --- how values look --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "null"), (0, "0 bytes"), (1, "1 byte"), (1_023, "1,023 bytes"), (1_024, "1.0 KiB"), (5 << 30, "5.0 GiB")],
)
def test_sizes_are_short(count: int | None, text: str) -> None:
    assert text == show.size(count)


def test_bytes_are_text_or_hexadecimal_and_bounded() -> None:
    assert "a\\x00b\nc" == show.content(b"a\x00b\nc")
    assert "ff 00" == show.content(b"\xff\x00")
    assert "null" == show.content(None)
    assert show.content(b"x" * 20_000).endswith("… and 3,616 more bytes")
    assert show.content("ä".encode() * 10_000).startswith("ää")


def test_a_time_of_a_broken_clock_is_a_number() -> None:
    assert "9223372036854775807 ms" == show.time((1 << 63) - 1)
    assert "" == show.time(None)
    assert 'datetime="1970-01-01T00:00:01.002Z"' in show.time(1_002)


def test_a_chart_of_nothing_and_of_something() -> None:
    some = [Minute(10_000, 5, 4, 1, {1024: 4})]

    assert "polyline" in show.rate_chart([], since_ms=0, now_ms=21_000)
    assert "0.5/s" in show.rate_chart(some, since_ms=0, now_ms=21_000)
    assert "1.02 s" in show.latency_chart(some, now_ms=21_000)


# --- consumers --------------------------------------------------------------------------------------------------------


def consumed(site: Site) -> list[tuple[str, str]]:
    with closing(site.console.clients.admin()) as admin:
        return list(consumed_pairs(admin))


def test_groups_with_topics_for_dead_letters_are_found_by_their_names(site: Site) -> None:
    for name in ("a.b", "loyalty.orders.dlq", "loyalty.orders.replay", "x.a.b.dlq", "x.a.b.replay", "y.orders.dlq"):
        site.stage.kafka.create_topic(name)

    assert [("loyalty", "orders"), ("x", "a.b")] == consumed(site)


@pytest.mark.parametrize(
    ("group", "topic"), [("loyalty.eu", "orders"), ("loyalty", "eu.orders"), ("loyalty.eu", "x.orders")]
)
def test_where_dots_in_names_fit_several_groups_it_is_the_one_that_reads_the_topic(
    site: Site, group: str, topic: str
) -> None:
    for name in ("eu.orders", "x.orders", "eu.x.orders"):
        site.stage.kafka.create_topic(name)
    ours = Group(site, name=group, topic=topic)
    ours.store()
    ours.letter()

    assert [(group, topic)] == consumed(site)
    site.get("/letters")
    site.wait_for("letters")
    assert f'<a href="/letters?group={group}">{group}</a>' in site.get("/letters")


def test_the_overview_shows_consumer_groups_and_their_dead_letters(site: Site) -> None:
    for name in ("loyalty.orders.dlq", "loyalty.orders.replay"):
        site.stage.kafka.create_topic(name)
    site.stage.kafka.append("loyalty.orders.dlq", b"v")
    for _ in range(3):
        site.stage.kafka.append("orders", b"v")
    site.onlooker.look()
    site.get("/")
    site.wait_for("consumers")

    page = site.get("/")

    assert '<th scope="row">loyalty</th><td>orders</td>' in page
    assert (
        '<td class="number">3</td><td class="number"><a href="/letters?group=loyalty&amp;topic=orders">1</a></td>'
        in page
    )


def test_consumer_groups_are_shown_as_seen_last_while_they_are_read_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("loyalty.orders.dlq", "loyalty.orders.replay"):
        site.stage.kafka.create_topic(name)
    site.onlooker.look()
    site.get("/")
    site.wait_for("consumers")
    may_fail = threading.Event()

    def fail(_admin: object) -> None:
        assert may_fail.wait(30)
        raise BrokerUnavailableError("no answer")

    monkeypatch.setattr("txlayer.console.pages.overview.read_consumed_topics", fail)
    site.stage.world.advance(ms=31_000)

    meanwhile = [site.get("/"), site.get("/")]
    may_fail.set()
    site.wait_for("consumers")
    afterwards = site.get("/")

    for page in (*meanwhile, afterwards):
        assert '<th scope="row">loyalty</th>' in page
    assert "Not known now: no answer" in afterwards


def forwarded_message(site: Site) -> tuple[str, Any, Group]:
    """The key of a transaction, its message on `orders`, and the group loyalty, which reads it."""
    group = Group(site)
    key = txn_key("order-1")
    site.stage.commit(key, site.stage.half(key))
    site.stage.work(seconds=3)
    (message,) = site.stage.kafka.records("orders")
    return key, message, group


def test_a_transaction_says_where_it_was_forwarded_and_who_has_handled_it(site: Site) -> None:
    key, message, _ = forwarded_message(site)
    site.stage.kafka.admin().store_offsets("loyalty", {("orders", 0): StoredOffset(message.offset() + 1, "")})
    site.onlooker.look()

    page = site.get("/transaction?id=" + key.partition("/")[0])

    assert f"orders 0:{message.offset()}" in page
    assert "forwarded to orders" in page
    assert '<th scope="row">loyalty</th>' in page
    assert '<td>yes</td>\n<td class="number"></td>' in page


def test_a_dead_letter_of_a_transaction_is_named(site: Site) -> None:
    key, message, group = forwarded_message(site)
    site.stage.kafka.admin().store_offsets("loyalty", {("orders", 0): StoredOffset(message.offset() + 1, "")})
    at = group.letter(reason=DeadLetterReason.REJECTED, error=("ValueError", "no such"), origin=message.offset())
    site.onlooker.look()

    page = site.get("/transaction?id=" + key.partition("/")[0])

    row = page.partition('<th scope="row">loyalty</th>')[2].partition("</tr>")[0]
    link = f'<a href="/letter?group=loyalty&amp;at=orders%2F0%3A{at}">orders/0:{at}</a>'
    assert f'<td>no</td>\n<td class="number">16</td>\n<td>{link}, open: rejected: ValueError: no such</td>' in row


def test_the_timeline_goes_on_to_the_replay_of_a_dead_letter(site: Site) -> None:
    key, message, group = forwarded_message(site)
    world = site.stage.world
    at = group.letter(origin=message.offset(), error=("ValueError", "no such"))
    for record in (
        ReplayRecord(ReplayKind.REPLAY, "r1", at, text="zoe: mended"),
        ReplayRecord(ReplayKind.RESULT, "r1", at, ReplayOutcome.HANDLED),
    ):
        world.advance(ms=1_000)
        group.say(record)
    site.onlooker.look()

    page = site.get("/transaction?id=" + key.partition("/")[0])

    events = re.findall(r'</time> <strong>([^<]*)</strong> <span class="place">([^<]*)</span>(.*?)</li>', page)
    assert "forwarded to orders" == events[-4][0]
    assert [
        (f"dead letter orders/0:{at} of loyalty", f"loyalty.orders.dlq 0:{at}"),
        (f"replay of dead letter orders/0:{at} asked for", "loyalty.orders.replay 0:0"),
        (f"dead letter orders/0:{at} handled", "loyalty.orders.replay 0:1"),
    ] == [event[:2] for event in events[-3:]]
    assert "operator zoe: mended" in events[-2][2]
    assert "<td>yes</td>" in page


def test_one_transaction_is_verified_beside_its_page(site: Site) -> None:
    key = txn_key("order-1")
    txn_id = key.partition("/")[0]
    site.stage.commit(key, site.stage.half(key))
    site.stage.work(seconds=3)
    site.onlooker.look()
    before = site.get(f"/transaction?id={txn_id}")
    at = re.findall(r'name="at" value="(\d+)"', before)

    answer = site.post(before, "/transaction/verdict", id=txn_id, at=at)
    site.wait_for("verdict")

    assert (303, f"/transaction?id={txn_id}#verdict") == (answer.status_code, answer.headers["location"])
    page = site.get(f"/transaction?id={txn_id}")
    assert '<span class="level">ok</span> 0000000a' in page
    assert 400 == site.post(before, "/transaction/verdict", id=txn_id, at="x").status_code
