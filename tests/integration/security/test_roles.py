"""Each role of topics/acl can do its work, and none of its rights is one too many."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.role_acts import ACTS, make_stage
from tests.support.tls_broker import TlsBroker, User

pytestmark = pytest.mark.kafka

IS_EVERY_ROLE = bool(os.environ.get("EVERY_RIGHT"))
"""Set by `make rights`: a coordinator per right takes longer than `make test` has."""

PATIENCE_S = (4.0, 15.0, 40.0)


@pytest.mark.parametrize("role", ACTS)
def test_a_role_can_do_its_work(guarded: TlsBroker, user: User, role: str) -> None:
    stage = make_stage(guarded)
    guarded.allow([right.acl for right in stage.rights(role, user)])

    ACTS[role](stage, user)


@pytest.mark.parametrize("role", ACTS if IS_EVERY_ROLE else ["producer"])
def test_no_right_of_a_role_is_one_too_many(guarded: TlsBroker, role: str) -> None:
    # Patience that is too short would find every right needed; with every right, beside the others and as busy as they,
    # a role has to work: a machine that is too busy for it is given more time.
    works = working(guarded, role, PATIENCE_S[0])
    for patience_s in PATIENCE_S[1:]:
        if "" in works:
            break
        works = working(guarded, role, patience_s)

    assert [""] == works


def working(guarded: TlsBroker, role: str, patience_s: float) -> list[str]:
    """Why the rights that are left out were given, each time that the role works without; "" for none left out."""
    reasons = {right.why for right in make_stage(guarded).rights(role, User("x", "x"))}

    def works_without(left_out: str) -> bool:
        stage, user = make_stage(guarded, patience_s=patience_s), guarded.add_user()
        rights = stage.rights(role, user)
        guarded.allow([right.acl for right in rights if right.why != left_out])
        try:
            ACTS[role](stage, user)
        except Exception:  # noqa: BLE001 - whatever it is, it failed
            return False
        return True

    tried = ["", *sorted(reasons)]
    with ThreadPoolExecutor(len(tried)) as pool:
        return [why for why, does in zip(tried, pool.map(works_without, tried), strict=True) if does]
