"""A live view of a still world, stepped by the test, and the picture that `txlayer tx list` reads at the same moment."""

from contextlib import closing
from typing import Any

from tests.support.still_coordinator import AtOnce, StillCoordinator, widen
from txlayer.adapters.connect import CoordinatorConnections
from txlayer.adapters.ports import StoredOffset
from txlayer.operate.live import LiveView
from txlayer.operate.overall import Remark, remarks
from txlayer.operate.rows import Page, Wanted
from txlayer.operate.unsettled import Overview, UnsettledTransaction
from txlayer.runtime.environment import Environment

Picture = dict[str, tuple[str, str | None, str]]
"""{"id/nonce": (state, reason, where it is)}."""


def picture_of(stage: StillCoordinator) -> Picture:
    """What is not settled, folded anew."""
    with closing(stage.kafka.connect_coordinator(stage.config, client="overview")) as connections:
        return _picture(Overview(connections).unsettled())


def _picture(found: Any) -> Picture:
    return {each.txn.key: _seen(each) for each in found}


def _seen(found: UnsettledTransaction) -> tuple[str, str | None, str]:
    more = found.txn.extras
    reason = None if more is None or more.reason is None else more.reason.value
    return found.state, reason, "doubt" if found.txn.is_in_doubt else "half"


def still_environment(stage: StillCoordinator) -> Environment:
    """Its clocks stand still, and nothing runs beside."""
    world = stage.world
    return Environment(
        clock=world.monotonic, wall_clock=lambda: world.now_ms() / 1000, keep_for_long=lambda: None, background=AtOnce()
    )


class Onlooker:
    """A view of a stage's namespace."""

    def __init__(self, stage: StillCoordinator, *, view: LiveView | None = None) -> None:
        self._stage = stage
        self.view = view or self._make(stage)

    @staticmethod
    def _make(stage: StillCoordinator) -> LiveView:
        def connect() -> CoordinatorConnections:
            return stage.kafka.connect_coordinator(stage.config, client="view")

        return LiveView(connect, environment=still_environment(stage))

    def look(self, *, step_count_max: int = 300) -> None:
        """Step until the picture is that of now or later."""
        asked_ms = self._stage.world.now_ms()
        for _ in range(step_count_max):
            self.view.step()
            if self.view.state.is_ready and self.view.state.true_ms > asked_ms and not self.view.state.problem:
                return
        raise AssertionError(f"not current after {step_count_max} steps: {self.view.state}")

    def page(self, **wanted: Any) -> Page:
        return self.view.rows.page(Wanted(**wanted), now_ms=self._stage.world.now_ms())

    def picture(self) -> Picture:
        return _picture(self.page(limit=10_000).rows)

    def remarks(self) -> list[Remark]:
        return remarks(self.view.state, self.view.rows.counts(), now_ms=self._stage.world.now_ms())

    def reset(self, *, half: int, op: int, partition: int = 0) -> None:
        """Store other positions for the coordinators, as `txlayer coordinator reset` does."""
        topics, admin = self._stage.topics, self._stage.kafka.admin()
        places = {(topics.half, partition): StoredOffset(half, ""), (topics.op, partition): StoredOffset(op, "")}
        admin.store_offsets(topics.coordinator_group, places)

    def widen(self, partition_count: int) -> None:
        """Give half, op and doubt more partitions, with positions."""
        topics, admin = self._stage.topics, self._stage.kafka.admin()
        widen(self._stage.kafka, [topics.half, topics.op, topics.doubt], partition_count)
        for p in range(2, partition_count):
            places = {(topics.half, p): StoredOffset(0, ""), (topics.op, p): StoredOffset(0, "")}
            admin.store_offsets(topics.coordinator_group, places)
