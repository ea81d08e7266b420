"""What a check has answered is still so after a crash of the database."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.support.shop import Order, make_shop, new_id
from txlayer.core.messages import ROLLBACK
from txlayer.errors import BarrierRefusedError

pytestmark = [pytest.mark.sql, pytest.mark.promise("P8")]


@pytest.mark.fault("check handler: the database reports a commit before it stores it, and crashes after an answer")
def test_no_local_transaction_commits_after_a_rollback_that_was_answered_before_a_crash(
    forgetful_postgresql: tuple[str, Callable[[], None]],
) -> None:
    url, crash = forgetful_postgresql
    shop = make_shop(create_engine(url))
    with shop.engine.connect() as connection:
        connection.exec_driver_sql("CHECKPOINT")  # the tables outlive a crash
    txn_id, lost_id = new_id(), new_id()

    said = shop.check(txn_id)
    with Session(shop.engine) as session, session.begin():
        session.add(Order(txn_id=lost_id))
    shop.engine.dispose()
    crash()

    assert ROLLBACK is said
    assert not shop.has_order(lost_id)  # it lost a commit
    with suppress(BarrierRefusedError), Session(shop.engine) as session, session.begin():
        shop.join(session, txn_id)
        session.add(Order(txn_id=txn_id))
    assert not shop.has_order(txn_id)
    shop.engine.dispose()
