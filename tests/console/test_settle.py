"""What people do in the console is in the op log with their names, and the pages say what the logs say became of it."""

import html
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.support.console_site import CLIENT, Site
from tests.support.core_records import op_line, txn_key
from tests.support.still_coordinator import appear
from txlayer.console.access import AccessRules, parse_proxy
from txlayer.console.pages import settle
from txlayer.console.people import Person, Role, User
from txlayer.core.messages import HalfOptions, Source, txn_id_of
from txlayer.errors import RetriableError
from txlayer.operate.settle import ManualSettlement, OperatorAction
from txlayer.operate.settle_requests import read_requests, request_id_of, work_off

HOSTILE = '"><script>alert(1)</script>'


class Desk:
    """A console that may write, on a stage whose coordinator works while the console waits for it."""

    def __init__(self, rules: AccessRules | None = None) -> None:
        self.is_worked = True
        self.on_wait: list[Any] = []
        self._lock = threading.Lock()
        rules = rules or AccessRules(is_writable=True, local_name="zoe")
        self.site = Site(rules, environment={"sleep": self._wait})
        self.stage, self.look, self.get = self.site.stage, self.site.onlooker.look, self.site.get

    def _wait(self, seconds: float) -> None:
        with self._lock:
            if self.on_wait:
                self.on_wait.pop(0)()
            if self.is_worked:
                self.work()
            else:
                self.stage.world.advance(ms=round(seconds * 1000))
                self.look()

    def plan(self, page: str, action: str, *keys: str, **fields: str) -> str:
        """The page that says what would happen."""
        answer = self.site.post(page, "/settle/plan", action=action, key_of=list(keys), **fields)
        assert 200 == answer.status_code, answer.text
        return str(answer.text)

    def ask(self, plan: str, *, why: str = "ticket 12", **more: str) -> Any:
        """The answer to the form of such a page."""
        form = plan.partition('action="/settle">')[2].partition("</form>")[0]
        fields: dict[str, Any] = {}
        for name, value in re.findall(r'name="([a-z_]+)" value="([^"]*)"', form):
            fields.setdefault(name, []).append(html.unescape(value))
        del fields["form_token"]
        return self.site.post(plan, "/settle", **{**fields, "why": why, **more})

    def settle(self, plan: str, **more: str) -> str:
        """The page of the request, once it has ended."""
        answer = self.ask(plan, **more)
        assert 303 == answer.status_code, answer.text
        address = answer.headers["location"]
        self.site.wait_for("settle " + address.rpartition("=")[2])
        return self.get(address)

    def killed(self, plan: str, **more: str) -> str:
        """The id of a request that no coordinator carried out before its console was killed; there is a new one now."""
        self.is_worked = False
        self.settle(plan, **more)
        self.is_worked = True
        return self.restart()

    def restart(self) -> str:
        """As after kill -9: the console knows nothing any more of its request, whose id this is."""
        (job,) = self.site.console.jobs.named("settle ")
        self.site.console.jobs._jobs.clear()
        return job.subject

    def resume(self, page: str, request_id: str) -> None:
        """Let it go on, to its end."""
        self.site.post(page, "/request/resume", id=request_id)
        self.site.wait_for(f"settle {request_id}")

    def stop(self) -> None:
        (job,) = self.site.console.jobs.named("settle ")
        self.site.console.jobs.stop(job.name)

    def work(self) -> None:
        """The coordinator works, and the console looks."""
        self.stage.work(seconds=2)
        self.look()

    def schedule(self, *keys: str) -> None:
        """Commit them for an hour later."""
        due_ms = self.stage.world.now_ms() + 3_600_000
        for key in keys:
            self.stage.commit(key, self.stage.half(key, options=HalfOptions(deliver_at_ms=due_ms)))
        self.work()

    def prepare(self, *names: str) -> list[str]:
        keys = [txn_key(name) for name in names]
        for key in keys:
            self.stage.half(key)
        self.look()
        return keys

    def operator_lines(self) -> list[str]:
        return [line.decode() for line in self.stage.said() if b"|operator|" in line]

    def settled(self) -> list[str]:
        """The transactions that these lines are about."""
        return [line.split("|")[2] for line in self.operator_lines()]


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    with made.site.browser:
        yield made


def test_a_transaction_is_committed_with_a_name_and_a_reason_and_the_page_says_what_the_log_says(desk: Desk) -> None:
    (key,) = desk.prepare("a")
    txn_id = key.partition("/")[0]

    plan = desk.plan(desk.get(f"/transaction?id={txn_id}"), "commit", key)
    assert [] == desk.operator_lines()
    page = desk.settle(plan)

    (line,) = desk.operator_lines()
    assert line.startswith(f"1|C|{key}|shop|")
    assert "zoe%3A ticket 12 %5Brequest " in line
    assert [txn_id] == desk.stage.visible()
    assert "is committed and forwarded" in page
    assert "<dt>done</dt><dd>1</dd>" in page


@pytest.mark.parametrize(("action", "letter"), [("check-now", "U"), ("rollback", "R"), ("abandon", "A")])
def test_each_action_writes_its_own_line(desk: Desk, action: str, letter: str) -> None:
    (key,) = desk.prepare("a")

    page = desk.settle(desk.plan(desk.get("/transactions"), action, key))

    (line,) = desk.operator_lines()
    assert line.startswith(f"1|{letter}|{key}|")
    assert "<dt>done</dt><dd>1</dd>" in page
    assert [] == desk.stage.visible()


def test_scheduled_messages_are_moved_and_cancelled(desk: Desk) -> None:
    keys = [txn_key(name) for name in ("moved", "cancelled")]
    desk.schedule(*keys)

    plan = desk.plan(desk.get("/transactions"), "reschedule", keys[0])
    assert 400 == desk.ask(plan, to="soon").status_code
    assert [] == desk.operator_lines()
    moved = desk.settle(plan, to="1m")
    cancelled = desk.settle(desk.plan(desk.get("/transactions"), "cancel", keys[1]))
    desk.stage.work(seconds=120)

    assert "move" in desk.get("/audit")
    assert ["2|U", "1|A"] == [line[:3] for line in desk.operator_lines()]
    assert all("<dt>done</dt><dd>1</dd>" in page for page in (moved, cancelled))
    assert [txn_id_of(keys[0])] == desk.stage.visible()


@pytest.mark.parametrize("is_seen", [True, False])
def test_what_was_released_meanwhile_is_not_moved_and_the_page_says_so(desk: Desk, *, is_seen: bool) -> None:
    key = txn_key("a")
    due_ms = desk.stage.world.now_ms() + 60_000
    desk.stage.commit(key, desk.stage.half(key, options=HalfOptions(deliver_at_ms=due_ms)))
    desk.work()
    plan = desk.plan(desk.get("/transactions"), "reschedule", key)
    desk.stage.work(seconds=90)
    assert [txn_id_of(key)] == desk.stage.visible()
    if is_seen:
        desk.look()

    page = desk.settle(plan, to="1m")
    desk.stage.work(seconds=90)

    assert "<dt>not-scheduled</dt><dd>1</dd>" in page
    assert [txn_id_of(key)] == desk.stage.visible()


def test_a_time_that_makes_no_sense_moves_nothing(desk: Desk) -> None:
    key = txn_key("a")
    desk.schedule(key)
    plan = desk.plan(desk.get("/transactions"), "reschedule", key)

    for to in ("", "soon", "9" * 40 + "d", "0001-01-01", "2023-11-14", "2026-02-30", "\x00"):
        assert (400, []) == (desk.ask(plan, to=to).status_code, desk.operator_lines()), to


def test_a_request_to_move_is_found_again_with_its_time(desk: Desk) -> None:
    key = txn_key("a")
    desk.schedule(key)
    desk.settle(desk.plan(desk.get("/transactions"), "reschedule", key), to="2h")

    with closing(desk.stage.kafka.connect_coordinator(desk.stage.config, client="look")) as connections:
        (found,), _ = read_requests(connections, since_ms=0)
    (line,) = desk.operator_lines()

    assert (OperatorAction.RESCHEDULE, line.rpartition("|")[2]) == (found.request.action, str(found.request.time_ms))
    assert "Move" in desk.get(f"/request?id={found.request.id}")


def test_of_two_people_the_first_line_wins_and_the_page_of_the_other_says_so(desk: Desk) -> None:
    keys = desk.prepare("a", "b")
    plan = desk.plan(desk.get("/transactions"), "commit", *keys)
    # One is rolled back before the console writes, the other one between its look and its line.
    desk.stage.op(op_line("R", keys[0], 0, source=Source.OPERATOR, reason="anna: she asked"))
    desk.work()
    desk.stage.op(op_line("R", keys[1], 1, source=Source.OPERATOR, reason="anna: he asked"))

    page = desk.settle(plan, confirm="2")

    assert "<dt>refused</dt><dd>2</dd>" in page
    assert "by operator anna (she asked)" in page
    assert "by operator anna (he asked)" in page
    assert [] == desk.stage.visible()


def test_many_take_their_number_typed_and_are_written_in_steps(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.operate.settle_requests.STEP_COUNT", 3)
    keys = desk.prepare(*(f"t{number}" for number in range(8)))
    plan = desk.plan(desk.get("/transactions"), "rollback", is_view="1", state="open", group="shop")
    assert "<strong>8</strong>" in plan

    refused = desk.ask(plan, confirm="7")
    (later,) = desk.prepare("later")
    page = desk.settle(plan, confirm="8")

    assert 400 == refused.status_code
    assert "type the number of transactions, 8" in refused.text
    assert 8 == len(desk.operator_lines())
    assert not any(later in line for line in desk.operator_lines())
    assert "<dt>done</dt><dd>8</dd>" in page
    assert all(key.partition("/")[0] in page for key in keys)


def test_what_is_prepared_in_the_millisecond_of_the_look_is_not_touched_either(desk: Desk) -> None:
    """Also if one that was seen is settled meanwhile, so that the number leaves room, and whichever comes first by its key."""
    prepared_s = desk.stage.world.passed_s
    keys = desk.prepare("b", "c")
    plan = desk.plan(desk.get("/transactions"), "rollback", is_view="1", state="open")
    for name, partition in (("a", 0), ("d", 1)):
        key = txn_key(name, is_home=not partition)
        desk.stage.half(key, partition=partition, ahead_s=prepared_s - desk.stage.world.passed_s)
    desk.stage.op(op_line("C", keys[0], 0))
    desk.work()

    desk.settle(plan, confirm="2")

    assert keys[1:] == desk.settled()


def test_what_is_prepared_after_the_look_is_not_touched_where_a_brokers_clock_is_behind(desk: Desk) -> None:
    keys = desk.prepare("b", "c")
    desk.stage.half(txn_key("elsewhere", is_home=False), partition=1)
    desk.look()
    plan = desk.plan(desk.get("/transactions"), "rollback", is_view="1", state="open")
    desk.stage.op(op_line("C", keys[0], 0))
    desk.stage.half(txn_key("late", is_home=False), partition=1, ahead_s=-30)
    desk.work()

    desk.settle(plan, confirm="3")

    assert {keys[1], txn_key("elsewhere", is_home=False)} == set(desk.settled())


def test_what_is_left_of_a_view_is_settled_after_the_newest_one_of_a_fast_clock_is_gone(desk: Desk) -> None:
    keys = [txn_key("a"), txn_key("b")]
    desk.stage.half(keys[0], ahead_s=20)
    desk.stage.half(keys[1])
    desk.look()
    plan = desk.plan(desk.get("/transactions"), "rollback", is_view="1", state="open")
    desk.stage.commit(keys[0], 0)
    desk.work()

    desk.settle(plan, confirm="2")

    assert [keys[1]] == desk.settled()


@pytest.mark.parametrize("why", ["ticket 12", 930 * "x"])
def test_what_is_prepared_after_the_look_is_not_touched_by_a_new_console_that_resumes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """A reason may leave no room in the lines for how far the person saw."""
    monkeypatch.setattr("txlayer.operate.settle_requests.STEP_COUNT", 1)
    (old,) = desk.prepare("old")
    desk.stage.world.advance(ms=61_000)
    prepared_s = desk.stage.world.passed_s
    keys = desk.prepare(*"bcd")
    plan = desk.plan(desk.get("/transactions"), "rollback", is_view="1", state="open")
    request_id = desk.killed(plan, confirm="4", why=why)
    desk.stage.op(op_line("C", keys[0], 1))
    for name, partition in (("a", 0), ("e", 1)):
        key = txn_key(name, is_home=not partition)
        desk.stage.half(key, partition=partition, ahead_s=prepared_s - desk.stage.world.passed_s)
    desk.work()

    found = desk.get(f"/request?id={request_id}")
    desk.resume(found, request_id)

    is_known = len(why) < 100
    assert is_known == ("is left alone" not in found)
    assert [old, *(keys[1:] if is_known else ())] == desk.settled()


def test_many_with_one_id_of_the_users_are_settled_and_no_others(desk: Desk) -> None:
    (other,) = desk.prepare("other")
    for name in ("a", "b"):
        desk.stage.half(txn_key(name), options=HalfOptions(query_id="invoice 7"))
    desk.site.onlooker.look()
    plan = desk.plan(
        desk.get("/transactions?query=invoice+7"), "rollback", is_view="1", state="open", query="invoice 7"
    )

    page = desk.settle(plan, confirm="2")

    assert {txn_key("a"), txn_key("b")} == set(desk.settled())
    assert "own id" in page or "query invoice 7" in page
    assert not any(other in line for line in desk.operator_lines())


@pytest.mark.parametrize(
    "own", [HOSTILE, "a] [request 0 of 1: state=open]", "'; DROP TABLE txn; --", "\x00\x1b[31m", "%00&state=parked"]
)
def test_an_id_of_the_users_that_is_hostile_names_its_own_transactions_alone(desk: Desk, own: str) -> None:
    desk.prepare("other")
    desk.stage.half(txn_key("a"), options=HalfOptions(query_id=own))
    desk.look()
    everything = desk.get("/transactions")
    view = desk.site.browser.get("/transactions", params={"query": own})
    found = desk.site.browser.get("/search", params={"by": "query", "what": own})

    page = desk.settle(desk.plan(view.text, "rollback", is_view="1", state="open", query=own))
    again = desk.get(f"/request?id={desk.restart()}")

    assert [txn_key("a")] == desk.settled()
    assert "The op log has 1 of at most 1 lines" in again
    shown = [everything, page, again, desk.get("/requests"), desk.get("/audit")]
    assert not any("<script>alert" in each for each in (view.text, found.text, *shown))
    assert not any("\x1b" in each for each in shown)  # a field of the address keeps what the person typed


def test_a_request_that_is_stopped_is_resumed_and_nothing_is_written_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.operate.settle_requests.STEP_COUNT", 3)
    desk.prepare(*(f"t{number}" for number in range(8)))
    plan = desk.plan(desk.get("/transactions"), "check-now", is_view="1", state="open")
    desk.on_wait.append(desk.stop)
    stopped = desk.settle(plan, confirm="8")
    assert 3 == len(desk.operator_lines())
    assert "before its end: it was stopped" in stopped

    (job,) = desk.site.console.jobs.named("settle ")
    desk.resume(stopped, job.subject)
    page = desk.get(f"/request?id={job.subject}")

    assert (8, 8) == (len(desk.settled()), len(set(desk.settled())))
    assert "3 of them written before or by others" in page


def test_a_request_that_another_console_worked_off_too_is_resumed_with_no_line_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.operate.settle_requests.STEP_COUNT", 3)
    keys = desk.prepare(*(f"t{number}" for number in range(12)))
    plan = desk.plan(desk.get("/transactions"), "rollback", is_view="1", state="open")
    desk.on_wait.append(desk.stop)
    stopped = desk.settle(plan, count="4", confirm="4")  # as many as there were when the person looked
    own = desk.operator_lines()
    for key in keys[7:9]:
        desk.stage.op(own[0].replace(own[0].split("|")[2], key))
    desk.work()

    (job,) = desk.site.console.jobs.named("settle ")
    desk.resume(stopped, job.subject)

    assert 5 == len(desk.operator_lines())


@pytest.mark.parametrize("is_between_look_and_line", [False, True])
def test_two_consoles_that_work_off_one_request_at_once_settle_no_more_than_its_number(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, *, is_between_look_and_line: bool
) -> None:
    """The second one begins while the first one waits for its first step, or just before it writes its second one."""
    monkeypatch.setattr("txlayer.operate.settle_requests.STEP_COUNT", 2)
    desk.prepare(*(f"t{number}" for number in range(12)))
    plan = desk.plan(desk.get("/transactions"), "rollback", is_view="1", state="open")
    console = desk.site.console

    def work() -> None:
        desk.stage.work(seconds=2)
        desk.look()

    def resume_elsewhere() -> None:
        with closing(console.connect()) as connections:
            (found,), _ = read_requests(connections, since_ms=0)
            working = replace(console.environment, sleep=lambda _seconds: work())
            other = ManualSettlement(connections, environment=working)
            work_off(
                found.request, console.view, other, now_ms=console.now_ms, should_stop=lambda: False, is_resumed=True
            )

    if is_between_look_and_line:
        write, steps = ManualSettlement.write, iter([lambda: None, resume_elsewhere])

        def look_and_write(settlement: ManualSettlement, lines: Any, **more: Any) -> Any:
            next(steps, lambda: None)()
            return write(settlement, lines, **more)

        monkeypatch.setattr(ManualSettlement, "write", look_and_write)
    else:
        desk.on_wait.append(resume_elsewhere)
    page = desk.settle(plan, count="5", confirm="5")  # as many as there were when the person looked

    assert 5 == len(set(desk.settled()))
    assert "It ended" in page


@pytest.mark.parametrize("ahead_s", [0, 600, 86_400])
def test_a_request_is_found_again_in_the_op_log_by_a_new_console(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    """Also if its machine's clock is ahead of the brokers'."""
    monkeypatch.setattr("txlayer.operate.settle_requests.STEP_COUNT", 2)
    desk.site.go_ahead(ahead_s)
    desk.prepare(*(f"t{number}" for number in range(5)))
    plan = desk.plan(desk.get("/transactions"), "rollback", is_view="1", state="open")
    desk.is_worked = False
    page = desk.settle(plan, confirm="5")
    assert "no coordinator carries its lines out now" in page
    assert "<dt>written</dt><dd>2</dd>" in page

    request_id = desk.restart()
    desk.is_worked = True
    listed = desk.get("/requests")
    found = desk.get(f"/request?id={request_id}")

    assert request_id in listed
    assert "The op log has 2 of at most 5 lines" in found
    assert "coordinators have gone past 0 of them" in found
    desk.stage.op(op_line("C", desk.operator_lines()[0].split("|")[2], 0))
    desk.resume(found, request_id)
    assert 5 == len(desk.operator_lines())
    assert [] == desk.stage.visible()
    assert "coordinators have gone past 5 of them" in desk.get(f"/request?id={desk.restart()}")


def test_a_request_behind_more_records_than_a_page_reads_is_resumed_with_no_line_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.operate.settle_requests.STEP_COUNT", 2)
    desk.prepare(*(f"t{number}" for number in range(4)))
    desk.stage.op(*(op_line("U", "x/0000000a", 0) for _ in range(3)))
    plan = desk.plan(desk.get("/transactions"), "check-now", is_view="1", state="open")
    request_id = desk.killed(plan, confirm="4")
    monkeypatch.setattr("txlayer.operate.settle_requests.SCANNED_MAX", 2)

    listed = desk.get("/requests")
    found = desk.get(f"/request?id={request_id}")
    desk.resume(found, request_id)

    assert (4, 4) == (len(desk.settled()), len(set(desk.settled())))
    assert request_id in listed
    assert "only the newest are read" in listed
    assert "There may be more" in found


def test_of_many_requests_the_newest_are_listed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.operate.settle_requests.REQUESTS_MAX", 2)
    keys = desk.prepare("a", "b", "c")
    for key in keys:
        desk.settle(desk.plan(desk.get("/transactions"), "check-now", key))
        desk.stage.work(seconds=2)
        desk.look()
    newest, middle, oldest = (job.subject for job in desk.site.console.jobs.named("settle "))

    page = desk.get("/requests")

    assert [True, True, False] == [each in page for each in (newest, middle, oldest)]
    assert "There may be others" in page


def test_what_is_prepared_after_the_look_is_not_touched_by_a_console_whose_clock_is_ahead(desk: Desk) -> None:
    desk.site.go_ahead(600)
    first, second = desk.prepare("a", "b")
    plan = desk.plan(desk.get("/transactions"), "rollback", is_view="1", state="open")
    desk.stage.commit(first, 0)
    desk.stage.work(seconds=60)
    desk.prepare("c")

    desk.settle(plan, confirm="2")

    assert [second] == desk.settled()


def test_a_console_whose_clock_is_behind_settles_what_it_shows(desk: Desk) -> None:
    desk.site.go_ahead(-600)
    keys = desk.prepare("a", "b")

    desk.settle(desk.plan(desk.get("/transactions"), "rollback", is_view="1", state="open"), confirm="2")

    assert keys == desk.settled()


@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
def test_what_is_older_is_so_by_the_brokers_time(desk: Desk, ahead_s: int) -> None:
    (old,) = desk.prepare("old")
    desk.stage.world.advance(ms=3_600_000)
    desk.prepare("young")
    desk.stage.world.advance(ms=120_000)
    desk.site.go_ahead(ahead_s)
    appear(desk.stage)
    desk.look()
    view = desk.get("/transactions?older=30m")

    desk.settle(desk.plan(view, "rollback", is_view="1", state="open", older="30m"))

    assert [old] == desk.settled()
    assert "1 not settled" in view


def test_a_request_to_cancel_that_a_new_console_finds_again_touches_nothing_but_what_is_scheduled(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.operate.settle_requests.STEP_COUNT", 2)
    scheduled = [txn_key(f"t{number}") for number in range(4)]
    desk.schedule(*scheduled[:2])
    undecided = desk.prepare("undecided")
    desk.schedule(*scheduled[2:])
    plan = desk.plan(desk.get("/transactions"), "cancel", is_view="1", state="scheduled,open")
    request_id = desk.killed(plan, confirm="4")

    found = desk.get(f"/request?id={request_id}")
    desk.resume(found, request_id)

    assert sorted(scheduled) == sorted(desk.settled())
    assert not any(undecided[0] in line for line in desk.operator_lines())
    assert "Cancel" in found


def test_a_line_that_came_too_late_is_named_when_the_request_is_found_again(desk: Desk) -> None:
    (key,) = desk.prepare("a")
    plan = desk.plan(desk.get("/transactions"), "commit", key)
    desk.stage.op(op_line("R", key, 0, source=Source.OPERATOR, reason="anna: she asked"))
    desk.settle(plan)

    assert "rollback by operator anna: she asked came first" in desk.get(f"/request?id={desk.restart()}")


def incomplete(desk: Desk, key: str) -> None:
    """A commit that came before the last half message."""
    desk.stage.commit(key, desk.stage.half(key, count=2))
    desk.stage.half(key, index=1, count=2)


def held(desk: Desk, key: str) -> None:
    desk.stage.commit(key, desk.stage.half(key, topic="nowhere"))
    desk.stage.work(seconds=3)


@pytest.mark.parametrize(
    ("make", "action", "more"),
    [
        (incomplete, "abandon", {}),
        (held, "abandon", {}),
        (held, "commit", {}),
        (Desk.schedule, "cancel", {}),
        (Desk.schedule, "reschedule", {"to": "1m"}),
    ],
)
def test_of_what_acts_after_a_commit_the_commit_is_not_told_as_what_came_first(
    desk: Desk, make: Callable[[Desk, str], None], action: str, more: dict[str, str]
) -> None:
    key = txn_key("a")
    make(desk, key)
    desk.look()
    page = desk.settle(desk.plan(desk.get("/transactions"), action, key), **more)
    again = desk.get(f"/request?id={desk.restart()}")

    assert "<dt>refused</dt>" not in page
    assert "came first" not in again
    assert '<span class="level">carried out</span>' in again


def test_an_abandon_after_what_is_forwarded_says_that_the_commit_came_first(desk: Desk) -> None:
    (key,) = desk.prepare("a")
    plan = desk.plan(desk.get("/transactions"), "abandon", key)
    desk.stage.commit(key, 0)
    desk.settle(plan)

    assert [txn_id_of(key)] == desk.stage.visible()
    assert "commit by producer" in desk.get(f"/request?id={desk.restart()}")


def test_what_was_abandoned_after_an_incomplete_commit_is_not_told_as_committed(desk: Desk) -> None:
    """By another person, between the look and the request."""
    key = txn_key("a")
    incomplete(desk, key)
    desk.look()
    plan = desk.plan(desk.get("/transactions"), "abandon", key)
    desk.stage.op(op_line("A", key, 1, source=Source.OPERATOR, reason="anna: she asked"))
    desk.work()

    page = desk.settle(plan)

    assert [] == desk.stage.visible()
    assert "<dt>already</dt><dd>1</dd>" in page
    assert "rolled back already" in page


@pytest.mark.parametrize(("group", "offset"), [("another", 0), ("shop", 1)])
def test_a_line_that_does_not_count_is_not_named_as_the_decision(desk: Desk, group: str, offset: int) -> None:
    """It names another producer group, or the half record of another transaction; the chosen one was settled before the line was due."""
    key, _ = desk.prepare("a", "b")
    plan = desk.plan(desk.get("/transactions"), "commit", key)
    desk.stage.op(op_line("C", key, offset, group=group, source=Source.OPERATOR, reason="eve: mine"))
    desk.stage.op(op_line("R", key, 0, source=Source.OPERATOR, reason="anna: she asked"))
    desk.work()

    page = desk.settle(plan)

    assert [] == desk.stage.visible()
    assert "<dt>refused</dt><dd>1</dd>" in page
    assert "by operator anna (she asked)" in page


def test_a_decision_that_names_a_second_copy_is_named_when_the_request_is_found_again(desk: Desk) -> None:
    key = txn_key("a")
    desk.stage.half(key)
    desk.stage.half(key)  # the client wrote it twice
    desk.look()
    plan = desk.plan(desk.get("/transactions"), "commit", key)
    desk.stage.op(op_line("R", key, 1, source=Source.OPERATOR, reason="anna: she asked"))
    page = desk.settle(plan)

    assert "<dt>refused</dt><dd>1</dd>" in page
    assert "rollback by operator anna: she asked came first" in desk.get(f"/request?id={desk.restart()}")


def test_a_request_that_could_not_begin_is_begun_by_the_same_form(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = desk.prepare("a")
    plan = desk.plan(desk.get("/transactions"), "check-now", key)

    def fail(*_arguments: object, **_named: object) -> None:
        raise RetriableError("nothing was written; try again")

    monkeypatch.setattr("txlayer.operate.settle_requests.work_off", fail)
    assert "nothing was written; try again" in desk.settle(plan)
    monkeypatch.undo()

    assert "<dt>done</dt><dd>1</dd>" in desk.settle(plan)
    assert 1 == len(desk.operator_lines())


def test_the_same_form_sent_twice_is_one_request(desk: Desk) -> None:
    (key,) = desk.prepare("a")
    plan = desk.plan(desk.get("/transactions"), "check-now", key)

    desk.settle(plan)
    desk.settle(plan)

    assert 1 == len(desk.operator_lines())


def test_a_form_that_was_sent_is_refused_with_another_time(desk: Desk) -> None:
    key = txn_key("a")
    desk.schedule(key)
    plan = desk.plan(desk.get("/transactions"), "reschedule", key)

    desk.settle(plan, to="2h")
    once_more, another = desk.ask(plan, to="2h"), desk.ask(plan, to="5h")

    assert [303, 400] == [once_more.status_code, another.status_code]
    assert "this form has asked for " in another.text
    assert 1 == len(desk.operator_lines())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"why": "  "}, "say why"),
        ({"why": 1_000 * "x"}, "a reason takes at most"),
        ({"request": "x"}, "no such request"),
        ({"looked": "1600000000000"}, "looked at long ago"),
        ({"looked": "2600000000000"}, "looked at long ago"),
        ({"request": request_id_of(2_600_000_000_000, 1)}, "looked at long ago"),
        ({"count": "x"}, "the form has no count"),
        ({"count": "0"}, "takes 1 to"),
        ({"count": "2"}, "not that of the transactions"),
        ({"action": "drop"}, "does not say what to do"),
        ({"key_of": ""}, "no transaction is chosen"),
        ({"key_of": [f"{number}/a" for number in range(101)]}, "choose at most 100"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(desk: Desk, change: Any, says: str) -> None:
    (key,) = desk.prepare("a")
    plan = desk.plan(desk.get("/transactions"), "commit", key)

    answer = desk.ask(plan, **change)

    assert 400 == answer.status_code
    assert re.search(says, answer.text)
    assert [] == desk.operator_lines()


def test_what_is_decided_already_is_left_alone(desk: Desk) -> None:
    open_one, held = txn_key("open"), txn_key("held")
    desk.stage.commit(held, desk.stage.half(held, topic="missing"))
    desk.stage.work(seconds=5)
    desk.stage.half(open_one)
    desk.look()

    plan = desk.plan(desk.get("/transactions"), "rollback", open_one, held, "gone/0000000a")

    assert "<strong>1</strong>" in plan
    assert "left alone" in plan
    assert "not waiting any more" in plan
    assert "nothing" in plan


def test_what_is_not_scheduled_is_not_said_to_be_decided(desk: Desk) -> None:
    desk.prepare("a")

    assert "decided already" not in desk.plan(desk.get("/transactions"), "cancel", is_view="1", state="open")


def test_of_an_id_with_very_many_attempts_the_chosen_one_is_settled(desk: Desk) -> None:
    """A service that tries again and again, and never decides."""
    txn_id = txn_id_of(txn_key("a"))
    keys = [f"{txn_id}/{number:08x}" for number in range(120)]
    for key in keys:
        desk.stage.half(key)
    desk.look()

    page = desk.settle(desk.plan(desk.get("/transactions"), "rollback", keys[-1]))

    assert [keys[-1]] == desk.settled()
    assert "<dt>done</dt><dd>1</dd>" in page


def test_a_view_without_a_state_means_the_parked_ones(desk: Desk) -> None:
    desk.prepare("a")

    plan = desk.plan(desk.get("/transactions"), "rollback", is_view="1")

    assert "There is nothing to do" in plan
    assert "parked,parked-committed" in plan


def test_an_unknown_request_is_said(desk: Desk) -> None:
    assert "has no line of this request" in desk.get(f"/request?id={request_id_of(1_700_000_000_000, 1)}", status=404)
    assert 400 == desk.site.browser.get("/request?id=../x").status_code
    assert 400 == desk.site.browser.get("/requests?since=what").status_code


def test_a_reason_is_text_and_nothing_else(desk: Desk) -> None:
    (key,) = desk.prepare("a")

    page = desk.settle(desk.plan(desk.get("/transactions"), "rollback", key), why=HOSTILE + " [request 1 of 2]\x1b")
    pages = [page, desk.get("/requests"), desk.get("/transaction?id=" + key.partition("/")[0])]
    pages.append(desk.get(f"/request?id={desk.restart()}"))

    for each in pages:
        assert "<script>alert" not in each
        assert "&lt;script&gt;alert" in each
        assert "\x1b" not in each


@pytest.fixture
def shared_desk() -> Desk:
    """A desk of alice, who asks, and bob, who confirms; what alice asked for waits."""
    people = [Person("alice", Role.SETTLE), Person("bob", Role.SETTLE)]
    desk = Desk(
        AccessRules(
            proxies=(parse_proxy(CLIENT),),
            identity_header="X-Remote-User",
            users={person.name: User(person, None) for person in people},
            is_writable=True,
            needs_second_person=True,
        )
    )
    (key,) = desk.prepare("a")
    desk.site.browser.headers["X-Remote-User"] = "alice"
    asked = desk.ask(desk.plan(desk.get("/transactions"), "commit", key))
    assert "/waiting" == asked.headers["location"]
    desk.site.browser.headers["X-Remote-User"] = "bob"
    return desk


def proposal_of(page: str) -> str:
    found: list[str] = re.findall(r'name="proposal" value="([^"]+)"', page)
    return found[0]


def test_a_second_person_confirms_and_both_names_are_in_the_line(shared_desk: Desk) -> None:
    desk, waiting = shared_desk, shared_desk.get("/waiting")
    proposal = proposal_of(waiting)
    assert "commit 1 transaction: a-1/0000000a" in waiting
    assert [] == desk.operator_lines()
    confirmed = desk.site.post(desk.get("/waiting"), "/waiting/confirm", proposal=proposal)
    desk.site.wait_for(f"settle {confirmed.headers['location'].rpartition('=')[2]}")

    (line,) = desk.operator_lines()
    assert "alice with bob%3A ticket 12" in line


def test_what_was_confirmed_and_could_not_begin_waits_for_the_next_confirmation(
    shared_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = shared_desk
    page = desk.get("/waiting")
    monkeypatch.setattr(settle, "RUNNING_MAX", 0)
    refused = desk.site.post(page, "/waiting/confirm", proposal=proposal_of(page))
    assert (503, []) == (refused.status_code, desk.operator_lines())
    monkeypatch.undo()

    confirmed = desk.site.post(page, "/waiting/confirm", proposal=proposal_of(page))
    assert 303 == confirmed.status_code, confirmed.text
    desk.site.wait_for(f"settle {confirmed.headers['location'].rpartition('=')[2]}")

    assert 1 == len(desk.operator_lines())
    assert "Nothing waits" in desk.get("/waiting")


def test_nothing_is_written_while_the_broker_is_away(desk: Desk) -> None:
    (key,) = desk.prepare("a")
    plan = desk.plan(desk.get("/transactions"), "commit", key)
    desk.stage.kafka.stop()
    desk.stage.world.advance(ms=30_000)
    desk.site.console.view.step()

    answer = desk.ask(plan)

    assert 503 == answer.status_code
    assert "nothing was written" in answer.text


def test_a_console_that_only_shows_has_no_buttons_and_takes_no_action() -> None:
    site = Site()
    key = txn_key("a")
    site.stage.half(key)
    site.onlooker.look()

    with site.browser:
        pages = site.get("/transactions") + site.get("/transaction?id=" + key.partition("/")[0])
        answer = site.browser.post("/settle/plan", data={"action": "commit", "key_of": key})

    assert "/settle" not in pages
    assert 403 == answer.status_code
