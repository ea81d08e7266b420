"""Everybody connects as the broker demands: with a password, a token or a certificate over TLS, and is told what is wrong."""

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.arena import Arena, make_arena
from tests.support.broker import create_topic, unique_name
from tests.support.processes import CoordinatorProcess
from tests.support.tls_broker import TlsBroker, User
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig
from txlayer.core.messages import COMMIT, Message
from txlayer.errors import TxLayerError
from txlayer.producer.producer import TransactionalProducer

pytestmark = pytest.mark.kafka


@pytest.fixture
def arena(guarded: TlsBroker) -> Arena:
    return make_arena(guarded.open_servers, partition_count=1, target_partitions=(1,))


def token(name: str, *, lasts_s: float) -> tuple[str, float]:
    """An unsigned token (RFC 7519, section 6) and when it ends."""

    def packed(part: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    now = time.time()
    claims = {"sub": name, "iat": now, "exp": now + lasts_s}
    return f"{packed({'alg': 'none'})}.{packed(claims)}.", now + lasts_s


def publish(arena: Arena, settings: Mapping[str, Any], servers: str) -> None:
    """A transaction that is stored and resolved, and a check group that is joined."""
    with TransactionalProducer(
        bootstrap_servers=servers,
        group="g",
        namespace=arena.namespace,
        client_settings=settings,
        check=lambda _: COMMIT,
    ) as producer:
        result = producer.publish(Message(arena.targets[0], b"k", b"v"))
    assert COMMIT is result.resolution


def test_a_producer_connects_with_a_password(guarded: TlsBroker, arena: Arena, user: User) -> None:
    guarded.allow_everything(user.principal)

    publish(arena, guarded.scram(user), guarded.sasl_servers)


def test_a_producer_connects_with_a_certificate(guarded: TlsBroker, arena: Arena) -> None:
    guarded.allow_everything("User:CN=client")

    publish(arena, guarded.mutual(), guarded.mutual_servers)


def test_a_producer_connects_with_a_token_of_the_clients_own_making(guarded: TlsBroker, arena: Arena) -> None:
    name = unique_name("token")
    guarded.allow_everything(f"User:{name}")

    publish(arena, guarded.unsecured_token(name), guarded.sasl_servers)


def test_a_producer_connects_with_a_token_that_a_function_brings(guarded: TlsBroker, arena: Arena) -> None:
    name, asked = unique_name("token"), []
    guarded.allow_everything(f"User:{name}")

    def bring(config: str) -> tuple[str, float]:
        asked.append(config)
        return token(name, lasts_s=300)

    settings = {
        **guarded.tls,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.config": "whose=ours",
        "oauth_cb": bring,
    }
    publish(arena, settings, guarded.sasl_servers)

    assert {"whose=ours"} == set(asked)


@pytest.mark.threat("control the network between")
@pytest.mark.parametrize("wrong", ["password", "authority", "protocol", "no certificate"])
def test_what_is_wrong_is_told_in_one_line_without_the_password(guarded: TlsBroker, user: User, wrong: str) -> None:
    settings, servers = guarded.scram(user), guarded.sasl_servers
    if wrong == "password":
        settings["sasl.password"] = "s3ntinel"
    elif wrong == "authority":
        settings["ssl.ca.location"] = str(guarded.stranger.root)
    elif wrong == "protocol":
        settings["security.protocol"] = "SASL_PLAINTEXT"
    else:
        settings, servers = {**guarded.tls, "security.protocol": "SSL"}, guarded.mutual_servers
    config = ClientConfig(bootstrap_servers=servers, client_settings=settings)
    told = {
        "password": "refused the credentials",
        "authority": "certificate verify failed",
        "protocol": "no broker answered",
        "no certificate": "no broker answered",
    }

    # Refusals are told when they come; for an answer that never does the shorter time is enough.
    timeout_ms = 15_000 if wrong in ("password", "authority") else 3_000
    with KafkaAdmin(config, timeout_ms=timeout_ms) as admin, pytest.raises(TxLayerError) as refused:
        admin.partition_count("orders")

    assert told[wrong] in str(refused.value)
    assert "s3ntinel" not in str(refused.value)


@pytest.mark.threat("log in to the machine of a service")
def test_a_coordinator_takes_every_setting_from_the_environment_and_files(
    guarded: TlsBroker, arena: Arena, user: User, tmp_path: Path
) -> None:
    guarded.allow_everything(user.principal)
    settings = guarded.scram(user)
    secret = tmp_path / "password"
    secret.write_text(settings.pop("sasl.password") + "\n", "utf-8")
    file = tmp_path / "client.properties"
    lines = [f"{name}={value}" for name, value in settings.items()]
    file.write_text("\n".join([*lines, f"sasl.password.file={secret}"]), "utf-8")
    process = CoordinatorProcess(
        guarded.sasl_servers,
        arena.namespace,
        log_file=tmp_path / "log",
        arguments=["--target-topic", arena.targets[0]],
        settings={"client_settings_file": str(file), "session_timeout": "3s"},
    )

    with process:
        process.wait_for("partitions.taken_over")
        with TransactionalProducer(
            bootstrap_servers=guarded.sasl_servers,
            group="g",
            namespace=arena.namespace,
            client_settings=guarded.scram(user),
        ) as producer:
            done = producer.publish(Message(arena.targets[0], b"k", b"v"))
            elsewhere = producer.publish(Message(unique_elsewhere(guarded), b"k", b"v"))
        arena.wait_until_visible(done.txn_id)
        key = _keys(arena, elsewhere.txn_id)[0]
        command = Path(f"/proc/{process.pid}/cmdline").read_text("utf-8")
        process.terminate()
        assert 0 == process.wait()

    assert "forbidden-topic" == arena.doubt().summaries[key].reason
    assert user.password not in command + process.output()


def unique_elsewhere(guarded: TlsBroker) -> str:
    """A real topic that nobody put on the list."""
    return create_topic(guarded.open_servers, unique_name("elsewhere"))


def _keys(arena: Arena, txn_id: str) -> list[str]:
    return wait_until(
        lambda: [k for k in arena.doubt().summaries if k.startswith(f"{txn_id}/")], within=30, what="parked"
    )
