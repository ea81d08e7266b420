"""Check-back in a chaotic run: a shop's database, who answers for it, and what its judge is told. Never the producers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

from tests.support.arena import Arena
from tests.support.checker import decides
from tests.support.doubt import read_doubt
from tests.support.history import Absence, History
from tests.support.load import GROUP as LOAD
from tests.support.load import ORPHANS, Load
from tests.support.logs import read_log
from tests.support.responders import ResponderProcess
from tests.support.truth import GROUP, Truth
from tests.support.waiting import TimedOutError, wait_until
from txlayer.config import CoordinatorConfig
from txlayer.coordinator.recovery import check_policies
from txlayer.core import codec
from txlayer.core.ledger.transitions import TxnState
from txlayer.core.messages import ROLLBACK, OpMessage, Resolution, Undecodable

IMMUNITY_S, INTERVAL_S, INTERVAL_S_MAX, ORPHAN_AGE_S = 2, 1, 3, 6
OWN_POLICIES = {f"{ORPHANS}.transaction_age_max": f"{ORPHAN_AGE_S}s"}
SETTINGS = {
    "check_immunity": f"{IMMUNITY_S}s",
    "check_interval": f"{INTERVAL_S}s",
    "check_interval_max": f"{INTERVAL_S_MAX}s",
    "group_policies": ";".join(f"{name}={value}" for name, value in OWN_POLICIES.items()),
}
"""Of the coordinators."""
POLICIES = check_policies(
    CoordinatorConfig(
        check_immunity=timedelta(seconds=IMMUNITY_S),
        check_interval=timedelta(seconds=INTERVAL_S),
        check_interval_max=timedelta(seconds=INTERVAL_S_MAX),
        group_policies=OWN_POLICIES,
    )
)
LOOK_S = 1.0


class CheckSide:
    """The group whose producers die, and its responders, which answer from its database by the barrier's rule."""

    def __init__(self, arena: Arena, *, servers: str, folder: Path, session_s: float) -> None:
        """`servers`: where responders connect; they run in `folder`."""
        self.truth = Truth(folder / "shop.db")
        self._arena = arena
        self._servers = servers
        self._folder = folder
        self._session_s = session_s
        self._numbers = count()

    def start(self) -> ResponderProcess:
        """One more responder."""
        return ResponderProcess(
            self._servers,
            self._arena.namespace,
            GROUP,
            folder=self._folder,
            name=f"responder-{next(self._numbers)}",
            arguments=["--barrier-url", self.truth.url],
            settings={"check_session_timeout": f"{self._session_s}s"},
        )

    def wait_until_settled(self, load: Load, *, within: float) -> None:
        """Everything that somebody answers for, or that a policy ends, is decided or parked; some more `within` each time."""
        wanted = must_end(load)
        left: set[str] = set()

        def is_settled() -> bool:
            nonlocal left
            left = wanted - self._decided() - self._parked()
            return not left

        try:
            wait_until(
                is_settled,
                within=within,
                what="what can be answered for is settled",
                growing=lambda: len(wanted) - len(left),
            )
        except TimedOutError as exc:
            doubt = read_doubt(self._arena.servers, self._arena.topics.doubt).summaries
            told = [str(doubt.get(key, f"{key} is not on doubt")) for key in sorted(left)[:5]]
            raise TimedOutError(f"{exc}: {len(left)} are open, such as {told}") from exc

    def told(self, history: History, load: Load) -> History:
        """The history, and what the judge of check-back needs."""
        topic = self._arena.topics.check
        history = replace(
            history, logs=history.logs._replace(check=read_log(self._arena.servers, [topic])[topic]), check_topic=topic
        )
        return with_truth(
            history, must_end(load), self.truth.said(), orphans={s.key for s in load.sent if s.group == ORPHANS}
        )

    def _decided(self) -> set[str]:
        topic = self._arena.topics.op
        lines = (
            codec.decode_op(line)
            for record in read_log(self._arena.servers, [topic])[topic]
            for line in _lines(record.value)
        )
        return {op.key for op in lines if isinstance(op, OpMessage) and decides(op)}

    def _parked(self) -> set[str]:
        summaries = read_doubt(self._arena.servers, self._arena.topics.doubt).summaries
        return {key for key, said in summaries.items() if said.state == TxnState.PARKED.value}


def with_truth(
    history: History, keys: Collection[str], said: Mapping[str, Resolution], *, orphans: Collection[str] = ()
) -> History:
    """The history, and what the database says of these transactions, which somebody can answer for, or which nobody does."""
    return replace(
        history,
        policies=POLICIES,
        # Without a row nobody committed, and whoever would must write one.
        local={key: said.get(key, ROLLBACK) for key in {*keys} - {*orphans}},
        must_end=keys,
        absences=[Absence(LOAD, 0, 1 << 62), Absence(ORPHANS, 0, 1 << 62)],
    )


def must_end(load: Load) -> set[str]:
    """Keys of transactions that the responders can answer for, or that their own policy ends."""
    return {sent.key for sent in load.sent if sent.group in (GROUP, ORPHANS)}


def _lines(value: bytes | None) -> list[str]:
    lines = codec.split_ops(value)
    return [] if isinstance(lines, Undecodable) else lines
