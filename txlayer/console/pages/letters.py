"""Dead letters: by what went wrong, and one in full; replayed and dropped by a request that is worked off beside the pages."""

from __future__ import annotations

import base64
import logging
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from txlayer.config import milliseconds, parse_duration
from txlayer.console.acting import Action, act, route
from txlayer.console.pages.queues import request_writer
from txlayer.console.show import fields_of, number_of, query
from txlayer.core.dead_letters import (
    DeadLetterHistory,
    DeadLetterReason,
    DeadLetterState,
    ReplayKind,
    is_request_id,
    original_headers,
)
from txlayer.core.progress import NO_KEY
from txlayer.errors import RetriableError, UsageError
from txlayer.operate import Json, dead_letters
from txlayer.operate.replay import DeadLetterResult, ReplayOrder, Watch, ask, author_of, choose, replace_value, why_not

if TYPE_CHECKING:
    from txlayer.console.acting import Note
    from txlayer.console.app import Console

logger = logging.getLogger("txlayer.console")

LETTERS = "letters"
AGE_S = 60.0  # the picture of all groups is read again when it is older, and somebody asks for the page
LIST_COUNT = 100
NAMED_COUNT_MAX = 100
ORDER_COUNT_MAX = 10_000  # dead letters of one request; those of parked keys beside them are added
PATIENCE_S = 300.0
"""A request stops when no answer came for so long. A handler may fail several times, with pauses, before it answers."""
RATE, RATE_MAX = "10", 1_000.0
EDIT_BYTES_MAX = 256 * 1024  # the largest value that is edited in a page
FIELDS = ("group", "topic", "state", "reason", "error", "line", "partition", "hash", "since")
FIELD_LENGTH_MAX = 1_000
KINDS = {kind.name.lower(): kind for kind in (ReplayKind.REPLAY, ReplayKind.DROP)}

Fields = Mapping[str, str]


def wanted_of(asked: Fields, *, now_ms: int) -> dead_letters.DeadLetterFilter:
    """The dead letters that the fields ask for; UsageError, ConfigError: a field says nothing that there is."""
    number, key = asked["partition"], asked["hash"]
    if number and re.fullmatch(r"[0-9]{1,9}", number) is None:
        raise UsageError("a partition is a number")
    if key and key != "null" and re.fullmatch(r"[0-9a-f]{16}", key) is None:
        raise UsageError("the hash of a key has 16 hexadecimal digits")
    try:
        states = frozenset(DeadLetterState(part) for part in asked["state"].split(",") if part)
        reasons = frozenset(DeadLetterReason(part) for part in asked["reason"].split(",") if part)
    except ValueError:
        raise UsageError("no state or no reason has this name") from None
    since = asked["since"]
    return dead_letters.DeadLetterFilter(
        reasons=reasons,
        since_ms=max(now_ms - milliseconds(parse_duration("since", since)), 0) if since else None,
        states=states,
        partition=int(number) if number else None,
        key_hash=None if not key else NO_KEY if key == "null" else bytes.fromhex(key),
        error_type=asked["error"] or None,
        first_line=asked["line"] or None,
    )


# --- looking ----------------------------------------------------------------------------------------------------------


async def letters(console: Console, request: Request) -> Response:
    """What went wrong, in all groups or in one; of one group the oldest dead letters, too."""
    asked = fields_of(request.query_params, FIELDS, length_max=FIELD_LENGTH_MAX)
    now_ms = console.now_ms()
    wanted = wanted_of(asked, now_ms=await console.brokers_ms() if asked["since"] else now_ms)
    at_ms, problem, found = request.state.read_ms, "", dead_letters.Survey()
    if asked["group"]:
        found = await console.desk.call(_survey, console, asked, wanted)
    else:
        look = console.looks.newest(LETTERS, lambda: dead_letters.survey_all(console.clients), age_s=AGE_S)
        at_ms, problem, found = look.at_ms, look.problem, look.result or found
    kinds = sorted(found.by_kind.items(), key=lambda each: (-each[1].open_count, -each[1].newest_ms))
    return console.page(
        request,
        "letters.html",
        asked=asked,
        view=query(asked),
        request_id=_request_id(request.query_params.get("request", "")),
        at_ms=at_ms,
        problem=problem,
        found=found,
        kinds=kinds,
        rows=[dead_letters.letter_json(each, now_ms=now_ms, has_key=False) for each in found.letters],
        states=list(DeadLetterState),
        reasons=list(DeadLetterReason),
        jobs=console.jobs.named(f"{LETTERS} "),
    )


def _survey(console: Console, asked: Fields, wanted: dead_letters.DeadLetterFilter) -> dead_letters.Survey:
    found = dead_letters.Survey()
    with dead_letters.opened_logs(console.clients, asked["group"], list(filter(None, [asked["topic"]]))) as logs:
        for log in logs.values():
            found.add(log, wanted, limit=LIST_COUNT)
    return found


async def letter(console: Console, request: Request) -> Response:
    return await _letter(console, request, request.query_params, has_values=False)


async def values(console: Console, request: Request) -> Response:
    """The same with key, value and headers. That somebody has seen them is logged."""
    return await _letter(console, request, dict(parse_qsl(request.state.form.get("view", ""))), has_values=True)


async def _letter(console: Console, request: Request, given: Fields, *, has_values: bool) -> Response:
    group, position = given.get("group", ""), dead_letters.parse_letter(given.get("at", ""))
    found, said, row, fixed = await console.desk.call(_read_letter, console, group, position)
    if has_values and found is not None:
        logger.info(
            "console.values_shown", extra={"person": request.state.person.name, "dead_letters": [f"{group} {position}"]}
        )
    record = None if found is None else found.record
    headers = [] if record is None else original_headers(record.headers())
    return console.page(
        request,
        "letter.html",
        status=200 if found is not None else 404,
        group=group,
        position=position,
        view=query({"group": group, "at": position}),
        row=row,
        said=said,
        headers=[(name, value if has_values else None, len(value or b"")) for name, value in headers[:100]],
        key_bytes=None if record is None or record.key() is None else len(record.key()),
        record=record if has_values else None,
        fixed=fixed,
        editable=editable(record.value()) if has_values and record is not None and not fixed else None,
        request_id=secrets.token_hex(6),
    )


def _read_letter(
    console: Console, group: str, position: dead_letters.DeadLetterPosition
) -> tuple[dead_letters.FoundLetter | None, list[Json], Json, str]:
    """The dead letter, what was said of it, its row, and why it cannot be edited."""
    with dead_letters.opened_logs(console.clients, group, [position.topic]) as logs:
        log = logs[position.topic]
        found = log.at(position.partition, position.offset)
        if found is None:
            return None, [], {}, ""
        said = [dead_letters.event_json(each) for each in log.events_about(position)]
        return found, said, dead_letters.letter_json(found, now_ms=console.now_ms(), has_key=False), why_not(log, found)


# --- an edit ----------------------------------------------------------------------------------------------------------


def editable(value: bytes | None) -> tuple[str, str] | None:
    """(text or base64, the value so): as text only where a browser gives back the same bytes. None: it is too large."""
    raw = value or b""
    if len(raw) > EDIT_BYTES_MAX:
        return None
    try:
        shown = raw.decode()
    except UnicodeDecodeError:
        shown = "\0"
    if all(letter.isprintable() or letter in "\n\t" for letter in shown):
        return "text", shown
    return "base64", base64.encodebytes(raw).decode()


async def edit(console: Console, request: Request) -> Response:
    """Let a copy with another value take the place of a dead letter, and replay it."""
    form = request.state.form
    view = dict(parse_qsl(form.get("view", "")))
    group, position, reason = (
        view.get("group", ""),
        dead_letters.parse_letter(view.get("at", "")),
        form.get("reason", ""),
    )
    text, request_id = form.get("value", ""), form.get("request", "")
    try:
        # A browser sends each line's end as two characters.
        lines = text.replace("\r\n", "\n")
        is_text = form.get("format") == "text"
        value = lines.encode() if is_text else base64.b64decode("".join(lines.split()), validate=True)
    except ValueError:  # of which binascii's error is one, too
        raise UsageError("the value is neither text nor base64; nothing was written") from None
    if len(value) > EDIT_BYTES_MAX or not is_request_id(request_id):
        raise UsageError(f"a value has at most {EDIT_BYTES_MAX:,} bytes here, and the form a request id")

    def carry_out(operator: str) -> str:
        author = author_of("console", operator=operator, reason=reason, request_id=request_id)
        with dead_letters.opened_logs(console.clients, group, [position.topic]) as logs:
            log = logs[position.topic]
            found = log.at(position.partition, position.offset)
            if found is None:
                raise UsageError(f"{position}: there is no record (any more)")
            clients, environment = console.clients, console.environment
            replace_value(log, found, value, author=author, connections=clients, environment=environment)
        return "/letters/request?" + query({"group": group, "id": request_id})

    says = f"edit {position} of {group[:250]}: a copy with a value of {len(value):,} bytes replaces it and is replayed"
    return await act(console, request, Action(says, reason, carry_out))


# --- a request ---------------------------------------------------------------------------------------------------------


def _request_id(text: str) -> str:
    if text and not is_request_id(text):
        raise UsageError("a request id has 1 to 64 of A-Z a-z 0-9 . _ -")
    return text


def order_of(given: Mapping[str, str], names: Sequence[str], *, operator: str, reason: str, now_ms: int) -> ReplayOrder:
    """What a form's fields ask for: these dead letters, or all of the view; UsageError, ConfigError: a field says nothing that there is."""
    asked = fields_of(dict(parse_qsl(given.get("view", ""))), FIELDS, length_max=FIELD_LENGTH_MAX)
    kind, rate = KINDS.get(given.get("act", "")), given.get("rate", RATE)
    if kind is None:
        raise UsageError("the form says neither replay nor drop")
    if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", rate) is None or not 0 < float(rate) <= RATE_MAX:
        raise UsageError(f"a rate is a number of dead letters a second, more than 0 and at most {RATE_MAX:g}")
    if len(names) > NAMED_COUNT_MAX:
        raise UsageError(f"at most {NAMED_COUNT_MAX} are chosen one by one")
    positions = tuple(map(dead_letters.parse_letter, names))
    if not asked["group"]:
        raise UsageError("choose a consumer group first")
    return ReplayOrder(
        kind,
        asked["group"],
        author_of("console", operator=operator, reason=reason, request_id=given.get("request") or None),
        topics=tuple(filter(None, [asked["topic"]])) or tuple(dict.fromkeys(each.topic for each in positions)),
        names=positions,
        is_all=not positions,
        wanted=dead_letters.DeadLetterFilter() if positions else wanted_of(asked, now_ms=now_ms),
        limit=None if positions else ORDER_COUNT_MAX,
        rate=float(rate),
        patience_s=PATIENCE_S,
    )


async def plan(console: Console, request: Request) -> Response:
    """What a request would ask for; nothing is written."""
    given = dict(request.query_params)
    names = request.query_params.getlist("letter")
    given["request"] = _request_id(given.get("request", "")) or secrets.token_hex(6)
    order = order_of(given, names, operator="plan", reason="plan", now_ms=await console.brokers_ms())

    def look() -> Any:
        with dead_letters.opened_logs(console.clients, order.group, order.topics) as logs:
            return choose(order, logs)

    choice = await console.desk.call(look)
    sample = [dead_letters.letter_json(each, now_ms=console.now_ms(), has_key=False) for each in choice.in_turn[:20]]
    return console.page(
        request,
        "letters_plan.html",
        act=given["act"],
        order=order,
        view=given.get("view", ""),
        names=[str(name) for name in order.names],
        choice=choice,
        count=len(choice.chosen),
        last=" ".join(map(str, {each[:2]: each for each in sorted(c.position for c in choice.chosen)}.values())),
        sample=sample,
        unable=choice.unable[:20],
        limit=ORDER_COUNT_MAX,
        rate=RATE,
    )


async def start(console: Console, request: Request) -> Response:
    """Begin the request that the plan showed; a job works it off, and its page shows what the log says of it."""
    form = request.state.form
    names, reason = form.get("letters", "").split(), form.get("reason", "")
    count, most = (number_of(form, name, digit_count_max=6) for name in ("count", "failures"))
    if count > 1 and form.get("confirm", "").strip() != str(count):
        raise UsageError(f"type {count}, the number of dead letters, to confirm; nothing was asked for")
    if not is_request_id(form.get("request", "")):
        raise UsageError("the form has no request id")
    last = {each[:2]: each.offset for each in map(dead_letters.parse_letter, form.get("last", "").split())}
    now_ms = await console.brokers_ms()
    order = order_of(form, names, operator="check", reason=reason or "-", now_ms=now_ms)

    def carry_out(operator: str) -> str:
        final = order_of(form, names, operator=operator, reason=reason, now_ms=now_ms)
        name = f"{LETTERS} {final.group}"
        is_begun = console.jobs.start(
            name,
            lambda note: _work_off(console, final, note, last=last, count_max=count, failed_count_max=most),
            subject=final.author.request_id,
        )
        job = console.jobs.newest(name)
        if not is_begun and job is not None and job.subject != final.author.request_id:  # else the same form once more
            raise RetriableError("another request for this group is being worked off; wait for its end, or stop it")
        return "/letters/request?" + query({"group": final.group, "id": final.author.request_id})

    says = f"{form['act']} {count:,} dead letters of {order.group}"
    return await act(console, request, Action(says, reason, carry_out))


def _work_off(
    console: Console,
    order: ReplayOrder,
    note: Note,
    *,
    last: Mapping[tuple[str, int], int],
    count_max: int,
    failed_count_max: int,
) -> tuple[Counter[DeadLetterResult], str]:
    """How many of each result, and why it stopped. `last`: offsets of the last ones that the plan had, by topic and partition."""
    note("choosing", 0, 0)
    with (
        dead_letters.opened_logs(console.clients, order.group, order.topics) as logs,
        request_writer(console, order.group) as writer,
    ):
        choice = choose(order, logs)
        unseen_count = sum(each.position.offset > last.get(each.position[:2], -1) for each in choice.chosen)
        if unseen_count or len(choice.chosen) > count_max:
            raise RetriableError(
                f"{len(choice.chosen):,} dead letters are meant by now, and {count_max:,} were confirmed; "
                f"{unseen_count:,} came since: look again"
            )
        total = len(choice.chosen) + len(choice.asked_before)
        watch = Watch(
            lambda: note.should_stop,
            failed_count_max,
            note=lambda asked, done, failed: note(f"{asked:,} asked for, {failed:,} failed;", done, max(total, asked)),
        )
        outcomes = ask(order, writer, logs, choice, watch=watch)
    return Counter(each.result for each in outcomes), watch.stopped


async def asked_for(console: Console, request: Request) -> Response:
    """What the log says of a request: who asked for what, why, and what came of it."""
    group, name = request.query_params.get("group", ""), _request_id(request.query_params.get("id", ""))
    job = console.jobs.newest(f"{LETTERS} {group}")
    job = job if job is not None and job.subject == name else None
    # A page that follows a job must not read the whole topic each time.
    is_running = job is not None and job.is_running
    rows = [] if is_running else await console.desk.call(_request_rows, console, group, name)
    by_result = Counter((row["kind"], row["outcome"] or "no answer yet") for row in rows)
    waiting = sum(row["outcome"] is None for row in rows)
    return console.page(
        request,
        "letters_request.html",
        status=200 if rows or job is not None else 404,
        group=group,
        name=name,
        first=min(rows, key=lambda row: row["at_ms"], default=None),
        last_ms=max((row["answered_ms"] or row["at_ms"] for row in rows), default=None),
        by_result=sorted(by_result.items()),
        waiting=waiting,
        shown=[row for row in rows if row["outcome"] not in ("handled", "dropped")][:LIST_COUNT],
        job=job,
    )


def _request_rows(console: Console, group: str, name: str) -> list[Json]:
    with dead_letters.opened_logs(console.clients, group) as logs:
        return [_request_row(*each, name) for log in logs.values() for each in log.requested(name)]


def _request_row(position: dead_letters.DeadLetterPosition, history: DeadLetterHistory, name: str) -> Json:
    asked, result = dead_letters.event_json(history.asked[name]), history.results.get(name)
    answer = {} if result is None else dead_letters.event_json(result)
    answered = {"outcome": answer.get("outcome"), "answered_ms": answer.get("at_ms"), "answer": answer.get("text")}
    return asked | answered | {"at": str(position)}


async def stop(console: Console, request: Request) -> Response:
    """Stop the job of a request. What was asked for already is carried out."""
    form = request.state.form
    group, name = form.get("group", ""), form.get("request", "")
    job = console.jobs.newest(f"{LETTERS} {group}")
    if job is not None and job.subject == name:
        console.jobs.stop(job.name)
    return RedirectResponse("/letters/request?" + query({"group": group, "id": name}), 303)


ROUTES = [
    route("/letters", letters),
    route("/letters/plan", plan),
    route("/letters/start", start, "POST"),
    route("/letters/stop", stop, "POST"),
    route("/letters/request", asked_for),
    route("/letter", letter),
    route("/letter/values", values, "POST"),
    route("/letter/edit", edit, "POST"),
]
