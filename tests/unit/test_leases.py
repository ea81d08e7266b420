"""The fold of the lock log: each rule by itself, and P10 for whatever records there may be."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.naive_leases import Entry, newest
from txlayer.core.leases import LeaseEffect, LeaseTable, LockKind, LockRecord, QueueLease, token_above

EXPIRY_MS = 60_000
QUEUE = "loyalty/orders/3"
CLAIM, RENEWAL, RELEASE = LockKind


class Log:
    """A table, and records appended to its log one after the other."""

    def __init__(self) -> None:
        self.table = LeaseTable(expiry_ms=EXPIRY_MS)
        self.offset = 99
        self.now_ms = 0

    def claim(self, holder: str, generation: int, *, instance: str = "", token: int | None = None) -> LeaseEffect:
        return self._append(CLAIM, holder, generation, instance, token)

    def renew(self, holder: str, generation: int, token: int) -> LeaseEffect:
        return self._append(RENEWAL, holder, generation, "", token)

    def release(self, holder: str, generation: int, token: int) -> LeaseEffect:
        return self._append(RELEASE, holder, generation, "", token)

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def holder(self) -> tuple[str, int] | None:
        """(holder, token)."""
        lease = self.table.holding(QUEUE, at_ms=self.now_ms)
        return None if lease is None else (lease.holder, lease.token)

    def _append(self, kind: LockKind, holder: str, generation: int, instance: str, token: int | None) -> LeaseEffect:
        self.offset += 1
        record = LockRecord(kind, QUEUE, generation, holder, instance, token, "why")
        return self.table.apply(record, offset=self.offset, appended_ms=self.now_ms)


@pytest.fixture
def log() -> Log:
    return Log()


def test_nobody_holds_a_queue_of_which_nothing_is_known(log: Log) -> None:
    assert log.holder() is None
    assert log.table.lease(QUEUE) is None
    assert [] == list(log.table)


def test_the_first_claim_wins_and_its_offset_is_the_token(log: Log) -> None:
    assert LeaseEffect.WON is log.claim("a", 5, instance="i")

    assert ("a", 100) == log.holder()
    assert [QueueLease(QUEUE, "a", "i", 5, 100, 0, 100)] == list(log.table)


def test_a_claim_of_a_higher_generation_wins_at_once(log: Log) -> None:
    log.claim("a", 5)

    assert LeaseEffect.WON is log.claim("b", 6)
    assert ("b", 101) == log.holder()


@pytest.mark.parametrize("generation", [4, 5])
def test_a_claim_that_is_not_of_a_higher_generation_is_void(log: Log, generation: int) -> None:
    log.claim("a", 5)

    assert LeaseEffect.VOID is log.claim("b", generation)
    assert ("a", 100) == log.holder()


def test_a_lease_is_live_for_the_expiry_after_its_last_record_and_no_longer(log: Log) -> None:
    log.claim("a", 5)
    log.wait(20_000)
    log.renew("a", 5, 100)

    log.wait(EXPIRY_MS - 1)
    assert LeaseEffect.VOID is log.claim("b", 4)
    log.wait(1)
    assert log.holder() is None
    assert LeaseEffect.WON is log.claim("b", 4)
    assert ("b", 103) == log.holder()


def test_a_lease_that_nobody_took_goes_on_when_it_is_renewed_late(log: Log) -> None:
    log.claim("a", 5)
    log.wait(2 * EXPIRY_MS)

    assert LeaseEffect.RENEWED is log.renew("a", 5, 100)
    assert ("a", 100) == log.holder()


def test_a_lease_tells_the_last_record_that_counted_for_it(log: Log) -> None:
    log.claim("a", 5)
    log.wait(20_000)
    log.renew("a", 5, 100)
    log.claim("b", 4)

    assert [QueueLease(QUEUE, "a", "", 5, 100, 20_000, 101, reason="why")] == list(log.table)


def test_a_renewal_that_names_an_older_lease_counts_for_nothing(log: Log) -> None:
    log.claim("a", 5)
    log.claim("b", 6)

    assert LeaseEffect.STALE is log.renew("a", 5, 100)
    assert ("b", 101) == log.holder()


def test_a_renewal_tells_a_reader_who_began_after_the_claim(log: Log) -> None:
    assert LeaseEffect.LEARNED is log.renew("a", 5, 40)

    assert ("a", 40) == log.holder()
    assert LeaseEffect.VOID is log.claim("b", 4)


def test_a_renewal_of_a_higher_token_is_believed_because_its_writer_knows_more(log: Log) -> None:
    log.renew("a", 5, 40)

    assert LeaseEffect.LEARNED is log.renew("b", 4, 41)
    assert ("b", 41) == log.holder()


@pytest.mark.parametrize("token", [100, 101])
def test_no_record_names_a_claim_that_does_not_stand_before_it(log: Log, token: int) -> None:
    assert LeaseEffect.STALE is log.renew("a", 5, token)
    assert log.holder() is None


def test_a_release_ends_the_lease_that_it_names(log: Log) -> None:
    log.claim("a", 5)

    assert LeaseEffect.RELEASED is log.release("a", 5, 100)

    assert log.holder() is None
    (lease,) = log.table
    assert (True, "why", 0, 100) == (lease.is_released, lease.reason, lease.renewed_ms, lease.renewed_offset)
    assert LeaseEffect.STALE is log.renew("a", 5, 100)
    assert LeaseEffect.STALE is log.release("a", 5, 100)
    assert log.holder() is None
    assert LeaseEffect.WON is log.claim("b", 4)


def test_a_release_of_an_older_lease_counts_for_nothing(log: Log) -> None:
    log.claim("a", 5)
    log.claim("b", 6)

    assert LeaseEffect.STALE is log.release("a", 5, 100)
    assert ("b", 101) == log.holder()


def test_a_release_tells_a_reader_who_began_after_the_claim_that_it_is_over(log: Log) -> None:
    assert LeaseEffect.LEARNED is log.release("a", 5, 40)

    assert log.holder() is None
    assert [QueueLease(QUEUE, "a", "", 5, 40, 0, 100, is_released=True, reason="why")] == list(log.table)
    assert LeaseEffect.STALE is log.renew("a", 5, 40)


def test_a_holder_that_claims_again_has_a_new_token(log: Log) -> None:
    log.claim("a", 5)
    log.claim("b", 4)

    assert LeaseEffect.WON is log.claim("a", 5, token=100)
    assert ("a", 102) == log.holder()


def test_a_lease_is_written_again_also_when_it_was_renewed_too_late(log: Log) -> None:
    log.claim("a", 5)
    log.wait(2 * EXPIRY_MS)

    assert LeaseEffect.WON is log.claim("a", 5, token=100)
    assert ("a", 101) == log.holder()


def test_who_lost_a_lease_cannot_write_it_again(log: Log) -> None:
    log.claim("a", 5)
    log.wait(EXPIRY_MS)
    log.claim("b", 4)

    assert LeaseEffect.VOID is log.claim("a", 5, token=100)
    assert ("b", 101) == log.holder()


def test_a_lease_that_was_released_cannot_be_written_again(log: Log) -> None:
    log.claim("a", 5)
    log.release("a", 5, 100)

    assert LeaseEffect.VOID is log.claim("a", 5, token=100)
    assert log.holder() is None


def test_a_lease_written_again_tells_a_reader_who_began_after_its_claim(log: Log) -> None:
    assert LeaseEffect.WON is log.claim("a", 5, token=40)
    assert ("a", 100) == log.holder()


def test_a_lease_written_again_is_believed_before_an_older_one(log: Log) -> None:
    log.renew("b", 6, 40)

    assert LeaseEffect.WON is log.claim("a", 5, token=41)
    assert ("a", 101) == log.holder()


@pytest.mark.parametrize("token", [100, 101])
def test_no_lease_is_written_again_that_does_not_stand_before(log: Log, token: int) -> None:
    assert LeaseEffect.VOID is log.claim("a", 5, token=token)
    assert log.holder() is None


def test_of_one_static_member_the_last_process_wins(log: Log) -> None:
    log.claim("a", 5, instance="i")

    assert LeaseEffect.WON is log.claim("b", 5, instance="i")
    assert LeaseEffect.VOID is log.claim("a", 5, instance="i", token=100)
    assert LeaseEffect.VOID is log.claim("c", 5, instance="j")
    assert ("b", 101) == log.holder()


def test_members_without_an_instance_id_are_not_one_static_member(log: Log) -> None:
    log.claim("a", 5)

    assert LeaseEffect.VOID is log.claim("b", 5)


def test_a_lease_says_what_its_newest_renewal_said_and_a_claim_says_nothing(log: Log) -> None:
    log.claim("a", 5)
    assert [""] == [lease.reason for lease in log.table]
    log.renew("a", 5, 100)
    assert ["why"] == [lease.reason for lease in log.table]
    log.claim("b", 6)

    assert [""] == [lease.reason for lease in log.table]


# --- whatever records there may be ------------------------------------------------------------------------------------

QUEUES = st.sampled_from([QUEUE, "loyalty/orders/4"])


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """Records as nobody would write them: any holder renews, releases and claims anything at any time."""
    steps = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(-5_000, 40_000)), max_size=25))
    entries = []
    offsets = accumulate(gap for gap, _ in steps)
    times = accumulate(step for _, step in steps)
    for offset, at_ms in zip(offsets, times, strict=True):
        kind = draw(st.sampled_from(LockKind))
        token: int | None = draw(st.integers(0, offset + 2))
        if kind is CLAIM and draw(st.booleans()):
            token = None
        record = LockRecord(
            kind,
            draw(QUEUES),
            draw(st.integers(1, 4)),
            draw(st.sampled_from("abc")),
            draw(st.sampled_from(["", "i"])),
            token,
        )
        entries.append(Entry(offset, 100_000 + at_ms, record))
    return entries


@pytest.mark.threat("write `<ns>.locks`")
@given(logs())
@pytest.mark.promise("P10")
def test_the_fold_holds_what_the_rules_say_and_tokens_only_grow(log: list[Entry]) -> None:
    table = LeaseTable(expiry_ms=EXPIRY_MS)
    tokens: dict[str, int] = {}
    for count, (offset, at_ms, record) in enumerate(log, start=1):
        table.apply(record, offset=offset, appended_ms=at_ms)

        expected = newest(log[:count], record.queue, expiry_ms=EXPIRY_MS)
        lease = table.lease(record.queue)
        assert (expected is None) is (lease is None)
        if expected is None or lease is None:
            continue
        until_ms = 0 if lease.is_released else lease.renewed_ms + EXPIRY_MS
        assert expected == (lease.holder, lease.instance_id, lease.generation, lease.token, until_ms)
        assert tokens.get(record.queue, -1) <= lease.token < max(offset, 1) + 1
        tokens[record.queue] = lease.token


@pytest.mark.threat("write `<ns>.locks`")
@given(logs())
@pytest.mark.promise("P10")
def test_another_holder_always_has_another_token(log: list[Entry]) -> None:
    table = LeaseTable(expiry_ms=EXPIRY_MS)
    owners: dict[tuple[str, int], str] = {}
    for offset, at_ms, record in log:
        table.apply(record, offset=offset, appended_ms=at_ms)
        lease = table.lease(record.queue)
        if lease is not None:
            assert lease.holder == owners.setdefault((lease.queue, lease.token), lease.holder)


@pytest.mark.promise("P10")
@pytest.mark.parametrize(
    ("claim_offset", "last", "token"), [(7, None, 7), (7, 6, 7), (0, None, 0), (0, 0, 1), (7, 7, 8), (0, 4711, 4712)]
)
def test_a_token_is_above_every_one_before_also_in_a_new_log(claim_offset: int, last: int | None, token: int) -> None:
    assert token == token_above(claim_offset, last=last)
