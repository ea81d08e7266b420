"""How long a question waits: a coordinator's until it asks again, a command's until a person would give up."""

import pytest

from txlayer.adapters import connect
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.config import CoordinatorConfig
from txlayer.errors import BrokerUnavailableError


@pytest.mark.parametrize("is_one_shot", [False, True])
def test_a_command_waits_as_long_as_a_command_and_a_coordinator_as_it_does(
    monkeypatch: pytest.MonkeyPatch, *, is_one_shot: bool
) -> None:
    (port,) = free_ports(1)
    config = CoordinatorConfig(bootstrap_servers=f"127.0.0.1:{port}")
    monkeypatch.setattr(connect, "ANSWER_MS", 300)
    monkeypatch.setattr(connect, "ANSWER_TIMEOUT_MS", 1_500)
    asking = connect.connect_coordinator(config, is_one_shot=is_one_shot)
    try:
        with pytest.raises(BrokerUnavailableError) as caught:
            asking.start_offsets([(config.topics.half, 0)])
    finally:
        asking.close()

    # Less than the longer limit by no more than a clock's step; the shorter one is a second away.
    assert is_one_shot == ((caught.value.waited_ms or 0) >= 1_400)
