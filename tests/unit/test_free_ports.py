"""Ports for brokers: free ones, and none that is meant for somebody who does not listen yet."""

import itertools
from types import SimpleNamespace

import pytest

from txlayer.adapters.kafka.local import server
from txlayer.errors import ConfigError


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dice say 15000, 15000, 15001, 15001, …; 15002 alone is held by somebody."""
    said = itertools.chain.from_iterable((n, n) for n in itertools.count(15_000))
    monkeypatch.setattr(server, "random", SimpleNamespace(randint=lambda *_: next(said)))
    monkeypatch.setattr(server, "is_free", lambda port: port != 15_002)


@pytest.mark.usefixtures("counting")
def test_ports_are_different_free_and_apart_from_those_chosen_before() -> None:
    assert [15_000, 15_003, 15_004] == server.free_ports(3, apart_from={15_001})


def test_no_free_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "is_free", lambda _: False)

    with pytest.raises(ConfigError, match="no free ports"):
        server.free_ports(1)
