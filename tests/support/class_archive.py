"""Archives of the classes that a broker, and a session of Spark, loads: each one that tests start takes a third less CPU until it is ready.

`make jars` makes them: `python -m tests.support.class_archive`.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from txlayer.adapters.kafka.local import LocalBroker, LocalConfig, server
from txlayer.adapters.kafka.local.runtime import Runtime, installed_pyspark, prepare_runtime

_SESSION = """
import sys
from pyspark.sql import functions as F
from txlayer_spark import session

spark = session(master="local[2]", memory="512m", settings={"spark.sql.shuffle.partitions": "2"})
rows = spark.range(9).select("id", (F.col("id") % 2).cast("string").alias("half"))
rows.write.partitionBy("half").parquet(f"{sys.argv[1]}/rows")
read = spark.readStream.schema("id bigint, half string").parquet(f"{sys.argv[1]}/rows")
query = read.writeStream.trigger(availableNow=True).option("checkpointLocation", f"{sys.argv[1]}/noted")
query.foreachBatch(lambda batch, _: batch.groupBy("half").agg(F.max("id")).collect()).start().awaitTermination()
spark.stop()
"""


def archive_of(config: LocalConfig, runtime: Runtime) -> Path:
    """That of brokers, beside the jars that txlayer fetches, also if other jars are used."""
    return (config.home / "jars").absolute() / f"classes-{runtime.kafka_version}.jsa"


def archive_of_spark() -> Path:
    """In the environment, because Java takes an archive for the classes of one place alone."""
    return Path(sys.prefix) / f"classes-spark-{installed_pyspark()}.jsa"


def use_archive(config: LocalConfig) -> None:
    """Fetch the jars; brokers of this process start with the archive, if it is there. Java passes over one of other classes."""
    archive = archive_of(config, prepare_runtime(config))
    flag = f"-XX:SharedArchiveFile={archive}"
    if archive.exists() and flag not in server.BRIEF:
        server.BRIEF = (*server.BRIEF, flag)  # type: ignore[assignment]  # one more
        server.LASTING = (*server.LASTING, flag)  # type: ignore[assignment]  # likewise


def quick_java(config: LocalConfig) -> str:
    """For `JDK_JAVA_OPTIONS` of commands that start brokers: the archive, and the first compiler alone."""
    return f"-XX:SharedArchiveFile={archive_of(config, prepare_runtime(config))} -XX:TieredStopAtLevel=1"


def quick_spark() -> str:
    """For `SPARK_SUBMIT_OPTS`: the archive, without a word where it is one of other classes."""
    archive = archive_of_spark() if find_spec("pyspark") else None
    return f"-XX:SharedArchiveFile={archive} -Xlog:cds*=off" if archive and archive.exists() else ""


def main() -> None:
    """Let Java write each at the end of a broker, and of a session, unless it is there."""
    config = LocalConfig.from_environ(os.environ)

    def run_broker(flag: str) -> None:
        broker = LocalBroker(config=config)
        broker._flags = (*server.BRIEF, flag)  # type: ignore[assignment]  # likewise
        with broker:
            broker.stop()

    def run_spark(flag: str) -> None:
        with TemporaryDirectory() as folder:
            environment = {**os.environ, "SPARK_SUBMIT_OPTS": flag, "PYTHONPATH": ":".join(sys.path)}
            # Its Java holds the pipes until it has written.
            subprocess.run([sys.executable, "-c", _SESSION, folder], env=environment, capture_output=True, check=True)

    _make(archive_of(config, prepare_runtime(config)), run_broker)
    _make(archive_of_spark(), run_spark)


def _make(archive: Path, run: Callable[[str], None]) -> None:
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        part = archive.with_suffix(f".{os.getpid()}")
        run(f"-XX:ArchiveClassesAtExit={part}")
        if part.exists():  # not every Java can
            part.rename(archive)


if __name__ == "__main__":
    main()
