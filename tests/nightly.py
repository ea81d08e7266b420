"""`make nightly`: every proof that is worth hours, stage by stage, and one table of how they ended.

A stage is some calls of make, as anyone may type them. One that fails does not keep the next from running, and none runs longer
than its bound. `make nightly STAGES="chaos fuzz"` takes some of them, in the order of the list below.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "nightly"
END_S = 60.0
"""For the brokers and files of a stage that is stopped at its bound; then it is killed."""


@dataclass(frozen=True)
class Stage:
    """Some commands, and how long they may take together."""

    name: str
    minutes_max: float
    commands: tuple[tuple[str, ...], ...]
    shows: str


def _make(*targets: str) -> tuple[tuple[str, ...], ...]:
    return tuple(("make", *target.split()) for target in targets)


def _tests(*files: str) -> tuple[tuple[str, ...], ...]:
    return (("make", "tests", "FILES=" + " ".join(files)),)


DEMO = ("tests/docs/test_demo.py",)
TUTORIAL = ("tests/docs/test_tutorial.py",)
WHEELS = ("tests/integration/test_package.py", "tests/docs/test_install_page.py")
CONTAINER = ("tests/integration/test_plugin_container.py",)
STORE = ("tests/spark/test_object_store.py",)
APART = (*CONTAINER, *DEMO, *TUTORIAL, *WHEELS, *STORE, "tests/integration/test_pythons.py")
"""They have a stage of their own, and are left out of `marked`."""
MARKED = (("make", "test", "NIGHTLY=only", "ARGS=" + " ".join(f"--ignore={file}" for file in APART)),)

STAGES = (
    Stage(
        "marked",
        240,
        MARKED,
        "the tests marked `nightly` that no other stage runs: Spark run by run and killed, restarts, a broker that dies, releases",
    ),
    Stage("chaos", 45, _make("chaos MINUTES=10"), "random faults on three brokers for ten minutes"),
    Stage("restarts", 60, _make("restarts"), "each component and the broker, restarted ten times in a row under load"),
    Stage(
        "worlds",
        90,
        _make(
            *(
                f"simulate MINUTES=10 WORLD={world}"
                for world in ("coordinators", "consumers", "unkind", "unkind-consumers", "ways", "closing")
            )
        ),
        "fresh simulated worlds of six kinds, ten minutes each",
    ),
    Stage("fuzz", 60, _make("fuzz"), "a million mutations of real bytes for everything that reads bytes"),
    Stage("differential", 60, _make("differential"), "the judges against each other on ten thousand fresh histories"),
    Stage(
        "differential-spark",
        120,
        _make("differential-spark"),
        "Spark's ledger against the reference model, and run by run against one run, on two thousand histories",
    ),
    Stage("kills", 60, _make("kills"), "Spark's sink, killed at each of its steps"),
    Stage("rights", 90, _make("rights"), "every right of every role, left out one at a time"),
    Stage(
        "kafkas",
        60,
        _make("kafkas KAFKAS=3.9.1", "kafkas KAFKAS=4.0.0"),
        "the tests of crashes, fencing and isolation on every other release of Kafka",
    ),
    Stage(
        "sparks",
        120,
        _make("sparks SPARKS=4.0.0", "sparks SPARKS=4.1.1", "sparks SPARKS=4.2.0"),
        "Spark's tests on every release of Spark whose connector is locked, and over Spark Connect",
    ),
    Stage("object-store", 30, _make("object-store"), "Spark's jobs on an object store"),
    Stage(
        "container",
        20,
        _make("container"),
        "users' suites on a broker in a container of a real Docker engine; needs root and dockerd",
    ),
    Stage(
        "mysql", 15, _make("mysql"), "the tests of MariaDB on a MySQL from Debian unstable; needs root and debootstrap"
    ),
    Stage("demo", 45, _tests(*DEMO), "the shop of the demo, whose processes are killed"),
    Stage("tutorial", 30, _tests(*TUTORIAL), "the tutorial, typed"),
    Stage("newcomer", 30, _make("newcomer"), "README in a new folder with a new home"),
    Stage("wheels", 45, _tests(*WHEELS), "the wheel and each extra, installed where nothing of ours is beside it"),
    Stage("pythons", 60, _make("pythons"), "the core's tests and a service on every Python on PATH"),
    Stage(
        "mutation",
        600,
        _make("mutation"),
        "every mutant of the modules that decide; goes on where it was; `failed` are those that no test notices",
    ),
)


@dataclass
class Ended:
    """How a stage ended. A command that is no pytest counts as one test."""

    name: str
    passed: int = 0
    failed: int = 0
    minutes: float = 0.0
    is_stopped: bool = False
    exit_codes: tuple[int, ...] = ()

    @property
    def is_good(self) -> bool:
        """Every command says so, and something was tried."""
        return not self.is_stopped and not any(self.exit_codes) and self.passed > 0

    @property
    def row(self) -> tuple[str, ...]:
        """Its line of the table."""
        end = "passed" if self.is_good else "stopped at its bound" if self.is_stopped else "failed"
        return (
            self.name,
            str(self.passed + self.failed),
            str(self.passed),
            str(self.failed),
            f"{self.minutes:.1f}",
            end,
        )


def run_stage(stage: Stage, folder: Path) -> Ended:
    """Every command, also behind one that fails, until the stage's time is over."""
    began = time.monotonic()
    ended = Ended(stage.name)
    with (folder / f"{stage.name}.log").open("wb") as log:
        for number, command in enumerate(stage.commands):
            report = folder / f"{stage.name}-{number}.xml"
            report.unlink(missing_ok=True)
            left_s = stage.minutes_max * 60 - (time.monotonic() - began)
            code = _run(command, log, report, within=left_s) if left_s > 0 else None
            ended.is_stopped |= code is None
            ended.exit_codes += (1 if code is None else code,)
            passed, failed = _counts(report, is_good=code == 0)
            ended.passed, ended.failed = ended.passed + passed, ended.failed + failed
    ended.minutes = (time.monotonic() - began) / 60
    return ended


def _run(command: Sequence[str], log: IO[bytes], report: Path, *, within: float) -> int | None:
    """Its exit code; None when it had to be stopped. It is a group of its own, so that nothing of it is left."""
    ours = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "STAGES")
    environ = {name: value for name, value in os.environ.items() if name not in ours}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ | {"JUNIT": str(report)},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(within)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)


def _counts(report: Path, *, is_good: bool) -> tuple[int, int]:
    """(passed, failed): pytest's own figures, mutmut's, or one for the command itself."""
    if not report.exists():
        return (1, 0) if is_good else (0, 1)
    text = report.read_text(encoding="utf-8")
    if text.startswith("{"):
        mutants = json.loads(text)
        noticed = mutants["killed"] + mutants["timeout"] + mutants["segfault"]
        return noticed, mutants["total"] - mutants["skipped"] - noticed
    # Made by our own pytest a moment ago.
    suites = list(ET.fromstring(text).iter("testsuite"))
    skipped, failed, all_of_them = (
        sum(int(suite.get(name, 0)) for suite in suites for name in names)
        for names in (("skipped",), ("failures", "errors"), ("tests",))
    )
    return all_of_them - skipped - failed, failed


def table(ends: Sequence[Ended]) -> str:
    """One line per stage."""
    head = ("stage", "tests", "passed", "failed", "minutes", "end")
    rows = [head, *(ended.row for ended in ends)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines) + "\n"


def chosen(names: Sequence[str]) -> list[Stage]:
    """Those with these names, or all.

    Raises:
        SystemExit: there is no such stage.
    """
    unknown = set(names) - {stage.name for stage in STAGES}
    if unknown:
        raise SystemExit(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in STAGES)}")
    return [stage for stage in STAGES if not names or stage.name in names]


def run(stages: Sequence[Stage], folder: Path) -> int:
    """Each stage, whatever became of those before; the table of those that ended, which is written down after each."""
    folder.mkdir(parents=True, exist_ok=True)
    ends: list[Ended] = []
    with suppress(KeyboardInterrupt):
        for stage in stages:
            say(f"== {stage.name}, at most {stage.minutes_max:g} minutes: {folder / stage.name}.log")
            ends.append(run_stage(stage, folder))
            (folder / "table.md").write_text(table(ends), encoding="utf-8")
            if not ends[-1].is_good:
                say((folder / f"{stage.name}.log").read_text("utf-8", errors="replace")[-3000:])
    say(table(ends))
    return 0 if len(ends) == len(stages) and all(end.is_good for end in ends) else 1


def say(line: str) -> None:
    """For whoever looks on."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="nightly", description=__doc__)
    parser.add_argument("stages", nargs="*", help="by default all")
    return run(chosen(parser.parse_args().stages), FOLDER)


if __name__ == "__main__":
    sys.exit(main())
