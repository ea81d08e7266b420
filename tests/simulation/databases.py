"""A producer group's database as the barrier uses it: one row per transaction id, the first writer wins. Never SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from txlayer.core.messages import ROLLBACK, UNKNOWN, Resolution, nonce_of, txn_id_of

if TYPE_CHECKING:
    from tests.simulation.processes import Process
    from tests.simulation.world import SimulatedWorld

OPEN_S_MAX = 3.0
"""The database ends a transaction that is open for longer."""
LOCK_WAIT_S = 0.3
"""So long a check waits for a row that somebody holds."""
LOOK_S = 0.03


class Row(NamedTuple):
    """What the first writer said."""

    nonce: str
    resolution: Resolution


class OpenRow:
    """A row that is inserted and not committed: others wait for it."""

    __slots__ = ("began_at", "is_noticed", "process", "row", "txn_id")

    def __init__(self, txn_id: str, row: Row, process: Process, began_at: float, *, is_noticed: bool) -> None:
        self.txn_id = txn_id
        self.row = row
        self.process = process
        self.began_at = began_at
        self.is_noticed = is_noticed
        """When its process dies the database learns of it at once."""


class Database:
    """The rows of one group."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self.rows: dict[str, Row] = {}
        self._open: dict[str, OpenRow] = {}

    def is_held(self, txn_id: str) -> bool:
        """True while somebody's open transaction holds the row."""
        held = self._open.get(txn_id)
        if held is not None and self._is_over(held):
            del self._open[txn_id]
            held = None
        return held is not None

    def insert(self, key: str, resolution: Resolution, process: Process) -> OpenRow:
        """Write a row that nobody holds and nobody wrote, in a transaction that is open now."""
        txn_id = txn_id_of(key)
        assert not self.is_held(txn_id)
        assert txn_id not in self.rows
        held = self._open[txn_id] = OpenRow(
            txn_id,
            Row(nonce_of(key), resolution),
            process,
            self._world.now,
            is_noticed=self._world.random.random() < 0.7,
        )
        return held

    def commit(self, held: OpenRow) -> bool:
        """The transaction is durable; False: the database ended it before."""
        if not self.is_held(held.txn_id) or self._open[held.txn_id] is not held:
            return False
        del self._open[held.txn_id]
        self.rows[held.txn_id] = held.row
        return True

    def roll_back(self, held: OpenRow) -> None:
        """The row was never there."""
        if self._open.get(held.txn_id) is held:
            del self._open[held.txn_id]

    def said_of(self, key: str) -> Resolution | None:
        """What the rows say of one attempt; None: nobody wrote."""
        row = self.rows.get(txn_id_of(key))
        if row is None:
            return None
        return row.resolution if row.nonce == nonce_of(key) else ROLLBACK

    def _is_over(self, held: OpenRow) -> bool:
        if held.process.is_dead and held.is_noticed:
            return True
        return self._world.now - held.began_at >= OPEN_S_MAX


class BarrierCheck:
    """How a check uses the barrier: it inserts ROLLBACK, and then believes only what it reads."""

    def __init__(self, database: Database, world: SimulatedWorld, *, failing_share: float) -> None:
        self._database = database
        self._world = world
        self._failing_share = failing_share

    def resolve(self, key: str, process: Process) -> Resolution:
        """What the first writer said; who comes first is this check, and says ROLLBACK."""
        database = self._database
        if self._fails():
            return UNKNOWN
        if database.said_of(key) is None:
            self.insert(key, process)
            self._world.pause(0.002)
        return self.judge(key)

    def insert(self, key: str, process: Process) -> None:
        """Write ROLLBACK where nobody wrote; whatever hinders that decides nothing."""
        database, world, txn_id = self._database, self._world, txn_id_of(key)
        give_up_at = world.now + LOCK_WAIT_S
        while database.is_held(txn_id):
            if world.now >= give_up_at:
                return
            world.pause(LOOK_S)
        if txn_id in database.rows or self._fails():
            return
        held = database.insert(key, ROLLBACK, process)
        world.pause(world.random.choice((0.002, 0.002, 0.2)))
        if self._fails():  # a deadlock, a serialisation failure
            database.roll_back(held)
        else:
            database.commit(held)

    def judge(self, key: str) -> Resolution:
        """What is read means."""
        return self._database.said_of(key) or UNKNOWN

    def _fails(self) -> bool:
        return self._world.random.random() < self._failing_share
