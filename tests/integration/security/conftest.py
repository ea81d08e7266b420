"""The broker that trusts nobody, started once for all tests here."""

from collections.abc import Iterator

import pytest

from tests.conftest import Broker
from tests.support.tls_broker import TlsBroker, User, tls_broker
from txlayer.adapters.kafka.local import LocalConfig


@pytest.fixture(scope="session")
def guarded(
    broker: Broker,  # noqa: ARG001 - it skips where there is no Java
    local_config: LocalConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TlsBroker]:
    """TLS, SCRAM, OAUTHBEARER, client certificates, and ACLs."""
    made = tls_broker(local_config, tmp_path_factory.mktemp("certificates"))
    with made.broker:
        yield made


@pytest.fixture
def user(guarded: TlsBroker) -> User:
    """A new user, who may do nothing."""
    return guarded.add_user()
