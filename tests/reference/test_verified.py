"""What `txlayer verify` says of single histories in memory, against the model."""

import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reference.differential import NOW_MS
from tests.reference.model import judge, verdict
from tests.reference.steps import DOUBT, HALF, HASH, KEY, OP, Log, written
from tests.reference.verified import verified


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

    done = subprocess.run(
        [sys.executable, "-c", MANY], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )

    assert (0, "lost lost") == (done.returncode, done.stdout.strip()), done.stderr[-600:]


def test_clocks_of_two_brokers_that_are_five_seconds_apart_break_no_promise() -> None:
    log, _ = written("half, C 0, show 0")
    log.records[-1] = replace(log.records[-1], timestamp_ms=log.records[-1].timestamp_ms - 5_000)
    log.settings = replace(log.settings, clock_error_ms=60_000)

    assert both(log) == ("ok", "ok")


@pytest.mark.parametrize("time", ["", "d0,"])
def test_what_waited_for_one_that_was_decided_a_moment_ago_may_still_be_on_its_way(time: str) -> None:
    """It was committed long ago, and nothing on doubt says that it waited: a long `doubt_after`, or a short grace."""
    ahead, behind = "ahead/0000000c", "behind/0000000d"
    log = Log()
    first, second = (log.half(key, options=f"{time}k{HASH},op") for key in (ahead, behind))
    log.op(("C", second), key=behind)
    log.now_ms += 240_000
    log.op(("C", first), key=ahead)

    for age_ms, expected in ((1_000, "open"), (61_000, "lost")):
        now_ms = log.now_ms + age_ms
        history = log.history()
        report = judge(replace(history, settings=replace(log.settings, now_ms=now_ms, grace_ms=60_000)))
        told = verified(history, now_ms=now_ms).words
        assert {ahead: expected, behind: expected} == {key: verdict(report.of(key)) for key in (ahead, behind)} == told


def test_what_is_visible_in_part_waits_for_no_other() -> None:
    """It was abandoned: doubt says nothing of it any more, and one before it was decided a moment ago."""
    ahead, behind = "ahead/0000000c", "behind/0000000d"
    log, (first,) = written("half txn=ahead/0000000c order=prepare")
    halves = [log.half(behind, f"{index}/2", options=f"k{HASH},op") for index in range(2)]
    log.op(("C", halves[1]), key=behind)
    log.show(halves[1])
    log.now_ms += 240_000
    log.op(("R", first), key=ahead)

    wanted = {ahead: "rolled_back", behind: "torn"}
    assert (wanted, wanted) == young(log, 1_000, (ahead, behind))


def test_one_that_was_visible_before_its_time_hides_no_loss_behind_it() -> None:
    early, behind = "early/0000000c", "behind/0000000d"
    log = Log()
    shown = log.half(early, options=f"d{log.now_ms + 60_000},k{HASH}")
    lost = log.half(behind, options=f"k{HASH},op")
    log.op(("C", shown), key=early)
    log.show(shown)
    log.op(("C", lost), key=behind)

    assert ("leaked", "leaked") == both(log, early)
    assert ("lost", "lost") == both(log, behind)


def young(log: Log, age_ms: int, keys: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """What the model and verify say of transactions so long after the newest record."""
    now_ms, history = log.now_ms + age_ms, log.history()
    report = judge(replace(history, settings=replace(log.settings, now_ms=now_ms, grace_ms=60_000)))
    told = verified(history, now_ms=now_ms).words
    return {key: verdict(report.of(key)) for key in keys}, {key: told[key] for key in keys}


def test_what_waited_for_one_that_was_parked_a_moment_ago_may_still_be_on_its_way() -> None:
    """Without a question the one ahead was in half: `transaction_age_max` is shorter than `doubt_after`."""
    ahead, behind = "ahead/0000000c", "behind/0000000d"
    log, (first, *_) = written("half txn=ahead/0000000c order=prepare, half txn=behind/0000000d order=prepare, C 1")
    log.now_ms += 240_000
    log.content(first, key=ahead)
    log.summary("parked", first, key=ahead, reason="too-old", key_hash=HASH, order="prepare")

    for age_ms, expected in ((1_000, "open"), (61_000, "lost")):
        wanted = {ahead: "parked", behind: expected}
        assert (wanted, wanted) == young(log, age_ms, (ahead, behind))


def test_what_waited_for_one_whose_incomplete_commit_came_a_moment_ago_may_still_be_on_its_way() -> None:
    ahead, behind = "ahead/0000000c", "behind/0000000d"
    log = Log()
    first, last = (log.half(ahead, f"{index}/2", options=f"k{HASH},op") for index in range(2))
    half = log.half(behind, options=f"k{HASH},op")
    log.op(("C", half), key=behind)
    log.now_ms += 240_000
    log.op(("C", first), key=ahead)
    for index, each in enumerate((first, last)):
        log.content(each, index, key=ahead)
    log.summary("parked-committed", first, last, key=ahead, reason="incomplete", key_hash=HASH, order="prepare")

    for age_ms, expected in ((1_000, "open"), (61_000, "lost")):
        wanted = {ahead: "parked", behind: expected}
        assert (wanted, wanted) == young(log, age_ms, (ahead, behind))


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
@pytest.mark.parametrize("is_prepare", [True, False])
def test_one_that_may_have_been_parked_is_in_no_order_where_doubt_has_forgotten_it(
    *, is_prepare: bool, tombstones_ms: int, expected: str
) -> None:
    """Compaction removes the summaries a day later, and the null values another day later."""
    options = f"k{HASH}" + (",op" if is_prepare else "")
    log = Log()
    parked, next_one = log.half(options=options), log.half("next/0000000c", options=options)
    if not is_prepare:  # parked with the first commit, because its topic refused the record
        log.op(("C", parked))
    log.op(("C", next_one), key="next/0000000c")
    log.show(next_one)
    log.op(("C", parked))
    log.show(parked)
    log.settings = replace(log.settings, parked=frozenset({KEY} if tombstones_ms == 0 else ()))
    history = log.history()

    assert expected == verdict(judge(history).of(KEY))
    assert expected == verified(history, now_ms=NOW_MS, tombstones_ms=tombstones_ms).words[KEY]


@pytest.mark.parametrize(("tombstones_ms", "expected"), [(1 << 60, "leaked"), (0, "ok")])
def test_a_line_in_the_middle_of_one_that_doubt_may_have_forgotten_need_not_have_counted(
    tombstones_ms: int, expected: str
) -> None:
    log = Log()
    halves = [log.half(numbers=f"{index}/3") for index in range(3)]
    log.op(("R", halves[1]))
    log.op(("C", halves[2]))
    for half in halves:
        log.show(half)

    assert expected == verified(log.history(), now_ms=NOW_MS, tombstones_ms=tombstones_ms).words[KEY]
