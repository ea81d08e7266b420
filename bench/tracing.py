"""What tracing costs: off against the same work with its hooks taken out, and on, recorded and not.

    python bench/tracing.py [--rounds 41]

Off must cost at most 1 %. Off, the producer has no hooks: its row says how steady the machine is. Both sides run in turns in one process, over a log that acknowledges at once, so that nothing but
the producer's, the coordinator's and the consumer's own work is measured, in CPU time of one thread. The figure is the median
of the ratios of two neighbouring rounds; beside it stands the ratio of the fastest rounds.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from txlayer import Message, TransactionalProducer
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.otel import OpenTelemetryTracing
from txlayer.adapters.telemetry import NO_TRACING, Tracing
from txlayer.config import CoordinatorConfig
from txlayer.consumer.context import Lease
from txlayer.consumer.handlers import HandlerSet
from txlayer.consumer.metrics import attempt_span
from txlayer.consumer.pools import Caller, Chunk
from txlayer.consumer.process_pool import SentRecord
from txlayer.coordinator.loop import Coordinator, make_coordinator
from txlayer.core.key_queue import Item

RATIO_MAX = 1.01
MESSAGES = 3_000
PARTITIONS = 4
CALLS = 50_000


PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RECORD = SentRecord(("orders", 0, 7), b"k", b"v", [("traceparent", PARENT)], (1, int(time.time() * 1000)))


def producing(tracing: Tracing, *, is_bare: bool = False) -> Callable[[], float]:
    """One round of a bulk load: µs per transaction."""
    kafka = MemoryKafka()
    kafka.create_topic("orders")
    kafka.create_namespace("txlayer")
    producer = TransactionalProducer(
        bootstrap_servers=kafka.bootstrap_servers,
        group="bench",
        connect=kafka.connect_producer,
        in_flight_max=MESSAGES,
        tracing=tracing,
    )
    del is_bare  # off, it has no hooks
    message = Message("orders", b"k", b"v")
    producer.publish(message)

    def run() -> float:
        began = time.thread_time()
        futures = [producer.submit(message) for _ in range(MESSAGES)]
        took = time.thread_time() - began
        for future in futures:
            future.result()
        return took / MESSAGES * 1e6

    return run


def handling(tracing: Tracing, *, is_bare: bool = False) -> Callable[[], float]:
    """One round of an empty handler: µs per message."""
    handlers = HandlerSet(is_async=False)
    handlers.add(lambda _message, _context: None, topics=(), tags="*", retry=None, batch_count_max=0)
    routes = handlers.routes(("orders",))
    observer = partial(attempt_span, tracing) if tracing.is_on and not is_bare else None
    caller = Caller(routes, attempt_timeout_s=60.0, observer=observer)
    jobs: list[Any] = [Item(RECORD, 7, None, 1) for _ in range(100)]
    lease = Lease("bench", "orders", 0)

    def run() -> float:
        began = time.thread_time()
        for _ in range(CALLS // len(jobs)):
            assert not caller.run(Chunk(None, lease, jobs)).failed
        return (time.thread_time() - began) / CALLS * 1e6

    return run


class _BareCoordinator(Coordinator):
    """As if nobody had ever asked about tracing: what it logs looks for no trace."""

    log_reports = staticmethod(lambda *_, **__: None)


def coordinating(tracing: Tracing, *, is_bare: bool = False) -> Callable[[], float]:
    """One round of forwarding what was committed: µs per transaction."""
    kafka = MemoryKafka()
    kafka.create_topic("orders", partitions=PARTITIONS)
    kafka.create_namespace("txlayer", partitions=PARTITIONS)
    producer = TransactionalProducer(
        bootstrap_servers=kafka.bootstrap_servers,
        group="bench",
        connect=kafka.connect_producer,
        in_flight_max=MESSAGES,
        tracing=tracing,
    )
    config = CoordinatorConfig(
        bootstrap_servers=kafka.bootstrap_servers,
        session_timeout=timedelta(minutes=5),  # it rests while the other side works
    )
    connections = kafka.connect_coordinator(config)
    coordinator = (
        _BareCoordinator(config, connections) if is_bare else make_coordinator(config, connections, tracing=tracing)
    )
    # What `run` does before its first turn: it would also end the coordinator after each round.
    coordinator._partition_count = PARTITIONS  # noqa: SLF001 - as `run` does
    topics = [config.topics.half, config.topics.op]
    coordinator._group.start(topics)  # noqa: SLF001 - as `run` does
    message = Message("orders", b"k", b"v")
    figures = coordinator.counts.publishing

    def run() -> float:
        for future in [producer.submit(message) for _ in range(MESSAGES)]:
            future.result()
        wanted = figures.forwarded_count + MESSAGES
        began = time.thread_time()
        while figures.forwarded_count < wanted:
            coordinator._turn()  # noqa: SLF001 - `run` would go on turning
        return (time.thread_time() - began) / MESSAGES * 1e6

    return run


class Compared(NamedTuple):
    """Two sides that took turns."""

    bare_us: float
    ours_us: float
    ratio: float
    """Median of the ratios of neighbouring rounds."""
    ratio_of_fastest: float


def compare(make: Callable[..., Callable[[], float]], tracing: Tracing, rounds: int) -> Compared:
    """The work without hooks beside the work with this tracing."""
    sides = [make(NO_TRACING, is_bare=True), make(tracing)]
    for side in sides:
        side()
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        # In turns, so that neither side is always the one behind the other; and neither pays for the other's garbage.
        for side in (0, 1) if number % 2 else (1, 0):
            gc.collect()
            found[side].append(sides[side]())
    bare, ours = found
    ratios = [b / a for a, b in zip(bare, ours, strict=True)]
    return Compared(statistics.median(bare), statistics.median(ours), statistics.median(ratios), min(ours) / min(bare))


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    given: Any = parser.parse_args()
    print(f"rounds={given.rounds} messages={MESSAGES} calls={CALLS}")
    print("figure | without µs | measured µs | ratio | of the fastest | must reach | yes or no")
    kinds: list[tuple[str, Tracing, int]] = [
        ("off", NO_TRACING, given.rounds),
        ("on, not sampled", OpenTelemetryTracing(TracerProvider(ALWAYS_OFF)), 5),
        ("on, recorded", OpenTelemetryTracing(TracerProvider(ALWAYS_ON)), 5),
    ]
    is_good = True
    for what, make in (
        ("producer, submit", producing),
        ("coordinator, forward", coordinating),
        ("consumer, call", handling),
    ):
        for name, tracing, rounds in kinds:
            seen = compare(make, tracing, rounds)
            is_judged = name == "off"
            is_good &= not is_judged or seen.ratio <= RATIO_MAX
            verdict = f"<= {RATIO_MAX} | {'yes' if seen.ratio <= RATIO_MAX else 'no'}"
            print(
                f"{what}, {name} | {seen.bare_us:.2f} | {seen.ours_us:.2f} | {seen.ratio:.3f} | "
                f"{seen.ratio_of_fastest:.3f} | {verdict if is_judged else ' | '}",
                flush=True,
            )
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
