"""What users' tests are given: which Kafka they run on, a container's life, and how the difference to what was published is told."""

from typing import Any

import pytest

from txlayer.adapters.memory.log import MemoryRecord
from txlayer.consumer.context import ReceivedMessage
from txlayer.errors import BrokerUnavailableError, ConfigError
from txlayer.testing.access import IMAGE, Choice, Kind, parse_choice, running_container, settle_choice
from txlayer.testing.stage import SHOWN_COUNT_MAX, Expected, shown


class FakeContainer:
    """A container of nothing."""

    def __init__(self, image: str, *, failure: Exception | None = None, logs: tuple[bytes, bytes] = (b"", b"")) -> None:
        self.image = image
        self.failure = failure
        self.logs = logs
        self.calls: list[str] = []

    def start(self, timeout: int = 30) -> None:  # noqa: ARG002 - testcontainers' own parameter
        self.calls.append("start")
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self.calls.append("stop")

    def get_logs(self) -> tuple[bytes, bytes]:
        return self.logs

    def get_bootstrap_server(self) -> str:
        return "localhost:32768"


def test_a_container_gives_its_address_and_is_removed_at_the_end() -> None:
    made: list[FakeContainer] = []

    def make(image: str) -> FakeContainer:
        made.append(FakeContainer(image))
        return made[-1]

    with running_container(make=make) as servers:
        assert "localhost:32768" == servers
        assert ["start"] == made[0].calls

    assert (IMAGE, ["start", "stop"]) == (made[0].image, made[0].calls)


def test_one_that_does_not_start_is_removed_and_its_reason_is_said() -> None:
    broken = FakeContainer("some/kafka:9", failure=OSError("no such image"))

    with (
        pytest.raises(BrokerUnavailableError, match=r"some/kafka:9 did not start: no such image"),
        running_container("some/kafka:9", make=lambda _: broken),
    ):
        raise AssertionError("it has not started")

    assert ["start", "stop"] == broken.calls


def test_the_last_lines_of_one_that_ended_are_said_because_its_log_goes_with_it() -> None:
    noise = b"".join(b"line %d\n" % number for number in range(10_000))
    broken = FakeContainer(
        "some/kafka:9", failure=RuntimeError("Container exited"), logs=(noise + b"started\n", b"no \xff heap\n")
    )

    with pytest.raises(BrokerUnavailableError) as failed, running_container("some/kafka:9", make=lambda _: broken):
        raise AssertionError("it has not started")

    said = str(failed.value)
    assert "Container exited" in said
    assert "line 9999\nstarted" in said
    assert "no \\xff heap" in said
    assert 3000 > len(said)


def test_an_image_that_testcontainers_refuses_is_said_as_one_that_does_not_start() -> None:
    def make(_: str) -> FakeContainer:
        raise ValueError("version 4.3.0 is not supported")

    with (
        pytest.raises(
            BrokerUnavailableError, match=r"apache/kafka:4.3.0 did not start: version 4.3.0 is not supported"
        ),
        running_container("apache/kafka:4.3.0", make=make),
    ):
        raise AssertionError("it has not started")


def possible() -> str | None:
    return None


def no_java() -> str | None:
    return "no Java"


def no_docker() -> str | None:
    return "no Docker"


@pytest.mark.parametrize(
    ("text", "kind", "servers"),
    [
        ("memory", Kind.MEMORY, ""),
        ("local", Kind.LOCAL, ""),
        ("container", Kind.CONTAINER, ""),
        ("auto", Kind.AUTO, ""),
        ("127.0.0.1:9092", Kind.GIVEN, "127.0.0.1:9092"),
        ("kafka-1.test:9092,kafka-2.test:9092", Kind.GIVEN, "kafka-1.test:9092,kafka-2.test:9092"),
        ("[::1]:9092", Kind.GIVEN, "[::1]:9092"),
    ],
)
def test_the_option_names_a_kafka(text: str, kind: Kind, servers: str) -> None:
    choice = parse_choice(text)

    assert (kind, servers) == (choice.kind, choice.servers)


@pytest.mark.parametrize("text", ["", "given", "docker", "kafka", "9092", "host:", "a:1,", "a b:1"])
def test_any_other_word_is_refused_with_those_that_there_are(text: str) -> None:
    with pytest.raises(ConfigError, match="memory, local, container, auto or HOST:PORT"):
        parse_choice(text)


def test_a_kafka_that_was_named_is_taken_though_it_may_not_be_possible() -> None:
    for named in ("memory", "local", "container", "127.0.0.1:1"):
        choice = parse_choice(named)

        assert choice == settle_choice(choice, why_no_local=no_java, why_no_container=no_docker)


def test_auto_takes_a_real_broker_from_jars_before_a_container() -> None:
    both = settle_choice(Choice(Kind.AUTO), why_no_local=possible, why_no_container=possible)
    without_jars = settle_choice(Choice(Kind.AUTO), why_no_local=no_java, why_no_container=possible)

    assert (Kind.LOCAL, Kind.CONTAINER) == (both.kind, without_jars.kind)


def test_auto_takes_memory_where_nothing_else_is_possible_and_says_why() -> None:
    settled = settle_choice(Choice(Kind.AUTO), why_no_local=no_java, why_no_container=no_docker)

    assert Kind.MEMORY is settled.kind
    assert "Kafka in memory: no Java; no Docker" == str(settled)


HEADERS = [("kind", b"gift"), ("kind", b"sale"), ("empty", None), ("txl-id", b"order-1")]


def message(value: bytes | None = b"v", *, key: bytes | None = b"k", offset: int = 7) -> ReceivedMessage:
    return ReceivedMessage(MemoryRecord("orders", 3, key, value, HEADERS, log_offset=offset))


def in_partition_3(message: ReceivedMessage) -> bool:
    return message.partition == 3


def in_partition_4(message: ReceivedMessage) -> bool:
    return message.partition == 4


def spelt(said: dict[str, Any]) -> str:
    """The same in every process: a function has its name, not its address."""
    return str({name: getattr(value, "__name__", value) for name, value in said.items()})


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"value": b"v"},
        {"value": "v"},
        {"key": "k", "value": "v"},
        {"txn_id": "order-1"},
        {"headers": {"kind": "sale"}},
        {"headers": {"kind": b"sale", "empty": None}},
        {"where": in_partition_3},
    ],
    ids=spelt,
)
def test_a_message_fits_what_is_said_of_it(said: dict[str, Any]) -> None:
    assert Expected(**said).fits(message())


@pytest.mark.parametrize(
    "said",
    [
        {"value": "w"},
        {"value": None},
        {"key": None},
        {"key": "k", "value": "w"},
        {"txn_id": "order-2"},
        {"headers": {"kind": "gift"}},  # the last of a name counts
        {"headers": {"kind": None}},
        {"headers": {"other": None}},
        {"where": in_partition_4},
    ],
    ids=spelt,
)
def test_one_thing_that_does_not_fit_is_enough(said: dict[str, Any]) -> None:
    assert not Expected(**said).fits(message())


def test_none_is_a_value_like_any_other() -> None:
    assert Expected(value=None, key=None).fits(message(None, key=None))


def test_a_description_says_what_was_asked_for() -> None:
    expected = Expected(value="v", key=None, headers={"kind": "sale"}, txn_id="order-1")

    assert "key=None value=b'v' header kind=b'sale' txn_id=order-1" == str(expected)
    assert "any message" == str(Expected())


def test_a_message_is_shown_with_its_place_and_the_users_own_headers() -> None:
    line = "  orders-3@7 key=b'k' value=b'v' header kind=b'gift' header kind=b'sale' header empty=None txn_id=order-1"

    assert line == shown([message()])
    assert "  nothing" == shown([])


def test_of_many_messages_the_last_are_shown_and_of_long_ones_the_beginning() -> None:
    many = [message(b"x" * 1000, offset=n) for n in range(SHOWN_COUNT_MAX + 5)]

    lines = shown(many).splitlines()

    assert "  (5 before these)" == lines[0]
    assert SHOWN_COUNT_MAX == len(lines) - 1
    assert all(len(line) < 400 for line in lines)
