"""What is written down and sampled while a chaotic run happens. Never a judgement."""

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.arena import Arena
from tests.support.history import History, Sample
from tests.support.load import Load
from tests.support.logs import both_ends
from tests.support.onlooker import Onlooker
from tests.support.waiting import wait_until
from tests.support.witness import Witness
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.ports import StoredOffset, TopicPartition
from txlayer.config import ClientConfig
from txlayer.errors import TxLayerError

SAMPLE_EVERY_S = 1.0


@dataclass
class Journal:
    """JSON lines, one per thing that happened, each written at once."""

    file: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, what: str, **details: object) -> None:
        """Any thread."""
        line = json.dumps({"at_ms": int(time.time() * 1000), "what": what, **details})
        with self._lock, self.file.open("a", encoding="utf-8") as out:
            out.write(line + "\n")


class Sampler(Onlooker):
    """Asks now and then what the coordinators' group has stored, and then where the real topics and check end."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self.samples: list[Sample] = []
        self._arena = arena
        self._config = ClientConfig(bootstrap_servers=arena.servers, namespace=arena.namespace)

    def take(self) -> Sample:
        """One sample.

        Raises:
            TxLayerError: the cluster does not say.
        """
        topics = self._arena.topics
        wanted = [(t, p) for t in (topics.half, topics.op) for p in range(self._arena.partition_count)]
        with KafkaAdmin(self._config, timeout_ms=5_000) as admin:
            answer: dict[TopicPartition, StoredOffset | None] = admin.stored_offsets(
                topics.coordinator_group, wanted, is_stable=False
            )
            real = [
                (topic, p)
                for topic in (*self._arena.targets, topics.check)
                for p in range(admin.partition_count(topic) or 0)
            ]
            stored = {place: offset for place, offset in answer.items() if offset is not None}
            # Markers land one by one: what is stored may be seen before the last stable offset of another topic moves.
            return Sample(stored, admin.end_offsets(real, is_committed=False))

    def take_last(self, *, within: float) -> None:
        """The sample of the end, behind all others: nobody takes one after it."""
        self.stop()
        before = len(self.samples)

        def is_taken() -> bool:
            self._try()
            return len(self.samples) > before

        wait_until(is_taken, within=within, what="the last sample")

    def history(self, load: Load, witness: Witness) -> History:
        """What is known of the run when it has come to rest, without what databases say and how groups were asked."""
        arena = self._arena
        names = arena.topics
        topics = [names.half, names.op, names.doubt, names.check, *arena.targets]
        acknowledged = [(names.half, sent.partition, offset) for sent in load.sent for offset in sent.acknowledged]
        acknowledged += [(names.op, p, offset) for p, offset in load.acknowledged_ops]
        return History(
            logs=arena.logs(),
            half_topic=names.half,
            op_topic=names.op,
            partition_count=arena.partition_count,
            samples=self.samples,
            witnessed=witness.records,
            ends=both_ends(arena.servers, topics),
            acknowledged=acknowledged,
        )

    def _try(self) -> None:
        with suppress(TxLayerError):  # a broker is away: the next sample will come
            self.samples.append(self.take())

    def look_on(self) -> None:
        """A sample every second."""
        while not self.is_stopping.wait(SAMPLE_EVERY_S):
            self._try()
