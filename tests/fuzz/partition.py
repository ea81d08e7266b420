"""Arbitrary records on half, op and doubt, folded as a coordinator and as the people's commands fold them.

An input is a list of records: a letter that says what it is, then its bytes; 0x1e stands between. Whatever they are,
nothing raises, what cannot be read is quarantined exactly once, a crash changes nothing, and a good transaction that
comes behind them all is forwarded.
"""

import json
from collections import Counter

from tests.support.core_records import half_record, plain_record, txn_key
from tests.support.partition_driver import ACCEPTS, PartitionDriver
from tests.support.partition_log import Entry, PartitionLog
from txlayer.core import codec
from txlayer.core.history import HistoryFold
from txlayer.core.ledger.doubt import DoubtFold, QuarantineFold
from txlayer.core.messages import HalfHeader, OpMessage, Origin, Undecodable
from txlayer.operate.history import history_json
from txlayer.operate.unsettled import quarantined_json

BETWEEN = b"\x1e"
RECORDS_MAX = 24
WITNESS = txn_key("witness")
TURNS_MAX = 200
"""More than there can be lines to give up."""


def check_partition(raw: bytes) -> bool:
    """Play the records of one input; True when one of them was a record of ours."""
    driver = PartitionDriver(targets={"orders": ACCEPTS})
    is_accepted = False
    for record in raw.split(BETWEEN)[:RECORDS_MAX]:
        is_accepted = _do(driver, record[:1], record[1:]) or is_accepted
    _settle(driver)
    offset = driver.half(WITNESS)
    driver.op("C", WITNESS, offset)
    _settle(driver)
    assert 1 == driver.log.forwarded.count(WITNESS)
    _ask_in_background(driver)
    before = driver.log.stored
    driver.crash(is_new_process=True)
    _settle(driver)
    assert before[:4] == driver.log.stored[:4]
    assert len(driver.log.forwarded) == len(set(driver.log.forwarded))
    look_at(driver.log)
    return is_accepted


def _do(driver: PartitionDriver, letter: bytes, raw: bytes) -> bool:
    if letter == b"H":
        driver.half_raw(raw)
        return isinstance(codec.decode_half_header(raw), HalfHeader)
    if letter == b"N":
        driver.log.add_half(half_record(None, value=raw or None), appended_ms=driver.now_ms)
    elif letter == b"O":
        driver.log.add_op(raw or None, appended_ms=driver.now_ms)
        lines = codec.split_ops(raw)
        return isinstance(lines, list) and any(isinstance(codec.decode_op(line), OpMessage) for line in lines)
    elif letter == b"T":
        driver.tick(after_ms=61_000)
    elif letter == b"X":
        driver.crash(is_new_process=bool(raw))
    elif letter == b"D":
        _recover_from(driver, raw)
    else:
        driver.turn()
    return False


def _settle(driver: PartitionDriver) -> None:
    """Turn until nothing is left to do; lines that name nothing are given up, as the loop does it after a while."""
    for _ in range(TURNS_MAX):
        driver.turn()
        if driver.ledger.waits_for_half is not None:
            driver.give_up()
        elif not driver.ledger.has_more and driver.ledger.batch.is_empty:
            return
    raise AssertionError("it does not come to rest")


def _recover_from(driver: PartitionDriver, raw: bytes) -> None:
    """A restart that meets a stranger's record on doubt. Nothing is done with what it says: nobody else writes there."""
    key, _, value = raw.partition(b"\x1f")
    log = driver.log
    known = list(log.doubt)
    log.doubt.append(Entry(log._doubt_end, driver.now_ms, plain_record(key=key, value=value or None)))
    log.rebuild(targets=driver.book, refusals=driver.refusals)
    log.doubt[:] = known


def _ask_in_background(driver: PartitionDriver) -> None:
    """What cannot be read was quarantined, each once."""
    log = driver.log
    unreadable = {
        Origin(log.settings.half_topic, 0, entry.offset)
        for entry in log.half
        if isinstance(codec.decode_half_header(codec.half_header_of(entry.record.headers()) or b""), Undecodable)
    }
    ops = {Origin(log.settings.op_topic, 0, entry.offset): codec.split_ops(entry.record.value()) for entry in log.op}
    unreadable |= {origin for origin, lines in ops.items() if isinstance(lines, Undecodable)}
    counts = Counter(log.kept_aside)
    assert set() == unreadable - counts.keys()
    assert all(counts[origin] == 1 for origin in unreadable)
    for origin, lines in ops.items():
        if isinstance(lines, list):
            bad = sum(isinstance(codec.decode_op(line), Undecodable) for line in lines)
            assert bad <= counts[origin] <= len(lines)


def look_at(log: PartitionLog) -> None:
    """What people's commands make of these topics: values that JSON can hold."""
    histories, quarantined, doubt = HistoryFold("a"), QuarantineFold(), DoubtFold()
    for entry in log.half:
        histories.half(partition=0, offset=entry.offset, appended_ms=entry.appended_ms, headers=entry.record.headers())
    for entry in log.op:
        histories.op(partition=0, offset=entry.offset, appended_ms=entry.appended_ms, value=entry.record.value())
    for entry in log.doubt:
        key, value = entry.record.key(), entry.record.value()
        doubt.fold(entry.offset, key, value)
        histories.doubt(partition=0, appended_ms=entry.appended_ms, key=key, value=value)
        quarantined.fold(_Placed(entry))
    for found in histories.histories():
        json.dumps(history_json(found, is_applied=None))
    for aside in quarantined.quarantined():
        json.dumps(quarantined_json(aside, now_ms=0))


class _Placed:
    """A record with its place and time, as a client gives it."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.key, self.value = entry.record.key, entry.record.value
        self.headers = entry.record.headers

    def topic(self) -> str:
        return "txlayer.doubt"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._entry.offset

    def timestamp(self) -> tuple[int, int]:
        return 2, self._entry.appended_ms
