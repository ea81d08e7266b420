"""A bad night, seen and settled by an operator in a real browser; each page holds what the topics hold, read by plain clients."""

import json
import os
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Page, expect

from tests.reference import wire
from tests.support.arena import REAL_TOPIC_SETTINGS, Arena
from tests.support.broker import create_topic
from tests.support.browser import NARROW, WIDE, Visitor, chromium, picture, table
from tests.support.logs import Seen, ends, header, read_log
from tests.support.processes import ROOT, ConsoleProcess, CoordinatorProcess, TxlayerProcess
from tests.support.programs import run_program
from tests.support.responders import ResponderProcess
from tests.support.waiting import TimedOutError, wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.adapters.namespace import Namespace
from txlayer.config import ClientConfig, SystemTopics
from txlayer.operate import time_text
from txlayer.operate.topics import GroupTopics

NAMESPACE, TARGETS, PARTITION_COUNT = "shop", ("orders", "invoices"), 4
CHECKOUT, TILL, REFUNDS, BILLING, LOYALTY = "checkout", "till", "refunds", "billing", "loyalty"
HURRY = {
    "session_timeout": "1.5s",
    "check_immunity": "1s",
    "check_interval": "1s",
    "check_interval_max": "1s",
    "check_max": "3",
    "doubt_after": "1s",
}
"""Of the coordinators."""
LETTERS_OF = "customer-7"
"""Loyalty fails for this customer until the file `mended` is there."""

SERVICE = """
import json, os, signal, sys
from contextlib import ExitStack
from txlayer import TransactionalProducer

given = json.loads(sys.argv[1])
with TransactionalProducer(bootstrap_servers=given["servers"], namespace=given["namespace"], group=given["group"]) as producer, ExitStack() as stack:
    for txn_id, topics, key in given["transactions"]:
        tx = stack.enter_context(producer.transaction(txn_id, ordering_key=key))
        for topic in topics:
            tx.send(topic, key=key, value=json.dumps({"order": txn_id, "cents": 1999}))
        tx.prepare()
        if not given["dies"]:
            stack.close()
    print("stored", flush=True)
    if given["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)
"""
CHECKS = """
import pathlib
from txlayer import COMMIT, ROLLBACK, UNKNOWN

def paid(request):
    return COMMIT if request.txn_id in pathlib.Path("paid").read_text().split() else ROLLBACK

def never_knows(request):
    return UNKNOWN
"""
CONSUMER = """
import json, pathlib
from txlayer import AfterExhausted, OrderedConsumer, RetryPolicy

given = json.loads(pathlib.Path("consumer.json").read_text())
consumer = OrderedConsumer(
    bootstrap_servers=given["servers"], group=given["group"], topics=["orders"], namespace=given["namespace"],
    start_at="earliest",
    retry=RetryPolicy(attempt_count_max=2, backoff_first_ms=100, after_exhausted=AfterExhausted.PARK),
)

@consumer.handler
def add_points(message, context):
    if message.key == given["fails"].encode() and not pathlib.Path("mended").exists():
        raise LookupError("customer 7 has no account")
"""


@dataclass(slots=True)
class Known:
    """A transaction that is not settled, as the topics say."""

    group: str
    partition: int
    state: str = "open"
    reason: str = ""
    count: int = 0
    offsets: list[int] = field(default_factory=list)
    topics: set[str] = field(default_factory=set)
    stored_ms: list[int] = field(default_factory=list)


class ConsoleWorld:
    """All of it. The test starts what the night needs."""

    def __init__(self, servers: str, folder: Path, stack: ExitStack) -> None:
        self.servers = servers
        self.folder = folder
        self.arena = Arena(servers, SystemTopics(NAMESPACE), TARGETS, PARTITION_COUNT)
        self._stack = stack
        (folder / "checks.py").write_text(CHECKS, encoding="utf-8")
        (folder / "paid").write_text("refund-1 order-2000 order-2001 order-2002 order-2003", encoding="utf-8")
        (folder / "loyalty.py").write_text(CONSUMER, encoding="utf-8")
        given = {"servers": servers, "namespace": NAMESPACE, "group": LOYALTY, "fails": LETTERS_OF}
        (folder / "consumer.json").write_text(json.dumps(given), encoding="utf-8")
        with KafkaAdmin(ClientConfig(bootstrap_servers=servers, namespace=NAMESPACE)) as admin:
            namespace = Namespace(admin, topics=self.arena.topics)
            namespace.apply(partition_count=PARTITION_COUNT, replication_factor=1)
            for name in TARGETS:
                create_topic(servers, name, partitions=4, config=REAL_TOPIC_SETTINGS)
            GroupTopics(admin, group=LOYALTY, topics=["orders"]).apply()

    # --- processes ----------------------------------------------------------------------------------------------------

    def coordinator(self, number: int) -> CoordinatorProcess:
        log_file = self.folder / f"coordinator-{number}.log"
        started = CoordinatorProcess(self.servers, NAMESPACE, log_file=log_file, settings=HURRY)
        return self._stack.enter_context(started)

    def responder(self, group: str, function: str) -> ResponderProcess:
        started = ResponderProcess(
            self.servers,
            NAMESPACE,
            group,
            folder=self.folder,
            name=group,
            arguments=["--handler", f"checks:{function}"],
        )
        self._stack.enter_context(started).wait_for("responder.assigned", within=60)
        return started

    def consumer(self) -> TxlayerProcess:
        command = ["consumer", "run", "loyalty:consumer"]
        log_file = self.folder / "consumer.log"
        return self._stack.enter_context(TxlayerProcess(command, log_file=log_file, folder=self.folder))

    def sell(self, group: str, *transactions: tuple[str, Sequence[str], str | None], dies: bool = False) -> None:
        """Let a service of this group prepare (id, topics, ordering key), and commit each, unless it dies first."""
        given = {
            "servers": self.servers,
            "namespace": NAMESPACE,
            "group": group,
            "dies": dies,
            "transactions": transactions,
        }
        ended = run_program([sys.executable, "-c", SERVICE, json.dumps(given)], within=90, cwd=ROOT)
        assert (-signal.SIGKILL if dies else 0, "stored\n") == (ended.returncode, ended.stdout), ended.stderr

    def say_late(self, resolution: str, half: wire.HalfMessage) -> None:
        """Write the line of a producer that comes back and says it now."""
        line = f"1|{resolution}|{half.txn_key}|{half.producer_group}|{half.offset}|{half.born_ms}|producer||"
        producer = Producer({"bootstrap.servers": self.servers, "acks": "all", "log_level": 0})
        producer.produce(self.arena.topics.op, line.encode(), partition=half.partition)
        assert 0 == producer.flush(30)

    def lose_a_topic(self) -> None:
        """Delete the topic of a refund that is prepared, and then say commit."""
        create_topic(self.servers, "refunds")
        self.sell(REFUNDS, ("refund-1", ["refunds"], None), dies=True)
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        admin.delete_topics(["refunds"])["refunds"].result(30)
        self.responder(REFUNDS, "paid")

    def console(self, *arguments: str, name: str = "console") -> ConsoleProcess:
        """`txlayer console`; it ends with its block."""
        return ConsoleProcess(self.servers, NAMESPACE, log_file=self.folder / f"{name}.log", arguments=arguments)

    # --- what the topics hold -------------------------------------------------------------------------------------------

    def records(self, topic: str) -> list[Seen]:
        return read_log(self.servers, [topic])[topic]

    def halves(self) -> Iterator[wire.HalfMessage]:
        for record in map(_record, self.records(self.arena.topics.half)):
            if (half := wire.parse_half(record)) is not None:
                yield half

    def lines(self) -> Iterator[wire.Line]:
        for record in map(_record, self.records(self.arena.topics.op)):
            for number, text in enumerate((record.value or b"").split(b"\n")):
                if (line := wire.parse_line(text, record, number)) is not None:
                    yield line

    def decided_since(self, at_ms: int) -> tuple[int, int]:
        """How many transactions were committed and rolled back since then: the first such line of each counts."""
        firsts: dict[str, wire.Line] = {}
        for line in self.lines():
            if line.resolution in "CR":
                firsts.setdefault(line.txn_key, line)
        said = [line.resolution for line in firsts.values() if line.record.timestamp_ms >= at_ms]
        return said.count("C"), said.count("R")

    def summaries(self) -> dict[str, wire.Summary]:
        """Of doubt, the newest of each transaction."""
        found: dict[str, wire.Summary] = {}
        for record in self.records(self.arena.topics.doubt):
            key = (record.key or b"").decode()
            summary = wire.parse_summary(record.value)
            if record.value is None:
                found.pop(key, None)
            elif summary is not None:
                found[key] = summary
        return found

    def unsettled(self) -> dict[str, Known]:
        """{"id/nonce": what is known}: undecided in half and op, or on doubt. Right when the coordinators are at rest."""
        found: dict[str, Known] = {}
        for half in self.halves():
            known = found.setdefault(half.txn_key, Known(half.producer_group, half.partition))
            known.count = half.count
            known.offsets.append(int(half.offset or 0))
            known.topics.add(half.topic)
            known.stored_ms.append(half.stored_at_ms)
        summaries = self.summaries()
        for line in self.lines():
            if line.resolution in "CR" and line.txn_key not in summaries:
                found.pop(line.txn_key, None)
        for key, summary in summaries.items():
            found[key].state, found[key].reason = summary.state, summary.reason
        return found

    def by_group(self) -> dict[str, dict[str, int]]:
        """{group: {state: how many are not settled}}."""
        counts: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        for known in self.unsettled().values():
            counts[known.group][known.state] += 1
        return {group: dict(states) for group, states in counts.items()}

    def op_lags(self) -> dict[int, tuple[int, int]]:
        """{partition: (op offsets that are not carried out, half offsets that a restart reads again)}."""
        topics = self.arena.topics
        places = [TopicPartition(topic, p) for topic in (topics.op, topics.half) for p in range(PARTITION_COUNT)]
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        asked = ConsumerGroupTopicPartitions(topics.coordinator_group, places)
        answer = admin.list_consumer_group_offsets([asked])[topics.coordinator_group].result(30)
        stored = {(place.topic, place.partition): place.offset for place in answer.topic_partitions}
        end = ends(self.servers, [topics.op, topics.half], isolation="read_uncommitted")
        return {
            p: (end[topics.op, p] - stored[topics.op, p], end[topics.half, p] - stored[topics.half, p])
            for p in range(PARTITION_COUNT)
        }

    def holders(self) -> dict[str, tuple[str, str]]:
        """{queue: (holder, token)}, as the newest record of each in the lock log says; the token of a claim is its offset."""
        found: dict[str, tuple[str, str]] = {}
        for record in self.records(self.arena.topics.locks):
            _, _, _, holder, _, token, _ = (record.value or b"").decode().split("|")
            found[(record.key or b"").decode()] = unquote(holder), token or str(record.offset)
        return found


def _record(seen: Seen) -> wire.Record:
    return wire.Record(seen.topic, seen.partition, seen.offset, seen.timestamp_ms, seen.key, seen.value, seen.headers)


@contextmanager
def bad_night(folder: Path, config: LocalConfig) -> Iterator[ConsoleWorld]:
    """A world with all of it, as an operator meets it who is called: no responder of the checkout runs."""
    with LocalBroker(config=config, data=folder / "broker") as broker, ExitStack() as stack:
        world = ConsoleWorld(broker.bootstrap_servers, folder, stack)
        for each in (world.coordinator(1), world.coordinator(2)):
            each.wait_for("partitions.taken_over", within=60)
        consumer = world.consumer()
        world.responder(BILLING, "never_knows")
        sold = [(f"order-{number}", ["orders"], f"customer-{number % 9}") for number in range(1000, 1040)]
        world.sell(TILL, *sold)
        world.lose_a_topic()
        world.sell(BILLING, ("invoice-1", ["invoices"], "customer-3"), dies=True)
        late = [(f"order-{number}", ["orders", "invoices"], f"customer-{number % 9}") for number in range(2000, 2006)]
        world.sell(CHECKOUT, *late, dies=True)
        consumer.wait_for("message.dead_lettered", within=60)
        # What was decided before a console begins, its charts do not count.
        wait_until(
            lambda: "held" in {s.state for s in world.summaries().values()}, within=60, what="the refund is held"
        )
        yield world


pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PICTURES = os.environ.get("E2E_CONSOLE_PICTURES")
"""A folder: each page is kept there as a picture, light and dark, wide and narrow."""


@pytest.fixture
def world(tmp_path: Path, local_config: LocalConfig) -> Iterator[ConsoleWorld]:
    with bad_night(tmp_path, local_config) as made:
        yield made


def test_a_bad_night_is_seen_and_settled(world: ConsoleWorld) -> None:
    with chromium() as browser, world.console() as console, world.console("--allow-writes", name="writing") as writing:
        visitor, person = Visitor(browser, console.address), Visitor(browser, writing.address)
        the_overview_is_what_the_topics_hold(visitor, world)
        each_row_of_the_list_is_a_transaction_of_the_topics(visitor, world)
        one_transaction_names_every_record_that_speaks_of_it(visitor, world)
        the_queues_and_the_parked_key_are_those_of_the_topics(visitor, world)
        the_letters_of_one_error_are_those_of_the_topic(visitor, world)
        keep_pictures(visitor, PAGES)
        a_keyboard_and_no_script_are_enough(visitor)
        of_two_people_the_first_one_decides(person, world)
        a_commit_after_the_rollback_is_refused(person, world)
        a_person_replays_the_parked_key(person, world)
        the_audit_names_what_people_did(visitor, world)
        keep_pictures(visitor, {"audit": "/audit"})
        the_pages_follow_while_a_responder_settles_the_checkout(visitor, world)
        # No script failed, and no rule of a page was broken.
        assert [] == visitor.complaints + person.complaints


def shows(page: Page, seen: Callable[[Page], object], said: Callable[[], object], what: str) -> None:
    """The page shows what the topics say; both move for a moment, and the page follows by itself."""
    pairs: list[tuple[object, object]] = []

    def is_so() -> bool:
        pairs[:] = [(seen(page), said())]
        return pairs[0][0] == pairs[0][1]

    try:
        wait_until(is_so, within=30, what=what)
    except TimedOutError as exc:
        raise TimedOutError(f"{exc}: {pairs}") from exc


def groups_of(page: Page) -> dict[str, dict[str, int]]:
    """The overview's table of producer groups; the sums of its rows are right."""
    found: dict[str, dict[str, int]] = {}
    for name, total, states, *_ in table(page, "#groups"):
        counted = {state: int(number) for state, number in re.findall(r"([a-z-]+)\s+([\d,]+)", states)}
        assert int(total) == sum(counted.values())
        if counted:
            found[name] = counted
    return found


def who_answers(page: Page) -> dict[str, str]:
    """By group: how many responders there are, or the text that is shown instead."""
    return {row[0]: row[4].split(":")[0] for row in table(page, "#groups")}


def lags_of(page: Page) -> dict[int, tuple[int, int]]:
    number = {p: row for p, *row in table(page, "#coordinators")}
    return {int(p): (int(row[1].replace(",", "")), int(row[4].replace(",", ""))) for p, row in number.items()}


def drawn_of(page: Page) -> tuple[int, int]:
    """How many committed and rolled back transactions the lines of the first chart show together."""
    chart = page.locator("#charts figure").first
    (most,) = re.findall(r"at most ([0-9.]+)/s", chart.locator("figcaption").inner_text())
    counts = []
    for number in (1, 2):
        lines = [each.get_attribute("points") or "" for each in chart.locator(f".line-{number}").all()]
        # The first value of a line is drawn as two points.
        heights = [62 - float(point.split(",")[1]) for line in lines for point in line.split()[1:]]
        counts.append(sum(round(height / 60 * float(most) * 10) for height in heights))
    return counts[0], counts[1]


def counted_since(page: Page) -> int:
    """Since when the charts count, in milliseconds."""
    said = page.locator("#charts h2 time").first.get_attribute("datetime") or ""
    return round(datetime.fromisoformat(said).timestamp() * 1000)


def the_overview_is_what_the_topics_hold(visitor: Visitor, world: ConsoleWorld) -> None:
    with visitor.page() as page:
        shows(page, groups_of, world.by_group, "not settled, by group and state")
        shows(page, lags_of, world.op_lags, "how far the coordinators are")

        assert {CHECKOUT: {"open": 6}, REFUNDS: {"held": 1}, BILLING: {"parked": 1}} == groups_of(page)
        # Who answers comes from the broker by another request than the counts, and may come after them.
        shows(page, who_answers, lambda: {CHECKOUT: "no responder", REFUNDS: "1", BILLING: "1"}, "who answers")
        # The first line says it when the orders are old enough not to be under way.
        expect(page.locator(".headline.error")).to_contain_text(f"group {CHECKOUT}: 6 trans")
        owners = {row[1] for row in table(page, "#coordinators")}
        assert 2 == len(owners)
        assert PARTITION_COUNT == len(table(page, "#coordinators"))
        letters = f"{LOYALTY}.orders.dlq"
        expect(page.locator("#consumers")).to_contain_text("4 of 4 held")
        expect(page.locator("#consumers")).to_contain_text("1 parked key")
        (consumers,) = table(page, "#consumers")
        # Offsets, markers of Kafka transactions among them: an upper bound, as the head of the column says.
        most = sum(ends(world.servers, [letters], isolation="read_uncommitted").values())
        assert 0 < len(world.records(letters)) < most
        assert [LOYALTY, "orders", "1", "0", str(most), "4 of 4 held", "1 parked key"] == consumers


def each_row_of_the_list_is_a_transaction_of_the_topics(visitor: Visitor, world: ConsoleWorld) -> None:
    with visitor.page("/transactions?sort=id") as page:
        known = world.unsettled()
        page.wait_for_selector("#list tbody tr")
        rows = table(page, "#list")

        assert sorted(known) == [row[0].replace(" ", "/") for row in rows]
        for txn_id, group, state, reason, _, messages, topics, half, *_ in rows:
            said = known[txn_id.replace(" ", "/")]
            assert (said.group, said.state, said.reason) == (group, state, reason)
            assert f"{len(said.offsets)}/{said.count}" == messages
            assert said.topics == set(topics.split(", "))
            assert f"{said.partition}:{min(said.offsets)}" == half
        # An age is that of the first half message; its title says when that was stored.
        since = [page.locator("#list tbody tr").nth(n).locator(".age").first for n in range(len(rows))]
        firsts = [min(known[row[0].replace(" ", "/")].stored_ms) for row in rows]
        assert list(map(time_text, firsts)) == [each.get_attribute("title") for each in since]

        page.select_option("select[name=state]", "held")
        page.click(".filters button")
        expect(page.locator("#list tbody tr")).to_have_count(1)
        assert ["refund-1"] == [row[0].split()[0] for row in table(page, "#list")]
        page.click("text=refund-1")
        expect(page.locator("h1")).to_contain_text("refund-1")


def one_transaction_names_every_record_that_speaks_of_it(visitor: Visitor, world: ConsoleWorld) -> None:
    """The coordinator reports a parking again and again: a record may come while the page is made."""
    (key,) = [key for key in world.unsettled() if key.startswith("invoice-1/")]

    before = places_of(key, world)
    with visitor.page("/transaction?id=invoice-1") as page:
        places = page.locator(".timeline .place").all_inner_texts()
    after = places_of(key, world)

    shown = {place for place in places if not place.startswith("doubt")}
    assert len(places) == len(set(places))
    assert 1 == len([place for place in shown if place.startswith("half")])
    assert 3 <= len([place for place in shown if place.startswith("check")])
    assert before <= shown <= after, (before - shown, shown - after)


def places_of(key: str, world: ConsoleWorld) -> set[str]:
    """Where half, check and op speak of a transaction."""
    halves = {f"half {half.partition}:{half.offset}" for half in world.halves() if half.txn_key == key}
    asked = {
        f"check {record.partition}:{record.offset}"
        for record in world.records(world.arena.topics.check)
        if key.encode() in (record.value or b"")
    }
    lines = {
        f"op {line.record.partition}:{line.record.offset}, line {line.number}"
        for line in world.lines()
        if line.txn_key == key
    }
    return halves | asked | lines


def the_queues_and_the_parked_key_are_those_of_the_topics(visitor: Visitor, world: ConsoleWorld) -> None:
    waiting = [record for record in world.records(f"{LOYALTY}.orders.dlq") if record.key == LETTERS_OF.encode()]
    with visitor.page("/queues") as page:
        expect(page.locator("#leases tbody tr")).to_have_count(4)
        assert {(LOYALTY, "orders", str(p), "held") for p in range(4)} == {
            tuple(row[:4]) for row in table(page, "#leases")
        }
        shows(page, holders_of, world.holders, "who holds which queue")
        (parked,) = table(page, "#parked")
        assert [LOYALTY, "orders", str(waiting[0].partition)] == parked[:3]
        assert str(len(waiting)) == parked[4]


def holders_of(page: Page) -> dict[str, tuple[str, str]]:
    return {"/".join(row[:3]): (row[4], row[5]) for row in table(page, "#leases")}


def the_letters_of_one_error_are_those_of_the_topic(visitor: Visitor, world: ConsoleWorld) -> None:
    letters = world.records(f"{LOYALTY}.orders.dlq")
    with visitor.page(f"/letters?group={LOYALTY}") as page:
        expect(page.locator("#classes")).to_contain_text("LookupError")
        assert len(letters) == sum(int(row[5]) for row in table(page, "#classes"))
        names = {f"orders/{record.partition}:{record.offset}" for record in letters}
        assert names == {row[1] for row in table(page, "form[action='/letters/plan']")}


PAGES = {
    "overview": "/",
    "transactions": "/transactions",
    "transaction": "/transaction?id=invoice-1",
    "queues": "/queues",
    "letters": f"/letters?group={LOYALTY}",
}


def keep_pictures(visitor: Visitor, pages: dict[str, str]) -> None:
    """If asked for. That people can use every page, `console/test_every_page_in_browser.py` tests."""
    for name, path in pages.items() if PICTURES else ():
        with visitor.page(path) as page:
            page.wait_for_selector("main table")
            keep_picture(page, name)


def keep_picture(page: Page, name: str) -> None:
    """Light and dark, narrow and wide, if asked for."""
    both: tuple[Literal["dark", "light"], ...] = ("dark", "light")
    for looks in both if PICTURES else ():
        page.emulate_media(color_scheme=looks)
        for width, size in (("narrow", NARROW), ("wide", WIDE)):
            page.set_viewport_size({"width": size[0], "height": size[1]})
            picture(page, Path(PICTURES or "") / f"console-{name}-{width}-{looks}.png")


def a_keyboard_and_no_script_are_enough(visitor: Visitor) -> None:
    with visitor.page("/", has_scripts=False) as page:
        page.keyboard.press("Tab")
        expect(page.locator(":focus")).to_have_text("Skip to the content")
        page.fill("#what", "order-2000")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("order-2000")
        page.click("text=checkout")
        expect(page.locator("#list tbody tr")).to_have_count(6)
        page.goto("/")
        page.click("#verify button")
        expect(page.locator("#verify")).to_contain_text("proved")
        assert page.locator(".switches").is_hidden()


def of_two_people_the_first_one_decides(visitor: Visitor, world: ConsoleWorld) -> None:
    """Both act at once: the first line in the op log counts, the page of the other says so."""
    with visitor.page("/transaction?id=order-2004") as first, visitor.page("/transaction?id=order-2004") as other:
        for page, word in ((first, "Commit…"), (other, "Roll back…")):
            plan(page, word, "ticket 12: the bank says that it is paid")
        keep_picture(first, "plan")
        assert {"open": 6} == world.by_group()[CHECKOUT]
        first.click("text=Commit 1")
        expect(first.locator("#request")).to_contain_text("It ended")
        expect(first.locator("#request .remarks")).to_contain_text("done")
        keep_picture(first, "request")
        other.click("text=Roll back 1")
        expect(other.locator("#request")).to_contain_text("It ended")
        expect(other.locator("#request .remarks")).to_contain_text("refused")

    (line,) = by_operator(world)
    assert ("C", "order-2004") == (line.resolution, line.txn_key.split("/")[0])
    assert 2 == len(world.arena.visible("order-2004"))
    with visitor.page("/transaction?id=order-2004") as page:
        decided = page.locator(".timeline .decided")
        expect(decided).to_contain_text("commit by operator")
        expect(decided).to_contain_text("ticket 12")
        expect(decided).to_contain_text(f"op {line.record.partition}:{line.record.offset}, line {line.number}")


def plan(page: Page, word: str, why: str) -> None:
    """Ask what would happen, and give the reason."""
    page.click(f"text={word}")
    expect(page.locator("h1")).to_contain_text("what would happen")
    page.fill("input[name=why]", why)


def by_operator(world: ConsoleWorld) -> list[wire.Line]:
    return [line for line in world.lines() if line.source == "operator"]


def a_commit_after_the_rollback_is_refused(visitor: Visitor, world: ConsoleWorld) -> None:
    """By a person who looked before it was rolled back, and by the checkout itself: the pages say what the log says."""
    with visitor.page("/transaction?id=order-2005") as page, visitor.page("/transaction?id=order-2005") as late:
        plan(page, "Roll back…", "ticket 13: the bank knows nothing of it")
        plan(late, "Commit…", "ticket 16: the customer has paid")
        page.click("text=Roll back 1")
        expect(page.locator("#request .remarks")).to_contain_text("done")
        late.click("text=Commit 1")
        expect(late.locator("#request")).to_contain_text("It ended")
        said = late.locator("#request .remarks li")
        expect(said).to_contain_text("refused: it was rolled back at")
        expect(said).to_contain_text("ticket 13: the bank knows nothing of it")

    (half, *_) = (half for half in reversed(list(world.halves())) if half.txn_key.startswith("order-2005/"))
    world.say_late("C", half)
    world.arena.wait_until_applied(within=60)
    assert ["R", "C"] == [line.resolution for line in world.lines() if line.txn_key == half.txn_key]
    assert [] == world.arena.visible("order-2005")
    with visitor.page("/transaction?id=order-2005") as page:
        expect(page.locator(".timeline .decided")).to_contain_text("rollback by operator")
        expect(page.locator(".timeline .said")).to_contain_text("refused: the rollback came first")
        expect(page.locator(".facts")).to_contain_text("rolled-back")


def a_person_replays_the_parked_key(visitor: Visitor, world: ConsoleWorld) -> None:
    letters = world.records(f"{LOYALTY}.orders.dlq")
    count = len(letters)
    (world.folder / "mended").touch()
    with visitor.page(f"/letters?group={LOYALTY}") as page:
        page.click("text=Plan a replay")
        expect(page.locator("h1")).to_contain_text("nothing is written yet")
        page.fill("input[name=reason]", "ticket 14: customer 7 has an account again")
        if count > 1:
            page.fill("input[name=confirm]", str(count))
        page.click(f"text=Replay {count}")
        expect(page.locator("#job")).to_contain_text(f"handled {count}")
    with visitor.page("/queues") as page:
        expect(page.locator("#parked")).to_contain_text("No key is parked")

    said = [(record, (record.value or b"").decode().split("|")) for record in world.records(f"{LOYALTY}.orders.replay")]
    for kind, outcome in (("R", []), ("E", ["handled"])):
        of_kind = [(r.partition, int(fields[3]), fields[4:-1]) for r, fields in said if fields[1] == kind]
        assert sorted(of_kind) == [(r.partition, r.offset, outcome) for r in sorted(letters)]
    # The page of its transaction goes on to the answer of the replay.
    one = letters[0]
    txn_id = (header(one.headers, "txl-id") or b"").decode()
    places = {f"{record.topic} {record.partition}:{record.offset}" for record in (one, *world.arena.visible(txn_id))}
    about = [r for r, fields in said if (r.partition, fields[3]) == (one.partition, str(one.offset))]
    with visitor.page(f"/transaction?id={txn_id}") as page:
        shown = page.locator(":is(.forwarded, .given-up, .replayed) .place").all_inner_texts()
        assert sorted(places | {f"{r.topic} {r.partition}:{r.offset}" for r in about}) == sorted(shown)
        handled = table(page, "[aria-label='consumer groups']")
        assert [[LOYALTY, "yes", f"orders/{one.partition}:{one.offset}"]] == [
            [row[0], row[2], row[4].partition(",")[0]] for row in handled
        ]


def the_audit_names_what_people_did(visitor: Visitor, world: ConsoleWorld) -> None:
    places = [f"op {line.record.partition}:{line.record.offset}, line {line.number}" for line in by_operator(world)]
    with visitor.page("/audit") as page:
        said = " ".join(" ".join(row) for row in table(page, "main"))
        assert 2 == len(places)
        for word in ("ticket 12", "ticket 13", "ticket 14", *places):
            assert word in said


def the_pages_follow_while_a_responder_settles_the_checkout(visitor: Visitor, world: ConsoleWorld) -> None:
    with visitor.page("/") as overview, visitor.page(f"/transactions?group={CHECKOUT}&sort=id") as page:
        expect(page.locator("#list tbody tr")).to_have_count(4)
        world.responder(CHECKOUT, "paid")

        expect(page.locator("#list")).to_contain_text("Nothing of this kind is waiting")
        expect(page.locator("#count")).to_contain_text("0 not settled")
        shows(overview, groups_of, world.by_group, "not settled, by group and state")
        assert CHECKOUT not in groups_of(overview)
        expect(overview.locator(".headline.error")).to_have_count(0)
        shows(overview, drawn_of, lambda: world.decided_since(counted_since(overview)), "what the chart of rates draws")
        assert (5, 1) == drawn_of(overview)

    forwarded = {order: len(world.arena.visible(order)) for order in [f"order-{n}" for n in range(2000, 2006)]}
    assert [2, 2, 2, 2, 2, 0] == list(forwarded.values())
    with visitor.page("/transaction?id=order-2000") as page:
        places = page.locator(".timeline .forwarded .place").all_inner_texts()
        real = [f"{seen.topic} {seen.partition}:{seen.offset}" for seen in world.arena.visible("order-2000")]
        assert sorted(real) == sorted(places)
        expect(page.locator(".timeline .decided")).to_contain_text("commit by check")


MANY = 1_200
"""More than two of the steps in which a request is worked off."""


@pytest.mark.nightly  # in memory, `console/test_settle.py` kills consoles at every run
def test_a_console_killed_in_a_bulk_action_loses_nothing_and_does_nothing_twice(
    tmp_path: Path, local_config: LocalConfig
) -> None:
    with (
        LocalBroker(config=local_config, data=tmp_path / "broker") as broker,
        ExitStack() as stack,
        chromium() as browser,
    ):
        world = ConsoleWorld(broker.bootstrap_servers, tmp_path, stack)
        coordinator = world.coordinator(1)
        coordinator.wait_for("partitions.taken_over", within=60)
        world.sell(CHECKOUT, *[(f"order-{number}", ["orders"], None) for number in range(MANY)], dies=True)
        first = stack.enter_context(world.console("--allow-writes"))
        with Visitor(browser, first.address).page(f"/transactions?group={CHECKOUT}&state=open") as page:
            expect(page.locator("#count")).to_contain_text(f"{MANY:,} not settled")
            page.locator("form:has(input[name=is_view]) >> text=Roll back…").click()
            page.fill("input[name=why]", "ticket 15: a test of the checkout")
            page.fill("input[name=confirm]", str(MANY))
            coordinator.freeze()  # the first step waits for it
            page.click(f"text=Roll back {MANY:,}")
            expect(page.locator("#request")).to_contain_text(f" of {MANY:,} lines")
            wait_until(lambda: len(by_hand(world)) > 0, within=60, what="the first step")
            address = page.url.removeprefix(first.address)
            first.kill()
        written = len(by_hand(world))
        assert 0 < written < MANY
        second = stack.enter_context(world.console("--allow-writes", name="second"))
        with Visitor(browser, second.address).page(address) as page:
            expect(page.locator("#request")).to_contain_text(f"{written:,} of at most {MANY:,}")
            coordinator.thaw()
            expect(page.locator("#truth")).to_contain_text("were true at")
            page.click("text=Resume")
            expect(page.locator("#request")).to_contain_text("It ended", timeout=120_000)
        assert MANY == len(by_hand(world)) == len(set(by_hand(world)))
        wait_until(lambda: not world.unsettled(), within=60, what="all are rolled back")


def by_hand(world: ConsoleWorld) -> list[str]:
    """The transactions of the lines that people wrote."""
    return [line.txn_key for line in by_operator(world)]
