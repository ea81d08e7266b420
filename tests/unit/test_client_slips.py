"""A slip in a client's settings is the caller's error, told by the setting's name; no value of a setting is ever shown."""

import logging
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.commands import run_txlayer
from txlayer import OrderedConsumer, TransactionalProducer
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.client import KafkaGroupReader, plain_consumer
from txlayer.adapters.kafka.writers import KafkaIdempotentWriter, KafkaTransactionalWriter
from txlayer.config import PROTECTED_CLIENT_SETTINGS, ClientConfig
from txlayer.errors import ConfigError, ProducerFencedError

SECRET = "hunter2"


def half(config: ClientConfig) -> object:
    return KafkaIdempotentWriter(config, message_timeout_ms=1000, batch_bytes_max=1_000_000, linger_ms=1)


def transactional(config: ClientConfig) -> object:
    return KafkaTransactionalWriter(config, transactional_id="id", timeout_ms=5000, batch_bytes_max=1_000_000)


def member(config: ClientConfig) -> object:
    return KafkaGroupReader(config, group="g", session_timeout_ms=10_000)


def admin(config: ClientConfig) -> object:
    return KafkaAdmin(config, timeout_ms=1000).client()


def test_a_client_that_is_closed_refuses_a_record_with_an_error_of_ours() -> None:
    writer = KafkaIdempotentWriter(
        ClientConfig(bootstrap_servers="127.0.0.1:9"), message_timeout_ms=1000, batch_bytes_max=1_000_000, linger_ms=1
    )
    writer.close(0)
    with pytest.raises(RuntimeError) as raised:
        writer.produce("t", b"v", None, 0)

    assert "closed" in str(writer.error_of(raised.value, topic="t", txn_id="order-1"))


class Fenced:
    """A client with a fatal error, which `flush` lost while it handed over a report."""

    def flush(self, _timeout_s: float) -> int:
        raise SystemError("returned NULL without setting an exception")

    def begin_transaction(self) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED, "a newer one is there", fatal=True))


def test_a_writer_is_fenced_if_its_client_lost_the_error_that_says_so() -> None:
    writer = KafkaTransactionalWriter(
        ClientConfig(bootstrap_servers="127.0.0.1:9"), transactional_id="id", timeout_ms=5000, batch_bytes_max=1_000_000
    )
    client: Any = Fenced()
    writer._producer = client

    with pytest.raises(ProducerFencedError, match="a newer one is there"):
        writer.flush(timeout_s=1)


CLIENTS: list[Callable[[ClientConfig], object]] = [half, transactional, member, plain_consumer, admin]
SASL = {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": SECRET}
SLIPS: list[tuple[Mapping[Any, Any], str]] = [
    ({**SASL, "sasl.mechanism": "NOPE"}, "sasl.mechanism"),
    # Commas where semicolons belong: the password is in the value of the wrong setting.
    ({"security.protocol": "SASL_SSL", "sasl.mechanisms": f"PLAIN,sasl.password={SECRET}"}, "sasl.mechanisms"),
    ({"security.protocol": f"SASL_SSL,sasl.password={SECRET}"}, "security.protocol"),
    ({"security.protocol": f"SASL_SSL sasl.password={SECRET}"}, "security.protocol"),
    ({"debug": f"security,{SECRET}"}, "debug"),
    ({"sasl.pasword": SECRET}, "sasl.pasword"),
    ({"ssl_key": SECRET}, "client_settings"),
    ({f"sasl.password: {SECRET}": "x"}, "client_settings"),
    ({SECRET: "the end of a password with a semicolon"}, "client_settings"),
    ({"queued.max.messages.kbytes": "-7"}, "queued.max.messages.kbytes"),
    ({"compression.type": SECRET}, "compression.type"),
    ({"metadata.max.age.ms": SECRET}, "metadata.max.age.ms"),
    ({"socket.keepalive.enable": SECRET}, "socket.keepalive.enable"),
    ({"security.protocol": "SSL", "ssl.ca.location": f"/{SECRET}"}, "ssl.ca.location"),
    ({"security.protocol": "SSL", "ssl.key.location": "/nowhere", "ssl.key.password": SECRET}, "ssl.key.location"),
    (
        {"security.protocol": "SSL", "ssl.keystore.location": "/nowhere", "ssl.keystore.password": SECRET},
        "ssl.keystore.location",
    ),
    ({"security.protocol": "SSL", "ssl.key.pem": SECRET}, "ssl.key.pem"),
    ({"security.protocol": "SSL", "ssl.ca.pem": SECRET}, "ssl.ca.pem"),
    ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "sasl.username"),
    ({"plugin.library.paths": f"/{SECRET}"}, "plugin.library.paths"),
    ({"stats_cb": SECRET}, "stats_cb"),
    ({"oauth_cb": 3}, "oauth_cb"),
    ({"throttle_cb": SECRET}, "throttle_cb"),
    ({"sasl.password": f"{SECRET}\0more"}, "sasl.password"),
    ({"sasl.password": f"{SECRET}\udcff"}, "sasl.password"),
    ({"sasl.password": [SECRET]}, "sasl.password"),
    ({"sasl.password": SECRET.encode()}, "sasl.password"),
    # Within it every protected setting of a topic could be changed.
    ({"default.topic.config": {"acks": "0"}}, "default.topic.config"),
    ({"logger": SECRET}, "logger"),
    # The same slip behind a setting that a promise rests on, and behind the brokers.
    ({"acks": f"all,sasl.password={SECRET}"}, "acks"),
    ({"bootstrap.servers": f"broker:9093,sasl.password={SECRET}"}, "bootstrap.servers"),
    ({3: SECRET}, "client_settings"),
]


def shown(error: BaseException) -> str:
    """What a program's traceback prints of it, with whatever it was raised from."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize(("settings", "name"), SLIPS, ids=range(len(SLIPS)))
def test_a_slip_is_told_by_the_name_of_its_setting_and_never_by_its_value(
    make: Callable[[ClientConfig], object], settings: Mapping[Any, Any], name: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        make(ClientConfig(client_settings=settings))

    assert name == refused.value.name
    assert SECRET not in str(refused.value)
    told = shown(refused.value)
    assert SECRET not in "".join(
        line
        for line in told.splitlines()
        if not line.startswith("    ")  # source lines
    )


@pytest.mark.parametrize("make", [half, transactional])
def test_a_setting_that_the_client_calls_by_its_short_name_is_told_by_the_name_in_the_settings(
    make: Callable[[ClientConfig], object],
) -> None:
    name = "max.in.flight.requests.per.connection"

    with pytest.raises(ConfigError) as refused:
        make(ClientConfig(client_settings={name: "6"}))

    assert name == refused.value.name


@pytest.mark.parametrize(("settings", "name"), SLIPS, ids=range(len(SLIPS)))
def test_a_program_hears_of_a_slip_from_what_it_makes(settings: Mapping[Any, Any], name: str) -> None:
    def produce() -> None:
        with TransactionalProducer(bootstrap_servers="127.0.0.1:1", group="g", client_settings=settings):
            raise AssertionError

    def consume() -> None:
        consumer = OrderedConsumer(
            bootstrap_servers="127.0.0.1:1", group="g", topics=["orders"], client_settings=settings
        )
        consumer.handler(lambda _, __: None)
        consumer.run()

    for run in (produce, consume):
        with pytest.raises(ConfigError) as refused:
            run()
        assert name == refused.value.name


@pytest.mark.parametrize("name", sorted(PROTECTED_CLIENT_SETTINGS))
def test_no_setting_that_is_refused_shows_what_it_was_to_be(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ClientConfig(client_settings={name: f"x,sasl.password={SECRET}"})

    assert (name, False) == (refused.value.name, SECRET in shown(refused.value))


@pytest.mark.parametrize("between", [",", ";", " ", ", ", "\n"])
@pytest.mark.parametrize("settings", [{}, SASL])
def test_settings_behind_the_brokers_are_refused_and_not_shown(settings: Mapping[Any, Any], between: str) -> None:
    servers = f"broker:9093{between}sasl.password={SECRET}"

    with pytest.raises(ConfigError, match="HOST:PORT") as refused:
        ClientConfig(bootstrap_servers=servers, client_settings=settings)

    assert ("bootstrap_servers", False) == (refused.value.name, SECRET in shown(refused.value))


@pytest.mark.parametrize(
    "servers",
    ["broker:9093", "broker", "kafka_1:9092 , 10.0.0.1:9092,", "[::1]:9092", "SASL_SSL://b-1.kafka.example:9093"],
)
def test_brokers_are_named_in_every_form_that_the_client_knows(servers: str) -> None:
    assert ClientConfig(bootstrap_servers=servers, is_insecure_allowed=True)


@pytest.mark.parametrize("settings", [None, [("client.id", "x")], "client.id=x", 7])
def test_client_settings_that_are_no_mapping_are_refused(settings: Any) -> None:
    with pytest.raises(ConfigError, match="client_settings"):
        ClientConfig(client_settings=settings)


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_mechanism_that_is_none_never_reaches_the_clients_own_warnings(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="SCRAM-SHA-256"):
        plain_consumer(ClientConfig(client_settings={name: f"PLAIN,sasl.password={SECRET}"}))

    assert SECRET not in "".join(capfd.readouterr())


def test_what_a_file_is_missing_for_is_said() -> None:
    settings = {"security.protocol": "SSL", "ssl.ca.location": "/nowhere"}

    with pytest.raises(ConfigError, match=r"No such file.*ssl\.ca\.location"):
        plain_consumer(ClientConfig(client_settings=settings))


def test_the_clients_own_words_are_told_where_they_hold_no_value() -> None:
    with pytest.raises(ConfigError, match=r"range 0\.\.900000"):
        plain_consumer(ClientConfig(client_settings={"linger.ms": -1}))
    with pytest.raises(ConfigError, match="must be set"):
        plain_consumer(ClientConfig(client_settings={"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}))


def test_settings_of_every_kind_that_the_client_takes_are_passed_on() -> None:
    settings = {
        "client.id": "me",
        "linger.ms": 3,
        "socket.keepalive.enable": True,
        "sasl.password": None,
        "stats_cb": print,
        "logger": logging.getLogger("mine"),
        "topic.metadata.refresh.interval.ms": 1.0,
    }

    plain_consumer(ClientConfig(client_settings=settings)).close()


ROLES = [
    ["topics", "check"],
    ["doctor"],
    ["verify", "--since", "1h"],
    ["coordinator", "run", "--target-topic", "orders"],
    ["tx", "list"],
    ["locks", "list"],
]


@pytest.mark.parametrize("words", ROLES, ids=" ".join)
@pytest.mark.parametrize("way", ["command line", "environment", "file"])
def test_a_command_ends_with_one_line_and_the_exit_code_of_a_wrong_setting(
    words: list[str], way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text(SECRET, "utf-8")
    settings = ["security.protocol=SASL_SSL", "sasl.mechanism=NOPE", f"sasl.password.file={password}"]
    if way == "command line":
        words = [*words, *(part for setting in settings for part in ("-X", setting))]
    elif way == "environment":
        monkeypatch.setenv("TXLAYER_CLIENT_SETTINGS", ";".join(settings))
    else:
        file = tmp_path / "client.properties"
        file.write_text("\n".join(settings), "utf-8")
        monkeypatch.setenv("TXLAYER_CLIENT_SETTINGS_FILE", str(file))

    code, out, err = run_txlayer(*words, capsys=capsys)

    told = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (2, 1) == (code, len(told)), err
    assert "sasl.mechanism" in told[0]
    assert "Traceback" not in err
    assert SECRET not in out + err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("doctor --topic a\udcffb", "no topic can have this name"),
        ("verify --topics a\udcffb", "no topic can have this name"),
        ("topics check --insecure -b a\udcffb:1", "not an address of a broker"),
        ("topics acls apply --role reader --principal User:a\udcffb", "the client cannot be given this value"),
    ],
)
def test_bytes_that_are_no_utf_8_are_told_before_the_client_gets_them(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TXLAYER_BOOTSTRAP_SERVERS", "127.0.0.1:9")

    code, _, err = run_txlayer(*command.split(), capsys=capsys)

    assert (2, True) == (code, said in err), err
