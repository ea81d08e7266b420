"""Messages as handlers are given them, made of nothing."""

from dataclasses import dataclass

from txlayer.core.messages import Headers


@dataclass(frozen=True)
class HandledMessage:
    """One message."""

    topic: str = "orders"
    partition: int = 3
    offset: int = 17
    headers: Headers = ()


def forwarded(txn_id: str, index: int, *, offset: int = 17) -> HandledMessage:
    """One that txlayer forwarded."""
    origin = f"3:1027|{index}/5|1700000000000".encode()
    return HandledMessage(offset=offset, headers=[("txl-id", txn_id.encode()), ("txl-origin", origin)])
