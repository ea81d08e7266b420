"""Transactions that stand, with the content of every message: for people who take them away in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from txlayer.adapters.ports import CoordinatorConnections
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.overview import Standing
from txlayer.coordinator.ranges import fetch_contents
from txlayer.coordinator.recovery import STABLE_PATIENCE_S
from txlayer.core.transaction import Content

FETCH_COUNT = 100
"""Transactions whose contents are in memory at once."""


def read_whole(
    config: CoordinatorConfig, connections: CoordinatorConnections, found: Sequence[Standing]
) -> Iterator[tuple[Standing, list[Content]]]:
    """Each with its messages in the order of their index, in the order of `found`.

    What is settled meanwhile is given all the same: its records stay for as long as the topics keep them (a day on doubt).

    Raises:
        InvariantError: a content is not there any more; those before it were given.
        BrokerUnavailableError, NotAuthorisedError: they cannot be read.
    """
    with closing(connections.make_reader("read_committed")) as reader:
        for start in range(0, len(found), FETCH_COUNT):
            part = found[start : start + FETCH_COUNT]
            # Nobody has a half record of one that stands on an op line's word alone.
            wanted = [(s.partition, s.txn, s.txn.seen) for s in part if s.txn.seen]
            contents = fetch_contents(
                reader, wanted, half_topic=config.topics.half, doubt_topic=config.topics.doubt,
                patience_s=STABLE_PATIENCE_S,
            )  # fmt: skip
            for each in part:
                yield each, contents.get((each.partition, each.txn.key), [])
