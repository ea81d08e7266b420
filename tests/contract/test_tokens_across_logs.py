"""Fencing tokens grow for as long as the group's progress lives, whatever becomes of the lock log; over memory and real Kafka."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.conftest import OF_HANDLERS
from tests.support.broker import unique_name
from tests.support.consumers import PATIENCE_S, QUICK, Gate, Stage
from tests.support.lab_memory import DISTANT, MemoryLab
from tests.support.waiting import wait_until
from txlayer.consumer import offsets, pools
from txlayer.consumer.consumer import ConcurrentConsumer
from txlayer.core.leases import LockKind, LockRecord, encode_lock, queue_name
from txlayer.core.progress import StoredProgress, decode

SESSION = timedelta(seconds=2)
"""How long the group waits for a member that was cut off."""


@pytest.fixture
def distant() -> Iterator[tuple[MemoryLab, Stage]]:
    """Over memory alone: its distant client can be cut off for good."""
    lab = MemoryLab()
    made = Stage(lab)
    yield lab, made
    made.close()


def handle_one(stage: Stage, number: int, **settings: Any) -> int | None:
    """The token under which a consumer that lives for one message handles it."""
    stage.write(b"%d" % number)
    with stage.consumer(**settings):
        stage.wait_stored(number + 1)
    return stage.journal.seen[-1].token


def new_log(stage: Stage) -> str:
    """A namespace whose lock log is empty."""
    name = unique_name("ns")
    stage.lab.create(f"{name}.locks", settings={"message.timestamp.type": "LogAppendTime"})
    return name


def stored_token(stage: Stage) -> int | None:
    place = (stage.topic, 0)
    found = stage._connections.stored_offsets(stage.group, [place], is_stable=True)[place]
    assert found is not None
    said = decode(found.offset, found.metadata)
    assert isinstance(said, StoredProgress)
    return said.token


@pytest.mark.promise("P10")
def test_tokens_grow_across_a_change_of_namespace(stage: Stage) -> None:
    tokens = [handle_one(stage, number) for number in range(3)]
    tokens += [handle_one(stage, number, namespace=new_log(stage)) for number in (3, 4)]
    tokens.append(handle_one(stage, 5))  # back again

    found = [token for token in tokens if token is not None]
    assert len(tokens) == len(found)
    assert all(before < after for before, after in pairwise(found)), found
    assert found[-1] == stored_token(stage)


@OF_HANDLERS
def test_a_token_is_kept_by_consumers_that_have_none(stage: Stage) -> None:
    token = handle_one(stage, 0)
    assert token is not None
    none = handle_one(stage, 1, kind=ConcurrentConsumer)

    assert none is None
    assert token == stored_token(stage)


@OF_HANDLERS
def test_a_queue_that_is_taken_over_again_under_its_lease_keeps_its_token(stage: Stage) -> None:
    stage.write(b"0")
    with stage.consumer(namespace=new_log(stage), retry=QUICK) as consumer:
        stage.wait_stored(1)
        consumer._engine._assignments.give_up()  # as after an error
        stage.write(b"1")
        stage.wait_stored(2)

    first, second = stage.journal.seen
    assert first.token == second.token


def wait_for_another_token(owned: Any, before: int | None) -> None:
    """Until the lease was written again."""
    wait_until(lambda: owned.lease.token != before, within=PATIENCE_S, what="the lease written again")


@pytest.mark.fault("consumer: writes its lease again in a new lock log, and freezes")
@pytest.mark.slow
@pytest.mark.promise("P10")
@pytest.mark.parametrize(("is_new_log", "late_count"), [(False, 1), (True, 1), (True, 2)])
def test_no_two_holders_get_one_token_when_the_first_one_wrote_its_lease_again(
    distant: tuple[MemoryLab, Stage], *, is_new_log: bool, late_count: int
) -> None:
    lab, stage = distant
    # The old lock log has some history, so tokens are above those that the new one can give.
    for n in range(100):
        other = LockRecord(LockKind.CLAIM, queue_name("others", "t", n), 1, "somebody")
        key, value = encode_lock(other)
        lab.write(f"{stage.namespace}.locks", value, key=key)
    stage.write(b"0")
    with stage.consumer():
        stage.wait_stored(1)

    namespace = new_log(stage) if is_new_log else stage.namespace
    gate = Gate()
    frozen = stage.consumer(
        lambda m, c: gate(m, c) if m.value == b"2" else None,
        namespace=namespace,
        store_interval=timedelta(seconds=20),
        session_timeout=SESSION,
        store_timeout=timedelta(seconds=1),  # its end waits in vain
        connect=lambda config: lab.kafka.connect_consumer(config, client=DISTANT),
    )
    frozen.start()
    stage.write(b"1")
    stage.journal.wait_for(2)
    # A member of an older generation was frozen before its claim and writes it now: void, and the holder writes its lease again.
    owned = next(iter(frozen._engine._assignments.owned.values()))
    first = stage.journal.seen[-1].token
    for n in range(late_count):
        before = owned.lease.token
        late = LockRecord(LockKind.CLAIM, queue_name(stage.group, stage.topic, 0), 0, f"late-{n}")
        key, value = encode_lock(late)
        lab.write(f"{namespace}.locks", value, key=key)
        wait_for_another_token(owned, before)
    stage.write(b"2")
    gate.wait_for_one()  # its handler runs under the new token; nothing of it is stored yet
    held = stage.journal.seen[-1].token
    assert held is not None
    assert first is not None
    assert first < held

    lab.cut_off()  # the process is frozen, or cut off, before its next store
    count = len(stage.journal.seen)
    with stage.consumer(namespace=namespace, session_timeout=SESSION):
        stage.journal.wait_for(count + 1)
    gate.is_open.set()  # the old holder wakes up and writes under its token

    successor = stage.journal.seen[count].token
    assert successor is not None
    assert held < successor, f"the frozen holder's handler has {held}, its successor {successor}"


@pytest.mark.promise("P10")
@OF_HANDLERS
def test_no_handler_begins_under_a_former_token_behind_one_that_has_the_new_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three messages are one chunk. The lease is written again while the first is handled, and a fourth is handled under it."""
    monkeypatch.setattr(offsets, "ChunkSize", lambda _: SimpleNamespace(count=3, learn=lambda *_: None))
    monkeypatch.setattr(
        pools, "LOOK_S", PATIENCE_S
    )  # the first does not take so long that the others are taken from it
    gate = Gate()
    for key in (b"a", b"b", b"c"):
        stage.write(b"of three", key=key)
    with stage.consumer(lambda m, c: gate(m, c) if m.key == b"a" else None, worker_count=2) as consumer:
        gate.wait_for_one()
        owned = next(iter(consumer._engine._assignments.owned.values()))
        before = owned.lease.token
        key, value = encode_lock(LockRecord(LockKind.CLAIM, queue_name(stage.group, stage.topic, 0), 0, "late"))
        stage.lab.write(f"{stage.namespace}.locks", value, key=key)
        wait_for_another_token(owned, before)
        stage.write(b"fourth", key=b"d")
        stage.journal.wait_for(2)
        gate.is_open.set()
        stage.wait_stored(4)

    tokens = [seen.token for seen in stage.journal.seen]
    assert [before, owned.lease.token] == tokens[:2]
    assert tokens == sorted(tokens, key=lambda token: token or 0)
