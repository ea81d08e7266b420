"""What the contract suite asks of a log: Kafka's promises, over whatever keeps them."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

from tests.support.logs import Seen
from txlayer.adapters.connect import ConsumerConnections, CoordinatorConnections, ProducerConnections
from txlayer.adapters.ports import Administration
from txlayer.config import ConsumerConfig


class Lab(Protocol):
    """A cluster and ways to look at it that are not under test. Every name that it makes is a new one."""

    def topic(self, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        """Create a topic."""
        ...

    @property
    def servers(self) -> str:
        """What settings name as its address."""
        ...

    def create(self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Create a topic of this name."""
        ...

    def connect_consumer(self, config: ConsumerConfig) -> ConsumerConnections:
        """What consumers take as `connect`."""
        ...

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until that is known."""
        ...

    def delete_records(self, topic: str, *, before: int) -> None:
        """Remove the records of partition 0 before an offset."""
        ...

    def write(self, topic: str, *values: bytes | None, partition: int = 0, key: bytes | None = None) -> list[int]:
        """Write with a plain producer; the offsets."""
        ...

    def write_tagged(self, topic: str, tag: bytes) -> None:
        """Write one record whose value is its tag, too, with the tag's name as its key."""
        ...

    def read(self, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
        """What a plain consumer sees, in the order of partitions and offsets."""
        ...

    def admin(self) -> Administration:
        """The administrator's view."""
        ...

    def coordinator(self, namespace: str, **settings: Any) -> CoordinatorConnections:
        """A coordinator's connections; its group is `<namespace>.coordinator`."""
        ...

    def producer(self, **settings: Any) -> ProducerConnections:
        """A producer's connections."""
        ...

    def consumer(self, **settings: Any) -> ConsumerConnections:
        """A consumer's connections."""
        ...

    def nobody(self, group: str) -> Any:
        """The group metadata of one who never joined."""
        ...

    def let_pass(self, time: timedelta) -> None:
        """Nothing waits for longer than this in a log whose clock can be moved; else the test waits."""
        ...

    def clean(self) -> None:
        """Compact now, in a log that can be told to; else the test waits."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class FaultyLab(Lab, Protocol):
    """One with clients whose way to the cluster can be harmed: those that `distant` makes."""

    def distant(self, namespace: str, **settings: Any) -> CoordinatorConnections:
        """A coordinator's connections over the way that can be harmed."""
        ...

    def distant_consumer(self, **settings: Any) -> ConsumerConnections:
        """A consumer's connections over the way that can be harmed."""
        ...

    def lose_answer(self, request: str) -> None:
        """The next request of this kind is done, and its answer is lost with its connection."""
        ...

    def echo(self, request: str) -> None:
        """The same, and it arrives once more, when `wait_for_echo` is called."""
        ...

    def wait_for_echo(self) -> None:
        """Let the late request arrive, and wait until it did."""
        ...

    def lost_count(self, request: str) -> int:
        """How many answers were lost."""
        ...

    def cut_off(self) -> None:
        """Nothing goes over that way any more."""
        ...

    def reconnect(self) -> None:
        """Everything does again."""
        ...
