"""Programs with a Spark of their own: to their end, or until they are killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.programs import run_program
from tests.support.waiting import wait_until

FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
"""For `SPARK_SUBMIT_OPTS` of a short program: what the second compiler takes it never gives back."""


def environment() -> dict[str, str]:
    """That of this process, with all that it can import."""
    return {**os.environ, "PYTHONPATH": ":".join(sys.path)}


def files_in(folder: Path, ending: str) -> list[Path]:
    """The files below a folder in which a program writes and deletes meanwhile; `Path.rglob` fails where a folder goes."""
    return [Path(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(ending)]


def has_content(file: Path) -> bool:
    """True if it is there and not empty."""
    with suppress(FileNotFoundError):
        return file.stat().st_size > 0
    return False


def run_python(program: str, *arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A program, in a folder of the test's own, when it has ended."""
    return run_program([sys.executable, "-c", program, *arguments], within=600, cwd=folder, env=environment())


@contextmanager
def killed_when(
    is_there: Callable[[], object],
    program: str,
    *arguments: str,
    folder: Path,
    growing: Callable[[], int] | None = None,
) -> Iterator[None]:
    """A program beside the block, which is killed with the Java that it started when both that is there and the block has ended.

    What it says is in `said` in the folder. It ends by itself only where it fails.
    """
    with _started(program, *arguments, folder=folder) as job:
        yield
        _wait_until(is_there, job, folder, growing=growing)


@contextmanager
def suspended_when(
    is_there: Callable[[], object], program: str, *arguments: str, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is suspended, with the Java that it started, when that is there, for as long as the block takes; then it goes on to its end.

    What it says is in `said` in the folder.
    """
    with _started(program, *arguments, folder=folder) as job:
        _wait_until(is_there, job, folder)
        os.killpg(job.pid, signal.SIGSTOP)
        try:
            yield job
        finally:
            os.killpg(job.pid, signal.SIGCONT)
        job.wait(300)


@contextmanager
def _started(program: str, *arguments: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program beside the block, which is killed behind it."""
    with (folder / "said").open("wb") as out:
        job = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(),
        )
    try:
        yield job
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def _wait_until(
    is_there: Callable[[], object],
    job: subprocess.Popen[bytes],
    folder: Path,
    *,
    growing: Callable[[], int] | None = None,
) -> None:
    wait_until(lambda: is_there() or job.poll() is not None, within=300, growing=growing, what="the moment of a signal")
    assert job.poll() is None, (folder / "said").read_text("utf-8")[-3000:]
