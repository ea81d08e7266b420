"""Requests to replay dead letters, when their progress has no room in the metadata (P9)."""

import random

import pytest

from tests.support.queue_stage import REPLAY, QueueStage
from txlayer.core.dead_letters import DeadLetterReason, ReplayKind, ReplayRecord
from txlayer.core.key_queue import ItemSource, NullKeys, PartitionQueue, QueueSettings, Start
from txlayer.core.progress import NOTHING, StoredProgress, decode
from txlayer.core.retry import RetryPolicy


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
        while stage.write_due(500):
            pass
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
    stage = stage_with(40_000, QueueSettings(policy=policy))
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
def test_what_was_found_out_of_answered_requests_is_not_stored_in_part() -> None:
    """An owner that knew a part would handle the others again. Until all has room, the next owner has to look, too."""
    draw = random.Random(1)
    answered = [n for n in range(60_000) if draw.random() < 0.5]
    queues: PartitionQueue[str] = PartitionQueue(topic=Start(0), replays=Start(0), settings=QueueSettings(), now_ms=0)
    queues.knows_replays = False
    queues.learn_answered([(n, n + 1) for n in answered])

    early = queues.snapshot(ItemSource.REPLAY)
    was_full = queues.is_full
    for n in range(60_000):
        request = ReplayRecord(ReplayKind.REPLAY, "all", n)
        queues.add_replay(request, offset=n, key=b"%d" % n, record="r", size_bytes=1)
    handled = queues.take(60_000, now_ms=0)
    queues.handled(handled)
    items = queues.take_due(60_000, of_requests=True)
    queues.written(items, [-1] * len(items), queues.ending(items, [-1] * len(items)))
    late = queues.snapshot(ItemSource.REPLAY)

    assert NOTHING is decode(early.offset, early.metadata)
    assert not was_full
    assert len(answered) + len(handled) == 60_000
    assert (60_000, StoredProgress()) == (late.offset, decode(late.offset, late.metadata))
    assert NOTHING is not decode(late.offset, late.metadata)
