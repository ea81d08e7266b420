"""Names that nobody else has."""

from __future__ import annotations

import uuid


def unique_name(prefix: str) -> str:
    """A name that no other test and no earlier run has: for topics, groups, namespaces, transactional ids."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"
