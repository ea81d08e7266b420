"""One transaction in memory: which lines speak of it, what its summary says, and the way back."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_records import BORN_MS, GROUP, options, plain_record, txn_key
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.core.codec import decode_summary, encode_summary
from txlayer.core.ledger.transaction import Content, Transaction, from_summary, held_bytes, record_size
from txlayer.core.ledger.transitions import SETTLED, TxnState
from txlayer.core.messages import NO_OPTIONS, DoubtSummary, HalfOptions, OrderMode, ParkReason, UnresolvedAction

KEY = txn_key("a")


def plain(*, offset: int = 7, record: MemoryRecord | None = None) -> Transaction:
    """One message, no options."""
    return Transaction(KEY, GROUP, "orders", offset, 1_000, str(BORN_MS), (3, 0), record)


def of_three(*offsets: int) -> Transaction:
    """Three messages, of which those at `offsets` were read."""
    txn = plain(offset=offsets[0])
    txn.count, txn.seen, txn.last_offset = 3, len(offsets), offsets[-1]
    txn.options = options("red", order=OrderMode.PREPARE)
    txn.ensure_extras().offsets = list(offsets)
    txn.content = [
        Content(n, "orders", o, NO_OPTIONS, str(BORN_MS), plain_record(value=b"x" * n)) for n, o in enumerate(offsets)
    ]
    return txn


def test_what_doubt_holds_is_named_by_its_ends_and_second_copies_before_and_after_a_restart() -> None:
    txn = of_three(4, 7, 12)
    txn.ensure_extras().second_copies = [14]
    txn.forget_content()
    again = from_summary(txn.summary(), doubt_offset=5)

    assert [4, 12, 14] == [offset for offset in range(20) if txn.has_half_at(offset)]
    assert [4, 12, 14] == [offset for offset in range(20) if again.has_half_at(offset)]


def test_what_stands_there_on_a_lines_word_alone_is_named_by_any_offset() -> None:
    txn = plain(offset=-1)
    txn.seen = txn.count = 0

    assert all(txn.has_half_at(offset) for offset in range(5))


def test_forgetting_its_content_keeps_when_it_was_born() -> None:
    txn = plain(record=plain_record())
    before = txn.summary()

    txn.forget_content()

    assert before == txn.summary()
    assert None is txn.content


SUMMARIES = st.builds(
    DoubtSummary,
    key=st.just(KEY),
    state=st.sampled_from([state.value for state in TxnState if state not in SETTLED]),
    reason=st.sampled_from(["", *(reason.value for reason in ParkReason)]),
    producer_group=st.just(GROUP),
    first_offset=st.integers(0, 9),
    last_offset=st.integers(9, 20),
    seen=st.integers(0, 3),
    count=st.integers(0, 3),
    appended_ms=st.integers(0, 1 << 40),
    born_ms=st.integers(0, 1 << 41),
    key_hash=st.sampled_from([None, options("red").key_hash]),
    order=st.sampled_from(OrderMode),
    immunity_ms=st.one_of(st.none(), st.integers(0, 1 << 40)),
    decided_at=st.one_of(st.none(), st.tuples(st.integers(0, 99), st.integers(0, 99))),
    moved_ms=st.integers(0, 1 << 40),
    topics=st.sampled_from([(), ("orders",), ("orders", "stock")]),
    checked_count=st.integers(0, 99),
    answered_count=st.integers(0, 99),
    asked_ms=st.integers(0, 1 << 40),
    answered_number=st.integers(0, 99),
    twin_offsets=st.lists(st.integers(21, 40), max_size=2).map(tuple),
    sent_to=st.integers(0, 9),
    released_to=st.integers(10, 1 << 40),
    times=st.lists(st.integers(1 << 41, 1 << 42), max_size=3).map(tuple),
    committed_at=st.one_of(st.none(), st.tuples(st.integers(0, 99), st.integers(0, 99))),
    unresolved=st.none(),
    is_growing=st.just(False),
) | st.builds(plain().summary()._replace, unresolved=st.none() | st.sampled_from(UnresolvedAction))


@given(SUMMARIES)
def test_a_summary_makes_the_transaction_that_makes_the_summary(summary: DoubtSummary) -> None:
    decoded = decode_summary(KEY, encode_summary(summary))
    assert isinstance(decoded, DoubtSummary)

    txn = from_summary(decoded, doubt_offset=5)

    assert summary == txn.summary()
    assert txn.is_in_doubt


def test_a_million_restored_ones_share_what_they_do_not_have() -> None:
    one = from_summary(plain().summary(), doubt_offset=1)

    assert one.options is NO_OPTIONS
    assert one.first_offset is one.last_offset
    assert one.ensure_extras().topics is None


def test_the_size_of_a_record_counts_key_value_and_headers() -> None:
    record = plain_record(key=b"kk", value=b"12345", headers=[("h", b"123"), ("n", None)])

    assert 2 + 5 + (1 + 3 + 2) + (1 + 0 + 2) == record_size(record)
    assert 0 == record_size(plain_record(value=None))
    assert 64 + record_size(record) == held_bytes(record)


def test_a_transaction_on_doubt_forgets_that_its_messages_name_the_group_as_its_contents_say_it() -> None:
    options = HalfOptions("028c7948712c936a", is_group_named=True)
    txn = Transaction("a/00000001", "shop", "orders", 0, 1, "1", (0, 0), None, 0, options)

    txn.forget_content()

    assert HalfOptions("028c7948712c936a") == txn.options
