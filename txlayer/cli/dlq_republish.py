"""`txlayer dlq replay --to TOPIC`: copies of dead letters in another topic; the dead letters stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import typer

from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.client import PlainReader
from txlayer.cli.bars import progress
from txlayer.cli.dlq_logs import Writers
from txlayer.cli.dlq_options import Author
from txlayer.cli.dlq_outcomes import Outcome, Result, not_asked
from txlayer.config import ProducerConfig
from txlayer.consumer.dead_letter_log import DeadLetterLog, Place
from txlayer.consumer.dead_letter_reader import DeadLetterReader
from txlayer.consumer.kafka_transaction import KafkaTransactions
from txlayer.consumer.letter_choice import Choice, Chosen
from txlayer.consumer.republishing import BATCH_COUNT_MAX, Copy, Republisher, transactional_id
from txlayer.core.dead_letters import is_cut
from txlayer.errors import ForbiddenTopicError


def check_target(to: str, logs: Mapping[str, DeadLetterLog], config: ProducerConfig) -> None:
    """Refuse a target that cannot be meant.

    Raises:
        ForbiddenTopicError: it is a system topic, one that the dead letters came from, or does not exist.
    """
    if config.topics.is_system(to):
        raise ForbiddenTopicError("--to: nobody may send there", topic=to, reason="a system topic")
    if to in logs:
        raise ForbiddenTopicError(
            "--to: every other group of that topic would see the messages again; leave --to out, and the group's own "
            "consumers handle them", topic=to, reason="the dead letters came from it",
        )  # fmt: skip
    with KafkaAdmin(config) as admin:
        if admin.partition_count(to) is None:
            raise ForbiddenTopicError("--to: create it first", topic=to, reason="no such topic")


class Republishing:
    """The copies of one request."""

    def __init__(self, config: ProducerConfig, group: str, author: Author, to: str) -> None:
        self._config = config
        self._author = author
        self._transactions = KafkaTransactions(
            Writers(config), name=transactional_id(group, author.request_id)
        )
        self._republisher = Republisher(
            self._transactions, group=group, request_id=author.request_id, to=to, text=author.text
        )

    def start(self, logs: Mapping[str, DeadLetterLog]) -> None:
        """End what an earlier run left open, then read what it did."""
        self._republisher.start()
        for log in logs.values():
            log.follow()

    def publish(
        self, choice: Choice, logs: Mapping[str, DeadLetterLog], *, rate_max: float | None
    ) -> list[Outcome]:
        """Publish the chosen; what became of each."""
        request_id, chosen = self._author.request_id, choice.in_turn
        gone: list[Chosen] = []
        with KafkaAdmin(self._config) as admin:
            reader = DeadLetterReader(_Sweeping(admin, self._config))
            if chosen:
                typer.echo(f"request id {request_id}", err=True)
            try:
                with progress("published", len(chosen)) as tell:
                    self._republisher.publish(
                        _copies(chosen, reader, logs, gone), rate_max=rate_max, on_progress=tell
                    )
            finally:
                reader.close()
        outcomes = [not_asked(*each, request_id=request_id) for each in choice.unable]
        for each in (*choice.asked_before, *chosen):
            result = Result.MISSING if each in gone else Result.REPUBLISHED
            outcomes.append(Outcome(each.place, result, each.history.state, request_id))
        return outcomes

    def close(self) -> None:
        """Give the client back."""
        self._transactions.close()


class _Sweeping:
    """What a sweep over dead letters asks of the cluster."""

    def __init__(self, admin: KafkaAdmin, config: ProducerConfig) -> None:
        self._config = config
        self.start_offsets = admin.start_offsets
        self.end_offsets = admin.end_offsets

    def make_reader(self, isolation: str) -> PlainReader:
        """A reader that assigns itself."""
        return PlainReader(self._config, isolation=isolation)


def _copies(
    chosen: Sequence[Chosen],
    reader: DeadLetterReader,
    logs: Mapping[str, DeadLetterLog],
    gone: list[Chosen],
) -> Iterator[Copy]:
    """The chosen with their records, some hundred in memory at a time; those whose content is not there are told."""
    for start in range(0, len(chosen), BATCH_COUNT_MAX):
        part = chosen[start : start + BATCH_COUNT_MAX]
        queues: dict[tuple[str, int], list[int]] = {}
        for each in part:
            queues.setdefault(each.place[:2], []).append(each.place.offset)
        records = {
            Place(topic, partition, offset): record
            for (topic, partition), offsets in queues.items()
            for offset, record in reader.fetch(logs[topic].dead_letters, partition, offsets).items()
        }
        for each in part:
            record = records[each.place]
            if record is None or is_cut(record.headers(), record.value()):
                gone.append(each)  # or its content is: a copy would say that its value is null
            else:
                yield Copy(each.place, record)
