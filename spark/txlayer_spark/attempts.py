"""What the topics say of earlier attempts to publish the same epoch: each is a transaction, one id with a nonce of its own.

Rows are counted natively; what reaches the driver are a few rows per attempt, whatever a batch holds. Never: reading Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from txlayer.core import codec
from txlayer.core.fields import NEXT_VERSION, VERSION, WHOLE_MAX
from txlayer.core.messages import Resolution
from txlayer.core.transitions import TxnState
from txlayer_spark import lines
from txlayer_spark.parse import parse
from txlayer_spark.schemas import TopicKind

_AFTER_A_COMMIT = frozenset(
    state.value for state in (TxnState.WAITING, TxnState.HELD, TxnState.PARKED_COMMITTED)
)
_COMMIT, _ROLLBACK = Resolution.COMMIT.name, Resolution.ROLLBACK.name


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt, as far as the records that were read tell."""

    txn_id: str
    nonce: str
    first_offset: int
    last_offset: int
    completed_at: int | None = None
    """Half offset at which all messages were there; None: they are not."""
    producer_group: str = ""
    born_ms: int = 0
    decision: Resolution | None = None
    is_settled: bool = False
    """It left the doubt topic: it is decided, also where the deciding line is older than what was read."""

    @property
    def key(self) -> str:
        """id/nonce."""
        return f"{self.txn_id}/{self.nonce}"

    @property
    def is_open(self) -> bool:
        """Nobody has decided it: a commit may still come."""
        return self.decision is None and not self.is_settled


Attempts = Mapping[str, Attempt]
"""{id/nonce: what is known}."""


def belongs_to(txn_id: str, epoch_id: str) -> bool:
    """Whether a transaction is the epoch, or a part of it."""
    return txn_id == epoch_id or txn_id.startswith(f"{epoch_id}.")


def _begin(epoch_id: str) -> tuple[str, str]:
    """How a key (id/nonce) of the epoch begins, and one of a part of it: epoch 1 is not epoch 11."""
    return f"{epoch_id}/", f"{epoch_id}."


def half_traces(raw: DataFrame, epoch_id: str) -> DataFrame:
    """Half records as Kafka gives them → one row per attempt of the epoch."""
    line = lines.text(lines.header(F.col("headers"), codec.HALF_HEADER))
    starts = (f"{v}|{begin}" for v in (VERSION, NEXT_VERSION) for begin in _begin(epoch_id))
    ours = parse(raw.where(reduce(or_, map(line.startswith, starts))), TopicKind.HALF)
    is_last = F.col("index") == F.col("count") - 1
    return ours.groupBy("txn_id", "nonce").agg(
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.min(F.when(is_last, F.col("offset"))).alias("completed_at"),
        F.first("producer_group").alias("producer_group"),
        F.first("born_ms").alias("born_ms"),
    )


def op_traces(raw: DataFrame, epoch_id: str) -> DataFrame:
    """Op records as Kafka gives them → one row per commit or rollback of the epoch's attempts."""
    value = lines.text(F.col("value"))
    whole, part = (F.contains(value, F.lit(f"|{begin}")) for begin in _begin(epoch_id))
    # Lines of others that stand in the same record never reach the driver.
    txn_id = F.col("txn_id")
    return (
        parse(raw.where(whole | part), TopicKind.OP)
        .where(F.col("resolution").isin(_COMMIT, _ROLLBACK))
        .where((txn_id == epoch_id) | txn_id.startswith(_begin(epoch_id)[1]))
        .select("offset", "line", "txn_id", "nonce", "resolution", "last_offset")
    )


def doubt_traces(raw: DataFrame, epoch_id: str) -> DataFrame:
    """Doubt records as Kafka gives them → every summary, and every end of one, of the epoch's attempts."""
    key = lines.text(F.col("key"))
    whole, part = (key.startswith(begin) for begin in _begin(epoch_id))
    ours = parse(raw.where(whole | part), TopicKind.DOUBT)
    return ours.where("record = 'summary'").select(
        "offset", "txn_id", "nonce", "is_tombstone", "summary"
    )


def fold(
    known: Attempts,
    epoch_id: str,
    *,
    halves: Iterable[Row] = (),
    ops: Iterable[Row] = (),
    doubts: Iterable[Row] = (),
) -> dict[str, Attempt]:
    """What was known and what was read; rows of other epochs are passed over.

    The first commit or rollback that names one of its half records decides an attempt, as it does for the coordinator
    (docs/decisions/002).
    """
    attempts = dict(known)
    for row in halves:
        if belongs_to(row.txn_id, epoch_id):
            attempt = Attempt(
                row.txn_id, row.nonce, row.first_offset, row.last_offset, row.completed_at, row.producer_group,
                row.born_ms,
            )  # fmt: skip
            before = attempts.get(attempt.key)
            attempts[attempt.key] = attempt if before is None else _joined(before, attempt)
    for row in sorted(doubts, key=lambda row: row.offset):
        if belongs_to(row.txn_id, epoch_id):
            _apply_doubt(attempts, row)
    for row in sorted(ops, key=lambda row: (row.offset, row.line)):
        key = f"{row.txn_id}/{row.nonce}"
        if not belongs_to(row.txn_id, epoch_id):
            continue
        # Half records older than what was read cannot be compared: then the line is believed.
        attempt = attempts.get(key) or Attempt(
            row.txn_id, row.nonce, row.last_offset, row.last_offset
        )
        if (
            attempt.decision is None
            and attempt.first_offset <= row.last_offset <= attempt.last_offset
        ):
            attempt = replace(attempt, decision=Resolution[row.resolution])
        attempts[key] = attempt
    return attempts


def _joined(before: Attempt, more: Attempt) -> Attempt:
    completed = [at for at in (before.completed_at, more.completed_at) if at is not None]
    return replace(
        before,
        first_offset=min(before.first_offset, more.first_offset),
        last_offset=max(before.last_offset, more.last_offset),
        completed_at=min(completed, default=None),
    )


def _apply_doubt(attempts: dict[str, Attempt], row: Row) -> None:
    key, summary = f"{row.txn_id}/{row.nonce}", row.summary
    attempt = attempts.get(key)
    if row.is_tombstone:
        if attempt is not None:
            attempts[key] = replace(attempt, is_settled=True)
        else:
            attempts[key] = Attempt(row.txn_id, row.nonce, 0, WHOLE_MAX, is_settled=True)
        return
    if summary is None:
        return
    if attempt is None:
        is_whole = summary.seen == summary["count"]
        attempt = Attempt(
            row.txn_id, row.nonce, summary.first_offset, summary.last_offset,
            summary.last_offset if is_whole else None, summary.producer_group, summary.born_ms,
        )  # fmt: skip
    decision = Resolution.COMMIT if summary.state in _AFTER_A_COMMIT else attempt.decision
    attempts[key] = replace(attempt, decision=decision, is_settled=False)
