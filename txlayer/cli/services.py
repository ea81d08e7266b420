"""What commands that run a service have in common: log lines, metrics, tracing, and the program's own functions, signals.

And N worker processes: restarts, exit codes. They share no state; they meet in the consumer group.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from txlayer.adapters.telemetry import NO_TRACING, Tracing, set_up_logging
from txlayer.cli.options import Bundle, declared, option
from txlayer.config import MetricsConfig, from_environ
from txlayer.errors import ConfigError, TxLayerError

if TYPE_CHECKING:
    from txlayer.adapters.telemetry import Observed

GC_THRESHOLD = 100_000
"""New objects between two looks of Python's garbage collector; its default is 700.

Records and transactions end by their reference counts. Looking for cycles among those that live took a tenth of the CPU
(bench/README.md); what an error leaves behind is still found.
"""

LOG_FORMAT, LOG_LEVEL = "TXLAYER_LOG_FORMAT", "TXLAYER_LOG_LEVEL"
PORT_OPTION = "--metrics-port"
TRACING = "TXLAYER_TRACING"
_WORDS = {"": False, "0": False, "false": False, "1": True, "true": True}

LogFormat = Annotated[str | None, declared("--log-format", "text or json; default TXLAYER_LOG_FORMAT, then text.")]
LogLevel = Annotated[
    str | None, declared("--log-level", "DEBUG, INFO, WARNING or ERROR; default TXLAYER_LOG_LEVEL, then INFO.")
]
Workers = Annotated[int, declared("--workers", "Processes; the group shares the partitions among them.", min=1, max=64)]
StartTimeout = Annotated[str | None, declared("--start-timeout", "How long to wait for a broker at the start.", "60s")]
WatchParent = Annotated[bool, declared("--watch-parent", "Stop when standard input ends.", hidden=True)]


def log_as_environment_says() -> None:
    """Set up the log of a command that is no service, from the environment: a program that collects log lines sets it once for all."""
    log_format, log_level = os.environ.get(LOG_FORMAT), os.environ.get(LOG_LEVEL)
    if log_format or log_level:
        set_up_logging(log_format=log_format or "text", level=log_level or "WARNING")


@dataclass(frozen=True, slots=True, kw_only=True)
class Logging(Bundle):
    """How log lines look, and which there are."""

    log_format: LogFormat = None
    log_level: LogLevel = None

    def set_up_logging(self) -> None:
        """Send log lines to standard error as the command line says, else the environment."""
        set_up_logging(
            log_format=self.log_format or os.environ.get(LOG_FORMAT, "text"),
            level=self.log_level or os.environ.get(LOG_LEVEL, "INFO"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metering(Logging):
    """Where a running service answers with metrics."""

    metrics_port: int | None = option(
        PORT_OPTION,
        "Answer /metrics, /livez and /readyz there; several workers have one port each, from this one on. "
        "Default TXLAYER_METRICS_PORT, then none. Needs the extra metrics.",
        "PORT",
    )
    metrics_host: str | None = option(
        "--metrics-host", "The address for it; default TXLAYER_METRICS_HOST, then 127.0.0.1.", "ADDRESS"
    )

    def metrics(self) -> MetricsConfig:
        return from_environ(MetricsConfig, os.environ, metrics_port=self.metrics_port, metrics_host=self.metrics_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observing(Metering):
    """How a running service is looked at."""

    tracing: bool | None = option(
        "--tracing/--no-tracing",
        f"Make OpenTelemetry spans (extra txlayer[otel]); default {TRACING}, then not. Start it with "
        "`opentelemetry-instrument`, which sets up the SDK.",
    )

    def tracer(self) -> Tracing:
        said = os.environ.get(TRACING, "").lower()
        if said not in _WORDS:
            raise ConfigError("neither on nor off", name=TRACING, value=said, expected="true or false")
        if not (_WORDS[said] if self.tracing is None else self.tracing):
            return NO_TRACING
        try:
            from txlayer.adapters.otel import OpenTelemetryTracing, is_recorded
        except ImportError as exc:
            why = "OpenTelemetry is not installed"
            raise ConfigError(why, name="--tracing", expected='pip install "txlayer[otel]"') from exc
        if not is_recorded():
            logging.getLogger("txlayer.tracing").warning(
                "tracing.not_recorded", extra={"mend": "start with opentelemetry-instrument"}
            )
        return OpenTelemetryTracing()


@contextmanager
def observed(config: MetricsConfig, make: Callable[[], Observed]) -> Iterator[None]:
    """Serve metrics and probes within the block; without a port nothing is made."""
    if not config.metrics_port:
        yield
        return
    try:
        from txlayer.adapters.exposition import MetricsServer
    except ModuleNotFoundError as exc:
        if exc.name != "prometheus_client":
            raise
        raise ConfigError('metrics need their extra: pip install "txlayer[metrics]"', name="--metrics-port") from exc
    with MetricsServer(config, make()):
        yield


def worker_commands(command: Sequence[str], config: MetricsConfig, worker_count: int) -> list[list[str]]:
    """This command once per worker, each with a port of its own if there is one; ConfigError: there are not so many ports."""
    config.of_worker(worker_count - 1)
    ports = [config.of_worker(number).metrics_port for number in range(worker_count)]
    return [[*command, *((PORT_OPTION, str(port)) if port else ())] for port in ports]


STOP_PATIENCE_S = 30.0
"""Time for a worker to finish its Kafka transaction and leave the group; after it, the worker is killed."""


def run_workers(
    config: MetricsConfig, worker_count: int, stop: StopSignal, *, patience_s: float | None = STOP_PATIENCE_S
) -> NoReturn:
    """Run this very command line once per worker, until a signal; then the process ends with their exit code.

    A worker that has not ended `patience_s` after the signal is killed; None: it ends by itself, however long that takes.
    """
    # A later --workers wins, everything else is as it was said.
    command = [*PROGRAM, *sys.argv[1:], "--workers", "1", "--watch-parent"]
    commands = worker_commands(command, config, worker_count)
    raise typer.Exit(supervise(commands, wait=stop.wait, patience_s=patience_s))


def load(reference: str, *, name: str, kind: str) -> Any:
    """What `reference` names; modules of the working directory are found first. `name` and `kind` are for the error."""
    module_name, colon, path = reference.partition(":")
    if not colon or not module_name or not path:
        raise ConfigError(f"names no {kind}", name=name, value=reference, expected=f"MODULE:{kind.upper()}")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as exc:  # a module that ends the process would say an exit code of its own for ours
        # The text of a foreign exception may hold secrets, so only its kind and position are shown.
        why = f"the module cannot be imported: {_described(exc)}"
        raise ConfigError(why, name=name, value=reference, expected="a module that Python finds from here") from exc
    try:
        return attrgetter(path)(module)
    except AttributeError:
        why = f"{module_name} has no {path}"
        raise ConfigError(why, name=name, value=reference, expected=f"a {kind} of the module") from None
    except (Exception, SystemExit) as exc:
        raise ConfigError(_described(exc), name=name, value=reference, expected=f"a {kind} of the module") from exc


def _described(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"no module named {error.name}"
    if isinstance(error, TxLayerError):
        return str(error)
    # What cannot be compiled has run nothing: its place is in the error itself.
    place = error if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {place.filename}:{place.lineno}"


logger = logging.getLogger("txlayer.coordinator")

PROGRAM = (sys.executable, "-P", "-m", "txlayer")
"""This program. -P: without it, Python would run a `typer.py` of the working directory, with every secret of the environment."""

FINAL_CODES = frozenset({2, 5, 70})  # exit codes that a restart would repeat: settings, permissions, a broken invariant

RESTART_WAIT_S = 0.5
RESTART_WAIT_MAX_S = 15.0
"""A worker that died restarts after 0.5 s, then with growing intervals. After a minute of work the count begins anew."""
HEALTHY_AFTER_S = 60.0


class StopSignal:
    """Set by SIGTERM and SIGINT; `is_set` and `wait` are those of an event. The second one ends the process with the signal's default action."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._has_come = False
        self.is_set, self.wait = self._event.is_set, self._event.wait

    def install(self) -> None:
        """Install the signal handlers. Only the main thread may call this."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def watch(self, stream: IO[bytes]) -> None:
        """Stop when `stream` ends: the parent holds its other end, and it closes even if the parent is killed with -9."""

        def wait_for_end() -> None:
            # Not stream.read: its lock would be held when the interpreter ends, and would end it with SIGABRT.
            while os.read(stream.fileno(), 1):
                pass
            self._event.set()

        threading.Thread(target=wait_for_end, name="txlayer-parent", daemon=True).start()

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._has_come:  # the end of the stream that is watched is no signal
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._has_come = True
        self._event.set()


class _Worker:
    """One process and the times of its restarts."""

    def __init__(self, number: int, command: Sequence[str]) -> None:
        self.number = number
        self._command = command
        self._started_at = 0.0
        self._failure_count = 0
        self._start_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._started_at = time.monotonic()
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE)  # noqa: S603 - our own program
        logger.info("worker.started", extra={"worker": self.number, "pid": self.process.pid})

    def look(self) -> int | None:
        """Restart it if it died and its time has come. Returns an exit code that must end all workers, else None."""
        now = time.monotonic()
        if self.process is None:
            if now >= self._start_at:
                self.start()
            return None
        code = self.process.poll()
        if code is None:
            return None
        if code in FINAL_CODES:
            return code
        if now - self._started_at > HEALTHY_AFTER_S:
            self._failure_count = 0
        wait_s = min(RESTART_WAIT_S * 2**self._failure_count, RESTART_WAIT_MAX_S)
        self._failure_count += 1
        self._start_at = now + wait_s
        self.process = None
        logger.error("worker.died", extra={"worker": self.number, "exit_code": code, "restart_in_s": wait_s})
        return None

    def end(self, patience_s: float | None) -> None:
        """Let it end, by the end of its standard input: Ctrl-C or a supervisor may have sent it a signal, and a second one would kill it."""
        if self.process is None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            logger.error("worker.killed", extra={"worker": self.number, "pid": self.process.pid})  # noqa: TRY400 - no traceback helps
            self.process.kill()
            self.process.wait()


def supervise(
    commands: Sequence[Sequence[str]], *, wait: Callable[[float], bool], patience_s: float | None = STOP_PATIENCE_S
) -> int:
    """Run a process of each command until `wait` returns True. Returns 0, or the exit code that a restart would repeat.

    A worker that dies otherwise is restarted, with growing intervals. All end with this process: they watch their standard input.
    """
    workers = [_Worker(number, command) for number, command in enumerate(commands)]
    try:
        for worker in workers:
            worker.start()
        while not wait(0.2):
            for worker in workers:
                code = worker.look()
                if code is not None:
                    return code
        return 0
    finally:
        threads = [threading.Thread(target=worker.end, args=(patience_s,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
