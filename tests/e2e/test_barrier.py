"""A shop with a barrier on a real broker: what its database says is what readers see (P8)."""

from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tests.conftest import Broker
from tests.e2e.conftest import Start
from tests.support.arena import make_arena
from tests.support.producers import made_for, resolutions
from tests.support.shop import Order, make_shop
from txlayer.core.messages import COMMIT, ROLLBACK
from txlayer.errors import BarrierRefusedError

pytestmark = [pytest.mark.kafka, pytest.mark.sql]


class CardError(Exception):
    """The user's own."""


@pytest.mark.promise("P8")
def test_readers_see_what_the_database_committed(broker: Broker, start_coordinator: Start, tmp_path: Path) -> None:
    arena = make_arena(broker.bootstrap_servers)
    start_coordinator(arena)
    shop = make_shop(create_engine(f"sqlite:///{tmp_path / 'shop.db'}"))
    orders, loyalty = arena.targets

    def buy(name: str, *, is_declined: bool = False) -> None:
        with producer.transaction(name) as tx:
            tx.send(orders, key=name, value="42 cents")
            tx.send(loyalty, key=name, value="4 points")
            tx.prepare()
            if name == "checked":  # a check-back that came before the local transaction
                shop.barrier.resolve(tx.txn_id, tx.nonce, group="orders")
            with Session(shop.engine) as session, session.begin():
                tx.join(session)
                session.add(Order(txn_id=name))
                if is_declined:
                    raise CardError

    with made_for(arena, barrier=shop.barrier) as producer:
        buy("paid")
        with pytest.raises(CardError):
            buy("declined", is_declined=True)
        with pytest.raises(BarrierRefusedError):
            buy("checked")
        buy("last")

    assert [[COMMIT], [ROLLBACK], [ROLLBACK], [COMMIT]] == [
        resolutions(arena, name) for name in ("paid", "declined", "checked", "last")
    ]
    arena.wait_until_visible("last", count=2)
    arena.wait_until_applied(within=30)
    names = ("paid", "declined", "checked", "last")
    assert [2, 0, 0, 2] == [len(arena.visible(name)) for name in names]
    assert [True, False, False, True] == [shop.has_order(name) for name in names]
    assert [] == arena.verdict().findings
    shop.engine.dispose()
