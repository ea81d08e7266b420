"""The steps of a transaction, as generators that yield what to wait for; the drivers for threads and asyncio wait.

    launch     topics known → slot in flight → half messages queued
    stored     every half message acknowledged; then the local transaction runs
    resolve    the op line is queued; this does not wait
    result     the op line is acknowledged

`submit` takes the same steps without a generator if it need not wait, and its transaction resolves itself; a test
checks that both write the same bytes.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from txlayer.core import codec
from txlayer.core.history import TransactionHistory
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import Message, OpMessage, Resolution, Source
from txlayer.errors import (
    LifecycleError,
    OutcomeUnknownError,
    RefusedRecordError,
    RetriableError,
    RollbackRequiredError,
)
from txlayer.producer.encoding import HalfRecord
from txlayer.producer.engine import Engine, MakePending
from txlayer.producer.identity import Entry, Placement
from txlayer.producer.pipeline import FAILED, STORING, PendingTransaction, TransactionSendResult
from txlayer.producer.waiting import Blocking, Steps


def check_may_wait(engine: Engine) -> None:
    """Return if this thread may wait for reports; LifecycleError: it brings them itself. Nothing was sent."""
    if engine.pipeline.is_own_thread:
        raise LifecycleError(
            "the producer's own thread would wait for itself; submit() waits for nothing", state="open"
        )


def launch(
    engine: Engine, make: MakePending, messages: Sequence[Message], entry: Entry, key: str
) -> Steps[PendingTransaction]:
    """Queue every half message.

    Raises:
        TxLayerError: what `TransactionalProducer.submit` raises. Nothing was sent, or what was is rolled back.
    """
    placement, asked = engine.identity.placement_of(entry.placement, messages), entry.asked
    plain = engine.encoder.plain_record(messages[0], placement) if len(messages) == 1 and not asked else None
    if plain is not None:
        records = [plain]
    else:
        records = yield from known_records(engine, messages, placement, asked)
    deadline = 0.0
    while True:
        if engine.closed is not None:  # since it was entered, or began to wait
            raise engine.closed.error()
        txn = engine.launch_now(make, records, placement, key)
        if txn is not None:
            break
        deadline = deadline or time.monotonic() + engine.config.prepare_timeout.total_seconds()
        if not entry.may_wait or time.monotonic() > deadline:
            raise RetriableError(
                f"in_flight_max={engine.config.in_flight_max} transactions are in flight. Nothing was sent"
            )
        yield engine.pipeline.slots_bell.subscribe
    if txn.unsent is not None:
        try:
            yield from _store_rest(engine, txn)
        except BaseException as exc:
            engine.pipeline.dropped(txn, exc)
            raise
    return txn


def known_records(
    engine: Engine, messages: Sequence[Message], placement: Placement, asked: str
) -> Steps[list[HalfRecord]]:
    """The half records, after asking the cluster about topics that are new or seem to have changed. Raises as `launch`."""
    encoder = engine.encoder
    has_asked = False
    while True:
        for topic in encoder.unknown_topics(messages):
            yield Blocking(partial(engine.learn, topic))
            has_asked = True
        try:
            records = encoder.records(messages, placement, asked)
        except RefusedRecordError as exc:
            if has_asked or exc.topic is None:
                raise
            encoder.forget(exc.topic)  # its limit may have been raised since
            continue
        if records is not None:
            return records


def _store_rest(engine: Engine, txn: PendingTransaction) -> Steps[None]:
    """Queue the half messages that the client had no room for.

    Raises:
        RetriableError, RollbackRequiredError: it took none for `prepare_timeout`. Nothing was sent, or what was is rolled back.
        TxLayerError: the client refuses one, or the producer ended.
    """
    assert txn.unsent is not None
    (records, queued_count), pipeline = txn.unsent, engine.pipeline
    count, timeout_s = len(records), engine.config.prepare_timeout.total_seconds()
    taken_at = time.monotonic()
    while (now_queued_count := pipeline.store(txn, records, queued_count)) < count:
        now = time.monotonic()
        if now_queued_count > queued_count:
            queued_count, taken_at = now_queued_count, now
            txn.unsent = records, queued_count
        elif now - taken_at > timeout_s:
            error = "the client has no room for the messages (see queue.buffering.max.kbytes)"
            raise (
                RollbackRequiredError(error, txn_id=txn.txn_id)
                if queued_count
                else RetriableError(f"{error}. Nothing was sent")
            )
        yield pipeline.round_bell.subscribe
        pipeline.check_alive()
    txn.unsent = None


def stored(engine: Engine, txn: PendingTransaction) -> Steps[None]:
    """Wait until every half message is acknowledged; TxLayerError: what `Transaction.prepare` raises."""
    while txn.stage is STORING:
        if not engine.pipeline.is_alive:
            raise _unreachable(engine, txn, "half")
        yield txn.until_stored
    if txn.stage is FAILED:
        assert txn.error is not None
        raise txn.error


def resolve(engine: Engine, txn: PendingTransaction, resolution: Resolution) -> None:
    """Write the resolution of a prepared transaction, without waiting."""
    txn.resolution = resolution
    txn.queue.waiting.append(txn)  # no interrupt comes between the two
    engine.pipeline.resolved(txn.queue)


def result(engine: Engine, txn: PendingTransaction, *, with_decision: bool = False) -> Steps[TransactionSendResult]:
    """Wait until the op line is acknowledged, and optionally read the decision.

    Raises:
        OutcomeUnknownError: the op line may not be stored; a check-back settles the transaction.
        RetriableError, NotAuthorisedError: the op line is stored, but the decision cannot be read.
    """
    while not txn.is_over:
        if not engine.pipeline.is_alive:
            raise _unreachable(engine, txn, "op")
        yield txn.until_over
    if txn.stage is FAILED:
        assert txn.error is not None
        raise txn.error
    found = txn.send_result()
    if with_decision:
        # Any earlier decision is before this line in op: the answer is final, unless this resolution was UNKNOWN.
        found = found._replace(decision=(yield Blocking(partial(engine.decision, txn))))
    return found


def change_time(engine: Engine, txn_id: str, *, time_ms: int | None, since: timedelta) -> Steps[bool]:
    """Write a line that gives what is scheduled of a transaction another time, and read whether it came first; None gives it up.

    Raises:
        TxLayerError: what `TransactionalProducer.cancel` and `reschedule` raise.
    """
    check_may_wait(engine)
    read = Blocking(partial(engine.status, txn_id, since=since, is_whole=True))
    written: dict[str, tuple[TransactionHistory, int]] = {}
    was_given_up = False
    for history in (yield read):
        if history.producer_group != engine.pipeline.group:
            continue
        was_given_up = _was_given_up(history)  # of several attempts, the newest one counts
        # A line for what is released would concern what only waits for its key or its topic.
        if not was_given_up and history.may_be_scheduled and history.times_left():
            written[history.nonce] = history, (yield from _write_time(engine, history, time_ms))
    if not written:
        return was_given_up and time_ms is None
    try:
        op_lines = {history.nonce: history.op_lines for history in (yield read)}
    except RetriableError as exc:
        raise OutcomeUnknownError(
            "the line is stored, and what was there first cannot be read; call it again", txn_id=txn_id, step="op"
        ) from exc
    # Its times are those of the first look: doubt may have ended it by now, and its half records may be older than what is read.
    for nonce, (history, offset) in written.items():
        now = replace(history, op_lines=op_lines.get(nonce, ()))
        # Who cancels what another one cancelled at the same time hears that it is cancelled.
        before = now.abandon.offset if time_ms is None and now.abandon is not None else offset
        if now.times_left(before=before):
            return True
    return False


def _was_given_up(history: TransactionHistory) -> bool:
    """True if a line gave up messages of it before their time, such as that of a call whose outcome was not known."""
    line = history.abandon
    if line is None:
        return False
    if not history.half_records and history.summary is None:  # its times are not known
        return history.state is TxnState.ROLLED_BACK
    return bool(history.times_left(before=line.offset))


def _write_time(engine: Engine, history: TransactionHistory, time_ms: int | None) -> Steps[int]:
    """Write the line; returns its offset once it is acknowledged."""
    pipeline = engine.pipeline
    is_abandon, key = time_ms is None, f"{history.txn_id}/{history.nonce}"
    resolution = Resolution.ROLLBACK if is_abandon else Resolution.UNKNOWN
    of_half = (history.producer_group, history.last_half_offset, history.born_ms or 0)
    line = codec.encode_op(
        OpMessage(resolution, key, *of_half, Source.PRODUCER, is_abandon=is_abandon, time_ms=time_ms)
    )
    reports: list[tuple[Any, int | None]] = []
    deadline = time.monotonic() + engine.config.resolution_timeout.total_seconds()
    is_queued = False
    while not reports and pipeline.is_alive and time.monotonic() < deadline:
        if not is_queued:
            try:
                pipeline.produce(
                    pipeline.op_topic,
                    codec.encode_ops([line]),
                    None,
                    history.partition,
                    lambda error, record: reports.append((error, None if error is not None else record.offset())),
                )
                is_queued = True
            except BufferError:
                pass  # the client has no room now
            except Exception as exc:
                raise pipeline.error_of(exc, topic=pipeline.op_topic, txn=history) from exc
        if not reports:
            yield pipeline.round_bell.subscribe
    error, offset = reports[0] if reports else (None, None)
    if error is not None:
        raise pipeline.error_of(error, topic=pipeline.op_topic, txn=history)
    if offset is None:  # no report came, or one without the offset: the line may be stored
        raise OutcomeUnknownError("the line may not be stored; call it again", txn_id=history.txn_id, step="op")
    return offset


def close(engine: Engine, timeout_s: float) -> Steps[None]:
    """Wait for what is in flight, then stop; OutcomeUnknownError: not all ended in time; check-backs settle it."""
    pipeline = engine.pipeline
    deadline = time.monotonic() + timeout_s
    pipeline.begin_close()
    if engine.is_unwatched is not None:
        engine.is_unwatched.set()
    if engine.responder is not None:
        engine.responder.begin_close()
    while pipeline.in_flight_count and pipeline.is_alive and time.monotonic() < deadline:
        yield pipeline.round_bell.subscribe
    left_count = pipeline.in_flight_count
    if engine.responder is not None:
        yield Blocking(partial(engine.responder.close, max(deadline - time.monotonic(), 0.0)))
    yield Blocking(partial(pipeline.end, max(deadline - time.monotonic(), 0.0)))
    # Blocking, too: a client may just be asking a broker that does not answer.
    yield Blocking(engine.connections.close)
    if left_count:
        raise OutcomeUnknownError(
            f"{left_count} transactions were still in flight when the producer ended; check-backs settle them",
            step="close",
        )


def _unreachable(engine: Engine, txn: PendingTransaction, step: str) -> OutcomeUnknownError:
    error = OutcomeUnknownError("the producer ended before the report came", txn_id=txn.txn_id, step=step)
    error.__cause__ = engine.pipeline.failure
    return error
