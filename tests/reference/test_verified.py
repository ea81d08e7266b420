"""What `txlayer verify` says of single histories in memory, against the model."""

import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reference.differential import NOW_MS
from tests.reference.model import judge, verdict
from tests.reference.steps import DOUBT, HALF, HASH, KEY, MINUTE, OP, Log, written
from tests.reference.verified import verified
from tests.support.programs import run_program

AHEAD = "ahead/0000000c"


def both(log: Log, key: str = KEY) -> tuple[str, str]:
    """What the model says of a transaction, and what verify says."""
    history = log.history()
    report = judge(history)
    words = {verdict(txn) for (_, of), txn in report.transactions.items() if of == key}
    return "+".join(sorted(words)), verified(history, now_ms=NOW_MS).words.get(key, "nothing")


def test_a_second_transaction_of_one_key_in_another_partition_is_none_of_the_first() -> None:
    """A half record that repeats id and nonce, with an ordering key that leads elsewhere."""
    log = Log(partition_counts={HALF: 2, OP: 2, DOUBT: 2})
    home = zlib.crc32(KEY.split("/")[0].encode()) % 2
    elsewhere = 1 - home
    log.half(KEY, value=b"forged", options=f"k{elsewhere:08x}712c936a", partition=elsewhere)
    half = log.half(KEY, partition=home)
    log.add(OP, home, value=f"1|C|{KEY}|orders|{half.offset}|1700000000000|producer||".encode())
    log.show(half)

    model, told = both(log)

    assert told in model.split("+"), f"verify says {told}, the model {model}"


@pytest.mark.parametrize("key_hash", ["", f"{zlib.crc32(b'key-6'):08x}712c936a"])
def test_what_was_stored_before_half_got_more_partitions_is_judged_as_before(key_hash: str) -> None:
    """After `txlayer topics widen`. A half record in a wrong partition is quarantined."""
    log = Log(partition_counts={HALF: 4, OP: 4, DOUBT: 4})
    log.settings = replace(log.settings, former_partition_counts={HALF: frozenset({3})})
    crc = int(key_hash[:8], 16) if key_hash else zlib.crc32(KEY.split("/")[0].encode())
    before = crc % 3
    assert before != crc % 4
    half = log.half(KEY, partition=before, options=f"k{key_hash}" if key_hash else "")
    log.add(OP, before, value=f"1|C|{KEY}|orders|{half.offset}|1700000000000|producer||".encode())
    log.show(half)

    assert ("ok", "ok") == both(log)

    log.add(DOUBT, before, key=f"origin/{HALF}/{before}/{half.offset}".encode(), value=half.value, headers=half.headers)
    assert ("", "nothing") == both(log)

    # A person ended it there, and compaction took what named the transaction.
    log.records[-1] = replace(log.records[-1], value=None, headers=[])
    assert ("", "nothing") == both(log)


def test_a_line_that_was_given_up_and_ended_on_doubt_counts_for_nothing() -> None:
    log, _ = written("half, R 0, C 0, show 0")
    log.add(DOUBT, key=f"origin/{OP}/0/0:0".encode())

    assert ("ok", "ok") == both(log)


@pytest.mark.parametrize("mode", ["", ",op"])
def test_the_order_of_a_key_begins_anew_where_half_got_more_partitions(mode: str) -> None:
    """In the new partition of op and half the first offsets come again."""
    crc = zlib.crc32(b"key-6")
    log = Log(partition_counts={HALF: 4, OP: 4, DOUBT: 4})
    log.settings = replace(log.settings, former_partition_counts={HALF: frozenset({3})})
    for txn_key, partition in (("first/0000000a", crc % 3), (AHEAD, crc % 3), (KEY, crc % 4)):
        half = log.half(txn_key, partition=partition, options=f"k{crc:08x}712c936a{mode}")
        line = f"1|C|{txn_key}|orders|{half.offset}|1700000000000|producer||".encode()
        log.add(OP, partition, value=line)
        log.show(half)

    assert [("ok", "ok")] * 2 == [both(log, AHEAD), both(log, KEY)]


def test_one_that_is_held_is_late_when_a_later_one_of_its_ordering_key_is_visible_and_it_was_not_parked() -> None:
    log, _ = written(
        "half order=commit, half txn=other/00000009 order=commit, C 0, C 1, keep held 0 order=commit, show 1"
    )

    assert ("out_of_order", "out_of_order") == both(log)


def test_one_that_was_cancelled_is_open_while_an_open_kafka_transaction_hides_a_message_on_a_wrong_topic() -> None:
    log, _ = written("timed, show 0, release 0, says A, show 1 to=other, stable other=0")
    log.records[-1] = replace(log.records[-1], kafka="open")

    assert ("open", "open") == both(log)


MANY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from tests.reference.steps import KEY, Log
from tests.reference.test_verified import both
log = Log()
half = log.half(KEY, "0/9223372036854775807")
log.op(("C", half))
print(*both(log))
"""


@pytest.mark.fault("Spark: wrong clocks, times and counts of any size, values and keys that are swapped")
def test_a_transaction_that_says_it_has_very_many_messages_does_not_stop_verify() -> None:
    root = Path(__file__).parents[2]

    done = run_program([sys.executable, "-c", MANY], within=60, cwd=root)

    assert (0, "lost lost") == (done.returncode, done.stdout.strip()), done.stderr[-600:]


def test_clocks_of_two_brokers_that_are_five_seconds_apart_break_no_promise() -> None:
    log, _ = written("half, C 0, show 0")
    log.records[-1] = replace(log.records[-1], timestamp_ms=log.records[-1].timestamp_ms - 5_000)
    log.settings = replace(log.settings, clock_error_ms=60_000)

    assert both(log) == ("ok", "ok")


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        # Committed long ago, and nothing on doubt says that it waited: a long `doubt_after`, or a short grace.
        ("half txn=ahead/0000000c order=prepare, half order=prepare, C 1, at 1700000240030, C 0", ""),
        (
            "half txn=ahead/0000000c options=d0 order=prepare, half options=d0 order=prepare, C 1, at 1700000240030, C 0",
            "",
        ),
        # Without a question it was in half: `transaction_age_max` is shorter than `doubt_after`.
        (
            """half txn=ahead/0000000c order=prepare, half order=prepare, C 1, at 1700000240030, content 0,
            summary parked 0 reason=too-old order=prepare""",
            "parked",
        ),
        # An incomplete commit.
        (
            """half 0/2 txn=ahead/0000000c order=prepare, half 1/2 txn=ahead/0000000c order=prepare, half order=prepare, C 2,
            at 1700000240040, C 0, content 0, content 1, summary parked-committed 0 1 reason=incomplete order=prepare""",
            "parked",
        ),
    ],
)
def test_what_waited_for_one_that_left_a_moment_ago_may_still_be_on_its_way(steps: str, word: str) -> None:
    log, _ = written(steps)

    for age_ms, expected in ((1_000, "open"), (61_000, "lost")):
        wanted = {AHEAD: word or expected, KEY: expected}
        assert (wanted, wanted) == young(log, age_ms)


def test_what_is_visible_in_part_waits_for_no_other() -> None:
    """It was abandoned: doubt says nothing of it any more, and one before it was decided a moment ago."""
    log, _ = written(
        "half txn=ahead/0000000c order=prepare, half 0/2 order=prepare, half 1/2 order=prepare, C 2, show 2, "
        "at 1700000240050, R 0"
    )

    wanted = {AHEAD: "rolled_back", KEY: "torn"}
    assert (wanted, wanted) == young(log, 1_000)


def test_one_that_was_visible_before_its_time_hides_no_loss_behind_it() -> None:
    log, _ = written("half txn=ahead/0000000c options=d+60000 order=commit, half order=prepare, C 0, show 0, C 1")

    assert ("leaked", "leaked") == both(log, AHEAD)
    assert ("lost", "lost") == both(log)


def test_one_whose_half_records_go_on_behind_the_window_is_not_undecided_before_others_of_its_key() -> None:
    """The line that rolled it back names a half record that came later than what was read."""
    log, _ = written(
        "half 0/2 txn=ahead/0000000c order=prepare, half order=prepare, C 1, keep open 0 order=prepare count=2, "
        "at 1700001200000, half 1/2 txn=ahead/0000000c order=prepare, R 2, ended 0 txn=ahead/0000000c, show 1"
    )

    assert ("ok", "ok") == both(log)
    assert "ok" == verified(log.history(), now_ms=NOW_MS, until_ms=1_700_000_000_030).words[KEY]


def young(log: Log, age_ms: int) -> tuple[dict[str, str], dict[str, str]]:
    """What the model and verify say of the one ahead and of the other, so long after the newest record."""
    now_ms, history = log.now_ms + age_ms, log.history()
    report = judge(replace(history, settings=replace(log.settings, now_ms=now_ms, grace_ms=60_000)))
    told = verified(history, now_ms=now_ms).words
    return {key: verdict(report.of(key)) for key in (AHEAD, KEY)}, {key: told[key] for key in (AHEAD, KEY)}


@pytest.mark.parametrize(("age_h", "expected"), [(2, "out_of_window"), (23, "out_of_window"), (25, "lost")])
def test_what_may_wait_for_one_that_is_older_than_the_window_is_not_lost(age_h: int, expected: str) -> None:
    """The one ahead is undecided and not on doubt yet: `doubt_after` may be up to a day."""
    log, _ = written("half txn=ahead/0000000c order=prepare")
    log.now_ms += 60_000
    since_ms = log.now_ms
    half = log.half(options=f"k{HASH},op")
    log.op(("C", half))

    told = verified(log.history(), now_ms=since_ms + age_h * 3_600_000, since_ms=since_ms)

    assert expected == told.words[KEY]


def test_what_waits_for_one_in_a_short_window_is_open_and_in_the_order_of_decisions_it_is_lost() -> None:
    log, _ = written("half txn=ahead/0000000c order=prepare")
    log.now_ms += 60_000
    since_ms = log.now_ms
    log.half("other/0000000d", options=f"k{HASH},op")
    half, plain = log.half(options=f"k{HASH},op"), log.half("plain/0000000e", options=f"k{HASH}")
    log.op(("C", half))
    log.op(("C", plain), key="plain/0000000e")

    told = verified(log.history(), now_ms=since_ms + 7_200_000, since_ms=since_ms)

    assert ("open", "lost") == (told.words[KEY], told.words["plain/0000000e"])


@pytest.mark.parametrize(("was_on_doubt", "expected"), [(True, "ok"), (False, "out_of_window")])
def test_a_late_copy_in_the_window_of_what_was_visible_before_it_is_not_lost(
    *, was_on_doubt: bool, expected: str
) -> None:
    """A client may write a half record a second time up to its delivery timeout later (librdkafka #4953)."""
    log, (_, half) = written("half txn=other/00000001, half, C 1")
    if was_on_doubt:
        log.summary("held", half, reason="topic-missing")
        log.content(half)
    log.show(half)
    if was_on_doubt:
        log.end_on_doubt(0)
    log.now_ms += 5_000
    since_ms = log.now_ms
    log.half()

    told = verified(log.history(), now_ms=since_ms + 7_200_000, since_ms=since_ms)

    assert {KEY: expected} == told.words


@pytest.mark.parametrize(("tombstones_ms", "expected"), [(1 << 60, "out_of_order"), (0, "ok")])
@pytest.mark.parametrize(
    "steps",
    [
        "half order=prepare, half txn=next/0000000c order=prepare, C 1, show 1, C 0, show 0",
        # Parked with the first commit, because its topic refused the record.
        "half order=commit, half txn=next/0000000c order=commit, C 0, C 1, show 1, C 0, show 0",
    ],
)
def test_one_that_may_have_been_parked_is_in_no_order_where_doubt_has_forgotten_it(
    steps: str, tombstones_ms: int, expected: str
) -> None:
    """Compaction removes the summaries a day later, and the null values another day later."""
    log, _ = written(steps)
    log.settings = replace(log.settings, parked=frozenset({KEY} if tombstones_ms == 0 else ()))
    history = log.history()

    assert expected == verdict(judge(history).of(KEY))
    assert expected == verified(history, now_ms=NOW_MS, tombstones_ms=tombstones_ms).words[KEY]


@pytest.mark.parametrize(("tombstones_ms", "expected"), [(1 << 60, "leaked"), (0, "ok")])
def test_a_line_in_the_middle_of_one_that_doubt_may_have_forgotten_need_not_have_counted(
    tombstones_ms: int, expected: str
) -> None:
    log, _ = written("half 0/3, half 1/3, half 2/3, R 1, C 2, show 0 1 2")

    assert expected == verified(log.history(), now_ms=NOW_MS, tombstones_ms=tombstones_ms).words[KEY]


@pytest.mark.parametrize(
    "steps", ["R 1, ended 0 1", "C 1, summary held 0 1, content 1", "C 1, content 1, show 0 1, ended 0 1"]
)
def test_one_whose_last_half_record_is_far_behind_the_window_is_not_at_fault(steps: str) -> None:
    """Its producer took longer than the margin."""
    log, _ = written(f"half 0/2, content 0, summary open 0 count=2, at 1700000700000, half 1/2, {steps}")

    until_ms = 1_700_000_000_000 + MINUTE
    assert {KEY: "out_of_window"} == verified(log.history(), now_ms=NOW_MS, until_ms=until_ms).words
