"""Dead letters without their content: no copy of them is published, for its value would be null."""

from __future__ import annotations

from typing import Any, cast

import pytest

from txlayer.cli.dlq_republish import _copies
from txlayer.consumer.dead_letter_log import Place
from txlayer.consumer.letter_choice import Chosen
from txlayer.core.dead_letters import CUT_HEADER, is_cut


class Letter:
    """A record of a dead-letter topic."""

    def __init__(self, *headers: tuple[str, bytes]) -> None:
        self._headers = list(headers)

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers


class Letters:
    """A reader of dead letters, and the log of them."""

    dead_letters = "g.t.dlq"

    def __init__(self, *letters: Letter) -> None:
        self._letters = letters

    def fetch(self, _topic: str, _partition: int, offsets: list[int]) -> dict[int, Any]:
        return {offset: self._letters[offset] for offset in offsets}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(CUT_HEADER, b"20000"), ("txl-dlq", b"1|")], True),
        ([("tags", b"a"), ("txl-dlq", b"1|")], False),
        ([], False),
        (None, False),
    ],
)
def test_a_cut_dead_letter_is_known_by_its_header(
    headers: list[tuple[str, bytes | None]] | None, *, expected: bool
) -> None:
    assert expected == is_cut(headers)


def test_no_copy_of_a_dead_letter_without_content_is_published() -> None:
    letters = Letters(Letter(("txl-dlq", b"")), Letter((CUT_HEADER, b"9"), ("txl-dlq", b"")))
    chosen = [
        cast("Chosen", type("Choice", (), {"place": Place("t", 0, offset)})) for offset in (0, 1)
    ]
    gone: list[Chosen] = []

    copies = list(_copies(chosen, cast("Any", letters), cast("Any", {"t": letters}), gone))

    assert [0] == [copy.place.offset for copy in copies]
    assert chosen[1:] == gone
