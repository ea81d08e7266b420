"""The vectors for other languages are those of the code, and their page names every part of them."""

import re

from tests.support import vectors

PAGE = vectors.FILE.with_suffix(".md")


def test_the_vectors_are_those_of_the_code() -> None:
    assert vectors.text() == vectors.FILE.read_text("utf-8"), vectors.COMMAND


def test_the_page_names_every_part_of_the_file() -> None:
    rows = re.findall(r"^\| `(\w+)`", PAGE.read_text("utf-8"), re.MULTILINE)

    assert rows == [name for name in vectors.document() if name != "about"]
