"""What the judge of the simulation and of chaos (`tests/support/checker.py`) says of a history."""

from collections import Counter
from dataclasses import replace

from tests.reference.wire import History
from tests.support.checker import Judge, Kind
from tests.support.history import Logs
from tests.support.logs import Seen


def as_it_reads(history: History) -> History:
    """Only what `read_committed` readers see, of a doubt topic of which nothing was removed."""
    settings = replace(history.settings, compacted_topics=frozenset(), former_partition_counts={})
    committed = [record for record in history.records if record.kafka == "committed"]
    return replace(history, records=committed, settings=settings)


def broken_keys(history: History) -> set[str]:
    """The id/nonce of every transaction that breaks a promise; empty for a record that belongs to nobody."""
    by_topic: dict[str, list[Seen]] = {topic: [] for topic, _ in history.bounds}
    for r in sorted(history.records, key=lambda r: r.log_order):
        seen = Seen(r.topic, r.partition, r.offset, r.key, r.value, list(r.headers), r.timestamp_ms)
        by_topic[r.topic].append(seen)
    names = [f"{history.settings.namespace}.{name}" for name in ("half", "op", "doubt")]
    half, op, doubt = (by_topic.pop(name) for name in names)
    counts = Counter(topic for topic, _ in history.bounds)
    real = [seen for found in by_topic.values() for seen in found]
    judge = Judge(Logs(half, op, doubt, real, counts), partition_count=counts[names[0]])
    findings = judge.verdict().findings
    return {finding.txn_key for finding in findings if finding.kind is not Kind.LEFT_ON_DOUBT}
