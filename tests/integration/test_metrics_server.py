"""The one port of a process: its three pages, and what it refuses."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.databases import free_port
from tests.support.programs import run_program
from tests.support.prometheus import get
from tests.support.waiting import wait_until
from txlayer.adapters.exposition import (
    CONNECTION_COUNT_MAX,
    PAGE_KEPT_S,
    READER_TIMEOUT_S,
    REQUEST_BYTES_MAX,
    MetricsServer,
)
from txlayer.adapters.telemetry import Health, Histogram, Sample, counter, gauge, histogram
from txlayer.config import MetricsConfig
from txlayer.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
SENT = counter("txlayer_sent_total", "What was sent.", "topic")
OPEN = gauge("txlayer_open", "What is open.")
TOOK = histogram("txlayer_took_seconds", "How long it took.")


class Observed:
    """Says what a test tells it."""

    def __init__(self) -> None:
        self.told = Health("", "")
        self.asked_count = 0
        self.failure: Exception | None = None
        seconds = Histogram((0.1, 1.0))
        seconds.observe(0.5, weight=3)
        self.found = [Sample(SENT, 7, ("orders",)), Sample(OPEN, 2.5), Sample(TOOK, seconds.view())]

    def samples(self) -> Iterable[Sample]:
        """As told."""
        self.asked_count += 1
        if self.failure is not None:
            raise self.failure
        return self.found

    def health(self) -> Health:
        """As told."""
        return self.told


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
def port(observed: Observed) -> Iterator[int]:
    port = free_port()
    with MetricsServer(MetricsConfig(metrics_port=port), observed):
        yield port


def test_metrics_are_told_in_prometheus_own_form(port: int) -> None:
    status, body = get(port, "/metrics")

    assert status == 200
    lines = body.splitlines()
    assert 'txlayer_sent_total{topic="orders"} 7.0' in lines
    assert "# TYPE txlayer_sent_total counter" in lines
    assert "txlayer_open 2.5" in lines
    assert [
        'txlayer_took_seconds_bucket{le="0.1"} 0.0',
        'txlayer_took_seconds_bucket{le="1.0"} 3.0',
        'txlayer_took_seconds_bucket{le="+Inf"} 3.0',
        "txlayer_took_seconds_count 3.0",
        "txlayer_took_seconds_sum 1.5",
    ] == [line for line in lines if line.startswith("txlayer_took")]
    assert any(line.startswith("process_cpu_seconds_total ") for line in lines)


@pytest.mark.parametrize(
    ("told", "live", "ready"),
    [
        (Health("", ""), (200, "ok\n"), (200, "ok\n")),
        (Health("", "not yet"), (200, "ok\n"), (503, "not yet\n")),
        (Health("it hangs", ""), (503, "it hangs\n"), (503, "it hangs\n")),
    ],
)
def test_probes_get_a_status_and_the_reason_in_one_line(
    port: int, observed: Observed, told: Health, live: tuple[int, str], ready: tuple[int, str]
) -> None:
    observed.told = told

    assert (live, ready) == (get(port, "/livez"), get(port, "/readyz"))


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=1.0.0", "x"])
def test_whatever_form_a_reader_asks_for_it_gets_the_one_that_all_understand(port: int, accept: str) -> None:
    assert "# TYPE txlayer_sent_total counter" in get(port, "/metrics", accept=accept)[1].splitlines()


def test_another_path_is_told_which_there_are(port: int) -> None:
    assert (404, "there are /metrics, /livez and /readyz\n") == get(port, "/")


def test_what_fails_once_is_logged_and_the_next_reader_is_answered(
    port: int, observed: Observed, caplog: pytest.LogCaptureFixture
) -> None:
    observed.failure = RuntimeError("once")
    with caplog.at_level(logging.ERROR, "txlayer.metrics"):
        assert 500 == get(port, "/metrics")[0]
    observed.failure = None

    assert 200 == get(port, "/metrics")[0]
    wait_until(lambda: [r.getMessage() for r in caplog.records] == ["metrics.failed"], within=10, what="one line")


@pytest.mark.threat("reach the port of metrics")
def test_readers_that_say_nothing_never_keep_a_probe_out(port: int) -> None:
    with ExitStack() as stack:
        for _ in range(3 * CONNECTION_COUNT_MAX):
            stack.enter_context(connect(port))
            assert 200 == get(port, "/livez")[0]


def test_the_connection_that_came_first_gives_way(port: int) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(connect(port)) for _ in range(CONNECTION_COUNT_MAX + 1)]

        assert b"" == readers[0].recv(1)
        readers[-1].sendall(LIVEZ)
        assert answer_of(readers[-1]).startswith(b"HTTP/1.0 200 ")


@pytest.mark.threat("reach the port of metrics")
@pytest.mark.fault("operation: many readers of metrics from one address, or very frequent ones")
def test_an_address_with_many_connections_pushes_out_its_own_and_no_probe_of_another(port: int) -> None:
    with ExitStack() as stack:
        probe = stack.enter_context(connect(port, source="127.0.0.2"))
        for _ in range(3 * CONNECTION_COUNT_MAX):
            stack.enter_context(connect(port))
        assert 200 == get(port, "/livez")[0]
        probe.sendall(LIVEZ)

        assert answer_of(probe).startswith(b"HTTP/1.0 200 ")


@pytest.mark.threat("reach the port of metrics")
@pytest.mark.fault("operation: many readers of metrics from one address, or very frequent ones")
def test_a_page_is_made_once_a_second_however_often_it_is_asked_for(observed: Observed) -> None:
    clock, config = Clock(), MetricsConfig(metrics_port=free_port())
    with MetricsServer(config, observed, clock=clock):
        bodies = {get(config.metrics_port, "/metrics")[1] for _ in range(9)}

        assert (1, 1) == (observed.asked_count, len(bodies))
        clock.now_s += PAGE_KEPT_S
        observed.found = [Sample(OPEN, 7.5)]
        assert "txlayer_open 7.5" in get(config.metrics_port, "/metrics")[1]


@pytest.mark.threat("reach the port of metrics")
@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /livez HTTP/1.1\r\nX: " + b"x" * 60_000,
        b"GET /livez HTTP/1.1\r\n" + b"X: 1\r\n" * 10_000,
        b"GET /" + b"x" * 60_000,
        b"x" * REQUEST_BYTES_MAX + b"\r\n\r\n",
    ],
)
def test_a_request_that_is_too_large_is_refused_before_it_has_come(port: int, request_bytes: bytes) -> None:
    with connect(port) as reader:
        reader.sendall(request_bytes[: REQUEST_BYTES_MAX + 1])

        assert answer_of(reader).startswith(b"HTTP/1.0 431 ")
    assert 200 == get(port, "/livez")[0]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /livez HTTP/1.1\r\n" + b"X: 1\r\n" * 65 + b"\r\n", b"400"),
        (b"GET /livez\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"\xff\x85\xff HTTP/1.1\r\n\r\n", b"400"),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 100000\r\n\r\n", b"501"),
        (b"HEAD /livez HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /livez?x=1 HTTP/1.1\nHost: x\n\n", b"200"),
    ],
)
def test_every_other_request_has_its_answer(port: int, request_bytes: bytes, status: bytes) -> None:
    with connect(port) as reader:
        reader.sendall(request_bytes)

        answer = answer_of(reader)
    assert answer.startswith(b"HTTP/1.0 " + status)
    assert (b"\nok\n" in answer) == (request_bytes.startswith(b"GET") and status == b"200")


def test_a_request_may_come_in_pieces(port: int) -> None:
    with connect(port) as reader:
        for number in range(len(LIVEZ)):
            reader.sendall(LIVEZ[number : number + 1])

        assert answer_of(reader).endswith(b"\r\n\r\nok\n")


class Clock:
    """Time as a test tells it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Now."""
        return self.now_s


@pytest.mark.threat("reach the port of metrics")
def test_a_reader_has_one_time_for_its_whole_request(observed: Observed) -> None:
    clock, config = Clock(), MetricsConfig(metrics_port=free_port())
    with MetricsServer(config, observed, clock=clock), connect(config.metrics_port) as reader:
        reader.sendall(LIVEZ[:3])
        assert 200 == get(config.metrics_port, "/livez")[0]
        clock.now_s += READER_TIMEOUT_S * 0.9
        reader.sendall(LIVEZ[3:6])
        assert 200 == get(config.metrics_port, "/livez")[0]
        clock.now_s += READER_TIMEOUT_S * 0.2

        assert b"" == reader.recv(1)


@pytest.mark.threat("reach the port of metrics")
def test_a_reader_that_does_not_take_its_answer_is_hung_up_on(observed: Observed) -> None:
    observed.found = [Sample(SENT, n, (f"{n}" + "x" * 100_000,)) for n in range(400)]
    clock, config = Clock(), MetricsConfig(metrics_port=free_port())
    with MetricsServer(config, observed, clock=clock), connect(config.metrics_port) as reader:
        reader.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        # One byte of the answer: it is under way.
        assert b"H" == reader.recv(1)
        assert 200 == get(config.metrics_port, "/livez")[0]
        clock.now_s += READER_TIMEOUT_S + 1
        # The same thread answers this one, after it looked at the time.
        for _ in range(2):
            assert 200 == get(config.metrics_port, "/livez")[0]

        assert len(answer_of(reader)) < 400 * 100_000


def connect(port: int, *, source: str = "127.0.0.1") -> socket.socket:
    """A reader that has said nothing yet."""
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def answer_of(reader: socket.socket) -> bytes:
    """All that comes until the server ends the connection."""
    came = b""
    try:
        while more := reader.recv(65_536):
            came += more
    except ConnectionResetError:
        # What was sent and never read makes the kernel reset the connection behind the answer.
        pass
    return came


class OtherLoop(asyncio.SelectorEventLoop):
    """As uvloop's: its methods cannot be replaced."""

    @property
    def time(self) -> Callable[[], float]:
        """Read only."""
        return super().time


def test_a_program_that_installed_another_event_loop_is_served_too(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asyncio, "new_event_loop", OtherLoop)
    config = MetricsConfig(metrics_port=free_port())

    with MetricsServer(config, observed):
        assert 200 == get(config.metrics_port, "/livez")[0]


def test_a_port_that_is_taken_is_told_in_one_line(port: int, observed: Observed) -> None:
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port}") as caught:
        MetricsServer(MetricsConfig(metrics_port=port), observed).start()

    assert "\n" not in str(caught.value)


def test_an_address_of_another_machine_is_told_in_one_line(observed: Observed) -> None:
    config = MetricsConfig(metrics_port=free_port(), metrics_host="192.0.2.1")

    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        MetricsServer(config, observed).start()


def test_after_the_end_nobody_listens_and_the_port_can_be_had_again(observed: Observed) -> None:
    config = MetricsConfig(metrics_port=free_port())
    for _ in range(2):
        with MetricsServer(config, observed) as server:
            server.start()
            assert 200 == get(config.metrics_port, "/livez")[0]
        server.close()

    assert 0 == get(config.metrics_port, "/livez")[0]


# Finders come before the path: this one makes the extra missing.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "prometheus_client":
            raise ModuleNotFoundError(f"No module named {name!r}", name="prometheus_client")
sys.meta_path.insert(0, Missing())
from txlayer.cli import run
run()
"""


def test_without_the_extra_a_port_is_refused_in_one_line() -> None:
    command = ["coordinator", "run", "-b", "127.0.0.1:1", "--target-topic", "x", "--metrics-port", str(free_port())]
    answer = run_program([sys.executable, "-c", WITHOUT, *command], within=60, cwd=ROOT)

    assert 2 == answer.returncode
    assert [
        "error: metrics need their extra: pip install \"txlayer[metrics]\" (name='--metrics-port')"
    ] == answer.stderr.splitlines()
