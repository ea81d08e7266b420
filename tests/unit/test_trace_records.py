"""What `verify` keeps of the records that it reads."""

from typing import NamedTuple

from txlayer.config import SystemTopics
from txlayer.operate.verify import TraceIndex, TraceRecords


class OpRecord(NamedTuple):
    """A record of the op topic."""

    lines: tuple[str, ...]

    def value(self) -> bytes:
        return "\n".join(self.lines).encode()

    def topic(self) -> str:
        return "ns.op"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000


def commit(txn_id: str, *, last_offset: str) -> str:
    return f"1|C|{txn_id}/0123abcd|shop|{last_offset}|1700000000000|producer||"


def kept_ids(*lines: str) -> list[str]:
    with TraceIndex() as shelf:
        traces = TraceRecords(shelf, SystemTopics("ns"), partition_count=1)
        traces.half_starts, traces.half_ends = {0: 100}, {0: 200}
        traces.op(OpRecord(lines))  # type: ignore[arg-type]  # of a record it reads these alone
        return [found.txn_id for found in shelf.each()]


def test_lines_that_name_no_half_record_of_the_window_are_passed_over() -> None:
    ids = kept_ids(
        commit("before", last_offset="99"),
        commit("first", last_offset="100"),
        commit("last", last_offset="199"),
        commit("behind", last_offset="200"),
    )

    assert ["first", "last"] == ids


def test_an_offset_of_thousands_of_digits_is_malformed_and_stops_nothing() -> None:
    assert ["well"] == kept_ids(commit("odd", last_offset="9" * 10_000), commit("well", last_offset="150"))
