"""The broker's Java processes: format a storage folder, start, recognise, await, end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from txlayer.errors import BrokerUnavailableError, UsageError

MAIN_CLASS = "kafka.Kafka"
FORMAT_CLASS = "kafka.tools.StorageTool"
FORMAT_TIMEOUT_S = 60
POLL_S = 0.05
WARM_UP_NAME = "txlayer.warm-up"
LOG_BYTES_MAX = 10 * 1024 * 1024
"""A log file larger than this is put aside (once) when the broker starts again."""
_LOG_TAIL_BYTES = 64 * 1024

# The shell becomes Java (exec), so the process that was started is the broker itself. Its helper waits for a word from
# whoever started it: the end of the pipe without a word means that the parent died, by whatever signal.
_DIES_WITH_PARENT = 'exec 3<&0; (read -r word <&3 || kill -9 $$) & exec "$@" </dev/null 3<&-'

_QUIET_CLIENT = {
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 30,
    "retry.backoff.max.ms": 100,
}


@dataclass(frozen=True, slots=True)
class JavaCommand:
    """How a class of Kafka's jars is run."""

    java: Path
    jar_folder: Path

    def line(self, main_class: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
        """The command line."""
        return [str(self.java), *flags, "-cp", f"{self.jar_folder}/*", main_class, *arguments]


def format_storage(command: JavaCommand, *, cluster_id: str, properties_file: Path) -> None:
    """Make the log folder that `properties_file` names a part of the cluster.

    Raises:
        UsageError: Kafka's own tool refused; the folder is not usable.
    """
    line = command.line(
        FORMAT_CLASS, "format", "-t", cluster_id, "-c", str(properties_file),
        flags=("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    )  # fmt: skip
    answer = subprocess.run(  # noqa: S603 - our own command line
        line, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False
    )
    if answer.returncode != 0:
        said = (answer.stderr or answer.stdout).strip().splitlines() or ["nothing"]
        raise UsageError(f"Kafka could not format {properties_file.parent}; it said: {said[-1]}")


def launch(
    command: JavaCommand,
    *,
    properties_file: Path,
    log_file: Path,
    flags: Sequence[str],
    dies_with_parent: bool,
) -> subprocess.Popen[bytes]:
    """Start one broker in a session of its own (a Ctrl-C at the terminal does not reach it); it is not ready yet.

    With `dies_with_parent` the broker is killed when this process ends in any way, and `release` must be called when
    the broker has ended. Without, it lives on.
    """
    line = command.line(MAIN_CLASS, str(properties_file), flags=flags)
    if log_file.exists() and log_file.stat().st_size > LOG_BYTES_MAX:
        log_file.replace(log_file.with_suffix(".old.log"))
    with log_file.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own command line
            ["/bin/sh", "-c", _DIES_WITH_PARENT, "sh", *line] if dies_with_parent else line,
            stdin=subprocess.PIPE if dies_with_parent else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def release(process: subprocess.Popen[bytes]) -> None:
    """Tell the helper of a broker started with `dies_with_parent` that nothing is left to kill; may be repeated."""
    if process.stdin is not None and not process.stdin.closed:
        # A helper that is gone already needs no word.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"ended\n")
            process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def is_broker(pid: int, *, properties_file: Path) -> bool:
    """Whether `pid` is a living broker with exactly this configuration, and not some other process with a reused id."""
    return f"{MAIN_CLASS} {properties_file}" in _command_line(pid)


def end(pid: int, *, is_alive: Callable[[], bool], timeout_s: float) -> None:
    """SIGTERM, and SIGKILL when that has not ended it after `timeout_s`; Kafka's data survive both."""
    for number, wait_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, timeout_s)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if not is_alive():
                return
            time.sleep(POLL_S)


def wait_until_ready(
    bootstrap_servers: str, *, broker_count: int, timeout_s: float, check_alive: Callable[[], None]
) -> None:
    """Wait until `broker_count` brokers are members and serve groups and Kafka transactions.

    The first call on a new cluster creates Kafka's internal topics, so that a user's first transaction need not
    wait for them.

    Raises:
        BrokerUnavailableError: they were not there within `timeout_s`.
        Exception: whatever `check_alive` raises when a process has ended.
    """
    deadline = time.monotonic() + timeout_s
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **_QUIET_CLIENT})
    seen = 0
    while time.monotonic() < deadline:
        check_alive()
        with contextlib.suppress(KafkaException):
            seen = len(admin.list_topics(timeout=1).brokers)
        if seen >= broker_count:
            _warm_up(bootstrap_servers, timeout_s=max(1.0, deadline - time.monotonic()))
            return
        time.sleep(POLL_S)
    raise BrokerUnavailableError(
        f"{seen} of {broker_count} brokers are ready",
        bootstrap_servers=bootstrap_servers,
        waited_ms=round(timeout_s * 1000),
    )


def log_tail(log_file: Path) -> str:
    """The last line of a broker's log that names an error, else its last line."""
    if not log_file.exists():
        return "no log"
    with log_file.open("rb") as log:
        log.seek(max(0, log_file.stat().st_size - _LOG_TAIL_BYTES))
        lines = log.read().decode("utf-8", "replace").splitlines()
    named = [line for line in lines if "ERROR" in line or "Exception" in line]
    return (named or lines or ["an empty log"])[-1].strip()


def _warm_up(bootstrap_servers: str, *, timeout_s: float) -> None:
    try:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap_servers, "group.id": WARM_UP_NAME, **_QUIET_CLIENT}
        )
        try:
            consumer.committed([TopicPartition("__consumer_offsets", 0)], timeout=timeout_s)
        finally:
            consumer.close()
        producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "transactional.id": WARM_UP_NAME,
                **_QUIET_CLIENT,
            }
        )
        producer.init_transactions(timeout_s)
    except KafkaException as exc:
        raise BrokerUnavailableError(
            "the broker answers, but does not serve transactions yet",
            bootstrap_servers=bootstrap_servers,
            waited_ms=round(timeout_s * 1000),
        ) from exc


def _command_line(pid: int) -> str:
    """The words of a process, joined by spaces; empty when there is none or it is a zombie."""
    if Path("/proc/self").exists():
        try:
            return (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .decode("utf-8", "replace")
                .replace("\0", " ")
            )
        except (FileNotFoundError, ProcessLookupError):
            return ""
    # Systems without /proc.
    answer = subprocess.run(  # noqa: S603 - a number is the only argument
        ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout
