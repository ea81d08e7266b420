"""`txlayer verify`: a window of the topics read by plain clients, and what it proves of P1 to P6."""

from collections.abc import Callable
from functools import cache

import typer
from rich.console import RenderableType
from rich.text import Text

from txlayer.adapters.connect import kafka_clients
from txlayer.adapters.readers import LogTime
from txlayer.cli import output
from txlayer.cli.exits import ExitCode
from txlayer.cli.options import AsJson, Connection, current_ms, option, parse_instant, with_bundles
from txlayer.config import ClientConfig, milliseconds, parse_duration
from txlayer.core.messages import check_topic
from txlayer.core.verification import ADVICE, PromiseStatus, Severity, Verdict, VerdictFinding, severity
from txlayer.errors import UsageError
from txlayer.operate.verify import Verification, WantedWindow, verification_json
from txlayer.operate.verify import verify as verify_window

_ID_LENGTH_MAX = 128  # an id of a record that is none of ours may hold anything

_STYLES = {"proved": "green", "refuted": "bold red", "undecidable": "yellow"}
_SEVERITY_STYLES = {Severity.GOOD: "green", Severity.WARNING: "yellow", Severity.FAULT: "red"}


@with_bundles
def verify(
    *,
    since: str = option("--since", "Judge transactions that were stored since then.", "2h|TIME", default="2h"),
    until: str | None = option(
        "--until",
        "Judge those that were stored before that; default: now. What became of them is read up to now.",
        "10m|TIME",
    ),
    topics: list[str] | None = option(
        "--topics", "Real topics to read; may be repeated. Default: those that the half messages name.", "TOPIC"
    ),
    grace: str = option("--grace", "What is younger may still be on its way.", "60s", default="60s"),
    overdue_after: str = option(
        "--overdue-after", "Report what is undecided or held for longer, after its immunity.", "15m", default="15m"
    ),
    limit: int = option("--limit", "Show so many findings.", min=1, default=100),
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Prove or refute P1 to P6 for the transactions of a window; exit code 1 when a promise is refuted.

    It reads with plain consumers and changes nothing. docs/howto/verify.md explains every line.
    """
    config = connection.config(ClientConfig)
    wanted = WantedWindow(
        *_window(since, until, lambda: LogTime(current_ms(), current_ms())),  # a slip is told before a broker is asked
        tuple(sorted(set(map(check_topic, topics or ())))),
        milliseconds(parse_duration("--grace", grace)),
        milliseconds(parse_duration("--overdue-after", overdue_after)),
    )
    clients = kafka_clients(config)
    since_ms, until_ms = _window(since, until, cache(clients.history().time))
    asked = wanted._replace(since_ms=since_ms, until_ms=until_ms)
    with output.two_step_progress("reading", "judging") as (read, judged):
        found = verify_window(clients, asked, on_read=read, on_judged=judged)
    body = verification_json(found, asked=asked, config=config)
    output.show(body, lambda _: verification_tables(found, config=config, limit=limit), as_json=as_json)
    if found.proof.is_refuted:
        raise typer.Exit(ExitCode.FINDING)


def _window(since: str, until: str | None, now: Callable[[], LogTime]) -> tuple[int, int | None]:
    since_ms = parse_instant("--since", since, now_ms=lambda: now().earliest_ms)
    until_ms = None if until is None else parse_instant("--until", until, now_ms=lambda: now().latest_ms)
    if until_ms is not None and until_ms <= since_ms:
        raise UsageError(f"the window ends before it begins: --since {since} --until {until}")
    return since_ms, until_ms


def where_of(finding: VerdictFinding) -> str:
    return f"{finding.origin.topic}-{finding.origin.partition}@{finding.origin.offset}"


def sentence(status: PromiseStatus) -> str:
    said = status.word
    if status.word == "proved":
        said = f"proved over {status.proved_count:,} transactions"
    elif status.word == "refuted":
        said = f"refuted by {status.refuted_count:,} transactions; {status.proved_count:,} keep it"
    edge = ""
    if status.undecidable_count:
        edge = f"; {status.undecidable_count:,} at the window's edge are undecidable"
    return said + edge


def verification_tables(found: Verification, *, config: ClientConfig, limit: int) -> list[RenderableType]:
    proof = found.proof
    promises: output.Columns = {
        "promise": lambda status: status.promise.name,
        "": lambda status: status.promise.value,
        "says the window": lambda s: output.cell(sentence(s), _STYLES.get(s.word, "")),
    }
    verdicts: output.Columns = {"verdict": _verdict, "transactions": lambda verdict: f"{proof.verdicts[verdict]:,}"}
    parts: list[RenderableType] = [
        output.rows_table(proof.statuses(), promises, title=f"namespace {config.namespace}"),
        output.rows_table([v for v in Verdict if proof.verdicts[v]], verdicts),
    ]
    if proof.findings:
        parts.append(_findings(found, limit=limit))
        parts += [
            _verdict(verdict).append(f": {advice.sentence} {advice.command}", "default")
            for verdict, advice in ADVICE.items()
            if proof.verdicts[verdict]
        ]
    if proof.finding_count > limit:
        more = f"{proof.finding_count - limit:,} more findings; --limit shows more, --json up to {proof.finding_count_max:,}"
        parts.append(more)
    for held in found.reading.held_back:
        name = output.cell(f"open Kafka transaction on {held.topic}-{held.partition}", "yellow")
        parts.append(name.append(f": read_committed readers see it up to {held.stable} of {held.end}", "default"))
    return [*parts, _read_line(found)]


def _findings(found: Verification, *, limit: int) -> RenderableType:
    columns: output.Columns = {
        "verdict": lambda finding: _verdict(finding.verdict),
        "breaks": lambda finding: " ".join(p.name for p in finding.promises),
        "where": where_of,
        "transaction": lambda finding: finding.txn_id[:_ID_LENGTH_MAX],
        "reason": lambda finding: finding.detail,
    }
    # The faults first, however many warnings there are.
    ordered = sorted(found.proof.findings, key=lambda f: not f.promises)
    return output.rows_table(ordered[:limit], columns, title="findings")


def _verdict(verdict: Verdict) -> Text:
    return output.cell(verdict.value, _SEVERITY_STYLES[severity(verdict)])


def _read_line(found: Verification) -> str:
    counts = found.reading.record_counts
    total = sum(counts.values())
    parts = ", ".join(f"{count:,} {role}" for role, count in counts.items())
    seconds = found.read_s + found.judge_s
    per_million = f", {seconds / total * 1e6:.1f} s per million" if total else ""
    return f"{parts}: {total:,} records read in {found.read_s:.1f} s, judged in {found.judge_s:.1f} s{per_million}"
