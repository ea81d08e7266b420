"""Transactions of a service that died behind its local transaction: nobody ever resolves them but a responder.

Half records by a plain client, the row of the barrier where the local transaction was committed, and no op record.
"""

import random
import threading

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tests.support.arena import Arena
from tests.support.crafted import Crafted
from tests.support.load import new_key
from tests.support.shop import Shop
from txlayer.core.messages import ROLLBACK
from txlayer.errors import BarrierRefusedError

ORPHANS = "orphans"
"""The producer group that has no producer any more."""
PAUSE_S = 0.1
LOCAL_SHARE = 0.6


class Orphans:
    """Writes them from a thread of its own until `stop`."""

    def __init__(self, arena: Arena, shop: Shop, *, seed: int) -> None:
        self.keys: list[str] = []
        self._arena = arena
        self._shop = shop
        self._rng = random.Random(seed)
        self._failure: BaseException | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orphans", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """No more of them; raises what ended the thread before its time."""
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def rolled_back_count(self) -> int:
        """How many the responder has rolled back: it alone writes such a row of this group."""
        table = self._shop.barrier.table
        wanted = select(func.count()).where(table.c.producer_group == ORPHANS, table.c.resolution == ROLLBACK.value)
        with self._shop.engine.connect() as connection:
            return connection.execute(wanted).scalar_one()

    def _run(self) -> None:
        arena = self._arena
        writer = Crafted(arena.servers, arena.topics, partition_count=arena.partition_count)
        try:
            while not self._is_over.wait(PAUSE_S):
                key = new_key(self._rng)
                writer.half(key, arena.targets[0], group=ORPHANS, value=key.encode())
                self.keys.append(key)
                if self._rng.random() < LOCAL_SHARE:
                    self._commit_locally(key)
        except BaseException as exc:  # noqa: BLE001 - raised by `stop`
            self._failure = exc

    def _commit_locally(self, key: str) -> None:
        txn_id, nonce = key.split("/")
        try:
            with Session(self._shop.engine) as session, session.begin():
                self._shop.barrier.check_session(session)
                self._shop.barrier.write(session, txn_id=txn_id, nonce=nonce, group=ORPHANS)
        except (BarrierRefusedError, SQLAlchemyError):
            return  # the check-back was first, or the file was busy: this one was never committed
