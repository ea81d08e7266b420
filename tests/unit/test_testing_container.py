"""A container lives as long as its block, also when it does not start; what went wrong is said."""

import pytest

from txlayer.errors import BrokerUnavailableError
from txlayer.testing.access import IMAGE, running_container


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
