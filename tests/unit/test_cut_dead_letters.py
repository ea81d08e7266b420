"""Dead letters without their content, and with headers of their own."""

from typing import Any, cast

import pytest

from txlayer.adapters.memory.log import MemoryRecord
from txlayer.consumer.dead_letters import DeadLetterWriter, GivenUpMessage, Truncation
from txlayer.core.dead_letters import CUT_HEADER, DeadLetter, DeadLetterReason, dead_letter_of, is_cut, original_headers
from txlayer.core.messages import Origin


@pytest.mark.parametrize(
    ("headers", "value", "expected"),
    [
        ([(CUT_HEADER, b"20000"), ("txl-dlq", b"1|")], None, True),
        ([("tags", b"a"), ("txl-dlq", b"1|")], None, False),
        ([("colour", b"red"), (CUT_HEADER, b"1"), ("txl-dlq", b"1|")], None, False),
        ([(CUT_HEADER, b"1"), ("txl-dlq", b"1|")], b"a header of its own", False),
        ([], None, False),
        (None, None, False),
    ],
)
def test_a_cut_dead_letter_has_no_value_and_our_two_headers_alone(
    headers: list[tuple[str, bytes | None]] | None, value: bytes | None, *, expected: bool
) -> None:
    assert expected == is_cut(headers, value)


@pytest.mark.promise("P9")
def test_a_dead_letter_keeps_headers_of_ours_that_its_message_had() -> None:
    # A consumer of another group's dead letters works by the header `txl-dlq` of each.
    theirs = ("txl-dlq", b"why another group gave it up")
    letter = DeadLetter(DeadLetterReason.REJECTED, Origin("orders", 0, 7), 1, 1, 1, 1, "Reject", "no", "loyalty")
    writer = DeadLetterWriter(cast("Any", None), group="loyalty", name="w")
    record = MemoryRecord("orders", 0, b"k", b"v", [theirs], log_offset=7)

    entry = writer._dead_letter(GivenUpMessage(cast("Any", record), letter))

    assert [theirs] == original_headers(entry.headers)
    assert letter == dead_letter_of(entry.headers)


@pytest.mark.promise("P9")
@pytest.mark.parametrize("cut", [Truncation.CONTENT, Truncation.KEY_TOO])
def test_a_dead_letter_without_content_still_says_whose_message_it_is(cut: Truncation) -> None:
    letter = DeadLetter(DeadLetterReason.REJECTED, Origin("orders", 0, 7), 1, 1, 1, 1, "Reject", "no", "loyalty")
    writer = DeadLetterWriter(cast("Any", None), group="loyalty", name="w")
    headers = [("h", b"1"), ("txl-group", b"shop"), ("txl-id", b"x" * 4_000)]
    record = MemoryRecord("orders", 0, b"k", b"v", headers, log_offset=7)

    entry = writer._dead_letter(GivenUpMessage(cast("Any", record), letter, cut))

    assert is_cut(entry.headers, entry.value)
    assert letter._replace(txn_id="x" * 128, producer_group="shop") == dead_letter_of(entry.headers)
