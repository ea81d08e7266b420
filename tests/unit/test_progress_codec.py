"""Offsets and a consumer's progress as metadata: the vectors of the protocol page, round trips, limits, and texts of others."""

import zlib
from base64 import urlsafe_b64encode
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.protocol_page import vectors
from txlayer.adapters.ports import StoredOffset
from txlayer.config import SystemTopics
from txlayer.coordinator.recovery import StoredPositions, decode_stored, encode_stored
from txlayer.core.codec import WHOLE_MAX, known_fields
from txlayer.core.ledger.batch import Positions
from txlayer.core.progress import (
    BITMAP_BYTES_MAX,
    NOTHING,
    Attempts,
    Foreign,
    Run,
    StoredProgress,
    WaitingKeys,
    decode,
    encode,
    fixed_part,
)
from txlayer.errors import ConfigError

LIMIT = 4096
SECOND = st.integers(0, 2**40)


def text_of(
    offset: int, progress: StoredProgress, *, bytes_max: int = LIMIT, is_replay: bool = False
) -> tuple[str, bool]:
    """(its metadata, whether runs had no room)."""
    fixed = fixed_part(offset, progress, is_replay=is_replay)
    text, is_cut, run_count = encode(offset, progress.finished, fixed, bytes_max=bytes_max)
    assert is_cut == (run_count < len(progress.finished))
    return text, is_cut


@st.composite
def runs(draw: st.DrawFn, offset: int, *, length_max: int = 300, count_max: int = 40) -> list[Run]:
    """Finished runs above `offset`, apart from each other."""
    length = st.integers(1, length_max)
    found, position = [], offset
    for unfinished, finished in draw(st.lists(st.tuples(length, length), max_size=count_max)):
        found.append((position + unfinished, position + unfinished + finished))
        position = found[-1][1]
    return found


@st.composite
def progresses(draw: st.DrawFn) -> tuple[int, StoredProgress]:
    """(stored offset, what its metadata say)."""
    offset = draw(st.integers(0, 2**40))
    finished = draw(runs(offset))
    told = st.tuples(st.integers(1, 99), SECOND, st.booleans())
    failed = draw(st.dictionaries(st.integers(0, 5_000), told, max_size=9))
    attempts = {
        offset + at: Attempts(*told)
        for at, told in failed.items()
        if not any(start <= offset + at < end for start, end in finished)
    }
    parked = draw(st.dictionaries(st.binary(min_size=8, max_size=8), st.integers(0, 2**40), max_size=9))
    keys = draw(st.sets(st.sampled_from(sorted(parked)))) if parked else set()
    stuck = {key_hash: draw(st.integers(0, 2**40)) for key_hash in keys}
    writer = draw(st.text("abc.-_09", max_size=20))
    token = draw(st.none() | st.integers(0, WHOLE_MAX))
    length = draw(st.integers(1, 2**30))
    firsts = st.integers(offset, offset + length - 1)
    waiting = st.builds(
        WaitingKeys, st.just(offset + length), st.dictionaries(st.binary(min_size=8, max_size=8), firsts, max_size=9)
    )
    return offset, StoredProgress(
        writer, draw(st.booleans()), tuple(finished), attempts, parked, stuck, token, draw(st.none() | waiting)
    )


# --- the page ---------------------------------------------------------------------------------------------------------


def progress_of(vector: dict[str, Any]) -> StoredProgress:
    """What a vector says."""
    return StoredProgress(
        vector["writer"],
        vector["is_paused"],
        tuple((start, end) for start, end in vector["finished"]),
        {int(at): Attempts(*told) for at, told in vector["attempts"].items()},
        {bytes.fromhex(key_hash): at for key_hash, at in vector["parked"].items()},
        {bytes.fromhex(key_hash): at for key_hash, at in vector.get("stuck", {}).items()},
        vector.get("token"),
        waiting_of(vector.get("waiting")),
        vector.get("is_without_ends", False),
    )


def waiting_of(said: dict[str, Any] | None) -> WaitingKeys | None:
    """The same for keys that wait."""
    if said is None:
        return None
    return WaitingKeys(said["until"], {bytes.fromhex(name): at for name, at in said["keys"].items()})


def test_metadata_are_those_on_the_protocol_page() -> None:
    for vector in vectors("progress"):
        progress = progress_of(vector)

        assert progress == decode(vector["offset"], vector["metadata"])
        if not vector.get("is_only_read"):
            assert (vector["metadata"], False) == text_of(
                vector["offset"], progress, is_replay=vector.get("is_replay", False)
            )


def test_the_page_has_a_vector_of_each_form() -> None:
    texts = [vector["metadata"] for vector in vectors("progress")]

    assert any("~" in text for text in texts)
    assert any("|p|" in text for text in texts)
    assert any(text.split("|")[5] for text in texts)


@pytest.mark.parametrize("text", ["2||||||x", "2||||||-1", "2||||||", f"2||||||{WHOLE_MAX + 1}"])
def test_a_token_that_cannot_be_read_is_not_known_and_the_rest_counts(text: str) -> None:
    assert NOTHING == decode(7, text)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x05" + bytes(8),
        b"\x05" + bytes(8) + b"\x05",
        b"\x05" + bytes(8) + b"\x00" + bytes(8) + b"\x01",
        b"\xff" * 9,
    ],
)
def test_waiting_keys_that_cannot_be_read_are_not_known_and_the_rest_counts(raw: bytes) -> None:
    assert StoredProgress(token=3) == decode(7, f"2|||||||3|{letters(raw)}")


@pytest.mark.parametrize("field", ["x", "+", ""])
def test_rejections_that_cannot_be_read_are_not_known_and_the_rest_counts(field: str) -> None:
    assert StoredProgress(attempts={7: Attempts(1, 1)}) == decode(
        7, f"2||||{letters(bytes([1, 0, 1, 0]))}||||||{field}"
    )


# --- there and back ---------------------------------------------------------------------------------------------------


@given(progresses())
def test_what_was_stored_is_read_again(drawn: tuple[int, StoredProgress]) -> None:
    offset, progress = drawn
    text, is_cut = text_of(offset, progress)

    assert not is_cut
    assert text.isascii()
    assert progress == decode(offset, text)


@given(st.data(), st.integers(30, 400))
def test_what_does_not_fit_is_cut_from_the_end_of_the_runs(data: st.DataObject, room: int) -> None:
    offset = 5
    finished = data.draw(runs(offset, length_max=5, count_max=600))
    progress = StoredProgress(finished=tuple(finished), attempts={5: Attempts(2, 1_700_000_000)})

    text, is_cut = text_of(offset, progress, bytes_max=room)

    found = decode(offset, text)
    assert isinstance(found, StoredProgress)
    assert len(text) <= room
    assert progress.attempts == found.attempts
    assert tuple(finished[: len(found.finished)]) == found.finished
    assert is_cut == (len(found.finished) < len(finished))


def test_a_hundred_thousand_finished_behind_one_take_a_few_letters() -> None:
    text, is_cut = text_of(7, StoredProgress(finished=((8, 100_008),)))

    assert (False, 12) == (is_cut, len(text))


@pytest.mark.parametrize("gap", [2, 3, 7])
def test_thousands_of_short_runs_fit_as_a_bitmap(gap: int) -> None:
    finished = tuple((at + 1, at + gap) for at in range(0, 20_000, gap))

    text, is_cut = text_of(0, StoredProgress(finished=finished))

    assert not is_cut
    assert len(text) < 200
    assert StoredProgress(finished=finished) == decode(0, text)


SHORT = tuple((at, at + 1) for at in range(101, 4_101, 2))
"""So many that a bitmap is shorter than lengths; the stored offset is 100."""


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 64, 5_000])
@pytest.mark.parametrize("shift", range(8))
def test_a_bitmap_holds_runs_of_any_length_at_any_place(length: int, shift: int) -> None:
    start = 4_102 + shift
    finished = (*SHORT, (start, start + length), (start + length + 1, start + length + 2))

    text, is_cut = text_of(100, StoredProgress(finished=finished))

    assert (False, "~") == (is_cut, text.split("|")[3][0])
    assert StoredProgress(finished=finished) == decode(100, text)


@pytest.mark.parametrize(("beyond", "fit_count"), [(0, 2_001), (1, 2_000)])
def test_a_bitmap_ends_where_a_reader_would_stop(beyond: int, fit_count: int) -> None:
    end = 100 + 8 * BITMAP_BYTES_MAX + beyond
    finished = (*SHORT, (end - 1, end))

    text, is_cut = text_of(100, StoredProgress(finished=finished))

    found = decode(100, text)
    assert isinstance(found, StoredProgress)
    assert finished[:fit_count] == found.finished
    assert (beyond > 0) == is_cut


@pytest.mark.slow
def test_dice_cannot_be_compressed_and_are_cut_to_what_fits() -> None:
    dice = b"".join(sha256(str(n).encode()).digest() for n in range(2_000))
    bits = bin(int.from_bytes(b"\x01" + dice, "big"))[3:]
    finished, at = [], bits.find("1")
    while at >= 0:
        end = bits.find("0", at)
        finished.append((at + 1, end + 1))
        at = bits.find("1", end)

    for room in range(LIMIT - 12, LIMIT):  # bytes are written in groups of three or four
        text, is_cut = text_of(0, StoredProgress(finished=tuple(finished[:-1])), bytes_max=room)

        found = decode(0, text)
        assert isinstance(found, StoredProgress)
        assert is_cut
        assert room - 40 < len(text) <= room
        assert tuple(finished[: len(found.finished)]) == found.finished


def test_what_nothing_can_compress_is_cut_to_what_fits_as_it_is() -> None:
    # Lengths without a pattern.
    ends = list(accumulate(1 + zlib.crc32(str(n).encode()) % 3 for n in range(40_000)))
    finished = tuple(pairwise(ends))[::2]

    text, is_cut = text_of(0, StoredProgress(finished=finished))

    found = decode(0, text)
    assert isinstance(found, StoredProgress)
    assert is_cut
    assert LIMIT * 3 // 4 < len(text) <= LIMIT
    assert finished[: len(found.finished)] == found.finished
    assert found.finished[-1][1] > 20_000


# --- texts of others --------------------------------------------------------------------------------------------------


def test_no_metadata_say_nothing() -> None:
    assert NOTHING == decode(12, "")


def letters(raw: bytes) -> str:
    """base64url without padding."""
    return urlsafe_b64encode(raw).decode().rstrip("=")


def packed(bitmap: bytes) -> str:
    """Metadata with this bitmap."""
    return f"1|||~{letters(zlib.compress(bitmap))}||"


HIGHEST = b"\xff" * 8 + b"\x7f"
"""The highest number that there is."""


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "3|||||",
        "1||||",
        "1||||||",
        "1||x|||",
        "1|||A||",  # not base64
        "1|||AQ ||",
        "1|||AQA||",  # an empty run
        f"1|||{letters(bytes([1]) + HIGHEST[:8] + bytes([255, 1]))}||",  # a number of ten bytes
        f"1|||{letters(bytes([1, 1, 1]) + HIGHEST[:2])}||",  # a number cut off
        "1|||~||",
        packed(b""),
        packed(b"\x03"),  # the stored offset is finished
        packed(b"\x02" * (BITMAP_BYTES_MAX + 1)),
        packed(b"\x02" * 9)[:-8] + "||",  # cut off
        f"1||||{letters(bytes([5, 0, 1]))}|",
        f"1||||{letters(bytes([5]) + HIGHEST + bytes([1, 0]))}|",  # beyond the highest offset
        f"1||||{letters(bytes([5, 0, 1]) + HIGHEST)}|",  # beyond the highest second
        f"1|||||{letters(bytes(5))}",  # half a hash
        f"1|||||{letters(bytes(8))}",  # without an offset
    ],
)
def test_other_texts_are_foreign(text: str) -> None:
    found = decode(100, text)

    assert isinstance(found, Foreign)
    assert found.why


LONG = "x" * 30
TOO_LONG = "bitmap: too long, cut off, or followed by something"
EMPTY_RUN = "runs: an empty one, or one without its other half"
BEYOND = "attempts: twice, none, or beyond the highest number"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("é", "not ASCII"),
        (f"{LONG}|", f"unknown version {LONG[:20]!r}"),
        (f"1||{LONG}|||", f"unknown flags {LONG[:20]!r}"),
        ("1|||A+||", "not base64url"),
        ("1|||A/||", "not base64url"),
        ("1|||AA==||", "not base64url"),
        (f"1|||{letters(bytes([1]))}||", EMPTY_RUN),
        (f"1|||{letters(bytes([0, 1]))}||", EMPTY_RUN),
        (f"1|||{letters(bytes([1]) + HIGHEST)}||", "runs: beyond the highest offset"),
        (f"1|||{letters(bytes([1, 0x80]))}||", "a number is cut off or too long"),
        (f"1|||{letters(bytes([1] + [0x80] * 9 + [1]))}||", "a number is cut off or too long"),
        (f"1||||{letters(bytes([5]))}|", "attempts: one without its numbers"),
        (f"1||||{letters(bytes([5, 0, 0, 0]))}|", BEYOND),
        (f"1||||{letters(bytes([5, 1, 1, 0, 0, 1, 0]))}|", BEYOND),
        (f"1|||AQE|{letters(bytes([5, 1, 1, 0]))}|", "attempts of a finished record"),
        (f"1|||||{letters(bytes(18))}", "parked: a key twice"),
        (f"1|||~{letters(zlib.compress(bytes([2])) + b'more')}||", TOO_LONG),
        (packed(b"\x02\x00"), "bitmap: nothing finished at its end, or the stored offset finished"),
    ],
)
def test_what_is_wrong_with_a_text_is_told(text: str, why: str) -> None:
    assert Foreign(why) == decode(0, text)


def test_offsets_up_to_the_highest_number_are_known() -> None:
    runs = decode(WHOLE_MAX - 2, f"1|||{letters(bytes([1, 1]))}||")
    attempts = decode(WHOLE_MAX - 1, f"1||||{letters(bytes([5, 1, 1, 0]))}|")

    assert StoredProgress(finished=((WHOLE_MAX - 1, WHOLE_MAX),)) == runs
    assert StoredProgress(attempts={WHOLE_MAX: Attempts(1, 5)}) == attempts


def test_what_zlib_says_of_a_bitmap_is_told() -> None:
    found = decode(0, "1|||~AAAA||")

    assert isinstance(found, Foreign)
    assert found.why.startswith("bitmap: Error -3 while decompressing data")


def test_a_bitmap_may_reach_to_the_highest_offset_and_not_beyond() -> None:
    text = packed(b"\x80")

    assert StoredProgress(finished=((WHOLE_MAX - 1, WHOLE_MAX),)) == decode(WHOLE_MAX - 8, text)
    assert isinstance(decode(WHOLE_MAX - 7, text), Foreign)


PARTS = ["1", "|", "~", "AQ", "AQE", "_", "-", "p", "gOLPqgYAAwA", "A", "eJxbtQoGACSQBqU", "x", "é"]


@given(st.integers(0, 2**63 - 1), st.text(max_size=60) | st.lists(st.sampled_from(PARTS)).map("".join))
@example(0, "1|||AQE||")
@example(2**63 - 1, "1|||AQE||")
@example(0, "1|||||AAAAAAAAAAAA")
def test_no_text_stops_a_consumer(offset: int, text: str) -> None:
    found = decode(offset, text)

    if isinstance(found, StoredProgress):
        again, is_cut = text_of(offset, found, bytes_max=2**20)
        assert not is_cut
        assert found == decode(offset, again)
    else:
        assert found.why


@pytest.mark.parametrize("stuck", ["x", "AQ", "BQA", "AA", "AAD_____________"])
def test_a_stuck_field_of_another_form_is_passed_over(stuck: str) -> None:
    parked = {bytes(8): 7}
    text, _ = text_of(5, StoredProgress(parked=parked))

    assert StoredProgress(parked=parked) == decode(5, f"2{text[1:]}|{stuck}")


def test_who_does_not_know_stuck_keys_reads_everything_else() -> None:
    parked = {bytes(8): 7}
    text, _ = text_of(5, StoredProgress(writer="w", parked=parked, stuck={bytes(8): 3}))

    fields = known_fields(text.split("|"), 6)

    assert fields is not None
    assert text_of(5, StoredProgress(writer="w", parked=parked))[0] == "|".join(["1", *fields[1:]])


TOPICS = SystemTopics("txlayer")


def stored(pair: list[Any]) -> StoredOffset:
    """An offset of the page."""
    return StoredOffset(*pair)


def test_stored_offsets_are_those_on_the_protocol_page() -> None:
    for vector in vectors("stored"):
        half, op = stored(vector["half"]), stored(vector["op"])
        positions = Positions(**{name: vector[name] for name in Positions._fields})

        encoded = encode_stored(
            positions, writer=vector["writer"], topics=TOPICS, partition=3, time_ms=vector["time_ms"]
        )

        assert {(TOPICS.half, 3): half, (TOPICS.op, 3): op} == encoded
        found = StoredPositions(positions, vector["writer"], vector["time_ms"])
        assert found == decode_stored(half, op, partition=3)


def test_empty_metadata_begin_at_the_two_offsets() -> None:
    begun = decode_stored(StoredOffset(7, ""), StoredOffset(5, ""), partition=0)

    assert (7, 7, 5, 0, 5, 0, 0, 7) == begun.positions
    assert "" == begun.writer


@pytest.mark.parametrize(("half", "op"), [(None, StoredOffset(0, "")), (StoredOffset(0, ""), None), (None, None)])
def test_without_a_stored_offset_the_command_is_named(half: StoredOffset | None, op: StoredOffset | None) -> None:
    with pytest.raises(ConfigError, match="txlayer topics apply"):
        decode_stored(half, op, partition=3)


def test_without_a_time_nobody_knows_it() -> None:
    found = decode_stored(StoredOffset(7, "1|w|6"), StoredOffset(5, "1|w|9|0|5:0|0"), partition=0)

    assert (6, 0) == (found.positions.copies_from, found.time_ms)


def test_without_a_place_for_copies_nothing_before_the_low_water_mark_is_read() -> None:
    found = decode_stored(StoredOffset(7, "1|w"), StoredOffset(5, "1|w|9|0|5:0|0"), partition=0)

    assert 7 == found.positions.copies_from


@pytest.mark.fault("operation: two versions in one group, a wrong setting, or a return to an older version")
@pytest.mark.parametrize(
    "metadata", ["x", "3|w|0|0|0:0|0", "1|w|0|0|0:0", "1|w|a|0|0:0|0", "1|w|0|0|0|0", "1|w|0|0|0:0|0|"]
)
def test_metadata_of_somebody_else_are_refused(metadata: str) -> None:
    with pytest.raises(ConfigError, match="coordinator reset"):
        decode_stored(StoredOffset(0, "1|w"), StoredOffset(0, metadata), partition=3)
