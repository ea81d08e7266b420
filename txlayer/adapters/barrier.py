"""What a producer expects of a barrier: the port that `adapters/sql` fills. Never code, never a database."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol


class LocalState(Enum):
    """What became of a local transaction, as far as this process knows."""

    OPEN = "open"  #: it may still end either way
    COMMITTED = "committed"  #: the database reported its commit
    ROLLED_BACK = "rolled back"  #: it ended, and nobody tried to commit it
    UNCLEAR = "unclear"  #: a commit began and was not reported: only the barrier's row can tell


class Joined(Protocol):
    """One local transaction that holds the barrier's row of a transaction."""

    @property
    def state(self) -> LocalState:
        """What became of it; asks nobody."""
        ...

    def forbid_commit(self, reason: str) -> None:
        """Have the local transaction refuse its commit, because a rollback was said; nothing once it has ended."""
        ...

    def leave(self) -> None:
        """The producer looks no more; a commit that was forbidden stays so."""
        ...


class Barrier(Protocol):
    """The user's table with one row per transaction id, where the first writer wins (P8).

    The calls of one for asyncio (`is_async`) return awaitables of the same.
    """

    @property
    def is_async(self) -> bool:
        """True when its calls are awaited."""
        ...

    def expect_join(self, owner: object, joined: Any = None) -> None:
        """From now on this thread's (task's) local transactions must join: one that has not refuses its commit.

        With the owner's own `joined` that begins when it is lost: rolled back, or its commit has failed.
        Until `forget_join` of the same owner, or as long as it lives. Also where the other calls are awaited, this is not.
        """
        ...

    def forget_join(self, owner: object) -> None:
        """The owner's transaction has ended; nothing if it was not expected."""
        ...

    def check_session(self, session: Any) -> Any:
        """Refuse a session that cannot hold the row; nothing is written.

        Raises:
            UsageError: it is no session or connection, or one of another database, or in autocommit.
        """
        ...

    def write(self, session: Any, *, txn_id: str, nonce: str, group: str) -> Any:
        """Say commit, as a part of the session's own local transaction: its `Joined`.

        Raises:
            BarrierRefusedError: a check-back came first and said rollback. The session refuses to commit.
            UsageError: what `check_session` raises. Nothing was written.
            Exception: the database's own, as it was. The session refuses to commit.
        """
        ...

    def resolve(self, txn_id: str, nonce: str, *, group: str) -> Any:
        """The resolution of the first writer, who is this call when nobody came before: then it is ROLLBACK.

        UNKNOWN when the database does not say. The other side's open row is waited for, for a bounded time.
        """
        ...

    def resolve_many(self, doubtful: Sequence[Any], *, group: str) -> Any:
        """`resolve` for many, in the order asked; each has `txn_id`, `nonce` and `born_at_ms` (when it was made).

        A transaction so old that its row may have been purged is UNKNOWN rather than rolled back for want of a row.
        """
        ...
