"""Messages in Django's own transactions: `join`, in place of `transaction.on_commit`, and the barrier's table as a migration."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import IntegrityError, connections, transaction
from django.db.migrations import RunPython

from txlayer.core.messages import COMMIT, ROLLBACK, Source
from txlayer.errors import BarrierRefusedError, UsageError
from txlayer.producer.producer import Transaction, TransactionalProducer

TABLE = "txlayer_barrier"


@contextmanager
def join(
    producer: TransactionalProducer, *, using: str = "default", table: str = TABLE, **options: Any
) -> Iterator[Transaction]:
    """A block whose messages become visible if, and only if, the surrounding `transaction.atomic()` commits.

    Add messages with `send`. The end of the block stores them and writes the barrier's row on Django's connection; Django's
    commit then says commit, once the row is read behind it. If the atomic block is rolled back, a check-back finds no row, and the messages are rolled back,
    too. It may be any atomic block, also a nested one or that of `ATOMIC_REQUESTS`; as with `transaction.on_commit`, the
    messages share the fate of the savepoint in which they are sent. After `rollback` the block sends nothing, and the atomic block goes on.
    Once they are stored, only the atomic block decides: `commit`, `rollback` and `unknown` raise a `LifecycleError`.

    Args:
        producer: without `barrier=`: another process, or its own `check=`, answers check-backs from the same table.
        using: alias of the database.
        table: name of the barrier's table.
        options: those of `TransactionalProducer.transaction`.

    Raises:
        UsageError: no atomic block is open, or not the same one at the end, or the producer has a barrier or is one for asyncio.
            Nothing was sent.
        TxLayerError: what `Transaction.prepare` raises; the atomic block goes on without a row.
        BarrierRefusedError: a check-back came first. The atomic block is marked for rollback.
        django.db.Error: the database's own error, unchanged. The atomic block is marked for rollback.
    """
    if not isinstance(producer, TransactionalProducer):
        raise UsageError(f"join needs a TransactionalProducer, not {type(producer).__name__}. Nothing was sent")
    connection = connections[using]
    if not connection.in_atomic_block:
        raise UsageError(f"join needs an open transaction.atomic() of the database {using!r}. Nothing was sent")
    if producer.barrier is not None:
        raise UsageError("join writes the barrier's row itself: make the producer without barrier=. Nothing was sent")
    blocks = [*connection.atomic_blocks]
    tx = producer.transaction(**options)
    tx.leave_to("Django's transaction")
    try:
        yield tx
        if tx.is_dropped:
            return
        if connection.atomic_blocks != blocks:
            raise UsageError("the block of join ends outside of the atomic block in which it began. Nothing was sent")
        connection.validate_no_broken_transaction()
        tx.prepare()
        _write(connection, table, (tx.txn_id, tx.nonce, producer.group, COMMIT.value, Source.PRODUCER.value))
    except BaseException as exc:
        tx.leave(exc)  # if the messages are stored, a check-back finds no row
        raise
    transaction.on_commit(_Ending(tx, connection, table), using=using, robust=True)


def _write(connection: Any, table: str, row: tuple[str, ...]) -> None:
    """Write the barrier's row; without it, the atomic block cannot commit, also if the error is swallowed."""
    columns = "txn_id, nonce, producer_group, resolution, source"
    insert = f"INSERT INTO {connection.ops.quote_name(table)} ({columns}) VALUES (%s, %s, %s, %s, %s)"  # noqa: S608 - quoted
    try:
        with connection.cursor() as cursor:
            cursor.execute(insert, row)
    except BaseException as exc:
        connection.set_rollback(True)
        if isinstance(exc, IntegrityError):
            raise BarrierRefusedError("a check-back came first", txn_id=row[0], resolution=ROLLBACK.value) from exc
        raise


class _Ending:
    """What Django calls after its commit, and drops after a rollback."""

    def __init__(self, tx: Transaction, connection: Any, table: str) -> None:
        self._tx: Transaction | None = tx
        self._connection, self._table = connection, table

    def __call__(self) -> None:
        # PostgreSQL answers the commit of a transaction in which a statement failed with a rollback, and Django does not look.
        if self._tx is not None and self._is_row_there(self._tx):
            tx, self._tx = self._tx, None
            tx.leave(None)

    def _is_row_there(self, tx: Transaction) -> bool:
        named = (
            f"SELECT resolution FROM {self._connection.ops.quote_name(self._table)} WHERE txn_id = %s AND nonce = %s"  # noqa: S608 - quoted
        )
        with self._connection.cursor() as cursor:
            cursor.execute(named, (tx.txn_id, tx.nonce))
            return bool(cursor.fetchone() == (COMMIT.value,))

    def __del__(self) -> None:
        # Django has no hook for a rollback. The commit may also have failed without an answer, so the row decides.
        if self._tx is not None:
            self._tx.leave(transaction.TransactionManagementError("rolled back, or its commit has no answer"))


def create_barrier_table(table: str = TABLE) -> RunPython:
    """The barrier's table as an operation of a migration, in the databases that `SqlBarrier` knows; needs `txlayer[sql]`."""

    def create(_apps: Any, editor: Any) -> None:
        from txlayer.adapters.sql.tables import create_statement

        editor.execute(create_statement(table, editor.connection.vendor))

    def drop(_apps: Any, editor: Any) -> None:
        editor.execute(f"DROP TABLE {editor.quote_name(table)}")

    return RunPython(create, drop)
