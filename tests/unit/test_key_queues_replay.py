"""Requests to replay dead letters, what waits for them, and what becomes of them when their progress has no room in the metadata (P9)."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.queue_stage import FAILED, PARK, REJECTED, REPLAY, TOPIC, QueueStage
from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayOutcome, ReplayRecord
from txlayer.core.key_queue import Failure, ItemSource, NullKeys, PartitionQueue, QueueOrder, QueueSettings, Start
from txlayer.core.progress import NOTHING, Attempts, StoredProgress, decode
from txlayer.core.retry import RetryPolicy

A = b"a"


def test_a_parked_keys_new_messages_wait_beside_a_running_replay() -> None:
    stage = QueueStage([A, A], QueueSettings(policy=PARK))
    stage.fail_next(REJECTED)
    stage.write_due()
    stage.request(ReplayKind.REPLAY, 0)
    (first,) = stage.take()
    stage.append(A, A)
    assert [] == stage.write_due()

    stage.queue.handled([first])
    assert ["dead letter 0", *["2", "3"]] == [*stage.write_due(), *stage.write_due()]

    assert [0, 1, 2, 3] == [at for _, at, _ in stage.dead_letters]


def test_a_paused_partition_hands_nothing_out_until_it_is_resumed_also_after_a_restart() -> None:
    stage = QueueStage([A])
    stage.request(ReplayKind.PAUSE)
    stage.write_due()
    assert [] == stage.take()
    stage.restart()
    assert stage.queue.is_paused
    assert [] == stage.take()

    stage.request(ReplayKind.RESUME)
    stage.write_due()

    assert ["0"] == stage.taken()
    assert [(None, ReplayOutcome.HANDLED)] * 2 == stage.answers


def test_a_parked_keys_new_messages_are_handled_when_the_replay_behind_them_releases_it() -> None:
    stage = QueueStage([A, A], QueueSettings(policy=PARK))
    stage.fail_next(REJECTED)
    stage.write_due()
    stage.request(ReplayKind.REPLAY, 0)
    stage.append(A, A)
    stage.request(ReplayKind.REPLAY, 1)

    order = []
    while items := stage.take():
        order += [item.record for item in items]
        stage.queue.handled(items)
        stage.write_due()

    assert ["dead letter 0", "dead letter 1", "2", "3"] == order
    assert 2 == len(stage.dead_letters)


def parked(count: int) -> QueueStage:
    """A parked key with so many dead letters, and a request for each of them but none tried."""
    stage = QueueStage([A] * count, QueueSettings(policy=PARK))
    stage.fail_next(REJECTED)
    while stage.write_due():
        pass
    assert count == len(stage.dead_letters)
    return stage


def fail_replay(stage: QueueStage) -> None:
    """The first dead letter is tried again, and its handler rejects it again."""
    stage.request(ReplayKind.REPLAY, 0)
    stage.fail_next(REJECTED)
    stage.write_due()


@pytest.mark.promise("P9")
@pytest.mark.parametrize("count", [2, 51])
def test_after_a_failed_replay_and_a_restart_later_ones_are_not_tried_and_the_key_stays_parked(count: int) -> None:
    stage = parked(count)
    for letter in range(count):
        stage.request(ReplayKind.REPLAY, letter)
    stage.fail_next(REJECTED)
    stage.write_due(1)  # the answer to the first alone
    assert [(0, ReplayOutcome.FAILED)] == stage.answers

    stage.restart()
    assert [] == stage.take()
    while stage.write_due():
        stage.restart()
        assert [] == stage.take()

    assert [(n, ReplayOutcome.FAILED) for n in range(count)] == stage.answers
    assert 1 == stage.queue.figures().parked_count


@pytest.mark.promise("P9")
def test_a_request_long_after_a_failed_replay_and_a_restart_waits_for_it_too() -> None:
    stage = parked(2)
    fail_replay(stage)
    stage.restart()

    stage.request(ReplayKind.REPLAY, 1)
    assert [] == stage.take()
    stage.write_due()
    stage.restart()
    assert (1, ReplayOutcome.FAILED) == stage.answers[-1]

    for letter in range(2):
        stage.request(ReplayKind.REPLAY, letter)
        (item,) = stage.take()
        assert f"dead letter {letter}" == item.record
        stage.queue.handled([item])
        stage.write_due()
        stage.restart()
    assert 0 == stage.queue.figures().parked_count
    assert {} == stage.known(ItemSource.TOPIC).stuck


def test_a_dropped_dead_letter_holds_up_no_later_ones_also_after_a_restart() -> None:
    stage = parked(2)
    fail_replay(stage)
    stage.restart()

    stage.request(ReplayKind.DROP, 0)
    stage.write_due()
    stage.restart()
    stage.request(ReplayKind.REPLAY, 1)

    assert ["dead letter 1"] == stage.taken()


def test_a_key_that_is_parked_again_is_stuck_no_more() -> None:
    stage = parked(2)
    fail_replay(stage)
    stage.request(ReplayKind.DROP, 1)
    stage.request(ReplayKind.DROP, 0)  # the last one that was open: the key is released
    stage.write_due()
    stage.append(A)
    stage.fail_next(REJECTED)
    stage.write_due()
    stage.restart()

    stage.request(ReplayKind.REPLAY, 2)

    assert ["dead letter 2"] == stage.taken()


@pytest.mark.fault(
    "consumer: the last dead letter of a parked key is dropped while an earlier one is open, or retention removes a failed one"
)
@pytest.mark.promise("P9")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_key_stays_parked_at_a_failed_replay_when_its_last_dead_letter_is_dropped(*, is_restarted: bool) -> None:
    stage = parked(2)
    fail_replay(stage)

    stage.request(ReplayKind.DROP, 1)
    stage.write_due()
    if is_restarted:
        stage.restart()
    stage.append(A)
    assert [] == stage.taken()
    stage.write_due()

    assert (A, 2, DeadLetterReason.KEY_PARKED) == stage.dead_letters[-1]


@pytest.mark.fault(
    "consumer: the last dead letter of a parked key is dropped while an earlier one is open, or retention removes a failed one"
)
@pytest.mark.promise("P9")
def test_a_failed_dead_letter_that_retention_took_holds_back_no_later_one_of_its_key() -> None:
    stage = parked(2)
    fail_replay(stage)

    stage.expire(0)
    stage.request(ReplayKind.REPLAY, 0)
    stage.request(ReplayKind.REPLAY, 1)
    stage.write_due()

    assert ["dead letter 1"] == stage.taken()


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_drop_under_another_key_than_its_dead_letters_ends_nothing(*, has_failed: bool) -> None:
    stage = parked(1)
    if has_failed:
        fail_replay(stage)

    for _ in range(2):
        stage.request_under(b"b", ReplayKind.DROP, 0)
    stage.write_due()
    assert [(0, ReplayOutcome.MISSING)] * 2 == stage.answers[-2:]
    stage.request(ReplayKind.DROP, 0)
    stage.write_due()
    stage.append(A)

    assert ["1"] == stage.taken()


@pytest.mark.promise("P9")
@pytest.mark.parametrize("has_failed", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_key_stays_parked_until_the_copy_that_replaces_its_dead_letter_is_handled(
    *, has_failed: bool, is_restarted: bool
) -> None:
    stage = parked(1)
    if has_failed:
        fail_replay(stage)
    copy = stage.edit(0)
    stage.write_due()
    if is_restarted:
        stage.restart()

    (item,) = stage.take()
    assert f"dead letter {copy}" == item.record
    stage.fail(item, REJECTED)
    stage.store()
    stage.write_due()
    stage.append(A)
    assert [] == stage.taken()
    stage.write_due()
    assert (A, 1, DeadLetterReason.KEY_PARKED) == stage.dead_letters[-1]

    again, follower = stage.edit(copy), 2
    stage.request(ReplayKind.REPLAY, follower)
    for expected in (again, follower):
        stage.write_due()
        (item,) = stage.take()
        assert f"dead letter {expected}" == item.record
        stage.queue.handled([item])
    stage.write_due()
    assert 0 == stage.queue.figures().parked_count


def stage_with(count: int, settings: QueueSettings) -> QueueStage:
    """Every second dead letter, by chance, is of the key `bad`; all are asked for at once."""
    stage = QueueStage([], settings)
    draw = random.Random(1)
    for n in range(count):
        key = b"bad" if n == 0 or draw.random() < 0.5 else b"k%d" % n
        stage.dead_letters.append((key, n, DeadLetterReason.ATTEMPTS_EXHAUSTED))
        stage.requests.append(ReplayRecord(ReplayKind.REPLAY, "all", n))
    stage.read()
    return stage


def replay_all_but_bad(stage: QueueStage) -> int:
    """The first replay of `bad` fails and waits for its back-off; all other keys' succeed, and are answered."""
    handled = 0
    while items := stage.take(500):
        good = [i for i in items if i.chain != b"bad"]
        stage.queue.handled(good)
        handled += len(good)
        for item in items:
            if item.chain == b"bad":
                stage.fail(item)
        stage.store()
        stage.write_all_due()
    return handled


@pytest.mark.promise("P9")
def test_one_key_whose_replay_fails_does_not_keep_new_messages_of_other_keys_back() -> None:
    policy = RetryPolicy(backoff_first_ms=300_000)
    stage = stage_with(8_000, QueueSettings(policy=policy, metadata_bytes_max=1_100, parked_keys_max=1))
    assert replay_all_but_bad(stage) > 0
    stage.store()

    stage.append(*[b"new-%d" % n for n in range(100)])

    assert not stage.queue.is_full
    assert len(stage.take(100)) == 100


@pytest.mark.promise("P9")
def test_answered_replays_are_not_handled_again_after_a_restart_behind_one_that_fails() -> None:
    policy = RetryPolicy(backoff_first_ms=300_000)
    stage = stage_with(8_000, QueueSettings(policy=policy, metadata_bytes_max=1_100, parked_keys_max=1))
    handled = replay_all_but_bad(stage)
    answered = len(stage.answers)
    assert handled == answered

    stage.restart()

    again = [item for item in stage.take(100_000) if item.chain != b"bad"]
    assert [] == again


@pytest.mark.promise("P9")
@pytest.mark.parametrize("null_keys", list(NullKeys))
def test_a_pause_that_ended_is_not_repeated_behind_a_replay_without_a_key_that_fails(null_keys: NullKeys) -> None:
    policy = RetryPolicy(backoff_first_ms=300_000)
    settings = QueueSettings(policy=policy, metadata_bytes_max=1_100, parked_keys_max=1, null_keys=null_keys)
    stage = stage_with(0, settings)
    stage.dead_letters.append((None, 0, DeadLetterReason.ATTEMPTS_EXHAUSTED))
    stage.request(ReplayKind.REPLAY, 0)
    stage.fail(stage.take()[0])
    for kind in (ReplayKind.PAUSE, ReplayKind.RESUME):
        stage.request(kind)
        stage.write_due()
    more = stage_with(8_000, settings)
    stage.dead_letters += more.dead_letters
    stage.requests += [r._replace(dead_letter_offset=n + 1) for n, r in enumerate(more.requests)]
    stage.read()
    replay_all_but_bad(stage)
    assert stage.known(REPLAY).waiting is not None
    answered = len(stage.answers)

    stage.restart()
    stage.write_due()
    stage.store()
    stage.restart()
    stage.write_due()

    assert answered == len(stage.answers)
    assert not stage.queue.is_paused
    stage.now_ms += 300_000
    assert {None, b"bad"} == {item.chain if isinstance(item.chain, bytes) else None for item in stage.take()}


@pytest.mark.promise("P9")
def test_a_request_that_failed_and_has_a_result_is_over() -> None:
    """A program wrote it twice under one id, and the result of the first came when the second had failed once."""
    stored = StoredProgress(attempts={0: Attempts(1, 1_700_000_000)}, is_without_ends=True)
    queues: PartitionQueue[str] = PartitionQueue(
        topic=Start(0), replays=Start(0, stored), settings=QueueSettings(), now_ms=0
    )
    queues.knows_replays = False
    queues.learn_answered([(0, 1)])

    assert (1, "1|||||") == queues.snapshot(ItemSource.REPLAY)[:2]


@pytest.mark.promise("P9")
def test_what_was_found_out_of_answered_requests_is_not_stored_in_part() -> None:
    """An owner that knew a part would handle the others again. Until all has room, the next owner has to look, too."""
    draw = random.Random(1)
    count, settings = 8_000, QueueSettings(metadata_bytes_max=540, parked_keys_max=1)
    answered = [n for n in range(count) if draw.random() < 0.5]
    queues: PartitionQueue[str] = PartitionQueue(topic=Start(0), replays=Start(0), settings=settings, now_ms=0)
    queues.knows_replays = False
    queues.learn_answered([(n, n + 1) for n in answered])

    early = queues.snapshot(ItemSource.REPLAY)
    was_full = queues.is_full
    for n in range(count):
        request = ReplayRecord(ReplayKind.REPLAY, "all", n)
        queues.add_replay(request, offset=n, key=b"%d" % n, record="r", size_bytes=1)
    handled = queues.take(count, now_ms=0)
    queues.handled(handled)
    items = queues.take_due(count, of_requests=True)
    queues.written(items, [-1] * len(items), queues.ending(items, [-1] * len(items)))
    late = queues.snapshot(ItemSource.REPLAY)

    assert NOTHING is decode(early.offset, early.metadata)
    assert not was_full
    assert len(answered) + len(handled) == count
    assert (count, StoredProgress()) == (late.offset, decode(late.offset, late.metadata))
    assert NOTHING is not decode(late.offset, late.metadata)


@pytest.mark.promise("P9")
def test_the_first_dead_letter_of_a_topic_that_was_made_anew_releases_the_keys_of_the_one_before() -> None:
    stage = QueueStage([b"x", A], QueueSettings(policy=replace(PARK, attempt_count_max=1)))
    for item in stage.take():
        stage.fail(item)
    stage.store()
    stage.write_due()
    stage.request(ReplayKind.REPLAY, 1)
    stage.fail_next()
    stage.write_due()
    assert [1] == list(stage.known(ItemSource.TOPIC).stuck.values())
    stage.dead_letters.clear()

    stage.append(A)
    assert ["2"] == stage.write_due()
    assert [0] == list(stage.known(ItemSource.TOPIC).parked.values())
    stage.request(ReplayKind.REPLAY, 0)
    stage.queue.handled(stage.take())
    stage.write_due()
    stage.restart()
    stage.append(A, b"x")

    assert ["3", "4"] == stage.taken()


@pytest.mark.promise("P9")
@pytest.mark.fault("consumer: so many keys fail that what ended behind them has no room in the metadata")
@pytest.mark.parametrize("order", [QueueOrder.KEY, QueueOrder.NONE])
def test_replays_whose_ends_have_no_room_are_answered_once(order: QueueOrder) -> None:
    stage, failing = stage_of_replays(3_000, order)
    handled = replay_all(stage, failing=failing)
    stage.store()
    counted = stage.known(REPLAY).attempts.keys()
    assert stage.known(REPLAY).is_without_ends
    assert set(range(3_000)) - failing == handled == {at for at, _ in stage.answers}

    stage.restart()
    stage.store()
    assert counted == stage.known(REPLAY).attempts.keys() != set()
    again = {item.offset for item in stage.take(100_000)}
    assert again == failing - counted

    stage.restart()
    for _ in range(20):
        stage.advance(300_000)
        replay_all(stage, failing=failing, failure=REJECTED)
    assert Counter(range(3_000)) == Counter(at for at, _ in stage.answers)
    stage.store()
    assert (3_000, StoredProgress()) == (stage.stored[REPLAY][0], stage.known(REPLAY))


@pytest.mark.promise("P9")
@pytest.mark.fault("consumer: so many keys fail that what ended behind them has no room in the metadata")
def test_requests_without_a_handler_whose_ends_have_no_room_are_answered_once() -> None:
    stage, gone = stage_of_replays(3_000, QueueOrder.KEY, are_gone=True)
    stage.write_all_due()

    for _ in range(2):
        stage.store()
        stage.restart()
        stage.write_all_due()
        assert Counter((at, ReplayOutcome.MISSING) for at in gone) == Counter(stage.answers)

    replay_all(stage, failing=set())
    assert Counter(range(3_000)) == Counter(at for at, _ in stage.answers)


@pytest.mark.promise("P9")
@pytest.mark.fault("consumer: so many keys fail that what ended behind them has no room in the metadata")
def test_a_replay_for_which_the_oldest_message_waits_begins_although_neither_progress_has_room() -> None:
    """The oldest message waits for the replays of its key."""
    stage = QueueStage([A, A], QueueSettings(policy=PARK, metadata_bytes_max=400, parked_keys_max=1))
    stage.fail_next(REJECTED)
    stage.write_due()
    assert 2 == len(stage.dead_letters)
    stage.dead_letters += [(b"k%d" % n, n, DeadLetterReason.REJECTED) for n in range(3_000)]
    stage.request(ReplayKind.REPLAY, 0)
    (first,) = stage.take()
    stage.append(A, *(b"new-%d" % n for n in range(3_000)))
    postpone_some(stage)
    stage.append(b"k0")
    for dead_letter in (2, 1, *range(3, 3_002)):
        stage.request(ReplayKind.REPLAY, dead_letter)
    postpone_some(stage)
    assert stage.queue.snapshot(TOPIC).is_full
    assert not stage.known(REPLAY).tells_ends

    begun = []
    stage.queue.handled([first])
    for _ in range(3):
        stage.write_due()
        stage.store()
        items = stage.take()
        begun += [item.record for item in items]
        stage.queue.handled(items)

    assert ["dead letter 1", "2"] == begun[:2]


def stage_of_replays(count: int, order: QueueOrder, *, are_gone: bool = False) -> tuple[QueueStage, set[int]]:
    """All of so many dead letters, each of a key of its own, are asked for at once. Returns also half of them: they are to fail.

    `are_gone`: retention has taken these.
    """
    draw = random.Random(1)
    chosen = {n for n in range(count) if draw.random() < 0.5}
    policy = RetryPolicy(backoff_first_ms=300_000)
    stage = QueueStage([], QueueSettings(policy=policy, metadata_bytes_max=400, parked_keys_max=1, order=order))
    for n in range(count):
        stage.dead_letters.append((b"k%d" % n, n, DeadLetterReason.ATTEMPTS_EXHAUSTED))
        stage.requests.append(ReplayRecord(ReplayKind.REPLAY, "all", n))
    stage.expired = set(chosen) if are_gone else set()
    stage.read()
    return stage, chosen


def postpone_some(stage: QueueStage) -> None:
    """All that may begin is handled, or postponed."""
    stage.postpone_some(stage.take(8_000))
    stage.store()
    stage.write_all_due()
    stage.store()


def replay_all(stage: QueueStage, *, failing: set[int], failure: Failure = FAILED) -> set[int]:
    """Everything that may begin is handled, or fails. Returns which replays were handled."""
    handled = set()
    while items := stage.take(500):
        for item in items:
            if item.offset in failing:
                stage.fail(item, failure)
            else:
                stage.queue.handled([item])
                handled.add(item.offset)
        stage.store()
        stage.write_all_due()
    return handled
