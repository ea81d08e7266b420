"""A barrier without a database: tests say what became of the local transaction, and what the row says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from txlayer.adapters.ports import LocalState
from txlayer.core.messages import ROLLBACK, Resolution


@dataclass
class FakeJoined:
    """The `Joined` of a fake."""

    state: LocalState = LocalState.OPEN
    forbidden: list[str] = field(default_factory=list)
    is_left: bool = False

    def forbid_commit(self, reason: str) -> None:
        """Remember why."""
        self.forbidden.append(reason)

    def leave(self) -> None:
        """Remember it."""
        self.is_left = True


@dataclass
class FakeBarrier:
    """The `Barrier` of a fake; `row` is what it resolves to, or raises."""

    row: Resolution | BaseException = ROLLBACK
    refusal: Exception | None = None
    write_error: Exception | None = None
    is_async: bool = False
    joined: FakeJoined = field(default_factory=FakeJoined)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    at_check: Callable[[], None] = lambda: None
    expected: set[object] = field(default_factory=set)

    def belongs_here(self, owner: object) -> None:
        """No matter: it watches nobody."""

    def expect_join(self, owner: object, joined: Any = None) -> None:  # noqa: ARG002 - the protocol's
        """Remember it."""
        self.expected.add(owner)

    def forget_join(self, owner: object) -> None:
        """Forget it."""
        self.expected.discard(owner)

    def check_session(self, session: Any) -> Any:
        """Refuse as told."""
        self.calls.append(("check", session))
        self.at_check()
        return self._answer(self.refusal, None)

    def write(self, session: Any, *, txn_id: str, nonce: str, group: str) -> Any:
        """Remember the row."""
        self.calls.append(("write", session, txn_id, nonce, group))
        return self._answer(self.write_error, self.joined)

    def resolve(self, txn_id: str, nonce: str, *, group: str) -> Any:
        """What the test said."""
        self.calls.append(("resolve", txn_id, nonce, group))
        error = self.row if isinstance(self.row, BaseException) else None
        return self._answer(error, self.row)

    def resolve_many(self, doubtful: Sequence[Any], *, group: str) -> Any:
        """The same for all of them."""
        self.calls.append(("resolve_many", len(doubtful), group))
        error = self.row if isinstance(self.row, BaseException) else None
        return self._answer(error, [self.row] * len(doubtful))

    @property
    def words(self) -> list[str]:
        """What was called, in order."""
        return [call[0] for call in self.calls]

    def _answer(self, error: BaseException | None, answer: Any) -> Any:
        if not self.is_async:
            if error is not None:
                raise error
            return answer

        async def later() -> Any:
            if error is not None:
                raise error
            return answer

        return later()
