"""What hypothesis draws for the records of ours: values of every field, and bytes that are nearly records."""

from hypothesis import strategies as st

from txlayer.core.dead_letters import (
    MESSAGE_LENGTH_MAX,
    TEXT_LENGTH_MAX,
    TYPE_LENGTH_MAX,
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
)
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import (
    GROUP_LENGTH_MAX,
    TXN_ID_LENGTH_MAX,
    CheckKind,
    CheckRecord,
    DoubtSummary,
    HalfHeader,
    HalfOptions,
    OpMessage,
    OrderMode,
    Origin,
    ParkReason,
    Resolution,
    Source,
    UnresolvedAction,
    is_topic_name,
)

_ID_LETTERS = "".join(chr(n) for n in range(0x21, 0x7F) if chr(n) not in "|/")
_NAME_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

WHOLE = st.integers(0, 2**63 - 1)
NUMBER = st.integers(0, 2**31 - 1)
TOPIC = st.text(_NAME_LETTERS, min_size=1, max_size=249).filter(is_topic_name)
GROUP = st.text(_NAME_LETTERS, min_size=1, max_size=200)
NONCE = st.integers(0, 2**32 - 1).map(lambda n: f"{n:08x}")
KEY = st.builds(lambda i, n: f"{i}/{n}", st.text(_ID_LETTERS, min_size=1, max_size=128), NONCE)
KEY_HASH = st.integers(0, 2**64 - 1).map(lambda n: f"{n:016x}")
HEADERS = st.lists(
    st.tuples(st.text(max_size=8).filter(lambda name: not name.startswith("txl")), st.none() | st.binary(max_size=8)),
    max_size=4,
)
ANY_BYTES = st.binary(max_size=200) | st.lists(
    st.sampled_from([b"1", b"|", b"/", b"a/12345678", b"0/1", b"C", b"producer", b"\n", b"\xff", b"-1", b"k", b""]),
    max_size=24,
).map(b"".join)

OPTIONS = st.builds(
    HalfOptions,
    key_hash=st.none() | KEY_HASH,
    order=st.sampled_from(OrderMode),
    immunity_ms=st.none() | WHOLE,
    partition=st.none() | NUMBER,
    timestamp_ms=st.none() | WHOLE,
    key_murmur=st.none() | NUMBER,
    deliver_at_ms=st.none() | WHOLE,
    check_with=st.sampled_from(["", "k", "k+t+q+c+horder-id", "horder%20id+z"]),
    query_id=st.none() | st.text(min_size=1, max_size=30),
    unresolved=st.none() | st.sampled_from(UnresolvedAction),
)

_PLAIN_SUMMARIES = st.builds(
    DoubtSummary,
    key=KEY,
    state=st.sampled_from([s.value for s in TxnState]),
    reason=st.sampled_from(["", *(r.value for r in ParkReason)]),
    producer_group=GROUP,
    first_offset=WHOLE,
    last_offset=WHOLE,
    seen=WHOLE,
    count=WHOLE,
    appended_ms=WHOLE,
    born_ms=WHOLE,
    key_hash=st.none() | KEY_HASH,
    order=st.sampled_from(OrderMode),
    immunity_ms=st.none() | WHOLE,
    decided_at=st.none() | st.tuples(WHOLE, WHOLE),
    moved_ms=WHOLE,
    topics=st.lists(TOPIC, max_size=3, unique=True).map(tuple),
    checked_count=WHOLE,
    answered_count=WHOLE,
    asked_ms=WHOLE,
    answered_number=WHOLE,
    twin_offsets=st.lists(WHOLE, max_size=3).map(tuple),
    sent_to=st.just(0),
    released_to=st.just(0),
    times=st.just(()),
    committed_at=st.none(),
    unresolved=st.none() | st.sampled_from(UnresolvedAction),
    is_growing=st.booleans(),
)
SUMMARIES = _PLAIN_SUMMARIES | st.builds(
    lambda summary, sent_to, times, committed_at: summary._replace(
        sent_to=sent_to, released_to=sent_to, times=tuple(times), committed_at=committed_at
    ),
    _PLAIN_SUMMARIES,
    WHOLE,
    st.lists(WHOLE, min_size=1, max_size=3),
    st.none() | st.tuples(WHOLE, WHOLE),
)
"""Also of transactions with times."""


@st.composite
def half_headers(draw: st.DrawFn) -> HalfHeader:
    """A half header whose index lies within its count."""
    count = draw(st.integers(1, 10_000))
    return HalfHeader(
        draw(KEY), draw(GROUP), draw(TOPIC), draw(st.integers(0, count - 1)), count, draw(WHOLE), draw(OPTIONS)
    )


@st.composite
def ops(draw: st.DrawFn) -> OpMessage:
    """An op line; an abandoned transaction is always rolled back, and a rollback has no time."""
    is_abandon = draw(st.booleans())
    resolution = Resolution.ROLLBACK if is_abandon else draw(st.sampled_from(Resolution))
    return OpMessage(
        resolution,
        draw(KEY),
        draw(GROUP),
        draw(WHOLE),
        draw(WHOLE),
        draw(st.sampled_from(Source)),
        draw(st.none() | WHOLE),
        is_abandon,
        draw(st.text(st.characters(codec="utf-8"), max_size=20)),
        None if resolution is Resolution.ROLLBACK else draw(st.none() | WHOLE),
    )


CHECKS = st.builds(
    CheckRecord,
    kind=st.sampled_from(CheckKind),
    key=KEY,
    producer_group=GROUP,
    partition=st.integers(0, 2**31 - 1),
    last_offset=WHOLE,
    born_ms=WHOLE,
    number=WHOLE,
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
"""Records of the check topic that name a transaction."""


# --- consumers --------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=60)
REQUEST_ID = st.text(_NAME_LETTERS, min_size=1, max_size=64)

DEAD_LETTERS = st.builds(
    DeadLetter,
    reason=st.sampled_from(DeadLetterReason),
    origin=st.builds(Origin, TOPIC, NUMBER, WHOLE),
    origin_ms=WHOLE,
    attempt_count=WHOLE,
    first_ms=WHOLE,
    last_ms=WHOLE,
    error_type=st.text(st.characters(codec="utf-8"), max_size=TYPE_LENGTH_MAX),
    error_message=st.text(st.characters(codec="utf-8"), max_size=MESSAGE_LENGTH_MAX),
    consumer_group=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
    txn_id=st.text(st.characters(codec="utf-8"), max_size=TXN_ID_LENGTH_MAX),
    producer_group=st.text(st.characters(codec="utf-8"), max_size=GROUP_LENGTH_MAX),
)


@st.composite
def replays(draw: st.DrawFn) -> ReplayRecord:
    """A request or a result with the fields that its kind has."""
    kind = draw(st.sampled_from(ReplayKind))
    is_result = kind is ReplayKind.RESULT
    is_of_a_queue = kind in (ReplayKind.PAUSE, ReplayKind.RESUME)
    return ReplayRecord(
        kind,
        draw(REQUEST_ID),
        None if is_of_a_queue else draw(WHOLE | st.none() if is_result else WHOLE),
        draw(st.sampled_from(ReplayOutcome)) if is_result else None,
        draw(st.text(st.characters(codec="utf-8"), max_size=min(TEXT_LENGTH_MAX, 60))),
        draw(WHOLE | st.none()) if kind is ReplayKind.DROP else None,
    )
