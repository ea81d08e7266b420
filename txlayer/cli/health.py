"""Is it well? `txlayer doctor`: whether a cluster is fit for production, with the command that mends what is not. `txlayer top`: a
namespace in a terminal, kept current, with the loop by which other commands keep a table current.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from txlayer.adapters.telemetry import printable
from txlayer.cli import output
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import AsJson, Connection, current_ms, declared, option, with_bundles
from txlayer.config import ConsumerConfig, CoordinatorConfig, parse_duration
from txlayer.core.messages import check_topic
from txlayer.operate import Json, length_text, time_text
from txlayer.operate.doctor import ClusterFinding, Level, examine, findings_json, is_ill

if TYPE_CHECKING:
    from txlayer.operate.live import LiveView
    from txlayer.operate.overall import Look

LEVEL_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.INFO: "cyan", Level.OK: "green"}


@with_bundles
def doctor(
    *,
    topic: list[str] | None = option(
        "--topic",
        "A real topic to look at, too; may be repeated. Those that recent half messages name, and those of "
        "TXLAYER_TARGET_TOPICS, are looked at anyway.",
        "TOPIC",
    ),
    replication_factor: int | None = option(
        "--replication-factor",
        "What the namespace's topics must have; default: as many as there are brokers for, at most 3.",
        min=1,
    ),
    strict: bool = option("--strict", "Warnings count: exit code 1 for them too.", default=False),
    show_all: bool = option("--all", "Show what is in order, too.", default=False),
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Check a cluster and a namespace before production, and after; exit code 1 when there is an error.

    Run it where, and with the credentials with which, the coordinators run. It never changes anything.
    docs/howto/doctor.md explains every check.
    """
    config = connection.config(CoordinatorConfig)
    topics = [check_topic(each) for each in topic or ()]
    # Here, so that `txlayer --help` does not load the Kafka client.
    from txlayer.adapters.kafka.inspection import inspect

    facts = inspect(config, topics=topics, replication_factor=replication_factor)
    found = examine(facts, config)
    if as_json:
        output.print_json(findings_json(found, config=config))
    else:
        show_findings(found, namespace=config.namespace, show_all=show_all)
    if is_ill(found, is_strict=strict):
        raise typer.Exit(ExitCode.FINDING)


def show_findings(found: Sequence[ClusterFinding], *, namespace: str, show_all: bool) -> None:
    counts = Counter(finding.level for finding in found)
    shown = [f for f in found if show_all or f.level is not Level.OK]
    console = output.console()
    console.print(printable(f"namespace {namespace}"))
    for finding, about in _together(sorted(shown, key=lambda f: list(Level).index(f.level))):
        console.print()
        console.print(_block(finding, about), soft_wrap=True)
    console.print()
    summary = ", ".join(f"{counts[level]} {level.value}" for level in Level)
    more = "" if show_all else "; --all shows what is in order"
    console.print(f"{summary}{more}")


def _together(found: Sequence[ClusterFinding]) -> list[tuple[ClusterFinding, str]]:
    """What is said of several in the same words is said once, of all of them."""
    same: dict[ClusterFinding, list[str]] = {}
    for finding in found:
        same.setdefault(finding._replace(about=""), []).append(finding.about)
    return [(finding, ", ".join(filter(None, about))) for finding, about in same.items()]


def _block(finding: ClusterFinding, about: str) -> Text:
    # Lines as they are, however narrow the terminal: what mends is there to be copied.
    lines = [finding.reason, f"mend it by: {finding.mend}" if finding.mend else ""]
    block = Text(f"{finding.level.value:8} ", style=LEVEL_STYLES[finding.level])
    block.append(printable(f"{finding.check}  {about}"), style="not bold default")
    for line in filter(None, lines):
        block.append(f"\n{'':9}{printable(line)}", style="not bold default")
    return block


# --- top --------------------------------------------------------------------------------------------------------------

ROW_COUNT = 15  # groups and partitions that are shown, those that need a look first; the overview fits into a screen
WATCH_S = 2.0  # how often a list is shown anew
CONSUMPTION, CONSUMPTION_S = "consumption", 30.0  # a look at consumers and leases is repeated when it is older
RETRY_S = 2.0  # pause after a failure

Interval = Annotated[str, declared("--interval", "How often to look.", "2s")]


@with_bundles
def top(
    *,
    once: bool = option("--once", "Show it once and end.", default=False),
    interval: Interval = "2s",
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Show whether a namespace is well, and keep that current until Ctrl-C: transactions, responders, coordinators, consumers.

    It reads the logs once and follows them from there. With --json each look is an object on a line of its own.
    """
    from txlayer.operate.overall import Looks, overall_json

    config, consumers = connection.config(CoordinatorConfig), connection.config(ConsumerConfig)
    interval_s = parse_duration("--interval", interval).total_seconds()
    looks = Looks()

    def read() -> list[Json]:
        """The consumer groups of the cluster with their queues."""
        from txlayer.adapters.connect import kafka_clients
        from txlayer.operate.dead_letters import read_consumed_topics
        from txlayer.operate.queues import consumption_json, read_queues

        clients = kafka_clients(config)
        return consumption_json(read_consumed_topics(clients), read_queues(clients, consumers))

    def look(view: LiveView) -> Json:
        if once:
            looks.read(CONSUMPTION, read)
        seen, counts = looks.newest(CONSUMPTION, read, age_s=CONSUMPTION_S), view.rows.counts()
        consumed = seen.result or ()
        body = overall_json(config.namespace, view.state, counts, now_ms=current_ms(), consumed=consumed)
        return body | consumed_json(seen)

    watch(config, look, overview, interval_s=interval_s, is_once=once, as_json=as_json)


def consumed_json(seen: Look) -> Json:
    return {"consumers": seen.result, "consumers_ms": seen.at_ms or None, "consumers_problem": seen.problem or None}


def watch(
    config: CoordinatorConfig,
    look: Callable[[LiveView], Json],
    draw: Callable[[Json], RenderableType],
    *,
    interval_s: float,
    is_once: bool = False,
    as_json: bool = False,
) -> None:
    """Show what `look` finds in a live view, again after each interval, until a signal.

    Raises:
        BrokerUnavailableError, NotAuthorisedError, UsageError: the first look failed. Later failures are in what `look` finds.
    """
    from txlayer.adapters.connect import CoordinatorConnections, kafka_clients
    from txlayer.cli.services import StopSignal
    from txlayer.operate.live import LiveView

    clients = kafka_clients(config)
    view = LiveView(lambda: CoordinatorConnections(clients, config, is_sparing=True))
    with closing(view):
        view.catch_up()
        if is_once:
            output.show(look(view), draw, as_json=as_json)
            return
        stop = StopSignal()
        stop.install()
        follow(view, look, draw, interval_s=interval_s, should_stop=stop.is_set, wait=stop.wait, as_json=as_json)


def follow(
    view: LiveView,
    look: Callable[[LiveView], Json],
    draw: Callable[[Json], RenderableType],
    *,
    interval_s: float,
    should_stop: Callable[[], bool],
    wait: Callable[[float], object],
    clock: Callable[[], float] = time.monotonic,
    as_json: bool = False,
) -> None:
    """Step the view and show it after each interval: on the whole screen, or below the last look where there is no terminal."""
    from rich.live import Live

    is_screen = sys.stdout.isatty() and not as_json
    with Live(console=output.console(), screen=True, auto_refresh=False) if is_screen else nullcontext() as shown:
        due = clock()
        while not should_stop():
            is_well = view.step()
            if clock() >= due:
                due = clock() + interval_s
                found = look(view)
                if isinstance(shown, Live):
                    shown.update(draw(found), refresh=True)
                else:
                    output.show(found, draw, as_json=as_json)
                    sys.stdout.flush()
            if not is_well:
                wait(RETRY_S)


# --- the overview -----------------------------------------------------------------------------------------------------


def overview(body: Json) -> RenderableType:
    """What `overall_json` says, on a screen."""
    parts: list[RenderableType] = [Text(printable(f"namespace {body['namespace']}, true at {_time(body['true_ms'])}"))]
    for remark in body["remarks"]:
        line = Text(f"{remark['level']:8} ", style=LEVEL_STYLES[Level(remark["level"])])
        parts.append(line.append(printable(remark["sentence"]), style="not bold default"))
    if body["groups"]:
        parts += [_cut(body["groups"], _GROUPS, ("not settled", "oldest"))]
    parts.append(Text(f"\nthe last minute: {_rates(body['rates'])}"))
    state = printable(body["group_state"] or "unknown")
    seen = _time(body["group_ms"])
    parts.append(
        Text(f"\ncoordinators: {state}, {body['member_count']} running; they and the responders were seen at {seen}")
    )
    worst = sorted(body["partitions"], key=lambda row: (row["owner"] is not None, -row["op_lag_ms"], row["partition"]))
    parts.append(_cut(worst, _PARTITIONS, ("partition", "not carried out", "waits for", "half not read")))
    return Group(*parts, *_consumers(body))


def _consumers(body: Json) -> Iterator[RenderableType]:
    """A block of consumer groups, and one of their leases."""
    rows, at_ms, problem = body["consumers"], body["consumers_ms"], body["consumers_problem"]
    seen = f"seen {_time(at_ms)}" if at_ms else "not known" if problem else "being read"
    yield Text(f"\nconsumers and leases: {seen}")
    if problem:
        yield Text(printable(f"not known now: {problem}"), style="yellow")
    consumed = [row for row in rows or () if row["member_count"] is not None or row["problem"]]
    leased = [row for row in rows or () if row["queue_count"] is not None]
    if consumed:
        yield _cut(consumed, _CONSUMERS, ("running", "not finished", "dead letters"))
    if leased:
        yield _cut(leased, _LEASES, ("queues", "held", "paused", "parked keys", "failing", "open breakers"))
    if rows is not None and not rows:
        yield Text("no group has topics for dead letters, and none holds a lease")


def _cut(rows: list[Json], columns: output.Columns, right: tuple[str, ...]) -> RenderableType:
    table = output.rows_table(rows[:ROW_COUNT], columns, right=right)
    more = len(rows) - ROW_COUNT
    return Group(table, Text(f"and {more:,} more")) if more > 0 else table


def _time(at_ms: int) -> str:
    return time_text(at_ms) if at_ms else "no time yet"


def _rates(rates: Json | None) -> str:
    if rates is None:
        return "being counted"
    said = ", ".join(
        f"{rates[name]:,.1f}/s {name.replace('_', ' ')}" for name in ("prepared", "committed", "rolled_back")
    )
    if rates["median_ms"] is not None:
        said += f"; half of the commits within {length_text(rates['median_ms'])}, 99 of 100 within {length_text(rates['p99_ms'])}"
    return said


def _answers(row: Json) -> Text:
    if row["is_answered"] is None:
        return output.cell("not known")
    if not row["is_answered"]:
        return output.cell("no responder", "bold red")
    return output.cell(", ".join(row["responders"][:3]) or "answered")


_GROUPS: output.Columns = {
    "group": "producer_group",
    "not settled": lambda row: f"{row['count']:,}",
    "states": lambda row: ", ".join(f"{state} {number:,}" for state, number in row["states"].items()),
    "oldest": lambda row: "" if row["oldest_age_ms"] is None else length_text(row["oldest_age_ms"]),
    "who answers check-backs": _answers,
}
_PARTITIONS: output.Columns = {
    "partition": "partition",
    "owner": lambda row: output.cell(row["owner"] or "none", "" if row["owner"] else "bold red"),
    "not carried out": lambda row: f"{row['op_lag']:,}",
    "waits for": lambda row: length_text(row["op_lag_ms"]) if row["op_lag_ms"] else "",
    "half not read": lambda row: f"{row['half_lag']:,}",
    "true at": lambda row: _time(row["true_ms"]),
}


def _number(name: str) -> Callable[[Json], str]:
    return lambda row: "" if row[name] is None else f"{row[name]:,}"


def _counted(name: str, style: str) -> Callable[[Json], Text]:
    return lambda row: output.cell(f"{row[name]:,}", style if row[name] else "")


_CONSUMERS: output.Columns = {
    "group": "group",
    "topic": "topic",
    "running": lambda row: (
        output.cell(row["problem"] or "none", "bold red") if not row["member_count"] else f"{row['member_count']:,}"
    ),
    "not finished": _number("lag"),
    "dead letters": _number("letter_count"),
}
_LEASES: output.Columns = {
    "group": "group",
    "topic": "topic",
    "queues": _number("queue_count"),
    "held": lambda row: output.cell(
        f"{row['held_count']:,}", "bold red" if row["held_count"] < row["queue_count"] else ""
    ),
    "paused": _counted("paused_count", "yellow"),
    "parked keys": _counted("parked_key_count", "yellow"),
    "failing": _counted("failing_count", "yellow"),
    "open breakers": _counted("open_breaker_count", "bold red"),
}
