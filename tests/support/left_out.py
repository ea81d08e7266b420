"""The broker's own fault that tests of killed brokers meet now and then: a Kafka transaction that it forgot to end."""

from __future__ import annotations

from txlayer.adapters.kafka.local import LocalBroker

LEFT_OUT = "Couldn't find leader endpoint"
"""What the broker says when it takes a partition without a leader for a deleted one (docs/explanation/kafka.md)."""


class MarkerLeftOutError(Exception):
    """Kafka itself forgot to end a Kafka transaction: from here on its partitions stand still, and nothing is shown."""


def raise_if_marker_left_out(broker: LocalBroker) -> None:
    """By the first broker's own words: that nothing moves is no proof.

    Raises:
        MarkerLeftOutError: it said so.
    """
    log = (broker.folder / "node-1" / "broker.log").read_text(encoding="utf-8", errors="replace")
    said = [line for line in log.splitlines() if LEFT_OUT in line]
    if said:
        raise MarkerLeftOutError(said[-1][:300])
