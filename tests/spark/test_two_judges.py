"""What the ledger says of single histories, with the settings that it has when nobody says anything, `txlayer verify` says too."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from tests.reference.differential import NOW_MS
from tests.reference.steps import KEY, OP, Log
from tests.reference.verified import verified
from tests.reference.wire import Record
from tests.support.spark_histories import TogetherJudged
from txlayer.operate.verify import WantedWindow
from txlayer_spark.jobs.ledger import LedgerSettings, read_ledger, update_ledger
from txlayer_spark.verdicts import Judging

DAY_MS = 86_400_000
Case = Callable[[Log], None]
CASES: dict[str, Case] = {}


def case(build: Case) -> Case:
    """Name a history by the function that builds it."""
    CASES[build.__name__] = build
    return build


def half_born(log: Log, born_ms: int, key: str = KEY, numbers: str = "0/1") -> Record:
    """A half record whose producer says another time."""
    half = log.half(key, numbers)
    txl = f"1|{key}|orders|shop|{numbers}|{born_ms}|".encode()
    log.records[-1] = replace(half, headers=[("trace", b"t"), ("txl", txl)])
    return log.records[-1]


def commit_born(log: Log, half: Record, born_ms: int, *, key: str = KEY) -> None:
    """The commit of it."""
    log.add(OP, value=f"1|C|{key}|orders|{half.offset}|{born_ms}|producer||".encode())


@case
def tombstone_of_a_key_is_shown_with_the_key_as_its_value(log: Log) -> None:
    half = log.half(key=b"customer-7", value=None)
    log.op(("C", half))
    log.show(half, key=None, value=b"customer-7")


@case
def value_without_a_key_is_shown_as_a_tombstone(log: Log) -> None:
    half = log.half(key=None, value=b"customer-7")
    log.op(("C", half))
    log.show(half, key=b"customer-7", value=None)


@case
def headers_without_values_are_shown_as_one_with_a_value(log: Log) -> None:
    half = log.half()
    txl = half.headers[-1]
    log.records[-1] = half = replace(half, headers=[("a", None), ("b", None), txl])
    log.op(("C", half))
    log.show(half)
    shown = log.records[-1]
    log.records[-1] = replace(shown, headers=[("a", b"b"), *list(shown.headers)[-2:]])


@case
def a_header_has_the_value_that_the_next_one_should_have(log: Log) -> None:
    half = log.half()
    txl = half.headers[-1]
    log.records[-1] = half = replace(half, headers=[("a", None), ("b", b"c"), txl])
    log.op(("C", half))
    log.show(half)
    shown = log.records[-1]
    log.records[-1] = replace(shown, headers=[("a", b"b"), ("c", None), *list(shown.headers)[-2:]])


@case
def value_is_shown_as_a_header(log: Log) -> None:
    half = log.half(value=b"paid")
    log.records[-1] = half = replace(half, headers=[half.headers[-1]])
    log.op(("C", half))
    log.show(half, value=None)
    shown = log.records[-1]
    log.records[-1] = replace(shown, headers=[("paid", None), *shown.headers])


@case
def nothing_is_shown_as_an_empty_value(log: Log) -> None:
    half = log.half(value=None)
    log.op(("C", half))
    log.show(half, value=b"")


@case
def without_key_and_value_and_shown_so(log: Log) -> None:
    half = log.half(key=None, value=None)
    log.records[-1] = half = replace(half, headers=[("a", None), half.headers[-1]])
    log.op(("C", half))
    log.show(half)


@case
def id_on_the_real_topic_has_a_slash_behind_it(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    shown = log.records[-1]
    headers = [(n, b"order-1/00000000" if n == "txl-id" else v) for n, v in shown.headers]
    log.records[-1] = replace(shown, headers=headers)


@case
def nonces_of_two_attempts_are_no_hexadecimal_digits(log: Log) -> None:
    """A producer in another language: coordinators take any eight characters."""
    first = log.half("order-1/zzzzzzzz")
    log.op(("C", first), key="order-1/zzzzzzzz")
    log.show(first)
    second = log.half("order-1/YYYYYYYY")
    log.op(("R", second), key="order-1/YYYYYYYY")


@case
def held_without_a_value_and_its_content_has_the_key_there(log: Log) -> None:
    half = log.half(key=b"customer-7", value=None)
    log.op(("C", half))
    log.summary("held", half, reason="topic-missing")
    log.content(half, value=b"customer-7", headers=[*half.headers])


@case
def clocks_of_two_brokers_are_five_seconds_apart(log: Log) -> None:
    half = log.half()
    log.op(("C", half))
    log.show(half)
    log.records[-1] = replace(log.records[-1], timestamp_ms=log.records[-1].timestamp_ms - 5_000)


@case
def lost_by_a_producer_whose_clock_is_three_days_ahead(log: Log) -> None:
    born_ms = log.now_ms + 3 * DAY_MS
    halves = [half_born(log, born_ms, numbers=f"{index}/70") for index in range(70)]
    commit_born(log, halves[-1], born_ms)


@case
def born_at_the_largest_time_that_is_in_form(log: Log) -> None:
    half = half_born(log, 2**63 - 1)
    commit_born(log, half, 2**63 - 1)
    log.show(half)


@case
def asked_for_the_largest_immunity_and_open_at_the_largest_time(log: Log) -> None:
    half_born(log, 2**63 - 1)


def malformed(log: Log, *, born: object = 1_700_000_000_000, options: str = "") -> None:
    """A committed half record that coordinators keep aside, and a good one."""
    half = log.half()
    txl = f"1|{KEY}|orders|shop|0/1|{born}|{options}".encode()
    log.records[-1] = replace(half, headers=[("txl", txl)])
    log.op(("C", half))
    other = log.half("other/00000001")
    log.op(("C", other), key="other/00000001")
    log.show(other)


@case
def half_record_with_a_header_of_more_than_2048_bytes(log: Log) -> None:
    malformed(log, options="x" * 2_048)


@case
def half_record_that_was_born_at_a_number_of_more_than_63_bits(log: Log) -> None:
    malformed(log, born="9" * 19)


@case
def half_record_for_a_partition_that_kafka_cannot_have(log: Log) -> None:
    malformed(log, options="n2147483648")


def with_option(letter: str) -> Case:
    """A history with an option of more than 63 bits."""

    def build(log: Log) -> None:
        malformed(log, options=letter + "9" * 19)

    return build


CASES |= {f"half_record_with_the_option_{letter}_of_more_than_63_bits": with_option(letter) for letter in "intm"}


@pytest.fixture(scope="module")
def together(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """{case: (what the ledger says, what verify says)}."""
    logs = {name: Log() for name in CASES}
    for name, build in CASES.items():
        build(logs[name])
    histories = {name: log.history() for name, log in logs.items()}
    judged = TogetherJudged(histories)
    root = tmp_path_factory.mktemp("two-judges")
    judged.write(spark, str(root / "bronze"))
    update_ledger(spark, LedgerSettings(bronze=str(root / "bronze"), root=str(root / "ledger")))
    rows = read_ledger(spark, str(root / "ledger")).collect()
    found = {}
    for name, history in histories.items():
        prefix = f"{judged.renamed[name].number}~"
        said = sorted(plain(r.verdict) for r in rows if r.txn_id.startswith(prefix))
        settings = replace(history.settings, clock_error_ms=WantedWindow(since_ms=0).clock_error_ms)
        told = verified(replace(history, settings=settings), now_ms=NOW_MS)
        words = sorted(map(plain, [*told.words.values(), *("orphan" for _ in told.orphans)]))
        found[name] = ("+".join(said), "+".join(words))
    return found


def plain(word: str) -> str:
    """Each has an age of its own here."""
    return "open" if word == "overdue" else word


@pytest.mark.fault("Spark: wrong clocks, times and counts of any size, values and keys that are swapped")
@pytest.mark.parametrize("name", CASES)
def test_the_two_judges_say_the_same(name: str, together: dict[str, tuple[str, str]]) -> None:
    ledger, verify = together[name]

    assert ledger == verify, f"the ledger says {ledger}, verify {verify}"


def test_the_two_judges_allow_the_clocks_of_brokers_the_same() -> None:
    allowed = WantedWindow(since_ms=0).clock_error_ms

    assert allowed == LedgerSettings(bronze="", root="").clock_error_ms
    assert allowed == Judging(cut_ms=0).clock_error_ms
