"""Which Kafka tests run on: what the option says, else what is there. Never: starting one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from txlayer.errors import ConfigError

OPTION = "--txlayer-kafka"

_SERVERS = re.compile(r"[^\s,:/]+:\d{1,5}(,[^\s,:/]+:\d{1,5})*|\[[0-9a-fA-F:]+\]:\d{1,5}")

WhyNot = Callable[[], str | None]
"""None: it is possible here; else why it is not."""


class Kind(Enum):
    """Kinds of Kafka that tests may run on."""

    MEMORY = "memory"  #: inside the test's process
    LOCAL = "local"  #: a real broker from its jars
    CONTAINER = "container"  #: a real broker in a container
    GIVEN = "given"  #: brokers that somebody else runs
    AUTO = "auto"  #: the first that is there of local, container, memory


@dataclass(frozen=True, slots=True)
class Choice:
    """A kind, and what made it so."""

    kind: Kind
    servers: str = ""
    """Of a given one."""
    why: str = f"{OPTION} says so"

    def __str__(self) -> str:
        place = self.servers or _PLACES[self.kind]
        return f"Kafka {place}: {self.why}"


_PLACES = {
    Kind.MEMORY: "in memory",
    Kind.LOCAL: "from its jars",
    Kind.CONTAINER: "in a container",
    Kind.GIVEN: "at an address",
    Kind.AUTO: "that is there",
}


def parse_choice(text: str) -> Choice:
    """The choice that the option's value says.

    Raises:
        ConfigError: it says none.
    """
    named = {kind.value: kind for kind in Kind if kind is not Kind.GIVEN}
    if text in named:
        return Choice(named[text])
    if _SERVERS.fullmatch(text):
        return Choice(Kind.GIVEN, servers=text)
    raise ConfigError(
        "no such Kafka", name=OPTION, value=text, expected=f"{', '.join(named)} or HOST:PORT"
    )


def settle_choice(choice: Choice, *, why_no_local: WhyNot, why_no_container: WhyNot) -> Choice:
    """The choice itself when it names a Kafka; of `auto` the first that needs nothing from a network.

    A real broker is worth more than one in memory, and one from jars is ready sooner than a container.
    """
    if choice.kind is not Kind.AUTO:
        return choice
    no_local = why_no_local()
    if no_local is None:
        return Choice(Kind.LOCAL, why=f"its jars and a Java are here; {OPTION}=memory is quicker")
    no_container = why_no_container()
    if no_container is None:
        return Choice(Kind.CONTAINER, why=f"Docker answers; {OPTION}=memory is quicker")
    return Choice(Kind.MEMORY, why=f"{no_local}; {no_container}")
