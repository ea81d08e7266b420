"""What the new user of tests/docs/newcomer.py types stands on the pages, and it stays little enough for five minutes."""

import re

from tests.docs.newcomer import (
    PASTE_S,
    READ_PER_MINUTE,
    TYPED_PER_MINUTE,
    commands,
    install_line,
    program,
    words_to_read,
)
from tests.support.packaging import ROOT

PAGE = (ROOT / "docs" / "explanation" / "first-message.md").read_text(encoding="utf-8")


def test_readme_says_what_to_type_from_nothing_to_a_message() -> None:
    assert ["txlayer broker start", "txlayer topics apply", "txlayer coordinator run"] == commands()
    assert 'pip install "txlayer[local]"' == install_line()
    assert "TransactionalProducer" in program()
    assert "read_committed" in program()


def test_reading_and_typing_it_takes_a_person_less_than_five_minutes() -> None:
    # Lengths of texts, not a measured time: README cannot grow past the promise.
    typed = sum(len(line) for line in ["python -m venv shop", install_line(), *commands(), "python shop.py"])
    reading_s, typing_s = words_to_read() * 60 / READ_PER_MINUTE, typed * 60 / TYPED_PER_MINUTE

    assert reading_s + typing_s + 2 * PASTE_S < 300


def test_the_page_shows_the_same_steps() -> None:
    shown = re.findall(r"^\| `([^`]+)` \| (?:[\d.]+ s|not measured) \|$", PAGE, re.MULTILINE)

    assert ["python -m venv shop", install_line(), *commands(), "python shop.py"] == shown
