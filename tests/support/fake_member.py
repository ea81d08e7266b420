"""A member of a group without a group: tests say what it is given, what it reads, and what goes wrong."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence

from txlayer.adapters.ports import Assignment, Record, TopicPartition
from txlayer.core import codec
from txlayer.core.messages import CheckKind, CheckRecord
from txlayer.errors import BrokerUnavailableError

TOPIC = "txlayer.check"
GROUP = "g"


class CheckFake:
    """A record of the check topic."""

    def __init__(self, value: bytes | None, *, partition: int = 0, offset: int = 0) -> None:
        self._value = value
        self._partition = partition
        self._offset = offset

    def topic(self) -> str:
        """As the client's message has it."""
        return TOPIC

    def partition(self) -> int:
        """As the client's message has it."""
        return self._partition

    def offset(self) -> int:
        """As the client's message has it."""
        return self._offset

    def key(self) -> bytes | None:
        """Nobody looks."""
        return None

    def value(self) -> bytes | None:
        """One line."""
        return self._value

    def headers(self) -> None:
        """None."""

    def timestamp(self) -> tuple[int, int]:
        """Nobody looks."""
        return (1, 0)

    def error(self) -> None:
        """None."""

    def __len__(self) -> int:
        return len(self._value or b"")


def question(
    name: str = "a", *, number: int = 1, group: str = GROUP, partition: int = 3, nonce: str = "0000000a"
) -> CheckRecord:
    """A question about the transaction `name`, whose half records are in `partition`."""
    return CheckRecord(
        CheckKind.QUESTION, f"{name}/{nonce}", group, partition, 17, 1_700_000_000_000, number, "orders,stock"
    )


def limit(text: str, *, group: str = GROUP, partition: int = 3, count: int = 10) -> CheckRecord:
    """A limit that is switched on or off."""
    return CheckRecord(CheckKind.LIMIT, "", group, partition, number=count, text=text)


def refusal(name: str = "a", *, group: str = GROUP) -> CheckRecord:
    """A resolution that came too late."""
    return CheckRecord(CheckKind.REFUSED, f"{name}/0000000a", group, 3, 17, 0, text="COMMIT by producer")


def heard(*checks: CheckRecord | bytes, partition: int = 0) -> list[Record]:
    """Them as records of one partition of the check topic."""
    return [CheckFake(c if isinstance(c, bytes) else codec.encode_check(c), partition=partition) for c in checks]


class FakeMember:
    """The `GroupReader` of a fake. Any thread may say; one reads."""

    def __init__(self, group: str = GROUP, *, share: Sequence[int] = (0, 1)) -> None:
        self.group = group
        self.ends: dict[int, int] = {}
        self.deaf_count = 0
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.is_started = False
        self.is_closed = False
        self._assignments: deque[Assignment] = deque()
        self._is_revoked = False
        self._said: deque[Sequence[Record] | Exception] = deque()
        self._changed = threading.Condition()
        self._generation = 0
        self.give(*share)

    # --- what a test says ---------------------------------------------------------------------------------------------

    def give(self, *partitions: int) -> None:
        """The group gives these to this member."""
        self._generation += 1
        share = tuple((TOPIC, p) for p in partitions)
        self._assignments.append(Assignment(share, None, self._generation))

    def revoke(self) -> None:
        """The group takes everything back."""
        self._is_revoked = True

    def say(self, *checks: CheckRecord | bytes, partition: int = 0) -> None:
        """The next read brings these."""
        with self._changed:
            self._said.append(heard(*checks, partition=partition))
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """The next read raises this."""
        with self._changed:
            self._said.append(error)
            self._changed.notify_all()

    # --- the port -----------------------------------------------------------------------------------------------------

    def start(self, topics: Sequence[str]) -> None:
        """Join."""
        assert [TOPIC] == list(topics)
        self.is_started = True

    def take_assignment(self) -> Assignment | None:
        """As told."""
        return self._assignments.popleft() if self._assignments and self.is_started else None

    def take_revocation(self) -> bool:
        """As told."""
        taken, self._is_revoked = self._is_revoked, False
        return taken

    def resume_at(self, positions: Mapping[TopicPartition, int]) -> None:
        """Remember them."""
        self.positions = dict(positions)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Remember them."""
        self.paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget them."""
        self.paused.difference_update(partitions)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[Record]:  # noqa: ARG002 - the port's
        """What was said, in order."""
        with self._changed:
            if not self.positions or not self._changed.wait_for(lambda: bool(self._said), timeout_s):
                return ()
            said = self._said.popleft()
        if isinstance(said, Exception):
            raise said
        return said

    def watermarks(self, partition: TopicPartition, *, timeout_s: float) -> tuple[int, int]:  # noqa: ARG002 - the port's
        """As told; 0 else. The first `deaf_count` questions are not answered."""
        if self.deaf_count:
            self.deaf_count -= 1
            raise BrokerUnavailableError("as planned", waited_ms=1)
        return 0, self.ends.get(partition[1], 0)

    def read_to(self, partition: TopicPartition) -> int:
        """Nobody tells it an end."""
        del partition
        return -1

    def known_end(self, partition: TopicPartition) -> int | None:
        """As told; None else."""
        return self.ends.get(partition[1])

    def close(self) -> None:
        """Leave."""
        self.is_closed = True
