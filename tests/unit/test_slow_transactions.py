"""A transaction that takes longer than any Kafka transaction may: it is parked, and stops no other."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.core_records import op_line, txn_key
from tests.support.still_coordinator import StillCoordinator
from txlayer.core.messages import NONCE_LENGTH, Source
from txlayer.core.partitions import half_partition

BYTES = 600_000
LARGE = txn_key("large")
SMALL_ID = next(
    i for i in map("small-{}".format, range(99)) if half_partition(ordering_key=None, txn_id=i, partition_count=2)
)
SMALL = f"{SMALL_ID}/{'a' * NONCE_LENGTH}"


class ThinNetwork:
    """Makes the coordinator's writers: a Kafka transaction of more bytes gets no further acknowledgement."""

    def __init__(self, still: StillCoordinator, *, bytes_max: int, only: str = "") -> None:
        self.bytes_max = bytes_max
        connections: Any = still.coordinator._connections
        make_writer = connections.make_writer

        def make(transactional_id: str, *, batch_bytes_max: int) -> Any:
            writer = make_writer(transactional_id, batch_bytes_max=batch_bytes_max)
            begin, produce, flush = writer.begin, writer.produce, writer.flush
            left = lost = 0

            def begin_anew() -> None:
                nonlocal left, lost
                left, lost = self.bytes_max, 0
                begin()

            def produce_thinly(topic: str, value: bytes | None, *rest: Any) -> None:
                nonlocal left, lost
                left -= len(value or b"") if only in ("", topic) else 0
                if left >= 0:
                    produce(topic, value, *rest)
                else:
                    lost += 1

            def flush_thinly(*, timeout_s: float) -> int:
                if not lost:
                    return int(flush(timeout_s=timeout_s))
                still.world.advance(ms=round(timeout_s * 1000))
                return lost

            writer.begin, writer.produce, writer.flush = begin_anew, produce_thinly, flush_thinly
            return writer

        connections.make_writer = make


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("publish", "refusals"):
        monkeypatch.setattr(f"txlayer.coordinator.{module}.SLOW_BYTES_MIN", 100_000)


def half_of(still: StillCoordinator, count: int) -> int:
    """The half records of a large transaction; the offset of the last."""
    value = b"x" * (BYTES // count)
    return [still.half(LARGE, index=index, count=count, value=value) for index in range(count)][-1]


@pytest.mark.fault("coordinator: a slow network makes a Kafka transaction exceed its time-out")
@pytest.mark.promise("P1", "P7", "P11")
@pytest.mark.parametrize("count", [1, 60])
def test_a_committed_transaction_that_takes_too_long_alone_is_parked_and_stops_no_other(count: int) -> None:
    still = StillCoordinator()
    ThinNetwork(still, bytes_max=BYTES // 2)
    last = half_of(still, count)
    still.commit(LARGE, last)
    still.commit(SMALL, still.half(SMALL, partition=1), partition=1)

    still.work(seconds=900)
    assert [SMALL_ID] == still.visible()
    assert {LARGE: ("parked-committed", "limit")} == {
        key: (summary.state, summary.reason) for key, summary in still.on_doubt().items()
    }

    # The next coordinator has a better network, or a longer `kafka_transaction_timeout`.
    still.op(op_line("C", LARGE, last, source=Source.OPERATOR, reason="zoe: there is time now"))
    still.work(seconds=20)
    assert ({}, count + 1) == (still.on_doubt(), len(still.visible()))


@pytest.mark.fault("coordinator: a slow network makes a Kafka transaction exceed its time-out")
@pytest.mark.promise("P7", "P11")
@pytest.mark.parametrize("count", [1, 60])
def test_an_undecided_transaction_that_takes_too_long_is_on_doubt_by_its_places_alone(count: int) -> None:
    still = StillCoordinator(doubt_after=timedelta(seconds=5))
    ThinNetwork(still, bytes_max=BYTES // 2)
    half_of(still, count)
    still.commit(SMALL, still.half(SMALL, partition=1), partition=1)

    still.work(seconds=900)

    assert [SMALL_ID] == still.visible()
    assert {LARGE: "open"} == {key: summary.state for key, summary in still.on_doubt().items()}


@pytest.mark.fault("coordinator: a slow network makes a Kafka transaction exceed its time-out")
@pytest.mark.promise("P11")
def test_a_record_out_of_form_that_takes_too_long_is_kept_aside_by_its_place_alone() -> None:
    still = StillCoordinator()
    ThinNetwork(still, bytes_max=BYTES // 2)
    still.kafka.append(still.topics.half, b"x" * BYTES, partition=0)
    behind = txn_key("behind")
    still.commit(behind, still.half(behind))

    still.work(seconds=900)

    assert [behind[: -1 - NONCE_LENGTH]] == still.visible()
    kept = [r for r in still.kafka.records(still.topics.doubt) if (r.key() or b"").startswith(b"origin/")]
    why = dict(kept[-1].headers() or ())["txl-why"] or b""
    assert (b"", True) == (kept[-1].value(), b" bytes, not kept whole" in why)


@pytest.mark.slow
@pytest.mark.fault("coordinator: a slow network makes a Kafka transaction exceed its time-out")
@pytest.mark.promise("P1", "P11")
@pytest.mark.parametrize("other_bytes", [1, BYTES // 4])
def test_a_large_record_that_is_slow_on_its_real_topic_alone_holds_up_no_other_of_that_topic(other_bytes: int) -> None:
    """The others may be large, too."""
    still = StillCoordinator()
    thin = ThinNetwork(still, bytes_max=BYTES // 2, only="orders")
    still.commit(LARGE, still.half(LARGE, value=b"x" * BYTES))
    said_at_s: dict[str, float] = {}
    waited_s: dict[str, float] = {}

    def turn() -> bool:
        """Every 40 s another transaction; after 1000 s the network is better."""
        now_s = still.world.passed_s
        for txn_id in still.visible():
            waited_s.setdefault(txn_id, now_s - said_at_s.get(txn_id, now_s))
        if now_s < 1_000 and now_s > 100 + 40 * len(said_at_s):
            key = txn_key(f"small-{len(said_at_s)}")
            said_at_s[key[: -1 - NONCE_LENGTH]] = now_s
            still.commit(key, still.half(key, value=b"x" * other_bytes))
        if now_s > 1_000 and not is_held:
            is_held.update({key: (summary.state, summary.reason) for key, summary in still.on_doubt().items()})
            thin.bytes_max = BYTES * 2
        return now_s > 1_400

    is_held: dict[str, tuple[str, str]] = {}
    still.run(turn, seconds=250)  # to 1,400 s, in short waits: what the others wait is measured

    assert 20 < len(said_at_s)
    assert {LARGE: ("held", "topic-unreachable")} == is_held
    assert said_at_s.keys() <= waited_s.keys()
    assert max(waited_s.values()) < 30
    assert ({}, "large") == (still.on_doubt(), still.visible()[-1])
