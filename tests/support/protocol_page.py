"""The test vectors of docs/explanation/protocol.md, so that the page and the code stay equal."""

import json
import re
from pathlib import Path
from typing import Any

from txlayer.core.messages import CheckKind, OrderMode, Resolution, Source, UnresolvedAction

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "protocol.md"


def vectors(name: str) -> list[dict[str, Any]]:
    """The vectors in the block marked `vectors=<name>`."""
    block = re.search(rf"^```json vectors={re.escape(name)}\n(.*?)^```$", page(), re.DOTALL | re.MULTILINE)
    assert block is not None, f"{PAGE.name} has no block vectors={name}"
    found: list[dict[str, Any]] = json.loads(block[1])
    assert found, f"vectors={name} is empty"
    return found


def page() -> str:
    """The whole page."""
    return PAGE.read_text(encoding="utf-8")


def with_enums(
    vector: dict[str, Any], **enums: type[OrderMode | Resolution | Source | CheckKind | UnresolvedAction]
) -> dict[str, Any]:
    """A vector's fields with names turned into members; what it is on the wire taken out."""
    fields = {name: value for name, value in vector.items() if name not in ("bytes", "line")}
    for name, enum in enums.items():
        if name in fields:
            fields[name] = enum[fields[name].upper()]
    return fields
