"""The coordinator's side of check-back, played by a test: it asks, and reads what was answered."""

from collections.abc import Sequence

from tests.support.arena import Arena
from tests.support.broker import unique_name
from tests.support.logs import read_log
from tests.support.topic_records import Record, RecordWriter
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig
from txlayer.core import codec
from txlayer.core.messages import CheckKind, CheckRecord, OpMessage

PATIENCE_S = 30.0


class Asker:
    """Asks one producer group on an arena. Its group is a new one."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.group = unique_name("group")
        self._records = RecordWriter(arena.servers)

    def question(
        self,
        txn_id: str,
        *,
        number: int = 1,
        partition: int = 0,
        nonce: str = "0000000a",
        born_ms: int = 1_700_000_000_000,
    ) -> CheckRecord:
        """One question, not asked yet."""
        return CheckRecord(CheckKind.QUESTION, f"{txn_id}/{nonce}", self.group, partition, 7, born_ms, number, "orders")

    def ask(self, *checks: CheckRecord) -> None:
        """Write them, in the partitions of their keys."""
        topic = self.arena.topics.check
        self._records.write(
            [Record(topic, codec.encode_check(each), codec.check_key(each), partition=-1) for each in checks]
        )

    def member_count(self) -> int:
        """How many instances the group has; 0 while they share anew."""
        config = ClientConfig(bootstrap_servers=self.arena.servers, namespace=self.arena.namespace)
        with KafkaAdmin(config) as admin:
            state = admin.group(self.arena.topics.check_group(self.group))
        return len(state.members) if state.state == "stable" else 0

    def wait_for_members(self, count: int, *, within: float = PATIENCE_S) -> None:
        """Wait until so many share the check topic."""
        wait_until(lambda: self.member_count() == count, within=within, what=f"{count} members")

    def answers(self) -> list[OpMessage]:
        """What the group answered."""
        found = []
        for record in read_log(self.arena.servers, [self.arena.topics.op])[self.arena.topics.op]:
            for line in (record.value or b"").decode().split("\n"):
                op = codec.decode_op(line)
                if isinstance(op, OpMessage) and op.producer_group == self.group:
                    found.append(op)
        return found

    def wait_for(self, count: int, *, within: float = PATIENCE_S) -> Sequence[OpMessage]:
        """Wait for so many answers."""

        def enough() -> list[OpMessage]:
            found = self.answers()
            return found if len(found) >= count else []

        return wait_until(enough, within=within, what=f"{count} answers")
