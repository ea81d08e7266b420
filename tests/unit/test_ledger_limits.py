"""One partition: a producer group that leaves too many transactions open is told to stop, and when it may go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.fake_records import op_line, txn_key
from tests.support.partition_driver import PartitionDriver
from tests.support.partition_log import SETTINGS
from txlayer.core.batch import ReportKind
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.messages import CheckKind

A = txn_key("a")
POLICIES = CheckPolicies(CheckPolicy(), {"busy": CheckPolicy(open_count_max=20)})


def limits(driver: PartitionDriver) -> list[tuple[str, str, int]]:
    driver.tick(after_ms=10_000)
    found = [
        (check.producer_group, check.text, check.number)
        for check in driver.ledger.batch.checks.values()
        if check.kind is CheckKind.LIMIT
    ]
    driver.publish()
    return found


@pytest.mark.promise("P11")
def test_a_group_with_too_many_open_ones_is_told_until_a_tenth_is_free() -> None:
    driver = PartitionDriver(settings=replace(SETTINGS, checks=POLICIES))
    keys = [txn_key(f"t{n}") for n in range(20)]
    offsets = [driver.half(key, group="busy") for key in keys[:19]]
    driver.half(A)
    driver.turn()
    assert [] == limits(driver)

    offsets.append(driver.half(keys[19], group="busy"))
    driver.turn()
    assert [("busy", "on", 20)] == limits(driver)
    assert [("busy", "on", 20)] == limits(driver)  # said again, for those who came later

    for key, offset in zip(keys[:2], offsets[:2], strict=True):
        driver.op_lines(op_line("R", key, offset, group="busy"))
    driver.turn()
    assert [("busy", "on", 18)] == limits(driver)
    driver.op_lines(op_line("R", keys[2], offsets[2], group="busy"))
    driver.turn()
    assert [("busy", "off", 0)] == limits(driver)
    assert [] == limits(driver)
    assert ["busy: 20 are open", "busy: not any more"] == [
        report.detail for report in driver.reports if report.kind is ReportKind.LIMITED
    ]
