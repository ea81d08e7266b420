"""What Spark says of the day: every record of every topic is read again, and each transaction gets a verdict.

It knows neither the shop nor its database: what it judges is whether txlayer kept its promises.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from coordinators import environment

PROGRAM = [sys.executable, "-c", "from txlayer.cli import run_spark; run_spark()"]
"""`txlayer-spark`, also where it is not on the path."""
SMALL = ("--master=local[2]", "--memory=1g", "--spark-setting=spark.sql.shuffle.partitions=4")
"""Some 200,000 records: more tasks or memory would only take longer to start."""
JUDGED = (0, 1)
"""Its exit codes for a judgement: all is well, or a promise is broken."""
PAGE_FILE = "report.html"


class AuditTroubleError(Exception):
    """Spark could not judge; what it said."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The judgement, and where to read more of it."""

    verdicts: dict[str, int]
    """Transactions by verdict."""
    is_good: bool
    """No promise is broken."""
    page: str
    took_s: float


def audit(bootstrap_servers: str, *, folder: Path) -> Audit:
    """Read all topics into `folder`, judge, and write the page there; nothing is under way any more.

    Raises:
        AuditTroubleError: it could not run to its end.
    """
    began = time.monotonic()
    line = [
        "audit", f"--bootstrap-servers={bootstrap_servers}", f"--data={folder / 'spark'}",
        f"--page={folder / PAGE_FILE}", "--json",
        # Whoever forwards has ended: what is not visible now never will be.
        "--grace=0s", *SMALL,
    ]  # fmt: skip
    answer = subprocess.run(  # noqa: S603 - our own program
        [*PROGRAM, *line], env=_environment(), cwd=folder, capture_output=True, text=True, check=False
    )  # fmt: skip
    if answer.returncode not in JUDGED or not answer.stdout:
        raise AuditTroubleError(answer.stderr.strip() or f"txlayer-spark: {answer.returncode}")
    told = json.loads(answer.stdout)
    return Audit(
        verdicts=told["verdicts"],
        is_good=answer.returncode == 0,
        page=told["page"],
        took_s=time.monotonic() - began,
    )


def _environment() -> dict[str, str]:
    """As for the others, and where Java and jars are on this machine."""
    machine = ("HOME", "JAVA_HOME", "KAFKA_HOME", "MAVEN_URL", "SPARK_JARS")
    named = {name: os.environ.get(name) for name in map("TXLAYER_{}".format, machine)}
    return {**environment(), **{name: value for name, value in named.items() if value}}
