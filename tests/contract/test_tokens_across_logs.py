"""Fencing tokens grow for as long as the group's progress lives, whatever becomes of the lock log; over memory and real Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.support.broker import unique_name
from tests.support.consumers import QUICK, Stage
from tests.support.lab import Lab
from txlayer.consumer.ordered import ConcurrentConsumer
from txlayer.core.progress_codec import StoredProgress, decode


@pytest.fixture
def stage(lab: Lab) -> Iterator[Stage]:
    made = Stage(lab)
    yield made
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


def test_a_token_is_kept_by_consumers_that_have_none(stage: Stage) -> None:
    token = handle_one(stage, 0)
    assert token is not None
    none = handle_one(stage, 1, kind=ConcurrentConsumer)

    assert none is None
    assert token == stored_token(stage)


def test_a_queue_that_is_taken_over_again_under_its_lease_keeps_its_token(stage: Stage) -> None:
    stage.write(b"0")
    with stage.consumer(namespace=new_log(stage), retry=QUICK) as consumer:
        stage.wait_stored(1)
        consumer._engine._holdings.give_up()  # as after an error
        stage.write(b"1")
        stage.wait_stored(2)

    first, second = stage.journal.seen
    assert first.token == second.token
