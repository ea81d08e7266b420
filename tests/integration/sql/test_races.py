"""Every race between a local transaction and a check, on every database and isolation level: decision and database agree."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from tests.support.shop import NONCE, Order, Shop, beside, new_id
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Resolution
from txlayer.errors import BarrierRefusedError

pytestmark = [pytest.mark.sql, pytest.mark.promise("P8")]

ROOT = Path(__file__).resolve().parents[3]
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
PLACES = [("sqlite", "SERIALIZABLE"), *product(("postgresql", "mariadb"), LEVELS)]

each_place = pytest.mark.parametrize(
    ("database_url", "isolation"),
    PLACES,
    indirect=["database_url"],
    ids=[f"{kind}-{level.replace(' ', '-').lower()}" for kind, level in PLACES],
)


def order(shop: Shop, txn_id: str, isolation: str) -> Resolution:
    """A whole local transaction, and what its producer says then."""
    joined = None
    with suppress(BarrierRefusedError, DBAPIError), Session(shop.at(isolation)) as session, session.begin():
        joined = shop.join(session, txn_id)
        session.add(Order(txn_id=txn_id))
    return shop.decision(joined, txn_id)


def agree(shop: Shop, txn_id: str, *said: Resolution) -> None:
    """Whatever was said is what the database shows; UNKNOWN says nothing."""
    expected = COMMIT if shop.has_order(txn_id) else ROLLBACK
    assert {expected} >= set(said) - {UNKNOWN}
    assert expected is shop.check(txn_id)
    assert expected is shop.barrier.read(txn_id, NONCE)


@each_place
def test_a_check_before_the_local_transaction_stops_it(shop: Shop, isolation: str) -> None:
    txn_id = new_id()

    checked = shop.check(txn_id)
    said = order(shop, txn_id, isolation)

    assert (ROLLBACK, ROLLBACK) == (checked, said)
    agree(shop, txn_id, checked, said)


@each_place
def test_a_snapshot_older_than_the_check_does_not_hide_it(shop: Shop, isolation: str) -> None:
    txn_id = new_id()
    with Session(shop.at(isolation)) as session:
        assert session.get(Order, txn_id) is None  # its snapshot is taken
        if shop.kind == "sqlite":
            session.rollback()  # a reader's lock would keep the check from writing
        checked = shop.check(txn_id)
        with pytest.raises((BarrierRefusedError, DBAPIError)):
            shop.join(session, txn_id)

    assert ROLLBACK is checked
    agree(shop, txn_id, checked)


@each_place
@pytest.mark.parametrize("ends_with_commit", [True, False], ids=["commit", "rollback"])
def test_a_check_while_the_local_transaction_is_open_decides_nothing(
    shop: Shop, isolation: str, *, ends_with_commit: bool
) -> None:
    txn_id = new_id()
    with Session(shop.at(isolation)) as session:
        joined = shop.join(session, txn_id)
        session.add(Order(txn_id=txn_id))
        session.flush()
        checked = shop.check(txn_id)
        if ends_with_commit:
            session.commit()
    said = shop.decision(joined, txn_id)

    assert UNKNOWN is checked
    assert said is (COMMIT if ends_with_commit else ROLLBACK)
    agree(shop, txn_id, checked, said)


@each_place
def test_a_check_after_the_commit_and_before_the_op_commits(shop: Shop, isolation: str) -> None:
    txn_id = new_id()
    with Session(shop.at(isolation)) as session, session.begin():
        shop.join(session, txn_id)
        session.add(Order(txn_id=txn_id))

    assert COMMIT is shop.check(txn_id)
    agree(shop, txn_id, COMMIT)


@each_place
def test_a_check_after_the_rollback_rolls_back(shop: Shop, isolation: str) -> None:
    txn_id = new_id()
    with Session(shop.at(isolation)) as session:
        shop.join(session, txn_id)
        session.add(Order(txn_id=txn_id))
        session.flush()
        session.rollback()

    assert ROLLBACK is shop.check(txn_id)
    assert ROLLBACK is order(shop, txn_id, isolation)  # too late now
    agree(shop, txn_id, ROLLBACK)


DYING = """
import os, sys
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from tests.support.shop import Order, make_shop
url, isolation, stage, txn_id = sys.argv[1:]
shop = make_shop(create_engine(url))
session = Session(shop.at(isolation))
shop.join(session, txn_id)
session.add(Order(txn_id=txn_id))
session.flush()
if stage == "committed":
    session.commit()
os._exit(9)
"""


@each_place
@pytest.mark.parametrize(("stage", "expected"), [("open", ROLLBACK), ("committed", COMMIT)])
def test_a_check_after_the_death_of_the_process_says_what_it_left(
    shop: Shop, isolation: str, stage: str, expected: Resolution
) -> None:
    txn_id = new_id()
    url = shop.engine.url.render_as_string(hide_password=False)

    died = subprocess.run(
        [sys.executable, "-c", DYING, url, isolation, stage, txn_id], cwd=ROOT, check=False, timeout=60
    )

    assert 9 == died.returncode
    # A server may take a moment to notice; until then it is unknown.
    checked = [shop.check(txn_id) for _ in range(20)]
    assert expected is checked[-1]
    agree(shop, txn_id, *checked)


@each_place
@pytest.mark.parametrize("ends_with_commit", [True, False], ids=["commit", "rollback"])
def test_a_check_that_waits_for_the_row_hears_its_end(shop: Shop, isolation: str, *, ends_with_commit: bool) -> None:
    txn_id = new_id()
    with beside() as other, Session(shop.at(isolation)) as session:
        joined = shop.join(session, txn_id)
        session.add(Order(txn_id=txn_id))
        session.flush()
        answer = other.submit(shop.check, txn_id)
        if ends_with_commit:
            session.commit()
        else:
            session.rollback()
        checked = answer.result(20)
    said = shop.decision(joined, txn_id)

    agree(shop, txn_id, checked, said)


@each_place
def test_a_local_transaction_that_waits_for_the_check_hears_its_end(shop: Shop, isolation: str) -> None:
    txn_id = new_id()
    rolled_back = {"txn_id": txn_id, "nonce": NONCE, "producer_group": "orders", "resolution": "R", "source": "check"}
    with beside() as other, shop.engine.connect() as check:
        check.execute(shop.barrier.table.insert(), rolled_back)
        said = other.submit(order, shop, txn_id, isolation)
        check.commit()
        assert said.result(20) is ROLLBACK

    agree(shop, txn_id, ROLLBACK)


@each_place
def test_of_many_checks_and_one_local_transaction_all_agree(shop: Shop, isolation: str) -> None:
    def side(number: int) -> Callable[[str], Resolution]:
        return (lambda t: order(shop, t, isolation)) if number == 1 else shop.check

    for _ in range(5):
        txn_id = new_id()
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(side(number), txn_id) for number in range(4)]
            said = [answer.result(30) for answer in asked]
        agree(shop, txn_id, *said)
