"""docs/howto/errors.md speaks of every class of the error tree, in its order and depth, and of every exit code."""

import re
from pathlib import Path

from txlayer import errors
from txlayer.cli.exits import ExitCode
from txlayer.errors import TxLayerError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "errors.md"


def tree(root: type[TxLayerError] = TxLayerError, depth: int = 0) -> list[tuple[int, str]]:
    """(depth, class) in the order of their definition."""
    own = [cls for cls in root.__subclasses__() if cls.__module__ == errors.__name__]
    return [(depth, root.__name__), *(found for cls in own for found in tree(cls, depth + 1))]


def test_the_headings_are_the_error_tree() -> None:
    headings = re.findall(r"^(#{2,}) (\w+Error)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    expected = [(max(depth, 1) + 1, name) for depth, name in tree()]

    # The root has a heading as deep as its branches.
    assert expected == [(len(marks), name) for marks, name in headings]


def test_every_field_that_is_named_exists() -> None:
    sections = re.split(r"^#{2,} (\w+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    unknown = [
        f"{name}.{field}"
        for name, text in zip(sections[1::2], sections[2::2], strict=True)
        if name.endswith("Error")
        for field in re.findall(r"`\.(\w+)`", text)
        if field not in vars(errors)[name].field_names
    ]

    assert [] == unknown


def test_the_exit_codes_are_those_of_the_commands() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert [(str(code.value), code.name) for code in ExitCode] == rows
