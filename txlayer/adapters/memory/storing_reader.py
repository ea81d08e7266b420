"""The `StoringGroupReader` of a cluster in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txlayer.adapters.consumer_ports import OnRevoke
from txlayer.adapters.memory.groups import MemberMetadata
from txlayer.adapters.memory.link import RETRY_BACKOFF_S, Link
from txlayer.adapters.memory.readers import Membership, MemoryGroupReader
from txlayer.adapters.memory.refusal import ClientError, NoAnswerError, RefusedError
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.adapters.translation import consumer_advice, translate_store_error
from txlayer.errors import BrokerUnavailableError, LifecycleError, TxLayerError

Offsets = Mapping[TopicPartition, StoredOffset]


class MemoryStoringGroupReader(MemoryGroupReader):
    """One thread uses it. A store that was begun is sent with the next read, and again while nobody answers."""

    def __init__(self, link: Link, *, group: str, session_timeout_ms: int) -> None:
        super().__init__(
            link, group=group, session_timeout_ms=session_timeout_ms, tells_end=True, reader=f"the group {group}"
        )  # fmt: skip
        self._hook: OnRevoke | None = None
        self._hook_failure: Exception | None = None
        self._begun: dict[TopicPartition, StoredOffset] | None = None
        self._end: TxLayerError | bool = False

    def start(self, topics: Sequence[str], *, on_revoke: OnRevoke | None = None) -> None:
        """Join the group; `on_revoke` is called before the group goes on without this member's partitions."""
        self._hook = on_revoke
        super().start(topics)

    def read(self, *, record_count_max: int, timeout_s: float) -> Sequence[object]:
        """As every member reads; what `on_revoke` raised is raised here."""
        self._send_begun()
        records = super().read(record_count_max=record_count_max, timeout_s=timeout_s)
        if self._hook_failure is not None:
            failure, self._hook_failure = self._hook_failure, None
            raise failure
        return records

    def take_reached(self) -> Mapping[TopicPartition, int]:
        """Where reading stood at the end of partitions, told since the last call."""
        taken, self._reached = self._reached, {}
        return taken

    def hide_ends(self) -> None:
        """From now on it never tells of an end: a client is asked again before it could."""
        self._reading.tells_end = False

    def begin_store(self, offsets: Offsets) -> None:
        """Store offsets without waiting; `take_stored` tells how it ended.

        Raises:
            LifecycleError: the one before has not been told yet.
        """
        if self._begun is not None or self._end is not False:
            raise LifecycleError("a store of offsets is under way", state="storing")
        self._begun = dict(offsets)

    def take_stored(self) -> bool:
        """True once after the store that was begun was acknowledged.

        Raises:
            TxLayerError: it failed; see the port.
        """
        end, self._end = self._end, False
        if isinstance(end, TxLayerError):
            raise end
        return end

    def store_offsets(self, offsets: Offsets, *, timeout_s: float) -> None:
        """Store these and wait for the acknowledgement; what was begun is older, and given up.

        Raises:
            BrokerUnavailableError: not acknowledged within `timeout_s`; it may still happen.
            TxLayerError: it failed; see the port.
        """
        self._begun, self._end = None, False
        link = self._link
        deadline = link.world.monotonic() + timeout_s
        while True:
            try:
                self._ask_to_store(offsets)
            except NoAnswerError as exc:
                if link.world.monotonic() >= deadline:
                    raise BrokerUnavailableError(
                        "offsets were not stored in time",
                        bootstrap_servers=link.bootstrap_servers,
                        waited_ms=int(timeout_s * 1000),
                    ) from exc
                link.pause(link.jittered(RETRY_BACKOFF_S))
            else:
                return

    def close(self) -> None:
        """Leave the group; `on_revoke` is called first when there are partitions to give back."""
        if self._state is Membership.IN:
            self._before_revocation(is_lost=False)
        super().close()

    def _advice_for(self, topic: str) -> str:
        return consumer_advice(self._group, topic)

    def _before_revocation(self, *, is_lost: bool) -> None:
        try:
            if self._hook is not None:
                self._hook(is_lost)
        except Exception as exc:  # noqa: BLE001 - as a client's callback: the next read raises it
            self._hook_failure = exc
        # What a lost session left under way is fenced by its generation.
        self._begun, self._end = None, False

    def _send_begun(self) -> None:
        offsets = self._begun
        if offsets is None:
            return
        try:
            self._ask_to_store(offsets)
        except NoAnswerError:
            return
        except TxLayerError as exc:
            self._begun, self._end = None, exc
        else:
            self._begun, self._end = None, True

    def _ask_to_store(self, offsets: Offsets) -> None:
        link = self._link
        fence = MemberMetadata(self._group, self._member_id, self._generation)
        try:
            link.ask("OffsetCommit", lambda: link.broker.store_as_member(fence, offsets))
        except RefusedError as exc:
            raise translate_store_error(
                ClientError(exc.code),
                group=self._group,
                bootstrap_servers=link.bootstrap_servers,
            ) from exc
