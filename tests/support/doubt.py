"""The doubt topic as it stands now: the newest record under each key, tombstones taken away."""

from dataclasses import dataclass, field

from tests.support.logs import Seen, header, read_log
from txlayer.core import codec
from txlayer.core.messages import DoubtSummary


@dataclass(frozen=True, slots=True)
class DoubtShelf:
    """Summaries and contents by `id/nonce`, and quarantined records by their key."""

    summaries: dict[str, DoubtSummary] = field(default_factory=dict)
    contents: dict[str, dict[int, Seen]] = field(default_factory=dict)
    quarantined: dict[str, Seen] = field(default_factory=dict)

    def why(self, aside_key: str) -> str:
        """Reason and explanation of a quarantined record; "" when it is not there."""
        aside = self.quarantined.get(aside_key)
        return (header(aside.headers, codec.WHY_HEADER) or b"").decode() if aside else ""


def read_doubt(servers: str, topic: str) -> DoubtShelf:
    """Read it whole."""
    shelf = DoubtShelf()
    for record in read_log(servers, [topic])[topic]:
        parsed = codec.parse_doubt_key(record.key)
        if parsed is None:
            shelf.quarantined[(record.key or b"").decode()] = record
            continue
        key, index = parsed
        if index is not None and record.value is None:
            shelf.contents.get(key, {}).pop(index, None)
        elif index is not None:
            shelf.contents.setdefault(key, {})[index] = record
        elif record.value is None:
            shelf.summaries.pop(key, None)
        else:
            summary = codec.decode_summary(key, record.value)
            assert isinstance(summary, DoubtSummary), summary
            shelf.summaries[key] = summary
    return shelf
