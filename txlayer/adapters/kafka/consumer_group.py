"""A member of a consumers' group: as any member, and it stores offsets by itself.

Stores wait for their answers in a thread of their own. The client could report them from `poll` too, but not while a
revocation waits for the last one, and then a store could not be told from one that is still under way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from txlayer.adapters.consumer_ports import OnRevoke
from txlayer.adapters.kafka.errors import kafka_error
from txlayer.adapters.kafka.group import KafkaGroupReader
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.adapters.translation import translate_store_error
from txlayer.config import ClientConfig
from txlayer.errors import BrokerUnavailableError, LifecycleError, TxLayerError

LOST_PATIENCE_S = 2.0
"""How long a member whose session is lost waits for a store under way: it must not land under a later generation."""

_Store = tuple[list[ClientPartition], "Future[None]"]


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
        )
        self._group = group
        self._hook: OnRevoke | None = None
        self._stores: SimpleQueue[_Store | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._begun: Future[None] | None = None

    def start(self, topics: Sequence[str], *, on_revoke: OnRevoke | None = None) -> None:
        """Join the group; `on_revoke` is called before the group goes on without this member's partitions."""
        self._hook = on_revoke
        self._consumer.subscribe(
            list(topics),
            on_assign=self._on_assign,
            on_revoke=self._on_taken,
            on_lost=self._on_lost,
        )

    def begin_store(self, offsets: Mapping[TopicPartition, StoredOffset]) -> None:
        """Store offsets without waiting; `take_stored` tells how it ended.

        Raises:
            LifecycleError: the one before has not been told yet.
        """
        if self._begun is not None:
            raise LifecycleError("a store of offsets is under way", state="storing")
        self._begun = self._put(offsets)

    def take_stored(self) -> bool:
        """True once after the store that was begun was acknowledged.

        Raises:
            TxLayerError: it failed; see the port.
        """
        begun = self._begun
        if begun is None or not begun.done():
            return False
        self._begun = None
        begun.result()
        return True

    def store_offsets(
        self, offsets: Mapping[TopicPartition, StoredOffset], *, timeout_s: float
    ) -> None:
        """Wait for the store that was begun, then store these and wait for the acknowledgement.

        Raises:
            BrokerUnavailableError: not acknowledged within `timeout_s`; it may still happen.
            TxLayerError: it failed; see the port.
        """
        self._begun = None  # the thread stores in order: what this one says is newer
        stored = self._put(offsets)
        try:
            stored.result(timeout_s)
        except TimeoutError as exc:
            raise BrokerUnavailableError(
                "offsets were not stored in time",
                bootstrap_servers=self._config.bootstrap_servers,
                waited_ms=int(timeout_s * 1000),
            ) from exc

    def close(self) -> None:
        """Leave the group; `on_revoke` is called first when there are partitions to give back."""
        super().close()
        self._stores.put(None)

    def _put(self, offsets: Mapping[TopicPartition, StoredOffset]) -> Future[None]:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="txlayer-store-offsets", daemon=True)
            self._thread.start()
        end: Future[None] = Future()
        partitions = [ClientPartition(t, p, o.offset, o.metadata) for (t, p), o in offsets.items()]
        self._stores.put((partitions, end))
        return end

    def _run(self) -> None:
        while (store := self._stores.get()) is not None:
            partitions, end = store
            try:
                answer = self._consumer.commit(offsets=partitions, asynchronous=False)
                for partition in answer or ():
                    if partition.error is not None:
                        raise KafkaException(partition.error)
            except KafkaException as exc:
                end.set_exception(self._translated(kafka_error(exc)))
            except BaseException as exc:  # noqa: BLE001 - border of a thread: whoever asks for the end gets it
                end.set_exception(exc)
            else:
                end.set_result(None)

    def _translated(self, error: KafkaError) -> TxLayerError:
        return translate_store_error(
            error, group=self._group, bootstrap_servers=self._config.bootstrap_servers
        )

    def _on_taken(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._tell(is_lost=False)
        self._on_revoke(consumer, partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[ClientPartition]) -> None:
        self._tell(is_lost=True)
        begun, self._begun = self._begun, None
        if begun is not None:
            # Nobody hears of its end any more; what is stored is asked for anew.
            with contextlib.suppress(TimeoutError):
                begun.exception(LOST_PATIENCE_S)
        self._on_revoke(consumer, partitions)

    def _tell(self, *, is_lost: bool) -> None:
        try:
            if self._hook is not None:
                self._hook(is_lost)
        except Exception as exc:  # noqa: BLE001 - a client's callback: the next read raises it
            self._failure = exc
