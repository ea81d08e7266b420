"""The `tx` that users hold: what may be called when, and what leaving the block means. Never: waiting."""

from __future__ import annotations

from enum import Enum
from typing import Any

from txlayer.adapters.barrier import Barrier
from txlayer.core.ids import NONCE_LENGTH
from txlayer.core.messages import Message, Resolution, UserHeaders
from txlayer.errors import LifecycleError, UsageError
from txlayer.producer import steps
from txlayer.producer.encoding import headers_of
from txlayer.producer.engine import Engine
from txlayer.producer.flight import Flight
from txlayer.producer.identity import Place, now_ms
from txlayer.producer.local import joinable, part_of
from txlayer.producer.results import TransactionSendResult
from txlayer.producer.waiting import Steps


class Phase(Enum):
    """What the user has done with a transaction so far."""

    GATHERING = "gathering messages"  #: `send` may be called
    PREPARING = "preparing"  #: half messages are under way
    PREPARED = "prepared"  #: the local transaction may run
    RESOLVED = "resolved"  #: its resolution is said
    DROPPED = "dropped"  #: rolled back before anything was sent
    FAILED = "failed"  #: `prepare` raised


GATHERING, PREPARING, PREPARED, RESOLVED, DROPPED, FAILED = Phase
# By these names, because a member looked up at its class takes longer than comparing it.


class OpenTransaction:
    """One transaction of one thread or task; threads and asyncio differ only in how they wait for its steps."""

    __slots__ = (
        "_engine", "_flight", "_key", "_local", "_may_wait", "_messages", "_phase", "_place",
    )  # fmt: skip

    def __init__(
        self, engine: Engine, *, barrier: Barrier | None, place: Place, key: str, may_wait: bool
    ) -> None:
        self._engine = engine
        self._local = part_of(barrier, group=engine.pipeline.group)
        self._place = place
        self._key = key
        self._may_wait = may_wait
        self._messages: list[Message] = []
        self._flight: Flight | None = None
        self._phase = GATHERING

    @property
    def txn_id(self) -> str:
        """The transaction id."""
        return self._key[: -NONCE_LENGTH - 1]

    @property
    def nonce(self) -> str:
        """The nonce of this attempt: together with the id it is the transaction."""
        return self._key[-NONCE_LENGTH:]

    @property
    def resolution(self) -> Resolution | None:
        """What was said; None before."""
        return None if self._flight is None else self._flight.resolution

    def send(
        self,
        topic: str,
        *,
        key: bytes | str | None = None,
        value: Any = None,
        headers: UserHeaders | None = None,
        tags: str | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Add a message; it is kept until `prepare`. Text is UTF-8; a null key or value is forwarded as it is.

        Raises:
            LifecycleError: it is prepared already. The transaction goes on without this message.
            ForbiddenTopicError, ReservedHeaderError, UsageError: the message cannot be sent. The same.
        """
        if self._phase is not GATHERING:
            raise self._misfit("send")
        self._engine.encoder.check_topic(topic)
        if headers is not None:
            headers = headers_of(headers)
        limit = self._engine.config.transaction_messages_max
        if len(self._messages) >= limit:
            raise UsageError(
                f"transaction_messages_max={limit} messages are in this transaction already"
            )
        self._messages.append(Message(topic, key, value, headers, tags, partition, timestamp))

    def commit(self) -> None:
        """Say commit now rather than at the end of the block; it is sent without waiting.

        Raises:
            LifecycleError: it is not prepared, or said already, or the local transaction that joined has not reported
                its commit. Nothing changed.
        """
        self._resolve(Resolution.COMMIT, "commit")

    def rollback(self) -> None:
        """Say that the local transaction is gone; it is sent without waiting. Before `prepare` nothing is sent at all.

        A joined local transaction that is still open refuses its commit from now on.

        Raises:
            LifecycleError: it is said already, or the joined local transaction is committed or may be. Nothing changed.
        """
        if self._phase is GATHERING:
            self._phase = DROPPED
            self._messages = []
        else:
            self._resolve(Resolution.ROLLBACK, "rollback")

    def unknown(self) -> None:
        """Say that nobody can say yet: a check-back settles it; it is sent without waiting.

        Raises:
            LifecycleError: it is not prepared, or said already. Nothing changed.
        """
        self._resolve(Resolution.UNKNOWN, "unknown")

    # --- for the drivers ----------------------------------------------------------------------------------------------

    def _prepare_steps(self) -> Steps[None]:
        if self._phase is not GATHERING:
            raise self._misfit("prepare")
        self._phase = PREPARING
        engine = self._engine
        try:
            flight = self._flight = yield from steps.launch(
                engine, Flight, self._messages, self._place, self._key, may_wait=self._may_wait
            )
            yield from steps.stored(engine, flight)
        except Exception:
            if self._flight is None:
                # Nothing is under way: `prepare` may be called again, as an attempt of its own.
                self._phase = GATHERING
                self._key = self._engine.identity.draw(self.txn_id, now_ms())
            else:
                self._phase = FAILED
            raise
        self._messages = []
        self._phase = PREPARED
        if self._local is not None:
            self._local.begin()

    def _join_steps(self, session: Any) -> Steps[None]:
        local = joinable(self._local)
        if self._phase is not GATHERING and self._phase is not PREPARED:
            raise self._misfit("join")
        yield from local.check_steps(session)
        if self._phase is GATHERING:
            yield from self._prepare_steps()
        yield from local.write_steps(session, txn_id=self.txn_id, nonce=self.nonce)

    def _result_steps(self, *, with_decision: bool) -> Steps[TransactionSendResult]:
        if self._phase is not RESOLVED or self._flight is None:
            raise LifecycleError("result: nothing was said yet", state=self._phase.value)
        return steps.result(self._engine, self._flight, with_decision=with_decision)

    def _leave_steps(self, error: BaseException | None) -> Steps[None]:
        """`leave`, where a barrier may have to be asked what became of the local transaction."""
        if self._phase is PREPARED and self._local is not None:
            try:
                ending = yield from self._local.end_steps(
                    txn_id=self.txn_id, nonce=self.nonce, has_failed=error is not None
                )
            except BaseException:  # interrupted or cancelled while it asked
                self._say(Resolution.UNKNOWN)
                raise
            self._say(ending.resolution)
            if ending.misfit is not None:
                raise LifecycleError(ending.misfit, state=PREPARED.value)
            return
        self.leave(error)

    def leave(self, error: BaseException | None) -> None:
        """The end of the block, by `error` or normally, where no barrier need be asked.

        Raises:
            LifecycleError: it ended normally, but nothing can be committed; what happened is said.
        """
        phase, flight = self._phase, self._flight
        if phase is PREPARED:
            # After an error nobody here knows what became of the local transaction.
            self._say(Resolution.COMMIT if error is None else Resolution.UNKNOWN)
            return
        if phase is PREPARING and flight is not None:
            self._engine.pipeline.post(flight.abandon)
        if error is not None or phase in (RESOLVED, DROPPED):
            return
        if phase is GATHERING:
            raise LifecycleError(
                "left without prepare: nothing was sent (publish() serves messages without a local transaction)",
                state=phase.value,
            )
        raise LifecycleError(
            "prepare did not succeed: nothing is committed", state=phase.value
        ) from (None if flight is None else flight.error)

    def _resolve(self, resolution: Resolution, call: str) -> None:
        if self._phase is not PREPARED:
            raise self._misfit(call)
        if self._local is not None:
            self._local.check_said(resolution)
        self._say(resolution)

    def _say(self, resolution: Resolution) -> None:
        assert self._flight is not None
        self._phase = RESOLVED
        if self._local is not None:
            self._local.end()
        steps.resolve(self._engine, self._flight, resolution)

    def _misfit(self, call: str) -> LifecycleError:
        return LifecycleError(
            f"{call}() does not fit: the transaction is {self._phase.value}",
            state=self._phase.value,
        )
