"""A member of a consumers' group: as any member, and it stores offsets by itself.

A store without waiting is reported from within a later read. One that waits has a deadline, and a thread for it. The client
does not answer a commit of one thread while another one polls it, or is in a callback of it (seen with 2.16): so nobody polls
meanwhile, and a store during a revocation is made by the very thread of the callback, which the client's own time-outs bound.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from txlayer.adapters.consumer_ports import OnRevoke
from txlayer.adapters.kafka.deadline import Deadline
from txlayer.adapters.kafka.errors import kafka_error
from txlayer.adapters.kafka.group import KafkaGroupReader
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.adapters.translation import consumer_advice, translate_store_error
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError, LifecycleError, TxLayerError

logger = logging.getLogger("txlayer.kafka")


class _Store:
    """A store that was begun."""

    __slots__ = ("failure", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self.failure: TxLayerError | None = None


class KafkaStoringGroupReader(KafkaGroupReader):
    """The `StoringGroupReader` of real Kafka. One thread uses it."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        group: str,
        session_timeout_ms: int,
        fetch_wait_ms: int,
        instance_id: str,
    ) -> None:
        super().__init__(
            config,
            group=group,
            session_timeout_ms=session_timeout_ms,
            fetch_wait_ms=fetch_wait_ms,
            instance_id=instance_id,
            on_commit=self._on_commit,
            tells_end=True,
            reader=f"the group {group}",
        )
        self._group = group
        self._is_static = bool(instance_id)
        self._hook: OnRevoke | None = None
        self._under_way: deque[_Store] = (
            deque()
        )  # the client answers in order, also what nobody waits for
        self._begun: _Store | None = None
        self._is_in_callback = False
        self._deadline = Deadline("txlayer-store-offsets")

    def start(self, topics: Sequence[str], *, on_revoke: OnRevoke | None = None) -> None:
        """Join the group; `on_revoke` is called before the group goes on without this member's partitions."""
        self._hook = on_revoke
        self._consumer.subscribe(
            list(topics),
            on_assign=self._on_assign,
            on_revoke=self._on_taken,
            on_lost=self._on_lost,
        )

    def take_reached(self) -> Mapping[TopicPartition, int]:
        """Where reading stood at the end of partitions, told since the last call."""
        taken, self._reached = self._reached, {}
        return taken

    def begin_store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store offsets without waiting; `take_stored` tells how it ended.

        Raises:
            LifecycleError: the one before has not been told yet.
        """
        if self._begun is not None:
            raise LifecycleError("a store of offsets is under way", state="storing")
        try:
            self._consumer.commit(offsets=_partitions(offsets), asynchronous=True)
        except KafkaException as exc:
            raise self._translated(kafka_error(exc)) from exc
        self._begun = _Store()
        self._under_way.append(self._begun)

    def take_stored(self) -> bool:
        """True once after the store that was begun was acknowledged.

        Raises:
            TxLayerError: it failed; see the port.
        """
        begun = self._begun
        if begun is None or not begun.is_done:
            return False
        self._begun = None
        if begun.failure is not None:
            raise begun.failure
        return True

    def store_offsets(
        self, offsets: Mapping[TopicPartition, StoredOffset], *, timeout_s: float
    ) -> None:
        """Store these and wait for the acknowledgement; what was begun before lands before.

        Raises:
            BrokerUnavailableError: not acknowledged within `timeout_s`; it may still happen.
            TxLayerError: it failed; see the port.
        """
        self._begun = None
        partitions = _partitions(offsets)

        def store() -> None:
            _check(self._consumer.commit(offsets=partitions, asynchronous=False))

        try:
            if self._is_in_callback:
                store()
            else:
                self._deadline.call(store, within_s=timeout_s)
        except TimeoutError as exc:
            # The thread keeps waiting; the next one gets another.
            self._deadline = Deadline("txlayer-store-offsets")
            raise BrokerUnavailableError(
                "offsets were not stored in time",
                bootstrap_servers=self._config.bootstrap_servers,
                waited_ms=int(timeout_s * 1000),
            ) from exc
        except KafkaException as exc:
            raise self._translated(kafka_error(exc)) from exc

    def close(self) -> None:
        """Leave the group; `on_revoke` is called first when there are partitions to give back.

        A static member does not leave: the group keeps its partitions for its next process, until its session ends.
        """
        if not self._is_static:
            super().close()
        elif not self._is_closed:
            self._is_closed = True
            self._stay_in_group()
        self._deadline.close()

    def _stay_in_group(self) -> None:
        try:
            self._serve_what_waits()
        except KafkaException as exc:
            logger.debug("group.closing", extra={"reason": str(exc)})
        if self._holds_share:
            self._holds_share = False
            self._call_hook(is_lost=False)
        # Without a subscription the client leaves, whoever it is, and in its `close` a callback may freeze the process. A client that
        # is dropped calls nobody and sends nothing: its threads end here.
        del self._consumer

    def _on_commit(
        self, error: KafkaError | None, partitions: Sequence[ClientPartition] | None
    ) -> None:
        # A client's callback: it must not raise.
        if not self._under_way:
            return
        store = self._under_way.popleft()
        store.is_done = True
        failed = error or next((p.error for p in partitions or () if p.error is not None), None)
        if failed is not None:
            store.failure = self._translated(failed)

    def _translated(self, error: KafkaError) -> TxLayerError:
        return translate_store_error(
            error, group=self._group, bootstrap_servers=self._config.bootstrap_servers
        )

    def _on_taken(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._tell(is_lost=False)
        self._on_revoke(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._tell(is_lost=True)
        self._begun = None  # fenced by its generation
        self._on_revoke(consumer, partitions)

    def _advice_for(self, topic: str) -> str:
        return consumer_advice(self._group, topic)

    def _tell(self, *, is_lost: bool) -> None:
        self._is_in_callback = True
        try:
            self._call_hook(is_lost=is_lost)
        finally:
            self._is_in_callback = False

    def _call_hook(self, *, is_lost: bool) -> None:
        try:
            if self._hook is not None:
                self._hook(is_lost)
        except Exception as exc:  # noqa: BLE001 - a client's callback: the next read raises it
            self._failure = exc


def _partitions(offsets: Mapping[TopicPartition, StoredOffset]) -> list[ClientPartition]:
    return [ClientPartition(t, p, o.offset, o.metadata) for (t, p), o in offsets.items()]


def _check(answer: Sequence[ClientPartition] | None) -> None:
    for partition in answer or ():
        if partition.error is not None:
            raise KafkaException(partition.error)
