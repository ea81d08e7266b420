"""A container lives as long as its block, also when it does not start; what went wrong is said."""

from __future__ import annotations

import pytest

from txlayer.errors import BrokerUnavailableError
from txlayer.testing.access import IMAGE, running_container


class FakeContainer:
    """A container of nothing."""

    def __init__(self, image: str, *, failure: Exception | None = None) -> None:
        self.image = image
        self.failure = failure
        self.calls: list[str] = []

    def start(self, timeout: int = 30) -> None:  # noqa: ARG002 - testcontainers' own parameter
        self.calls.append("start")
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self.calls.append("stop")

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
