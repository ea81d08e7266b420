"""What tracing costs: off against classes that were never asked about it, and on, recorded and not.

    python bench/tracing.py

Off must cost at most 1 %. Both sides run in turns in one process, over a log that acknowledges at once, so that nothing but
the producer's and the consumer's own work is measured; the figure is the ratio of the fastest rounds: what else
runs on the machine only ever adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from txlayer import Message, TransactionalProducer
from txlayer.adapters.memory import MemoryKafka
from txlayer.adapters.otel import OpenTelemetryTracing
from txlayer.adapters.tracing import NO_TRACING, Tracing
from txlayer.consumer.calls import Caller, Chunk
from txlayer.consumer.context import Lease
from txlayer.consumer.handlers import HandlerSet
from txlayer.consumer.process_pool import SentRecord
from txlayer.consumer.service import make_caller
from txlayer.core.items import Item
from txlayer.producer.engine import assemble

ROUNDS = 41
MESSAGES = 3_000
CALLS = 50_000


PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RECORD = SentRecord(
    ("orders", 0, 7), b"k", b"v", [("traceparent", PARENT)], (1, int(time.time() * 1000))
)


def producing(tracing: Tracing, *, is_bare: bool = False) -> Callable[[], float]:
    """One round of a bulk load: µs per transaction."""
    kafka = MemoryKafka()
    kafka.create_topic("orders")
    kafka.create_namespace("txlayer")
    producer = TransactionalProducer(
        bootstrap_servers=kafka.bootstrap_servers, group="bench", connect=kafka.connect_producer,
        in_flight_max=MESSAGES, tracing=tracing,
    )  # fmt: skip
    if is_bare:
        producer._assemble = assemble  # noqa: SLF001 - as if nobody had ever asked about tracing
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
    handlers.add(
        lambda _message, _context: None, topics=(), tags="*", retry=None, batch_count_max=0
    )
    routes = handlers.routes(("orders",))
    make: Any = Caller if is_bare else make_caller(tracing)
    caller = make(routes, attempt_timeout_s=60.0)
    jobs: list[Any] = [Item(RECORD, 7, None, 1) for _ in range(100)]
    lease = Lease("bench", "orders", 0)

    def run() -> float:
        began = time.thread_time()
        for _ in range(CALLS // len(jobs)):
            assert not caller.run(Chunk(None, lease, jobs)).failed
        return (time.thread_time() - began) / CALLS * 1e6

    return run


def compare(
    make: Callable[..., Callable[[], float]], tracing: Tracing, rounds: int
) -> tuple[float, float, float]:
    """(µs bare, µs with this tracing, ratio), of the fastest rounds."""
    sides = [make(NO_TRACING, is_bare=True), make(tracing)]
    for side in sides:
        side()
    bare, ours = [], []
    for number in range(rounds):
        # In turns, so that neither side is always the one behind the other.
        for side in (0, 1) if number % 2 else (1, 0):
            (bare, ours)[side].append(sides[side]())
    return min(bare), min(ours), min(ours) / min(bare)


def main() -> int:
    """Measure, print, judge."""
    print(f"rounds={ROUNDS} messages={MESSAGES} calls={CALLS}")
    print("figure | bare µs | measured µs | ratio | must reach | yes or no")
    kinds: list[tuple[str, Tracing, int]] = [
        ("off", NO_TRACING, ROUNDS),
        ("on, not sampled", OpenTelemetryTracing(TracerProvider(ALWAYS_OFF)), 5),
        ("on, recorded", OpenTelemetryTracing(TracerProvider(ALWAYS_ON)), 5),
    ]
    is_good = True
    for what, make in (("producer, submit", producing), ("consumer, call", handling)):
        for name, tracing, rounds in kinds:
            bare, ours, ratio = compare(make, tracing, rounds)
            is_judged = name == "off"
            is_good &= not is_judged or ratio <= 1.01
            verdict = ("<= 1.01", "yes" if ratio <= 1.01 else "no") if is_judged else ("", "")
            print(
                f"{what}, {name} | {bare:.2f} | {ours:.2f} | {ratio:.3f} | {verdict[0]} | {verdict[1]}"
            )
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
