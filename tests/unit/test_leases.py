"""The fold of the lock log: each rule by itself, and P10 for whatever records there may be."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.lock_stage import holding
from tests.support.naive_leases import Entry, newest
from txlayer.core.leases import LeaseEffect, LeaseTable, LockKind, LockRecord, QueueLease, token_above

EXPIRY_MS = 60_000
QUEUE = "loyalty/orders/3"
CLAIM, RENEWAL, RELEASE = LockKind
WORDS = {"claim": CLAIM, "renew": RENEWAL, "release": RELEASE}
WON, VOID, RENEWED = LeaseEffect.WON, LeaseEffect.VOID, LeaseEffect.RENEWED
LEARNED, STALE, RELEASED = LeaseEffect.LEARNED, LeaseEffect.STALE, LeaseEffect.RELEASED


def told(steps: str) -> tuple[LeaseTable, LeaseEffect | None, int]:
    """The table after these steps, the effect of the last record, and the time. The first record has offset 100."""
    table, effect, offset, now_ms = LeaseTable(expiry_ms=EXPIRY_MS), None, 99, 0
    for step in steps.split(", "):
        word, *given = step.split()
        if word == "wait":
            now_ms += int(given[0])
            continue
        holder, generation, instance, token = *given, *[""] * (4 - len(given))
        offset += 1
        number = int(token) if token else None
        record = LockRecord(WORDS[word], QUEUE, int(generation), holder, instance.strip("-"), number, "why")
        effect = table.apply(record, offset=offset, appended_ms=now_ms)
    return table, effect, now_ms


def test_nobody_holds_a_queue_of_which_nothing_is_known() -> None:
    table = LeaseTable(expiry_ms=EXPIRY_MS)

    assert (None, None, []) == (holding(table, QUEUE, at_ms=0), table.lease(QUEUE), [*table])


@pytest.mark.parametrize(
    ("steps", "effect", "holder"),
    [
        # The first claim wins and its offset is the token; then that of a higher generation.
        ("claim a 5", WON, ("a", 100)),
        ("claim a 5, claim b 6", WON, ("b", 101)),
        ("claim a 5, claim b 5", VOID, ("a", 100)),
        ("claim a 5, claim b 4", VOID, ("a", 100)),
        # It is live for the expiry after the last record that counted for it, and goes on when nobody took it meanwhile.
        ("claim a 5, wait 20000, renew a 5 - 100, wait 59999, claim b 4", VOID, ("a", 100)),
        ("claim a 5, wait 20000, renew a 5 - 100, wait 59999, claim b 4, wait 1", VOID, None),
        ("claim a 5, wait 20000, renew a 5 - 100, wait 59999, claim b 4, wait 1, claim b 4", WON, ("b", 103)),
        ("claim a 5, wait 120000, renew a 5 - 100", RENEWED, ("a", 100)),
        ("claim a 5, claim b 6, renew a 5 - 100", STALE, ("b", 101)),
        # A renewal tells a reader who began after the claim; that of a higher token is believed, for its writer knows more.
        ("renew a 5 - 40", LEARNED, ("a", 40)),
        ("renew a 5 - 40, claim b 4", VOID, ("a", 40)),
        ("renew a 5 - 40, renew b 4 - 41", LEARNED, ("b", 41)),
        # No record names a claim that does not stand before it.
        ("renew a 5 - 100", STALE, None),
        ("renew a 5 - 101", STALE, None),
        # A release ends the lease that it names, and no other.
        ("claim a 5, release a 5 - 100", RELEASED, None),
        ("claim a 5, release a 5 - 100, renew a 5 - 100", STALE, None),
        ("claim a 5, release a 5 - 100, release a 5 - 100", STALE, None),
        ("claim a 5, release a 5 - 100, claim b 4", WON, ("b", 102)),
        ("claim a 5, claim b 6, release a 5 - 100", STALE, ("b", 101)),
        ("release a 5 - 40", LEARNED, None),
        ("release a 5 - 40, renew a 5 - 40", STALE, None),
        # A holder that claims again, because its lease is written again, has a new token, also when that is late.
        ("claim a 5, claim b 4, claim a 5 - 100", WON, ("a", 102)),
        ("claim a 5, wait 120000, claim a 5 - 100", WON, ("a", 101)),
        # Who lost a lease or gave it back cannot write it again.
        ("claim a 5, wait 60000, claim b 4, claim a 5 - 100", VOID, ("b", 101)),
        ("claim a 5, release a 5 - 100, claim a 5 - 100", VOID, None),
        # A lease that is written again tells a reader who began after its claim, and is believed before an older one.
        ("claim a 5 - 40", WON, ("a", 100)),
        ("renew b 6 - 40, claim a 5 - 41", WON, ("a", 101)),
        ("claim a 5 - 100", VOID, None),
        ("claim a 5 - 101", VOID, None),
        # Of one static member the last process wins.
        ("claim a 5 i, claim b 5 i", WON, ("b", 101)),
        ("claim a 5 i, claim b 5 i, claim a 5 i 100", VOID, ("b", 101)),
        ("claim a 5 i, claim b 5 i, claim c 5 j", VOID, ("b", 101)),
    ],
)
def test_who_holds_a_queue(steps: str, effect: LeaseEffect, holder: tuple[str, int] | None) -> None:
    table, last, now_ms = told(steps)

    lease = holding(table, QUEUE, at_ms=now_ms)
    assert (effect, holder) == (last, lease and (lease.holder, lease.token))


@pytest.mark.parametrize(
    ("steps", "lease"),
    [
        ("claim a 5 i", QueueLease(QUEUE, "a", "i", 5, 100, 0, 100)),
        (
            "claim a 5, wait 20000, renew a 5 - 100, claim b 4",
            QueueLease(QUEUE, "a", "", 5, 100, 20_000, 101, reason="why"),
        ),
        ("claim a 5, renew a 5 - 100, claim b 6", QueueLease(QUEUE, "b", "", 6, 102, 0, 102)),
        (
            "claim a 5, release a 5 - 100, renew a 5 - 100",
            QueueLease(QUEUE, "a", "", 5, 100, 0, 100, is_released=True, reason="why"),
        ),
        ("release a 5 - 40", QueueLease(QUEUE, "a", "", 5, 40, 0, 100, is_released=True, reason="why")),
    ],
)
def test_a_lease_tells_the_last_record_that_counted_for_it_and_what_that_said(steps: str, lease: QueueLease) -> None:
    assert [lease] == [*told(steps)[0]]


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
