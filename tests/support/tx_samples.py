"""A transaction for tests of what `txlayer tx` shows, and what a terminal would get."""

from rich.console import Console, RenderableType

from txlayer.core.messages import DoubtSummary, OrderMode

KEY = "order-4711/5f3a90c2"
SUMMARY = DoubtSummary(
    key=KEY,
    state="held",
    reason="topic-missing",
    producer_group="orders",
    first_offset=16,
    last_offset=17,
    seen=2,
    count=2,
    appended_ms=1_000,
    born_ms=900,
    key_hash="028c7948712c936a",
    order=OrderMode.PREPARE,
    immunity_ms=60_000,
    decided_at=(9, 4),
    moved_ms=2_000,
    topics=("shop", "loyalty"),
    checked_count=3,
    answered_count=1,
    asked_ms=1_500,
)


def drawn(table: RenderableType) -> str:
    """What a terminal would get."""
    console = Console(width=200, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()
