"""Which Kafka users' tests run on: the option's values, and what `auto` takes."""

import pytest

from txlayer.errors import ConfigError
from txlayer.testing.access import Choice, Kind, parse_choice, settle_choice


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
    settled = settle_choice(Choice(Kind.AUTO), why_no_local=possible, why_no_container=possible)

    assert Kind.LOCAL is settled.kind


def test_auto_takes_a_container_where_there_are_no_jars() -> None:
    settled = settle_choice(Choice(Kind.AUTO), why_no_local=no_java, why_no_container=possible)

    assert Kind.CONTAINER is settled.kind


def test_auto_takes_memory_where_nothing_else_is_possible_and_says_why() -> None:
    settled = settle_choice(Choice(Kind.AUTO), why_no_local=no_java, why_no_container=no_docker)

    assert Kind.MEMORY is settled.kind
    assert "Kafka in memory: no Java; no Docker" == str(settled)
