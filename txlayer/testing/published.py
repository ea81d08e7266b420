"""What a `read_committed` reader sees of a topic, what a test expected there, and the words for the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

from txlayer.adapters.ports import CoordinatorConnections, TopicPartition
from txlayer.adapters.ranges import read_ranges
from txlayer.consumer.received import ReceivedMessage
from txlayer.errors import TopicMismatchError

SHOWN_COUNT_MAX = 20
"""Messages in the text of a failure: a test that published more than these is read at their end."""
SHOWN_LENGTH_MAX = 200
"""Characters of a key or value there."""
READ_PATIENCE_S = 10.0
"""No record of what must be there for so long: the broker does not answer any more."""

Text = str | bytes
Wanted = Text | None | EllipsisType
"""What a key or value must be; `...`: anything. Text is compared as UTF-8."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A description of messages: all that is said must fit."""

    value: Wanted = ...
    key: Wanted = ...
    headers: Mapping[str, Text | None] = field(default_factory=dict)
    """Each must be there with this value; others may be there too."""
    txn_id: str | None = None
    where: Callable[[ReceivedMessage], bool] | None = None

    def fits(self, message: ReceivedMessage) -> bool:
        """True for a message of this description."""
        if self.txn_id is not None and message.txn_id != self.txn_id:
            return False
        found = dict(message.headers)
        return (
            _is(self.value, message.raw_value)
            and _is(self.key, message.key)
            and all(n in found and _is(v, found[n]) for n, v in self.headers.items())
            and (self.where is None or self.where(message))
        )

    def __str__(self) -> str:
        said = [
            f"{name}={_short(_bytes(wanted))}"
            for name, wanted in (("key", self.key), ("value", self.value))
            if not isinstance(wanted, EllipsisType)
        ]
        said += [f"header {n}={_short(_bytes(v))}" for n, v in self.headers.items()]
        said += [f"txn_id={self.txn_id}"] if self.txn_id is not None else []
        said += ["where the given function says so"] if self.where is not None else []
        return " ".join(said) or "any message"


class TopicView:
    """Everything that is visible on one topic, read further each time; for one thread."""

    def __init__(self, topic: str, connections: CoordinatorConnections) -> None:
        self.topic = topic
        self._connections = connections
        self._next: dict[TopicPartition, int] = {}
        self._records: dict[TopicPartition, list[Any]] = {}
        self._reader = connections.make_reader("read_committed")

    def close(self) -> None:
        """Give the reader back."""
        self._reader.close()

    def messages(self) -> list[ReceivedMessage]:
        """All that is visible now, partition by partition in the order of offsets.

        Raises:
            TopicMismatchError: there is no such topic.
            BrokerUnavailableError, NotAuthorisedError: it cannot be read.
        """
        ends = self._connections.end_offsets(self._partitions())
        ranges = {place: (self._next.get(place, 0), end) for place, end in ends.items()}
        read_ranges(self._reader, ranges, self._keep, patience_s=READ_PATIENCE_S)
        self._next.update(ends)
        return [ReceivedMessage(r) for place in sorted(self._records) for r in self._records[place]]

    def is_hanging(self, reach: Mapping[TopicPartition, int]) -> bool:
        """True while an open Kafka transaction hides what stands before `reach`."""
        ends = self._connections.end_offsets(list(reach))
        return any(ends[place] < reach[place] for place in reach)

    def reach(self) -> dict[TopicPartition, int]:
        """Where each partition ends now, with what nobody may see yet."""
        return self._connections.end_offsets(self._partitions(), is_committed=False)

    def _partitions(self) -> list[TopicPartition]:
        limits = self._connections.topic_limits(self.topic)
        if limits is None:
            raise TopicMismatchError(
                "no such topic; Stage.topic() creates one", topic=self.topic, found="none"
            )
        return [(self.topic, p) for p in range(limits.partition_count)]

    def _keep(self, record: Any) -> None:
        self._records.setdefault((record.topic(), record.partition()), []).append(record)


def shown(messages: Sequence[ReceivedMessage]) -> str:
    """Messages as lines for people; the last ones when there are many."""
    if not messages:
        return "  nothing"
    left_out = len(messages) - SHOWN_COUNT_MAX
    lines = [f"  ({left_out} before these)"] if left_out > 0 else []
    return "\n".join([*lines, *(_line(m) for m in messages[-SHOWN_COUNT_MAX:])])


def _line(message: ReceivedMessage) -> str:
    said = [
        f"  {message.topic}-{message.partition}@{message.offset}",
        f"key={_short(message.key)}",
        f"value={_short(message.raw_value)}",
    ]
    said += [f"header {n}={_short(v)}" for n, v in message.user_headers]
    said += [f"txn_id={message.txn_id}"] if message.txn_id is not None else []
    return " ".join(said)


def _short(content: bytes | None) -> str:
    text = repr(content)
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[:SHOWN_LENGTH_MAX]}…"


def _bytes(wanted: Text | None) -> bytes | None:
    return wanted.encode() if isinstance(wanted, str) else wanted


def _is(wanted: Wanted, found: bytes | None) -> bool:
    return isinstance(wanted, EllipsisType) or _bytes(wanted) == found
