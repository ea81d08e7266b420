"""What `txlayer verify` prints: a line per promise, the findings, and what was read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import RenderableType
from rich.markup import escape

from txlayer.adapters.verification import Verification
from txlayer.adapters.window import Asked
from txlayer.cli import tables
from txlayer.config import ClientConfig
from txlayer.core.proving import Finding, PromiseStatus
from txlayer.core.verdicts import Severity, Verdict, severity

_ID_LENGTH_MAX = 128
"""An id of a record that is none of ours may hold anything."""

_STYLES = {"proved": "green", "refuted": "bold red", "undecidable": "yellow"}
_SEVERITY_STYLES = {Severity.GOOD: "green", Severity.WARNING: "yellow", Severity.FAULT: "red"}


def parse_time(text: str) -> int | None:
    """Milliseconds since 1970 of a time such as 2026-11-21T10:00:00+00:00 (UTC where it says nothing); None: it is none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)


def place_of(finding: Finding) -> str:
    """topic-partition@offset."""
    return f"{finding.place.topic}-{finding.place.partition}@{finding.place.offset}"


def sentence(status: PromiseStatus) -> str:
    """What the window says of a promise."""
    said = status.word
    if status.word == "proved":
        said = f"proved over {status.proved_count:,} transactions"
    elif status.word == "refuted":
        said = f"refuted by {status.refuted_count:,} transactions; {status.proved_count:,} keep it"
    edge = ""
    if status.undecidable_count:
        edge = f"; {status.undecidable_count:,} at the window's edge are undecidable"
    return said + edge


def verification_tables(
    found: Verification, *, config: ClientConfig, limit: int
) -> Iterator[RenderableType]:
    """For a person."""
    proof = found.proof
    table = tables.table("promise", "", "says the window", title=f"namespace {config.namespace}")
    for status in proof.statuses():
        style = _STYLES.get(status.word, "")
        table.add_row(status.promise.name, status.promise.value, f"[{style}]{sentence(status)}[/]" if style else sentence(status))  # fmt: skip
    yield table
    verdicts = tables.table("verdict", "transactions")
    for verdict in Verdict:
        if proof.verdicts[verdict]:
            style = _SEVERITY_STYLES[severity(verdict)]
            verdicts.add_row(f"[{style}]{verdict.value}[/]", f"{proof.verdicts[verdict]:,}")
    yield verdicts
    if proof.findings:
        yield _findings(found, limit=limit)
    if proof.finding_count > limit:
        yield f"{proof.finding_count - limit:,} more findings; --limit shows more, --json up to {proof.finding_count_max:,}"
    for held in found.reading.held_back:
        yield (
            f"[yellow]open Kafka transaction on {escape(held.topic)}-{held.partition}[/]: read_committed readers see it "
            f"up to {held.stable} of {held.end}"
        )
    yield _read_line(found)


def _findings(found: Verification, *, limit: int) -> RenderableType:
    table = tables.table("verdict", "breaks", "where", "transaction", "reason", title="findings")
    # The faults first, however many warnings there are.
    ordered = sorted(found.proof.findings, key=lambda f: not f.promises)
    for finding in ordered[:limit]:
        style = _SEVERITY_STYLES[severity(finding.verdict)]
        table.add_row(
            f"[{style}]{finding.verdict.value}[/]",
            " ".join(p.name for p in finding.promises),
            tables.cell(place_of(finding)),
            tables.cell(finding.txn_id[:_ID_LENGTH_MAX]),
            tables.cell(finding.detail),
        )
    return table


def _read_line(found: Verification) -> str:
    counts = found.reading.record_counts
    total = sum(counts.values())
    parts = ", ".join(f"{count:,} {role}" for role, count in counts.items())
    seconds = found.read_s + found.judge_s
    per_million = f", {seconds / total * 1e6:.1f} s per million" if total else ""
    return f"{parts}: {total:,} records read in {found.read_s:.1f} s, judged in {found.judge_s:.1f} s{per_million}"


def verification_json(
    found: Verification, *, asked: Asked, config: ClientConfig
) -> dict[str, object]:
    """For a program; findings up to the limit of what is kept."""
    proof, reading = found.proof, found.reading
    return {
        "namespace": config.namespace,
        "since_ms": asked.since_ms,
        "until_ms": asked.until_ms,
        "read_until_ms": reading.window.cut_ms,
        "topics": list(reading.topics),
        "unread_topics": sorted(reading.window.unread_topics),
        "is_refuted": proof.is_refuted,
        "transaction_count": proof.transaction_count,
        "promises": {
            status.promise.name: {
                "status": status.word,
                "proved_count": status.proved_count,
                "refuted_count": status.refuted_count,
                "undecidable_count": status.undecidable_count,
            }
            for status in proof.statuses()
        },
        "verdicts": {v.value: proof.verdicts[v] for v in Verdict if proof.verdicts[v]},
        "finding_count": proof.finding_count,
        "findings": [
            {
                "verdict": f.verdict.value,
                "severity": severity(f.verdict).value,
                "txn_id": f.txn_id,
                "nonce": f.nonce,
                "topic": f.place.topic,
                "partition": f.place.partition,
                "offset": f.place.offset,
                "reason": f.detail,
                "breaks": [p.name for p in f.promises],
            }
            for f in proof.findings
        ],
        "open_kafka_transactions": [held._asdict() for held in reading.held_back],
        "strange_count": reading.strange_count,
        "record_counts": reading.record_counts,
        "read_s": round(found.read_s, 3),
        "judge_s": round(found.judge_s, 3),
    }
