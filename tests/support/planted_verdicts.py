"""Every verdict, planted in real topics: each on transactions of its own, and right ones beside them."""

from dataclasses import replace
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.planted import Field, Message, Transaction
from txlayer.core.messages import CheckKind, HalfOptions, OrderMode, Resolution, Source

NO_CHECK_FOR_A_DAY = HalfOptions(immunity_ms=24 * 3_600_000)


class Planted:
    """A field with every fault, and the verdict that each transaction must get."""

    def __init__(self, servers: str) -> None:
        """Plant everything."""
        self.field = Field(servers)
        self.expected: dict[str, str] = {}
        self.txns: dict[str, Transaction] = {}
        # First: what stood before the log's start must be the oldest.
        self.shorten()
        self.plant_good()
        self.plant_undecided()
        self.plant_faults()
        self.plant_order()
        self.plant_attempts()

    def note(self, name: str, txn: Transaction, verdict: str) -> Transaction:
        """Remember what a transaction must be judged as."""
        self.txns[name] = txn
        self.expected[txn.txn_id] = verdict
        return txn

    def shorten(self) -> None:
        """Transactions whose half records, all or the first, the log has no more."""
        field = self.field
        two = (Message(field.orders), Message(field.stock))
        gone = self.note("gone", field.whole(*two, ordering_key=b"edge"), "out_of_window")
        edge = self.note("edge", field.whole(*two, ordering_key=b"edge"), "out_of_window")
        assert gone.partition == edge.partition
        admin = AdminClient({"bootstrap.servers": field.servers, "log_level": 0})
        start = TopicPartition(field.topic("half"), edge.partition, edge.offsets[1])
        admin.delete_records([start])[TopicPartition(start.topic, start.partition)].result(30)

    def plant_good(self) -> None:
        """What is in order."""
        field = self.field
        user = Message(field.stock, None, None, [("traceparent", b"00"), ("traceparent", None)])
        self.note("ok", field.whole(Message(field.orders), user), "ok")
        rolled_back = self.note("rolled back", field.prepare(), "rolled_back")
        field.roll_back(rolled_back, source=Source.BARRIER)
        checked = self.note("checked", field.prepare(), "ok")
        for number in (1, 2):
            field.check(checked, number)
        field.resolve((checked, Resolution.UNKNOWN), source=Source.CHECK, check_number=1)
        field.commit(checked, source=Source.CHECK, check_number=2)
        field.forward(checked)
        abandoned = self.note("abandoned", field.prepare(), "rolled_back")
        field.commit(abandoned)
        field.doubt(abandoned, "parked-committed", "too-large")
        field.resolve((abandoned, Resolution.ROLLBACK), source=Source.OPERATOR, is_abandon=True, reason="x: y")
        field.doubt(abandoned, "ended")
        large = [Message(field.orders, value=b"%d" % n) for n in range(70)]
        self.note("large", field.whole(*large), "ok")
        one_record = [field.prepare(ordering_key=b"packed") for _ in range(3)]
        field.resolve(*((txn, Resolution.COMMIT) for txn in one_record))
        for number, txn in enumerate(one_record):
            field.forward(self.note(f"packed {number}", txn, "ok"))

    def plant_undecided(self) -> None:
        """What waits for something."""
        field = self.field
        self.note("open", field.prepare(options=NO_CHECK_FOR_A_DAY), "open")
        self.note("overdue", field.prepare(), "overdue")
        held = self.note("held", field.prepare(options=NO_CHECK_FOR_A_DAY), "open")
        field.commit(held)
        field.doubt(held, "held", "topic-missing", decided_at=(1, 0))
        parked = self.note("parked", field.prepare(), "parked")
        field.check(parked, 1)
        field.doubt(parked, "open")
        field.doubt(parked, "parked", "checks-exhausted")
        refused = self.note("refused", field.prepare(), "parked")
        field.commit(refused)
        field.doubt(refused, "parked-committed", "too-large")
        wrong_place = self.note("wrong place", field.prepare(), "overdue")
        field.commit(replace(wrong_place, offsets=(wrong_place.offsets[0] + 1000,)))

    def plant_faults(self) -> None:
        """Broken promises, one each."""
        field = self.field
        two = (Message(field.orders), Message(field.stock))
        lost = self.note("lost", field.prepare(*two), "lost")
        field.commit(lost)
        twice = self.note("duplicate", field.whole(*two), "duplicate")
        field.forward(twice, 1)
        leaked = self.note("leaked", field.prepare(), "leaked")
        field.roll_back(leaked)
        field.forward(leaked)
        undecided = self.note("leaked undecided", field.prepare(), "leaked")
        field.forward(undecided)
        torn = self.note("torn", field.prepare(*two), "torn")
        field.commit(torn)
        field.forward(torn, 1)
        seed = field.whole()
        self.note("seed", seed, "ok")
        never = replace(seed, key="never-stored/00000001", offsets=(seed.offsets[0] + 5000,))
        field.forward(self.note("orphan", never, "orphan"))
        changes: dict[str, dict[str, Any]] = {
            "value": {"value": b"another"},
            "key": {"key": None},
            "headers": {"headers": [("a", b"b")]},
            "topic": {"topic": field.stock},
        }
        for name, change in changes.items():
            changed = self.note(f"corrupt {name}", field.prepare(), "corrupt")
            field.commit(changed)
            field.forward(field.moved(changed, **change))
        contrary = self.note("conflicting", field.whole(), "conflicting")
        field.roll_back(contrary, source=Source.CHECK)
        field.check(contrary, 0, CheckKind.REFUSED)

    def plant_order(self) -> None:
        """Two of one key, the wrong way round, in each order mode and with two messages; and two that may be."""
        field = self.field
        first, second = (field.prepare(ordering_key=b"in turn") for _ in range(2))
        field.commit(first, second)
        field.forward(self.note("second", second, "ok"))
        field.forward(self.note("late", first, "out_of_order"))
        prepare = HalfOptions(order=OrderMode.PREPARE)
        early, late = (field.prepare(ordering_key=b"as stored", options=prepare) for _ in range(2))
        field.commit(late, early)
        field.forward(self.note("stored second", late, "ok"))
        field.forward(self.note("stored first", early, "out_of_order"))
        parked, passing = (field.prepare(ordering_key=b"parked") for _ in range(2))
        field.commit(parked)
        field.doubt(parked, "parked-committed", "too-large")
        field.commit(passing)
        field.forward(self.note("passing", passing, "ok"))
        field.forward(self.note("was parked", parked, "ok"))
        field.doubt(parked, "ended")
        both = (Message(field.orders), Message(field.stock))
        one, other = (field.prepare(*both, ordering_key=b"two messages") for _ in range(2))
        field.commit(one, other)
        field.forward(self.note("second of two messages", other, "ok"))
        field.forward(self.note("late with two messages", one, "out_of_order"))
        other_partition = [field.prepare(ordering_key=b"apart") for _ in range(2)]
        field.commit(*other_partition)
        for number, txn in enumerate(reversed(other_partition)):
            field.forward(self.note(f"apart {number}", txn, "ok"), partition=number)

    def plant_attempts(self) -> None:
        """One id, two attempts; and half records that the broker kept twice."""
        field = self.field
        died = field.prepare(Message(field.orders), Message(field.stock), key="again/0000000a", indices=[0])
        self.note("attempts", field.whole(key="again/0000000b"), "ok and overdue")
        assert died.txn_id == "again"
        field.whole(key="both/0000000a")
        self.note("both", field.whole(key="both/0000000b"), "duplicate")
        field.prepare(key="copied/0000000a")
        self.note("copied", field.whole(key="copied/0000000a"), "ok")
