"""One partition: a producer group that leaves too many transactions open is told to stop, and when it may go on.

What counts is what its own members were asked about and did not decide: anybody who may write half can name any group.
"""

from dataclasses import replace

import pytest

from tests.support.core_records import GROUP, op_line, txn_key
from tests.support.partition_driver import PartitionDriver
from tests.support.partition_log import SETTINGS
from txlayer.core.checks import CheckPolicies, CheckPolicy
from txlayer.core.ledger.batch import ReportKind
from txlayer.core.messages import CheckKind, Source

TWENTY = CheckPolicy(open_count_max=20, check_interval_ms=10_000, check_interval_max_ms=10_000)


def driver_of(policy: CheckPolicy) -> PartitionDriver:
    return PartitionDriver(settings=replace(SETTINGS, checks=CheckPolicies(policy)))


def limits(
    driver: PartitionDriver, *, is_present: bool = True, answer: str = "", after_ms: int = 10_000
) -> list[tuple[str, str, int]]:
    """Time passes; the limits that are told. `answer`: what the group's members say to each question."""
    driver.tick(after_ms=after_ms, is_present=is_present)
    checks = list(driver.ledger.batch.checks.values())
    driver.publish()
    lines = [
        op_line(answer, check.key, check.last_offset, source=Source.CHECK, check_number=check.number)
        for check in checks
        if answer and check.kind is CheckKind.QUESTION
    ]
    if lines:
        driver.op_lines(*lines)
        driver.turn()
    return [(c.producer_group, c.text, c.number) for c in checks if c.kind is CheckKind.LIMIT]


@pytest.mark.promise("P11")
def test_a_group_that_answers_nothing_is_told_until_a_tenth_is_free() -> None:
    driver = driver_of(TWENTY)
    keys = [txn_key(f"t{n}") for n in range(20)]
    offsets = [driver.half(key) for key in keys[:19]]
    driver.half(txn_key("a"), group="others")
    driver.turn()
    assert [[], [], []] == [limits(driver) for _ in range(3)]

    offsets.append(driver.half(keys[19]))
    driver.turn()
    assert [] == limits(driver)  # its last one was asked about just now
    assert [(GROUP, "on", 20)] == limits(driver)
    assert [(GROUP, "on", 20)] == limits(driver)  # said again, for those who came later

    for key, offset in zip(keys[:2], offsets[:2], strict=True):
        driver.op_lines(op_line("R", key, offset))
    driver.turn()
    assert [(GROUP, "on", 18)] == limits(driver)
    driver.op_lines(op_line("R", keys[2], offsets[2]))
    driver.turn()
    assert [(GROUP, "off", 0)] == limits(driver)
    assert [] == limits(driver)
    assert [f"{GROUP}: 20 are open", f"{GROUP}: not any more"] == [
        report.detail for report in driver.reports if report.kind is ReportKind.LIMITED
    ]


@pytest.mark.promise("P11")
def test_a_group_whose_checks_know_nothing_is_told() -> None:
    driver = driver_of(TWENTY)
    for number in range(20):
        driver.half(txn_key(f"t{number}"))
    driver.turn()

    told = [limits(driver, answer="U") for _ in range(2)]

    assert [[], [(GROUP, "on", 20)]] == told


@pytest.mark.threat("write `<ns>.half`")
@pytest.mark.fault("coordinator: a stranger writes half records under the name of a group")
@pytest.mark.promise("P7")
@pytest.mark.promise("P11")
def test_records_that_a_stranger_invents_do_not_lock_a_group_out_that_answers() -> None:
    driver = driver_of(replace(TWENTY, check_rate_max=30))
    for number in range(300):
        driver.half(txn_key(f"invented{number}"))
    driver.turn()

    told = [limits(driver, answer="R") for _ in range(11)]

    assert [] == [each for each in told if each]
    assert 0 == driver.ledger.open_count


@pytest.mark.promise("P11")
def test_records_that_a_stranger_invents_do_not_lock_out_a_group_without_a_member() -> None:
    driver = driver_of(TWENTY)
    for number in range(300):
        driver.half(txn_key(f"invented{number}"))
    driver.turn()

    assert [[], [], []] == [limits(driver, is_present=False) for _ in range(3)]


@pytest.mark.promise("P11")
def test_a_group_whose_checks_do_not_work_is_told_although_no_rate_asks_about_all_of_them() -> None:
    # Two a second, asked again every ten seconds: never more than some twenty of the sixty are asked about.
    driver = driver_of(replace(TWENTY, check_rate_max=2, open_count_max=60))
    for number in range(60):
        driver.half(txn_key(f"t{number}"))
    driver.turn()

    told = [limits(driver, after_ms=1_000) for _ in range(60)]

    undecided = [t for t in driver.ledger.all_unsettled() if t.extras and t.extras.checked_count]
    assert len(undecided) < 30
    assert [(GROUP, "on", 60)] in told


@pytest.mark.promise("P11")
@pytest.mark.parametrize("answer", ["", "U"])
def test_a_restart_forgets_neither_who_is_over_nor_who_was_never_asked(answer: str) -> None:
    driver = driver_of(TWENTY)
    for number in range(20):
        driver.half(txn_key(f"t{number}"))
        driver.half(txn_key(f"n{number}"), group="never")
    driver.turn()
    for _ in range(7):  # until the others stand on doubt as well
        limits(driver, answer=answer)

    driver.crash(is_new_process=True)

    assert 40 == driver.ledger.open_count
    assert len(driver.ledger.dormant)
    assert [(GROUP, "on", 20)] == limits(driver)
