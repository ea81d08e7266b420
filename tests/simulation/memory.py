"""What bytes cost a coordinator in memory, counted from outside: whatever of half its ledgers reach. Never: its own count."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from tests.support.checker import Finding, Kind
from txlayer.adapters.memory.log import MemoryRecord
from txlayer.coordinator.contents import DoubtRecord
from txlayer.errors import TxLayerError

if TYPE_CHECKING:
    from tests.simulation.society import Society

LOOK_S = 0.1
FINDINGS_MAX = 3
AHEAD_SHARE = 4
"""One part in so many of `content_bytes_max` may be read before its time."""
_PASSED_OVER = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, TxLayerError, str, int, float)


class Memory:
    """Looks at every coordinator again and again.

    A coordinator may hold `content_bytes_max`, as much again for one Kafka transaction (or the largest transaction, where
    that is more), and one answer to a fetch (docs/howto/limits.md); of that a quarter before its time. At rest it holds `content_bytes_max`, unless a Kafka
    transaction is under way just then.
    """

    def __init__(self, society: Society) -> None:
        self._society = society
        self.findings: list[Finding] = []
        self.highest = 0

    def begin(self) -> None:
        """Look until the world ends."""
        self._look(is_at_rest=False)
        self._society.world.after(LOOK_S, self.begin)

    def end(self) -> list[Finding]:
        """What was too much, also now that the world is at rest: nothing is read or forwarded any more."""
        self._look(is_at_rest=True)
        return self.findings

    def _look(self, *, is_at_rest: bool) -> None:
        society = self._society
        limit = society.config.content_bytes_max
        for slot, coordinator in society.running.items():
            ledgers = [shard.ledger for shard in coordinator._shards.values()]
            read_ahead = list(coordinator._ahead.partitions.values())
            held = held_bytes([*ledgers, *read_ahead])
            self.highest = max(self.highest, held)
            allowed = limit
            if not is_at_rest or not all(ledger.batch.is_empty for ledger in ledgers):
                allowed += max(limit, self._largest())
            if not is_at_rest:
                allowed += society.world.network.fetched_bytes_max[slot]
            self._judge(slot, held, allowed)
            self._judge(f"{slot}, read ahead,", held_bytes(read_ahead), limit // AHEAD_SHARE)

    def _judge(self, what: str, held: int, allowed: int) -> None:
        if held > allowed and len(self.findings) < FINDINGS_MAX:
            detail = f"{what} holds {held} bytes at {self._society.world.now:.2f} s, {allowed} are allowed"
            self.findings.append(Finding(Kind.HOARDED, "", detail))

    def _largest(self) -> int:
        """Bytes of the largest transaction, or of what somebody wrote who is none of ours."""
        sizes: dict[bytes, int] = {}
        for record in self._society.records(self._society.config.topics.half):
            header = dict(record.headers() or ()).get("txl") or b""
            key = b"|".join(header.split(b"|")[1:2])
            sizes[key] = sizes.get(key, 0) + record.size
        return max(sizes.values(), default=0)


def held_bytes(roots: list[Any]) -> int:
    """Of all half records, and contents of doubt, that can be reached from these."""
    met: set[int] = set()
    to_do, held = list(roots), 0
    while to_do:
        each = to_do.pop()
        if id(each) in met or isinstance(each, _PASSED_OVER):
            continue
        met.add(id(each))
        if isinstance(each, MemoryRecord):
            held += each.size if each.topic().endswith(".half") else 0
        elif isinstance(each, DoubtRecord):
            held += len(each)
        else:
            to_do += gc.get_referents(each)
    return held
