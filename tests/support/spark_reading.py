"""Topics filled with real encodings and with what is nearly one, and read back by Spark."""

import re
from collections.abc import Callable
from random import Random
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.conftest import Broker
from tests.fuzz.mutation import corpus_of, mutated
from tests.support.broker import create_topic, unique_name
from tests.support.topic_records import Record, write_records
from txlayer.core.codec import NEXT_VERSION, VERSION
from txlayer_spark import read_topic
from txlayer_spark.sessions import is_done_all_the_same

MUTATIONS = 300
SEED = 20_260_101
LATER = b"3|whatever a later version says"


def mutations(*corpora: str, more: tuple[bytes, ...] = ()) -> list[bytes]:
    """Real encodings, those of the next release, one of a later one, and bytes that are nearly such; no null."""
    corpus = [raw for name in corpora for raw in corpus_of(name)] + list(more)
    dice = Random(SEED)
    return [*corpus, LATER, *of_next_release(corpus), *(mutated(corpus, dice) for _ in range(MUTATIONS))]


def of_next_release(lines: list[bytes]) -> list[bytes]:
    """Lines of ours as the next release may write them, with further fields behind or none; and this one's with such."""
    ours, theirs = (f"{version}|".encode() for version in (VERSION, NEXT_VERSION))
    return [
        start + line.removeprefix(ours) + behind
        for line in lines
        if line.startswith(ours)
        for start, behind in ((theirs, b""), (theirs, b"|x,\n|"), (theirs, b"|5|"), (ours, b"|5"))
    ]


def rows(spark: SparkSession, broker: Broker, topic: str) -> list[Row]:
    """The topic as `read_topic` gives it, in the order of the log."""
    frame = read_topic(spark, topic, bootstrap_servers=broker.bootstrap_servers)
    return sorted(frame.collect(), key=lambda row: (row.partition, row.offset))


def written(broker: Broker, kind: str, records: Callable[[str], list[Record]]) -> str:
    """A topic of that kind that holds the records."""
    topic = create_topic(broker.bootstrap_servers, unique_name("read") + kind)
    write_records(broker.bootstrap_servers, records(topic))
    return topic


def is_refused(row: Row, raw: bytes | None, *, says: str = "unknown version 3") -> bool:
    """Whether the row says that it could not be read; of a later version it says so."""
    return row.error is not None and (raw != LATER or says in row.error)


def told(row: Row, names: dict[str, Any]) -> dict[str, Any]:
    """Those columns of a row."""
    return {name: row[name] for name in names}


def alike(columns: dict[str, Any]) -> dict[str, Any]:
    """The same with one U+FFFD where several are: each side counts in its own way what is no text."""
    return {
        name: re.sub("\ufffd+", "\ufffd", value) if isinstance(value, str) else value for name, value in columns.items()
    }


def run_to_its_end(start: Callable[[], StreamingQuery]) -> None:
    """Run a query over what is there now; with Spark 4.1 start it once more behind a batch that was done again."""
    for is_last in (False, True):
        query = start()
        try:
            assert query.awaitTermination(300)
        except StreamingQueryException as exc:
            if is_last or not is_done_all_the_same(exc):
                raise
        else:
            return
        finally:
            query.stop()
