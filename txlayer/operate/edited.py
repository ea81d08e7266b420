"""A dead letter whose value a person edits: a copy with the new value takes its place among the dead letters.

The protocol has no record for this and needs none. The copy is a dead letter like any other, with the key, the headers and the origin of the first one;
its error says whose edit it is, of which dead letter, and why. The first one is dropped and the copy is replayed by two
requests with one request id, so that whatever reads dead letters and requests finds both.
"""

from __future__ import annotations

from collections.abc import Callable

from txlayer.adapters.ports import HalfWriter
from txlayer.core.dead_letters import (
    DLQ_HEADER,
    ENDED,
    DeadLetter,
    DeadLetterReason,
    ReplayKind,
    ReplayRecord,
    encode_dead_letter,
    is_cut,
    original_headers,
)
from txlayer.core.progress import NO_KEY, hash_of_key
from txlayer.errors import UsageError
from txlayer.operate.dead_letters import ABLE, DeadLetterLog, FoundLetter, in_one_order
from txlayer.operate.operators import OperatorWriter
from txlayer.operate.replay import Author
from txlayer.operate.requests import Request, RequestWriter
from txlayer.runtime.kafka_transactions import SMALL_BATCH_BYTES

EDITED = "edited"
"""The error type of a copy."""


def why_not(log: DeadLetterLog, found: FoundLetter) -> str:
    """Why an edited copy cannot take the place of this dead letter; empty: it can."""
    if not isinstance(found.letter, DeadLetter):
        return "it is no dead letter of the group"
    if found.record is not None and is_cut(found.record.headers(), found.record.value()):
        return "its topic refused its content"
    if found.history.state not in ABLE:
        return f"it is {found.history.state.value}"
    if _others_of_its_key(log, found):
        return (
            "more dead letters of its parked key are open: a copy comes behind them, and the key would lose its order"
        )
    return ""


def _others_of_its_key(log: DeadLetterLog, found: FoundLetter) -> list[FoundLetter]:
    """The other open dead letters of its key, if the key is parked."""
    partition = found.position.partition
    queues = log.queues()
    whole = partition in in_one_order(log, queues, [partition])
    name = NO_KEY if whole else hash_of_key(found.key)
    others = [
        each._replace(record=None)
        for each in log.letters(partitions=[partition])
        if each.reason is not None
        and each.history.state not in ENDED
        and each.position != found.position
        and (whole or each.key == found.key)
    ]
    is_parked = name in queues[partition].parked or any(each.reason is DeadLetterReason.KEY_PARKED for each in others)
    return others if is_parked else []


def replace(
    log: DeadLetterLog,
    found: FoundLetter,
    value: bytes,
    *,
    author: Author,
    make_log_writer: Callable[[int], HalfWriter],
    writer: RequestWriter,
) -> int:
    """Store the copy, drop the first one, and have the copy replayed; returns the copy's offset.

    The drop goes before the replay, in one batch: if only one of them is written, the copy stays open, and nothing is handled
    twice. The same author's request id a second time writes no second copy.

    Raises:
        UsageError: it cannot be edited. Nothing was written, or the copy, which is dropped: messages followed meanwhile.
        RefusedRecordError: the topic refuses the copy, most often because of its size. Nothing was written.
        TxLayerError: not all is written; again with the same request id it goes on where it was.
    """
    letter, position = found.letter, found.position
    mark = f"request {author.request_id}, copy of offset {position.offset}: "
    copy = _copy_of(log, found, mark)
    if copy is None:
        reason = why_not(log, found)
        if reason or not isinstance(letter, DeadLetter):
            raise UsageError(f"{position} cannot be edited: {reason}")
        header = encode_dead_letter(letter._replace(error_type=EDITED, error_message=f"{mark}{author.text}"))
        headers = [*original_headers(found.record.headers()), (DLQ_HEADER, header)]
        records = [(None, log.dead_letters, position.partition, found.key, value)]
        ((_, copy),) = OperatorWriter(make_log_writer(SMALL_BATCH_BYTES), what="copies", step="edit").write(
            records, headers=headers
        )
    log.follow()
    at_copy = log.history(position._replace(offset=copy)).asked.get(author.request_id)
    is_late = any(each.position.offset < copy for each in _others_of_its_key(log, found))
    if is_late or (at_copy is not None and at_copy.record.kind is ReplayKind.DROP):
        wanted = [(ReplayKind.DROP, copy, f"messages followed {position.offset} meanwhile")]
    else:
        wanted = [
            (ReplayKind.DROP, position.offset, f"{copy} replaces it"),
            (ReplayKind.REPLAY, copy, f"it replaces {position.offset}"),
        ]
    requests = []
    for kind, offset, note in wanted:
        if author.request_id not in log.history(position._replace(offset=offset)).asked:
            record = ReplayRecord(kind, author.request_id, offset, text=f"{author.text} ({note})")
            requests.append(Request(log.topic, position.partition, found.key, record))
    writer.write(requests)
    if len(wanted) == 1:
        raise UsageError(
            f"{position} cannot be edited: messages of its parked key followed it meanwhile; its copy is dropped"
        )
    return copy


def _copy_of(log: DeadLetterLog, found: FoundLetter, mark: str) -> int | None:
    """The offset of the copy that this request has written before."""
    for each in log.letters(partitions=[found.position.partition]):
        letter = each.letter
        if isinstance(letter, DeadLetter) and letter.error_type == EDITED and letter.error_message.startswith(mark):
            return each.position.offset
    return None
