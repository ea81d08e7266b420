"""Requests that come late, answers that do not come, owners that come and go: what the writer of dead letters does."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest

from tests.support.dead_letter_stage import Stage, make_distant_stage, metadata_of
from tests.support.lab import FaultyLab
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.consumer.assignments import end_what_was_left
from txlayer.consumer.dead_letters import DeadLetterWriter
from txlayer.errors import BrokerUnavailableError, RetriableError
from txlayer.runtime.environment import Threads
from txlayer.runtime.kafka_transactions import stable_offsets


class KilledError(Exception):
    """The process is gone at this very place."""


def killed(_places: list[int]) -> dict[TopicPartition, StoredOffset]:
    raise KilledError


class QuietWriter:
    """A writer that does nothing."""

    def initialise(self, *, timeout_s: float) -> None:
        pass

    def begin(self) -> None:
        pass

    def flush(self, *, timeout_s: float) -> int:  # noqa: ARG002 - the port's
        return 0

    def send_offsets(self, offsets: Any, member: Any, *, timeout_s: float) -> None:
        pass

    def commit(self, *, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        pass


class Connections:
    """Makes writers of one kind; `names` are the transactional ids that they were made for."""

    def __init__(self, kind: Callable[[], Any] = QuietWriter) -> None:
        self.names: list[str] = []
        self._kind = kind

    def make_writer(self, transactional_id: str, *, batch_bytes_max: int) -> Any:  # noqa: ARG002 - the port's
        self.names.append(transactional_id)
        return self._kind()


def test_a_commit_without_an_answer_is_asked_for_again_and_then_given_up() -> None:
    class Deaf(QuietWriter):
        transactional_id = "n"
        asked = 0

        def commit(self, *, timeout_s: float) -> None:  # noqa: ARG002 - the port's
            Deaf.asked += 1
            raise RetriableError("not answered yet")

    now = iter(range(0, 10_000, 5))
    writer = DeadLetterWriter(Connections(Deaf), group="g", name="n", timeout_s=10.0, clock=lambda: float(next(now)))

    with pytest.raises(RetriableError):
        writer.write_letters([], offsets=lambda _: {("t", 0): StoredOffset(1, "")}, member=b"m")

    assert 3 <= Deaf.asked <= 5


# --- the guard --------------------------------------------------------------------------------------------------------


@pytest.fixture
def distant_stage(faulty_lab: FaultyLab) -> Iterator[Stage]:
    made = make_distant_stage(faulty_lab)
    yield made
    made.reader.close()


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_late_end_of_one_kafka_transaction_does_nothing_to_the_next_unless_its_writer_is_kept(
    faulty_lab: FaultyLab, distant_stage: Stage, *, is_guarded: bool
) -> None:
    writer = distant_stage.writer() if is_guarded else distant_stage.writer(recycle_after_s=600.0)

    _be_killed_after_a_late_end(faulty_lab, distant_stage, writer)

    assert int(is_guarded) == writer.replaced_count
    # Without the guard a dead letter is published whose offset is not stored.
    distant_stage.wait_for(*[b"message 0", b"message 1"][: 1 if is_guarded else 2])
    assert StoredOffset(1, "") == distant_stage.stored()


def _be_killed_after_a_late_end(faulty_lab: FaultyLab, stage: Stage, writer: DeadLetterWriter) -> None:
    faulty_lab.echo("EndTxn")
    writer.write_letters([stage.given_up(0)], offsets=stage.behind(0), member=stage.member)

    def offsets(places: list[int]) -> dict[TopicPartition, StoredOffset]:
        faulty_lab.wait_for_echo()
        return killed(places)

    with pytest.raises(KilledError):
        writer.write_letters([stage.given_up(1)], offsets=offsets, member=stage.member)
    end_what_was_left(stage.connections, [writer.name])
    writer.close()


@pytest.mark.parametrize("slow_call", ["send_offsets", "commit"])
def test_a_writer_is_replaced_before_the_next_kafka_transaction_when_its_end_was_slow(slow_call: str) -> None:
    now = [0.0]

    class Slow(QuietWriter):
        def send_offsets(self, offsets: Any, member: Any, *, timeout_s: float) -> None:  # noqa: ARG002 - the port's
            now[0] += 0.08 if slow_call == "send_offsets" and len(connections.names) == 1 else 0.01

        def commit(self, *, timeout_s: float) -> None:  # noqa: ARG002 - the port's
            now[0] += 0.08 if slow_call == "commit" and len(connections.names) == 1 else 0.01

    connections = Connections(Slow)
    writer = DeadLetterWriter(connections, group="g", name="n", clock=lambda: now[0])
    for _ in range(3):
        writer.write_letters([], offsets=lambda _: {("t", 0): StoredOffset(1, "")}, member=b"m")

    assert ["n", "n"] == connections.names
    assert 1 == writer.replaced_count


def test_a_writer_that_was_idle_for_long_is_replaced_because_brokers_forget_it() -> None:
    now, connections = [0.0], Connections()
    writer = DeadLetterWriter(connections, group="g", name="n", clock=lambda: now[0])
    for idle_s in (0.0, 3_599.0, 3_601.0):
        now[0] += idle_s
        writer.write_letters([], offsets=lambda _: {("t", 0): StoredOffset(1, "")}, member=b"m")

    assert ["n", "n"] == connections.names


class HeldBackground:
    """What was begun in the background, and has not run yet."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def start(self, call: Any, *, name: str) -> Any:
        del call
        self.names.append(name)


def test_the_close_of_a_client_that_was_replaced_or_has_failed_is_not_waited_for() -> None:
    """After a fatal error such a close may never return."""
    now = [0.0]

    class Hangs(QuietWriter):
        def initialise(self, *, timeout_s: float) -> None:  # noqa: ARG002 - the port's
            if len(connections.names) == 3:
                raise BrokerUnavailableError("not answered")

        def close(self) -> None:
            raise AssertionError("nothing would go on behind this")

    connections, background = Connections(Hangs), cast("Any", HeldBackground())
    writer = DeadLetterWriter(connections, group="g", name="n", clock=lambda: now[0], background=background)

    def write() -> None:
        now[0] += 3_601.0  # idle for so long, it is replaced
        writer.write_letters([], offsets=lambda _: {("t", 0): StoredOffset(1, "")}, member=b"m")

    write()
    write()
    assert (1, 1) == (writer.replaced_count, len(background.names))
    with pytest.raises(BrokerUnavailableError):
        write()
    writer.close()
    end_what_was_left(connections, ["former"], background=background)

    assert ["n", "n", "n", "former"] == connections.names
    assert 4 == len(background.names)


@pytest.mark.fault("consumer: the machine cannot start a thread for the end of a client")
def test_a_client_is_closed_at_once_if_the_machine_starts_no_thread_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Refused(QuietWriter):
        def begin(self) -> None:
            raise BrokerUnavailableError("not answered")

        def close(self) -> None:
            closed.append("client")

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    background = Threads()
    writer = DeadLetterWriter(Connections(Refused), group="g", name="n", background=background)
    with pytest.raises(BrokerUnavailableError):
        writer.write_letters([], offsets=lambda _: {("t", 0): StoredOffset(1, "")}, member=b"m")
    writer.close()
    end_what_was_left(Connections(Refused), ["former"], background=background)

    assert 2 * ["client"] == closed


# --- taking over ------------------------------------------------------------------------------------------------------


def test_a_name_that_appears_while_one_takes_over_is_ended_too() -> None:
    answers = [
        {("t", 0): StoredOffset(1, "first")},
        {("t", 0): StoredOffset(2, "second")},
        {("t", 0): StoredOffset(2, "second")},
        {("t", 0): StoredOffset(2, "second")},
    ]

    class Answering(Connections):
        def stored_offsets(self, *_: Any, is_stable: bool) -> Any:  # noqa: ARG002 - the port's
            return answers.pop(0)

    connections = Answering()
    found = stable_offsets(
        connections, "g", [("t", 0)], writers_of=metadata_of, fence=partial(end_what_was_left, connections)
    )

    assert {("t", 0): StoredOffset(2, "second")} == found
    assert ["first", "second"] == connections.names


def test_a_writer_that_left_nothing_which_stores_an_offset_is_not_ended_although_metadata_name_it() -> None:
    """Nobody may be able to end it now: the queue must not wait for that."""

    class Stored:
        def stored_offsets(self, *_: Any, is_stable: bool) -> Any:  # noqa: ARG002 - the port's
            return {("t", 0): StoredOffset(1, "harmless")}

    found = stable_offsets(
        Stored(),
        "g",
        [("t", 0)],
        writers_of=metadata_of,
        fence=lambda names: pytest.fail(f"fenced {names}"),
        harmless=["harmless"],
    )

    assert {("t", 0): StoredOffset(1, "harmless")} == found


def test_offsets_that_stay_pending_are_told_and_ownership_is_asked_meanwhile() -> None:
    now, asked = iter(range(1_000)), []

    class Stored:
        def stored_offsets(self, *_: Any, is_stable: bool) -> Any:
            if is_stable:
                raise BrokerUnavailableError("pending")
            return {("t", 0): None}

    with pytest.raises(BrokerUnavailableError, match="pending"):
        stable_offsets(
            Stored(),
            "g",
            [("t", 0)],
            writers_of=metadata_of,
            fence=lambda names: pytest.fail(f"fenced {names}"),
            is_still_ours=lambda: asked.append(1),
            patience_s=10.0,
            clock=lambda: float(next(now)),
        )

    assert len(asked) > 10
