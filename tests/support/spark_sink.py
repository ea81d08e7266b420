"""What tests of the sink of Spark write, and what is there afterwards, read by plain clients."""

from collections import Counter
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from tests.support.arena import Arena
from tests.support.logs import Seen, header, read_log
from tests.support.producers import ops
from tests.support.waiting import wait_until
from txlayer.core import codec
from txlayer.core.messages import HalfHeader, Resolution
from txlayer_spark import SinkSettings

GROUP = "orders"


def settings_for(arena: Arena, **more: object) -> SinkSettings:
    """Into that namespace."""
    given = {"topic": arena.targets[0], "producer_group": GROUP, **more}
    return SinkSettings(
        bootstrap_servers=arena.servers,
        namespace=arena.namespace,
        **given,  # type: ignore[arg-type]  # settings by name
    )


def numbers(spark: SparkSession, count: int, *, name: str = "v") -> DataFrame:
    """So many messages, in order, in two partitions."""
    return spark.range(0, count, 1, 2).selectExpr("concat('key-', id % 7) AS key", f"concat('{name}', id) AS value")


def values(seen: Sequence[Seen]) -> list[str]:
    """What is visible, in the order of the topic."""
    return [(record.value or b"").decode() for record in seen]


def visible_of(arena: Arena, ids: Sequence[str]) -> list[Seen]:
    """What is visible of these transactions, read once for all."""
    wanted = {txn_id.encode() for txn_id in ids}
    log = read_log(arena.servers, [arena.targets[0]])[arena.targets[0]]
    return [record for record in log if header(record.headers, codec.ID_HEADER) in wanted]


def wait_until_all_are_visible(arena: Arena, ids: Sequence[str], *, count: int) -> list[Seen]:
    """Wait until so many messages of them are."""

    def enough() -> list[Seen]:
        found = visible_of(arena, ids)
        return found if len(found) >= count else []

    return wait_until(enough, within=30, what=f"{count} messages of {ids}")


def attempts_in(arena: Arena, txn_id: str) -> Counter[str]:
    """{id/nonce: half records} of an id."""
    found: Counter[str] = Counter()
    for record in read_log(arena.servers, [arena.topics.half])[arena.topics.half]:
        head = codec.decode_half_header(codec.half_header_of(record.headers) or b"")
        if isinstance(head, HalfHeader) and head.key.startswith(f"{txn_id}/"):
            found[head.key] += 1
    return found


def resolved(arena: Arena, txn_id: str) -> Counter[Resolution]:
    """How often each resolution of an id was written."""
    return Counter(op.resolution for _, op in ops(arena, txn_id))
