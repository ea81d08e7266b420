"""Settings: what a role reads from a mapping, and what it refuses."""

from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.config import (
    KNOWN_NAMES,
    ROLES,
    ClientConfig,
    ConsumerConfig,
    CoordinatorConfig,
    ProducerConfig,
    SystemTopics,
    check_namespace,
    environment_names,
    from_environ,
    milliseconds,
    parse_duration,
)
from txlayer.errors import ConfigError


def test_nothing_said_is_the_documented_default() -> None:
    config = from_environ(CoordinatorConfig, {})

    assert CoordinatorConfig() == config
    assert ("127.0.0.1:9092", "txlayer") == (config.bootstrap_servers, config.namespace)
    assert (timedelta(seconds=60), timedelta(seconds=6)) == (config.doubt_after, config.session_timeout)
    assert (5_000, 10_000, 64 * 1024 * 1024) == (
        ProducerConfig().in_flight_max,
        ProducerConfig().transaction_messages_max,
        ProducerConfig().transaction_bytes_max,
    )


def test_every_kind_of_setting_is_read_from_the_environment() -> None:
    config = from_environ(
        CoordinatorConfig,
        {
            "TXLAYER_BOOTSTRAP_SERVERS": "broker-1:9093,broker-2:9093",
            "TXLAYER_NAMESPACE": "shop",
            "TXLAYER_CLIENT_SETTINGS": "security.protocol=SASL_SSL; sasl.password=a=b",
            "TXLAYER_IS_INSECURE_ALLOWED": "true",
            "TXLAYER_TARGET_TOPICS": "orders, shop.*",
            "TXLAYER_DOUBT_AFTER": "5m",
            "TXLAYER_BATCH_LINES_MAX": "17",
            "PATH": "/bin",
        },
    )

    assert "broker-1:9093,broker-2:9093" == config.bootstrap_servers
    assert "shop" == config.namespace
    assert {"security.protocol": "SASL_SSL", "sasl.password": "a=b"} == config.client_settings
    assert config.is_insecure_allowed
    assert ("orders", "shop.*") == config.target_topics
    assert timedelta(minutes=5) == config.doubt_after
    assert 17 == config.batch_lines_max


@pytest.mark.parametrize("pattern", ["orders,loyalty", "orders loyalty", "", "shop/orders", "größe"])
def test_a_target_topic_that_no_topic_can_be_called_is_refused_at_the_start(pattern: str) -> None:
    # It would park what is committed to the topics that were meant.
    with pytest.raises(ConfigError, match="no topic has such a name") as caught:
        CoordinatorConfig(target_topics=("shop.*", pattern))

    assert ("target_topics", pattern) == (caught.value.name, caught.value.value)


@pytest.mark.parametrize("pattern", ["orders", "shop.*", "*", "a-[bc]?_1", "x-[!a]"])
def test_a_pattern_of_target_topics_is_taken(pattern: str) -> None:
    assert (pattern,) == CoordinatorConfig(target_topics=(pattern,)).target_topics


def test_what_is_given_wins_over_the_environment_and_none_is_not_given() -> None:
    environ = {"TXLAYER_NAMESPACE": "from-environment", "TXLAYER_BOOTSTRAP_SERVERS": "127.0.0.1:1"}

    config = from_environ(ClientConfig, environ, namespace="given", bootstrap_servers=None)

    assert ("given", "127.0.0.1:1") == (config.namespace, config.bootstrap_servers)


@pytest.mark.fault("operation: two versions in one group, a wrong setting, or a return to an older version")
def test_an_unknown_name_is_refused_and_its_value_not_shown() -> None:
    with pytest.raises(ConfigError, match="TXLAYER_SASL_PASSWORD") as refused:
        from_environ(ClientConfig, {"TXLAYER_SASL_PASSWORD": "secret"})

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("role", ROLES)
def test_every_role_accepts_the_names_of_the_others(role: type[ClientConfig]) -> None:
    assert set(environment_names(role)) <= KNOWN_NAMES

    from_environ(role, {"TXLAYER_IN_FLIGHT_MAX": "1", "TXLAYER_DOUBT_AFTER": "1s", "TXLAYER_KAFKA_HOME": "/kafka"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TXLAYER_BATCH_LINES_MAX", "many"),
        ("TXLAYER_BATCH_LINES_MAX", "-1"),
        ("TXLAYER_BATCH_LINES_MAX", "1.5"),
        ("TXLAYER_BATCH_LINES_MAX", "9" * 5_000),
        ("TXLAYER_BATCH_LINES_MAX", ""),
        ("TXLAYER_DOUBT_AFTER", "60"),
        ("TXLAYER_DOUBT_AFTER", "-60s"),
        ("TXLAYER_DOUBT_AFTER", "9999999999999999d"),
        ("TXLAYER_IS_INSECURE_ALLOWED", "yes"),
        ("TXLAYER_CLIENT_SETTINGS", "security.protocol"),
        ("TXLAYER_CLIENT_SETTINGS", "=SSL"),
    ],
)
def test_a_value_of_the_wrong_form_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_environ(CoordinatorConfig, {name: text})

    assert name == refused.value.name


@pytest.mark.parametrize("role", ROLES)
def test_a_limit_of_zero_stays_zero_and_is_refused(role: type[ClientConfig]) -> None:
    zeros = {int: 0, timedelta: timedelta(0)}
    limits: dict[str, Any] = {f.name: zeros[type(f.default)] for f in fields(role) if type(f.default) in zeros}

    assert len(limits) > 3
    for name, zero in limits.items():
        with pytest.raises(ConfigError) as refused:
            role(**{name: zero})
        assert (name, zero) == (refused.value.name, refused.value.value)


@pytest.mark.parametrize(
    "servers",
    ["127.0.0.1:9092", "localhost:9092", "localhost", "LOCALHOST:1", "[::1]:9092", "127.1.2.3:1, localhost:2"],
)
def test_plain_text_stays_on_this_machine(servers: str) -> None:
    assert servers == ClientConfig(bootstrap_servers=servers).bootstrap_servers


@pytest.mark.threat("control the network between")
@pytest.mark.parametrize(
    "servers", ["broker:9092", "10.0.0.1:9092", "127.0.0.1:1,broker:1", "127.example.org:9092", "localhost.example:1"]
)
def test_plain_text_to_another_machine_needs_ones_own_word(servers: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        ClientConfig(bootstrap_servers=servers)
    with pytest.raises(ConfigError, match="--insecure"):
        ClientConfig(bootstrap_servers=servers, client_settings={"security.protocol": "SASL_PLAINTEXT"})

    assert ClientConfig(bootstrap_servers=servers, is_insecure_allowed=True)
    assert ClientConfig(bootstrap_servers=servers, client_settings={"security.protocol": "ssl"})


def test_no_broker_named_is_refused() -> None:
    with pytest.raises(ConfigError, match="no broker named"):
        ClientConfig(bootstrap_servers=" ")


@pytest.mark.parametrize("namespace", ["txlayer", "a", "shop.eu-1_b", "0", "n" * 100])
def test_a_namespace_can_name_topics(namespace: str) -> None:
    assert namespace == check_namespace(namespace)


@pytest.mark.parametrize("namespace", ["", ".a", "_a", "a b", "a/b", "ä", "n" * 101, "a\n", "-", ".."])
def test_another_namespace_is_refused(namespace: str) -> None:
    with pytest.raises(ConfigError):
        ClientConfig(namespace=namespace)


def test_the_names_of_a_namespace() -> None:
    topics = SystemTopics("shop")

    assert {"shop.half", "shop.op", "shop.doubt", "shop.check", "shop.locks"} == topics.all
    assert "shop.coordinator" == topics.coordinator_group
    assert topics == ClientConfig(namespace="shop").topics


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("shop.half", True),
        ("shop.locks", True),
        ("__consumer_offsets", True),
        ("loyalty.orders.dlq", True),
        ("loyalty.orders.replay", True),
        ("orders", False),
        ("other.half", False),
    ],
)
def test_nobody_may_send_to_a_system_topic(topic: str, *, expected: bool) -> None:
    assert expected is SystemTopics("shop").is_system(topic)


def test_settings_are_values() -> None:
    config = ClientConfig()

    with pytest.raises(FrozenInstanceError):
        config.namespace = "other"  # type: ignore[misc] # the promise under test


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("250ms", 250), ("60s", 60_000), ("1.5s", 1_500), ("5m", 300_000), ("72h", 259_200_000)]
)
def test_a_length_of_time_has_a_unit(text: str, expected_ms: int) -> None:
    assert expected_ms == milliseconds(parse_duration("name", text))


@given(st.integers(1, 10**9), st.sampled_from(["ms", "s", "m"]))
def test_a_length_of_time_is_read_exactly(number: int, unit: str) -> None:
    factor = {"ms": 1, "s": 1_000, "m": 60_000}[unit]

    assert abs(number * factor - milliseconds(parse_duration("name", f"{number}{unit}"))) <= 1


def test_a_number_may_stand_between_blanks_of_any_kind() -> None:
    environ = {"TXLAYER_BATCH_LINES_MAX": " 7\x1f "}

    assert 7 == from_environ(CoordinatorConfig, environ).batch_lines_max


@pytest.mark.promise("P7")
def test_what_is_undecided_is_on_doubt_long_before_half_deletes_it() -> None:
    assert CoordinatorConfig(doubt_after=timedelta(days=1)).doubt_after

    with pytest.raises(ConfigError, match=r"doubt_after.*at most 1 day"):
        CoordinatorConfig(doubt_after=timedelta(days=8))


@pytest.mark.parametrize("config", [CoordinatorConfig, ConsumerConfig])
@pytest.mark.parametrize("timeout_ms", [1, 999, 1_000, 1_999])
def test_a_kafka_transaction_lasts_longer_than_its_records_may_travel(
    config: type[CoordinatorConfig | ConsumerConfig], timeout_ms: int
) -> None:
    assert config(kafka_transaction_timeout=timedelta(seconds=2)).kafka_transaction_timeout

    with pytest.raises(ConfigError, match=r"kafka_transaction_timeout.*at least 2s"):
        config(kafka_transaction_timeout=timedelta(milliseconds=timeout_ms))
