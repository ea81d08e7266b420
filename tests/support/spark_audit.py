"""Bronze and ledgers of what was planted in real topics, judged later than it was written."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import Row, SparkSession

from tests.support.planted import Field
from txlayer_spark.jobs.bronze import BronzeSettings, read_new
from txlayer_spark.jobs.ledger import LedgerSettings, read_ledger, update_ledger

HOUR_MS = 3_600_000


class Audit:
    """Bronze and a ledger of a field, an hour after whatever was written."""

    def __init__(
        self, spark: SparkSession, field: Field, root: Path, *, clock_error_ms: int = 1_000, **bronze: Any
    ) -> None:
        """Nothing is read yet; `bronze` are settings of its own."""
        self._spark, self._root, self._clock_error_ms = spark, root, clock_error_ms
        given = {"namespace": field.namespace, "bootstrap_servers": field.servers, **bronze}
        self.bronze = BronzeSettings(root=str(root / "bronze"), **given)

    def read(self, *, later_ms: int = HOUR_MS, **bronze: Any) -> None:
        """Bronze up to now."""
        read_new(self._spark, replace(self.bronze, **bronze), now_ms=lambda: int(time.time() * 1000) + later_ms)

    def judge(self, ledger: str = "ledger") -> list[Row]:
        """The rows of a ledger of that name after one more run over what bronze has."""
        root = str(self._root / ledger)
        update_ledger(
            self._spark, LedgerSettings(bronze=self.bronze.root, root=root, clock_error_ms=self._clock_error_ms)
        )
        return read_ledger(self._spark, root).collect()

    def rows(self, ledger: str = "ledger") -> dict[str, Row]:
        """The rows by id as they are."""
        return by_id(read_ledger(self._spark, str(self._root / ledger)).collect())

    def run(self, ledger: str = "ledger", *, reads: bool = True) -> dict[str, Row]:
        """The rows by id after one more run."""
        if reads:
            self.read()
        return by_id(self.judge(ledger))

    def verdicts(self, ledger: str = "ledger", *, later_ms: int = HOUR_MS, **bronze: Any) -> dict[str, str]:
        """The verdicts by id when what is there now was read and judged."""
        self.read(later_ms=later_ms, **bronze)
        return {txn_id: row.verdict for txn_id, row in by_id(self.judge(ledger)).items()}


def by_id(rows: list[Row]) -> dict[str, Row]:
    """The rows by id, of which each has one."""
    found = {row.txn_id: row for row in rows}
    assert len(found) == len(rows)
    return found
