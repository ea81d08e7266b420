"""The consumer groups of a cluster that txlayer's consumers belong to, as far as the names of topics say: how far behind, how many dead letters."""

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from functools import cache
from itertools import islice
from typing import NamedTuple

from txlayer.adapters.connect import Clients
from txlayer.adapters.ports import Administration
from txlayer.core.dead_letters import dead_letter_topic, replay_topic
from txlayer.core.messages import DLQ_SUFFIX
from txlayer.errors import NotAuthorisedError

COUNT_MAX = 100
"""Groups and topics that are looked at."""


class ConsumedTopic(NamedTuple):
    """One topic of one consumer group."""

    group: str
    topic: str
    member_count: int | None = None
    lag: int | None = None
    """Offsets that are not stored as finished (markers count); of messages that wait behind a failing one, too."""
    letter_count: int | None = None
    """Offsets of the dead-letter topic (markers count): there are at most so many, those handled since, too."""
    problem: str | None = None
    """Why the numbers are not known."""


def consumed_topics(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """(group, topic) of every dead-letter topic whose source and replay topics are there, too."""
    known = frozenset(names)
    for name in sorted(known):
        base = name.removesuffix(DLQ_SUFFIX)
        if base == name:
            continue
        for at, letter in enumerate(base):
            group, topic = base[:at], base[at + 1 :]
            if letter == "." and group and topic in known and replay_topic(group, topic) in known:
                yield group, topic
                break


def read_consumed(clients: Clients) -> list[ConsumedTopic]:
    """Those that there are, the first `COUNT_MAX` by name."""
    found: list[ConsumedTopic | None] = []
    with closing(clients.admin()) as admin:
        names = islice(consumed_topics(admin.topic_names()), COUNT_MAX)
        count = cache(lambda group: len(admin.group(group).members))
        for group, topic in names:
            try:
                found.append(_consumed(admin, group, topic, count))
            except NotAuthorisedError as exc:  # the others may be readable
                found.append(ConsumedTopic(group, topic, problem=str(exc)))
    return [each for each in found if each is not None]


def _consumed(
    admin: Administration, group: str, topic: str, count_members: Callable[[str], int]
) -> ConsumedTopic | None:
    dlq = dead_letter_topic(group, topic)
    count, letters = admin.partition_count(topic), admin.partition_count(dlq)
    if count is None or letters is None:  # deleted just now
        return None
    tps = [(topic, partition) for partition in range(count)]
    dlq_tps = [(dlq, partition) for partition in range(letters)]
    starts, ends = admin.start_offsets([*tps, *dlq_tps]), admin.end_offsets([*tps, *dlq_tps])
    lag = 0
    for tp, offset in admin.stored_offsets(group, tps).items():
        lag += ends[tp] - (starts[tp] if offset is None else max(offset.offset, starts[tp]))
    letter_count = sum(ends[tp] - starts[tp] for tp in dlq_tps)
    return ConsumedTopic(group, topic, count_members(group), lag, letter_count)
