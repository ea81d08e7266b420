"""Spark as a process of its own: it starts, and reads what is there, while the others still work; it judges when told to.

    python auditor.py --bootstrap-servers HOST:PORT --folder FOLDER

The jobs are those of `txlayer-spark audit`, in one session: what was read early is not read again. A line on standard
input says that nothing is under way any more; the answer is one JSON line, and exit code 0 or 1 as that command's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from txlayer.cli.spark import spark_session
from txlayer.errors import TxLayerError
from txlayer_spark.jobs.bronze import BronzeSettings, read_new
from txlayer_spark.jobs.ledger import LedgerSettings, update_ledger
from txlayer_spark.report import write_report
from txlayer_spark.verdicts import exit_code

NAMESPACE = "txlayer"
PAGE_FILE = "report.html"
NICENESS = 10
"""To start Java and read what is there costs some 15 s of a core."""
SMALL = {
    "spark.sql.shuffle.partitions": "4",
    # Half a minute at most: what Java's second compiler takes, and a collector with threads, they never give back.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",
}
"""Some 200,000 records: more tasks or memory would only take longer to start."""


def main() -> int:
    """Read, wait, judge; the exit code."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--bootstrap-servers", required=True)
    options.add_argument("--folder", type=Path, required=True)
    given = options.parse_args()
    # Whoever sells and forwards goes first, as long as somebody does.
    os.nice(NICENESS)
    try:
        verdicts = work(given.bootstrap_servers, given.folder)
    except TxLayerError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 2
    return 2 if verdicts is None else exit_code(verdicts)


def work(bootstrap_servers: str, folder: Path) -> dict[str, int] | None:
    """The verdicts; None when nobody wanted them: the parent is gone."""
    bronze, ledger = str(folder / "spark" / "bronze"), str(folder / "spark" / "ledger")
    topics = BronzeSettings(root=bronze, namespace=NAMESPACE, bootstrap_servers=bootstrap_servers)
    with spark_session(master="local[2]", memory="1g", settings=SMALL) as spark:
        read_new(spark, topics, now_ms=_now_ms)
        if not sys.stdin.readline():
            return None
        read_new(spark, topics, now_ms=_now_ms)
        # Whoever forwards has ended: what is not visible now never will be.
        update_ledger(spark, LedgerSettings(bronze=bronze, root=ledger, grace_ms=0))
        page = folder / PAGE_FILE
        summary = write_report(
            spark, bronze=bronze, ledger=ledger, namespace=NAMESPACE, page=page, made_at=datetime.now(UTC)
        )
        print(json.dumps({"verdicts": summary.verdicts, "page": str(page)}), flush=True)
    return summary.verdicts


def _now_ms() -> int:
    return int(time.time() * 1000)


if __name__ == "__main__":
    sys.exit(main())
