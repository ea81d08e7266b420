"""Points for sales: a consumer's handler, apart from the consumer that calls it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from txlayer import Context, OrderedConsumer, ReceivedMessage, Reject

POINTS_PER_PIECE = 10


class Points:
    """Counts."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def add(self, message: ReceivedMessage, context: Context) -> Reject | None:  # noqa: ARG002 - the handler's contract
        """One sale; what is no number is nobody's sale."""
        if not message.value.isdigit():
            return Reject("no number")
        self.of[(message.key or b"").decode()] += POINTS_PER_PIECE * int(message.value)
        return None


def consumer(points: Points, *, topic: str, group: str = "points", **options: Any) -> OrderedConsumer:
    """A consumer that counts; `options` say where the brokers are."""
    made = OrderedConsumer(group=group, topics=[topic], start_at="earliest", **options)
    made.handler(points.add)
    return made
