"""What rows of half, op and doubt say of earlier attempts of an epoch; no broker runs here."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from txlayer.core.codec import WHOLE_MAX
from txlayer.core.messages import Resolution
from txlayer_spark.epoch_log import Attempt, fold, half_traces, halves_at, in_question
from txlayer_spark.sink import half_records, messages, whole

EPOCH = "bonus-7"
KEY = f"{EPOCH}/00000001"
AT = datetime(2026, 1, 31, tzinfo=UTC)


def half(txn_id: str = EPOCH, *, first: int = 10, last: int = 12, completed: int | None = 12) -> Row:
    """One attempt's half records."""
    return Row(
        txn_id=txn_id,
        nonce="00000001",
        first_offset=first,
        last_offset=last,
        completed_at=completed,
        producer_group="spark",
        born_ms=5,
    )


def line(
    resolution: str,
    *,
    names: int = 12,
    offset: int = 3,
    txn_id: str = EPOCH,
    group: str = "spark",
    is_abandon: bool = False,
) -> Row:
    """One op line."""
    return Row(
        offset=offset,
        line=0,
        txn_id=txn_id,
        nonce="00000001",
        producer_group=group,
        resolution=resolution,
        last_offset=names,
        born_ms=5,
        is_abandon=is_abandon,
        at_ms=7,
    )


def doubt(state: str | None, *, offset: int = 0, reason: str = "") -> Row:
    """A summary, or its end."""
    summary = (
        None
        if state is None
        else Row(
            state=state,
            reason=reason,
            first_offset=10,
            last_offset=12,
            appended_ms=4,
            twin_offsets=[15],
            seen=3,
            count=3,
            producer_group="spark",
            born_ms=5,
        )
    )
    return Row(offset=offset, txn_id=EPOCH, nonce="00000001", is_tombstone=state is None, summary=summary)


def folded(**rows: Any) -> Attempt:
    """The one attempt that the rows tell of."""
    (attempt,) = fold({}, EPOCH, **rows).values()
    return attempt


def half_frame(spark: SparkSession, lines: list[bytes]) -> DataFrame:
    """Half records as Kafka gives them."""
    return spark.createDataFrame(
        [("ns.half", 0, at, AT, None, None, [("txl", line)]) for at, line in enumerate(lines)],
        "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
        "headers array<struct<key:string,value:binary>>",
    )


@pytest.mark.parametrize(
    ("rows", "decision", "is_open"),
    [
        ({"halves": [half()]}, None, True),
        ({"halves": [half()], "ops": [line("COMMIT")]}, Resolution.COMMIT, False),
        ({"halves": [half()], "ops": [line("ROLLBACK")]}, Resolution.ROLLBACK, False),
        ({"halves": [half()], "ops": [line("COMMIT", names=13)]}, None, True),
        (
            {"halves": [half()], "ops": [line("COMMIT", offset=4), line("ROLLBACK", offset=3)]},
            Resolution.ROLLBACK,
            False,
        ),
        # Between its first record and its last stand those of others.
        ({"halves": [half()], "ops": [line("ROLLBACK", names=11)]}, None, True),
        (
            {"halves": [half()], "ops": [line("ROLLBACK", names=11)], "known_halves": {(KEY, 11)}},
            Resolution.ROLLBACK,
            False,
        ),
        # Parked as incomplete, and still to be settled.
        ({"halves": [half()], "ops": [line("COMMIT", names=11)], "known_halves": {(KEY, 11)}}, None, True),
        ({"halves": [half(completed=None)], "ops": [line("COMMIT")]}, None, True),
        # Then the coordinator refuses a rollback, and takes an abandon or a commit of the last one.
        ({"halves": [half()], "ops": [line("COMMIT", names=10), line("ROLLBACK", offset=4)]}, None, True),
        (
            {"halves": [half()], "ops": [line("COMMIT", names=10), line("ROLLBACK", offset=4, is_abandon=True)]},
            Resolution.ROLLBACK,
            False,
        ),
        (
            {
                "halves": [half()],
                "ops": [line("COMMIT", names=10), line("ROLLBACK", offset=4), line("COMMIT", offset=5)],
            },
            Resolution.COMMIT,
            False,
        ),
        ({"doubts": [doubt("parked-committed", reason="too-large")]}, Resolution.COMMIT, False),
        ({"doubts": [doubt("parked-committed", reason="incomplete")]}, None, True),
        ({"doubts": [doubt("parked-committed", reason="incomplete")], "ops": [line("ROLLBACK")]}, None, True),
        ({"halves": [half()], "ops": [line("COMMIT", group="another")]}, None, True),
        ({"halves": [half(last=20)], "ops": [line("COMMIT", names=20)]}, Resolution.COMMIT, False),
        ({"doubts": [doubt("open")], "ops": [line("COMMIT", names=15)]}, Resolution.COMMIT, False),
        ({"doubts": [doubt("open")], "ops": [line("COMMIT", names=14)]}, None, True),
        ({"ops": [line("COMMIT")]}, Resolution.COMMIT, False),
        ({"doubts": [doubt("open")]}, None, True),
        ({"doubts": [doubt("parked")]}, None, True),
        ({"doubts": [doubt("held")]}, Resolution.COMMIT, False),
        ({"doubts": [doubt("waiting")]}, Resolution.COMMIT, False),
        # Only a later release knows whether it is decided: no rollback of ours may count for it.
        ({"doubts": [doubt("asleep")]}, None, False),
        ({"doubts": [doubt("asleep")], "ops": [line("COMMIT")]}, Resolution.COMMIT, False),
        ({"doubts": [doubt("asleep"), doubt("open", offset=1)]}, None, True),
        ({"doubts": [doubt("open"), doubt(None, offset=1)]}, None, False),
        ({"doubts": [doubt(None)]}, None, False),
        ({"doubts": [doubt(None)], "ops": [line("COMMIT")]}, Resolution.COMMIT, False),
        ({"doubts": [doubt("open", offset=1), doubt(None)]}, None, True),
    ],
)
def test_the_first_line_that_names_a_half_record_decides_and_what_stands_on_doubt_counts(
    rows: dict[str, Any], decision: Resolution | None, is_open: bool
) -> None:
    attempt = folded(**rows)

    assert (decision, is_open) == (attempt.decision, attempt.is_open)


def test_half_records_that_come_later_complete_an_attempt() -> None:
    begun = fold({}, EPOCH, halves=[half(first=10, last=11, completed=None)])

    whole = fold(begun, EPOCH, halves=[half(first=20, last=30, completed=25)])

    (attempt,) = whole.values()
    assert (10, 30, 25) == (attempt.first_offset, attempt.last_offset, attempt.completed_at)


def test_parts_belong_to_their_epoch_and_other_epochs_do_not() -> None:
    rows = [half(EPOCH), half(f"{EPOCH}.3-0-0"), half(f"{EPOCH}1"), half("x" + EPOCH)]

    assert {EPOCH, f"{EPOCH}.3-0-0"} == {a.txn_id for a in fold({}, EPOCH, halves=rows).values()}


def test_an_end_on_doubt_alone_is_a_decision_that_nobody_knows() -> None:
    attempt = folded(doubts=[doubt(None)])

    assert (0, WHOLE_MAX, True) == (attempt.first_offset, attempt.last_offset, attempt.is_settled)


def test_what_is_asked_of_the_half_topic_is_what_lies_between_records_that_are_known() -> None:
    attempts = fold({}, EPOCH, halves=[half()])
    ops = [line("COMMIT", names=at) for at in (9, 10, 11, 12, 13)]

    assert {(KEY, 11)} == in_question(attempts, [*ops, line("COMMIT", names=11, txn_id="other")])


WHOLE = {
    "0/3 1/3 2/3": 2,
    "0/3 0/3 1/3 1/3 2/3 2/3 0/3": 4,
    "1/3 2/3 0/3 1/3": None,
    "2/3 0/3 1/3": None,
    "0/3 1/3": None,
    "0/1": 0,
    "0/1 0/1": 0,
    "0/3 1/2 1/3 2/3": 3,
}
"""{what the half records of an attempt say: the place of the one that makes it whole}."""


@pytest.fixture(scope="module")
def traces(spark: SparkSession) -> dict[str, tuple[Row, list[int]]]:
    """{case: its attempt, and where `halves_at` finds records of it}; all of them in one partition, ten places each."""
    lines = [b""] * (10 * len(WHOLE))
    for number, indices in enumerate(WHOLE):
        for at, index in enumerate(indices.split()):
            lines[10 * number + at] = f"1|{EPOCH}/{number:08x}|spark|t|{index}|5|".encode()
    raw = half_frame(spark, lines)
    attempts = {row.nonce: row for row in half_traces(raw, EPOCH).collect()}
    asked = [10 * number + at for number in range(len(WHOLE)) for at in (0, 7)]
    places = [(p.nonce, p.offset) for p in halves_at(raw, EPOCH, asked).collect() if p.txn_id == EPOCH]
    return {
        indices: (attempts[nonce := f"{number:08x}"], [at - 10 * number for of, at in places if of == nonce])
        for number, indices in enumerate(WHOLE)
    }


@pytest.mark.parametrize("indices", WHOLE)
def test_an_attempt_is_whole_where_its_records_stand_one_behind_the_other(
    indices: str, traces: dict[str, tuple[Row, list[int]]]
) -> None:
    attempt, places = traces[indices]

    completed_at = WHOLE[indices]
    assert completed_at == (attempt.completed_at and attempt.completed_at % 10)
    assert attempt.completed_at is None or attempt.first_offset // 10 == attempt.completed_at // 10
    assert [0] == places


def test_each_copy_of_a_task_writes_an_attempt_of_its_own(spark: SparkSession) -> None:
    batch = messages(spark.range(0, 6, 1, 3).selectExpr("'v' AS value"), topic="t")
    records = half_records(whole(batch, EPOCH), producer_group="spark", born_ms=5, partition_count=2)

    def nonces() -> set[str]:
        lines = [bytes(row.headers[0].value).decode() for row in records.collect()]
        assert [f"{at}/6" for at in range(6)] == [text.split("|")[4] for text in lines]
        return {text.split("|")[1].partition("/")[2] for text in lines}

    first, second = nonces(), nonces()
    assert [1, 1, 8] == [len(first), len(second), len(min(first))]
    assert first != second


def test_half_records_of_this_release_and_of_the_next_and_scheduled_ones_are_found(spark: SparkSession) -> None:
    lines = [
        b"1|bonus-7/00000001|spark|t|0/2|5|",
        b"1|bonus-7/00000001|spark|t|1/2|5|",
        b"2|bonus-7/00000002|spark|t|0/1|5||more",
        b"2|bonus-7.3-0-0/00000003|spark|t|0/1|5|",
        b"1|bonus-77/00000004|spark|t|0/1|5|",
        b"3|bonus-7/00000005|spark|t|0/1|5|",
        b"3|bonus-7/00000006|shop|t|0/1|5|d9",
    ]
    raw = half_frame(spark, lines)

    found = {(r.txn_id, r.nonce, r.completed_at) for r in half_traces(raw, EPOCH).collect()}

    assert {
        ("bonus-7", "00000001", 1),
        ("bonus-7", "00000002", 2),
        ("bonus-7.3-0-0", "00000003", 3),
        ("bonus-7", "00000006", 6),
    } == found
