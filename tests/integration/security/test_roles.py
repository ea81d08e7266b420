"""Each role of topics/acl can do its work, and none of its rights is one too many."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.role_acts import ACTS, make_stage
from tests.support.tls_broker import TlsBroker, User

pytestmark = pytest.mark.kafka

IS_EVERY_ROLE = bool(os.environ.get("EVERY_RIGHT"))
"""Set by `make rights`: a coordinator per right takes longer than `make test` has."""


@pytest.mark.parametrize("role", ACTS)
def test_a_role_can_do_its_work(guarded: TlsBroker, user: User, role: str) -> None:
    stage = make_stage(guarded)
    guarded.allow([right.acl for right in stage.rights(role, user)])

    ACTS[role](stage, user)


@pytest.mark.parametrize("role", ACTS if IS_EVERY_ROLE else ["producer"])
def test_no_right_of_a_role_is_one_too_many(guarded: TlsBroker, role: str) -> None:
    entries = len({right.why for right in make_stage(guarded).rights(role, User("x", "x"))})

    def fails_without(number: int) -> str | None:
        stage, user = make_stage(guarded), guarded.add_user()
        rights = stage.rights(role, user)
        left_out = ["", *sorted({right.why for right in rights})][number]
        guarded.allow([right.acl for right in rights if right.why != left_out])
        try:
            ACTS[role](stage, user)
        except Exception:  # noqa: BLE001 - whatever it is, it failed
            return None
        return left_out

    with ThreadPoolExecutor(entries + 1) as pool:
        works = [
            found for found in pool.map(fails_without, range(entries + 1)) if found is not None
        ]

    # With every right, beside the others and as busy as they: it works. Without one of them: never.
    assert [""] == works
