"""The broker's Java processes: format a storage folder, start, recognise, await, end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from txlayer.adapters.kafka.local.server_settings import LOG_LEVEL_FLAG
from txlayer.errors import BrokerUnavailableError, UsageError

MAIN_CLASS = "kafka.Kafka"
FORMAT_CLASS = "kafka.tools.StorageTool"
FORMAT_TIMEOUT_S = 60
POLL_S = 0.05
TERMINATED_CODE = 143
"""What Java ends with after SIGTERM."""
WARM_UP_NAME = "txlayer.warm-up"
LOG_BYTES_MAX = 10 * 1024 * 1024
"""A log file larger than this is put aside (once) when the broker starts again."""
_LOG_TAIL_BYTES = 64 * 1024
_EXEC_LOOKS_MAX = 20
_ENDED_STATES = (b"Z", b"X")
_ATTEMPT_S = 0.25
"""A client that met no coordinator looks again after a second; a new client looks at once."""

# The shell becomes Java (exec), so the process that was started is the broker itself. Its helper waits for a word from
# whoever started it: the end of the pipe without a word means that the parent died, by whatever signal.
_DIES_WITH_PARENT = 'exec 3<&0; (read -r word <&3 || kill -9 $$) & exec "$@" </dev/null 3<&-'

_LIVES_ON = '"$@" </dev/null >&2 & echo $!'

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
    flags: tuple[str, ...] = ()
    """For every run."""

    @property
    def class_path(self) -> str:
        """All jars of the folder."""
        return f"{self.jar_folder}/*"

    def line(self, main_class: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
        """The command line."""
        return [str(self.java), *self.flags, *flags, "-cp", self.class_path, main_class, *arguments]


def format_storage(command: JavaCommand, *, cluster_id: str, properties_file: Path) -> None:
    """Make the log folder that `properties_file` names a part of the cluster.

    Raises:
        UsageError: Kafka's own tool refused, mostly for a setting; nothing was formatted.
    """
    line = command.line(
        FORMAT_CLASS, "format", "-t", cluster_id, "-c", str(properties_file),
        flags=("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", LOG_LEVEL_FLAG),
    )  # fmt: skip
    answer = subprocess.run(  # noqa: S603 - our own command line
        line, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False
    )
    if answer.returncode != 0:
        said = _telling_line(answer.stderr or answer.stdout)
        raise UsageError(f"Kafka refuses the settings in {properties_file}; it says: {said}")


def launch_child(
    command: JavaCommand, *, properties_file: Path, log_file: Path, flags: Sequence[str]
) -> subprocess.Popen[bytes]:
    """Start a broker that is killed when this process ends in any way; it is not ready yet.

    It has a session of its own, so a Ctrl-C at the terminal does not reach it. Call `release` when it has ended.
    """
    with _open_log(log_file) as log:
        return subprocess.Popen(  # noqa: S603 - our own command line
            [
                "/bin/sh",
                "-c",
                _DIES_WITH_PARENT,
                "sh",
                *_broker_line(command, properties_file, flags),
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def launch_background(
    command: JavaCommand, *, properties_file: Path, log_file: Path, flags: Sequence[str]
) -> int:
    """Start a broker that lives on without this process and give its process id; it is not ready yet."""
    with _open_log(log_file) as log:
        # The shell ends at once, so the broker is no child of ours that would have to be waited for.
        answer = subprocess.run(  # noqa: S603 - our own command line
            ["/bin/sh", "-c", _LIVES_ON, "sh", *_broker_line(command, properties_file, flags)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            check=True,
        )
    return int(answer.stdout)


def release(process: subprocess.Popen[bytes]) -> None:
    """Tell the helper of a broker started with `dies_with_parent` that nothing is left to kill; may be repeated."""
    if process.stdin is not None and not process.stdin.closed:
        # A helper that is gone already needs no word.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"ended\n")
            process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def end_child(process: subprocess.Popen[bytes], *, timeout_s: float) -> None:
    """Wait for a child that was told to end, kill it when it has not after `timeout_s`, and release it."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    release(process)


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
    addresses: Sequence[str],
    *,
    broker_count: int,
    timeout_s: float,
    check_alive: Callable[[], None],
) -> None:
    """Wait until each of the brokers at `addresses` knows `broker_count`, and serves groups and Kafka transactions.

    The first call on a new cluster creates Kafka's internal topics, so that a user's first transaction need not
    wait for them.

    Raises:
        BrokerUnavailableError: they were not there within `timeout_s`.
        Exception: whatever `check_alive` raises when a process has ended.
    """
    deadline = time.monotonic() + timeout_s
    for address in addresses:
        admin = AdminClient({"bootstrap.servers": address, **_QUIET_CLIENT})
        seen = 0
        while seen < broker_count:
            check_alive()
            with contextlib.suppress(KafkaException):
                seen = len(admin.list_topics(timeout=1).brokers)
            if time.monotonic() > deadline:
                raise BrokerUnavailableError(
                    f"{seen} of {broker_count} brokers are ready; see their logs",
                    bootstrap_servers=address,
                    waited_ms=round(timeout_s * 1000),
                )
            time.sleep(POLL_S)
    _warm_up(",".join(addresses), deadline=deadline)


def answers(bootstrap_servers: str, *, timeout_s: float) -> bool:
    """Whether some broker there answers within `timeout_s`."""
    try:
        AdminClient({"bootstrap.servers": bootstrap_servers, **_QUIET_CLIENT}).list_topics(
            timeout=timeout_s
        )
    except KafkaException:
        return False
    return True


def _broker_line(command: JavaCommand, properties_file: Path, flags: Sequence[str]) -> list[str]:
    # A Java that is killed leaves the libraries that it unpacked: here its next start removes them.
    temporary = properties_file.parent / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    flags = (f"-Djava.io.tmpdir={temporary}", *flags)
    return command.line(MAIN_CLASS, str(properties_file), flags=flags)


def _open_log(log_file: Path) -> BinaryIO:
    if log_file.exists() and log_file.stat().st_size > LOG_BYTES_MAX:
        log_file.replace(log_file.with_suffix(".old.log"))
    return log_file.open("ab")


def log_tail(log_file: Path) -> str:
    """The last line of a broker's log that names an error, else its last line."""
    if not log_file.exists():
        return "no log"
    with log_file.open("rb") as log:
        log.seek(max(0, log_file.stat().st_size - _LOG_TAIL_BYTES))
        return _telling_line(log.read().decode("utf-8", "replace"))


def _telling_line(output: str) -> str:
    lines = output.splitlines()
    named = [line for line in lines if "ERROR" in line or "Exception" in line]
    return (named or lines or ["nothing"])[-1].strip()


def _warm_up(bootstrap_servers: str, *, deadline: float) -> None:
    begun_at = time.monotonic()
    unserved = [_serves_groups, _serves_kafka_transactions]
    while True:
        # Side by side: each makes the broker create an internal topic.
        with ThreadPoolExecutor(max_workers=len(unserved)) as pool:
            served = list(pool.map(lambda serves: serves(bootstrap_servers), unserved))
        unserved = [
            serves for serves, is_served in zip(unserved, served, strict=True) if not is_served
        ]
        if not unserved:
            return
        if time.monotonic() > deadline:
            raise BrokerUnavailableError(
                "the broker answers, but does not serve groups and Kafka transactions yet",
                bootstrap_servers=bootstrap_servers,
                waited_ms=round((time.monotonic() - begun_at) * 1000),
            )


def _serves_groups(bootstrap_servers: str) -> bool:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": WARM_UP_NAME, **_QUIET_CLIENT}
    )
    try:
        consumer.committed([TopicPartition("__consumer_offsets", 0)], timeout=_ATTEMPT_S)
    except KafkaException:
        return False
    finally:
        consumer.close()
    return True


def _serves_kafka_transactions(bootstrap_servers: str) -> bool:
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "transactional.id": WARM_UP_NAME, **_QUIET_CLIENT}
    )
    try:
        producer.init_transactions(_ATTEMPT_S)
    except KafkaException:
        return False
    return True


def _command_line(pid: int) -> str:
    """The words of a process, joined by spaces; empty when there is none or it has ended (a zombie)."""
    if not Path("/proc/self").exists():
        # Systems without /proc.
        answer = subprocess.run(  # noqa: S603 - a number is the only argument
            ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        return answer.stdout
    # For a moment of its exec a living process has no words: a shell that becomes Java, or Java that starts itself anew.
    for _ in range(_EXEC_LOOKS_MAX):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return ""
        if words or state in _ENDED_STATES:
            return words.decode("utf-8", "replace").replace("\0", " ")
        time.sleep(POLL_S / 10)
    return ""
