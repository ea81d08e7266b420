"""The broker of the whole run, and a clean environment for every test."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Protocol

import pytest

from tests.support.broker import GivenBroker
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.fetch import RepositoryUnreachableError
from txlayer.adapters.kafka.local.runtime import prepare_runtime
from txlayer.errors import ConfigError

# Read once, before any test may change it.
GIVEN_SERVERS = os.environ.get("TXLAYER_TEST_BOOTSTRAP_SERVERS")
LOCAL_CONFIG = LocalConfig.from_environ(os.environ)
IS_CI = os.environ.get("CI", "").lower() in ("1", "true")


class Broker(Protocol):
    """What every test of a broker may use."""

    @property
    def bootstrap_servers(self) -> str:
        """Where clients reach it."""


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own TXLAYER_ settings decide no test."""
    for name in os.environ:
        if name.startswith("TXLAYER_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs inside a test sets up logging for its process, on a stream that ends with the test."""
    root = logging.getLogger("txlayer")
    handlers, propagate, level = root.handlers[:], root.propagate, root.level
    yield
    root.handlers[:], root.propagate = handlers, propagate
    root.setLevel(level)


@pytest.fixture(scope="session")
def local_config() -> LocalConfig:
    """Where this machine's jars and Java are."""
    return LOCAL_CONFIG


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Broker:
    """One broker for the whole run: tests use topics and groups with names of their own, and never stop it."""
    if GIVEN_SERVERS:
        return GivenBroker(GIVEN_SERVERS)
    try:
        prepare_runtime(LOCAL_CONFIG)
    except (ConfigError, RepositoryUnreachableError) as exc:
        # At home a machine without Java or network still runs the other tests; in CI nothing is skipped.
        if IS_CI:
            raise
        pytest.skip(f"no broker: {exc}")
    # Users' own fixture: the two never start a broker each.
    started: Broker = request.getfixturevalue("txlayer_local_kafka")
    return started
