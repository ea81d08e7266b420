"""The SparkSession of our jobs and of yours, and the options of every read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from txlayer import errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader

    from txlayer.adapters.kafka.local import LocalConfig

LOCAL_SETTINGS: Mapping[str, str] = {  # a driver and its executors in one process of this machine
    # Other machines have no business with a local driver; without it Spark looks for a public address.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # No page shows the plans of earlier queries, and ours are large: the default keeps 1,000 of them.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    # With the default, each task writes 200 pieces, which few cores read one after the other.
    "spark.sql.shuffle.partitions": "16",
    # Java's default collector, G1, runs beside the tasks, on cores that they need: 10 to 15 % of all CPU.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}

SETTINGS: Mapping[str, str] = {  # settings of every session of ours; the user's own win
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # It would inspect Python's stack, and ask Java three times, for each of the thousand columns that a plan names.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A stopped broker must not keep `stop()` waiting for ever (KAFKA-1894).
    "spark.sql.streaming.stopTimeout": "30s",
    # Rows are decoded by many small expressions; what Spark infers from them costs minutes and finds nothing.
    "spark.sql.constraintPropagation.enabled": "false",
    # Java compiles no method that is larger: it would interpret our plans of many expressions, at three times the CPU.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # It puts a small table, for few groups, before the large one: we have as many groups as transactions.
    "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # Records of a log are written once and read a few times: the level that packs best for its time.
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    # How many files a task may have open: with enough, Spark does not sort before it writes into folders.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
}

_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by `spark-submit`, which has started the Java side already


def session(
    *,
    name: str = "txlayer",
    master: str = "local[*]",
    memory: str = "2g",
    tables: str = "",
    s3: bool = False,
    settings: Mapping[str, str] | None = None,
    remote: str | None = None,
    config: LocalConfig | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> SparkSession:
    """A session that can read Kafka: the existing one, or a new one with a Java and the jars that it needs.

    In a notebook or a program after `pip install "txlayer[spark]"` it finds or downloads Java and the connector. Under
    `spark-submit`, on a managed cluster, and if this process has a session already, it returns that session.

    Args:
        name: What Spark calls the application.
        master: Where a new session runs.
        memory: That of the driver; with a local master, of driver and executors.
        tables: `delta` or `iceberg`: a new session has the jars and settings for these tables, too.
        s3: A new session has Hadoop's connector of S3 (`s3a://`), too.
        settings: Further settings of Spark.
        remote: The address of a Spark Connect server (`sc://…`), which has the connector; by default that of `SPARK_REMOTE`.
        config: Where jars and Java are kept; by default what the environment says.
        say: Called with a sentence before each download.

    Raises:
        UsageError: the existing session has no Kafka connector, or Spark Connect's packages are not installed;
            the error says what to do.
        ConfigError: no jars are locked for the installed pyspark.
    """
    remote = remote or os.environ.get("SPARK_REMOTE")
    if remote is not None:
        _check_connect()
        return with_connector(_built(SparkSession.builder.appName(name).remote(remote), settings or {}))
    active = SparkSession.getActiveSession()
    if active is not None:
        return with_connector(active)
    if _SUBMITTED in os.environ:
        return with_connector(build_session(name=name, master=None, settings=settings))
    # Only here: on a cluster neither jars nor Java are this package's business.
    from txlayer.adapters.kafka.local import LocalConfig
    from txlayer.adapters.kafka.local.runtime import prepare_connector

    found = prepare_connector(config or LocalConfig.from_environ(os.environ), tables=tables, s3=s3, say=say)
    given = {"spark.driver.memory": memory, **TABLE_SETTINGS.get(tables, {}), **(settings or {})}
    with _environment_of_java(str(found.java_home)):
        return build_session(name=name, master=master, jars=found.jars, settings=given)


TABLE_SETTINGS: Mapping[str, Mapping[str, str]] = {  # what a session needs for tables of a format, beside their jars
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Each look at a table is as many tasks, by default 50; ours have few files.
        "spark.databricks.delta.snapshotPartitions": "4",
    },
    "iceberg": {"spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"},
}


def _check_connect() -> None:
    # PySpark names one missing package at a time, and ends `python -c` with code 0.
    if not all(map(find_spec, ("grpc", "pandas", "pyarrow"))):
        raise errors.UsageError(
            f'Spark Connect needs more packages: pip install "pyspark[connect]=={pyspark.__version__}"'
        )


def with_connector(spark: SparkSession) -> SparkSession:
    """The same session; UsageError if it has no Kafka connector: the error says how to add one."""
    with failures_as_ours():
        found = (
            spark.read.format("kafka").option("kafka.bootstrap.servers", "localhost:9").option("subscribe", "t").load()
        )
        _ = found.schema  # over Spark Connect only this asks the server
    return spark


def java_of(spark: SparkSession, what: str) -> Any:  # the JVM has no Python types
    """The Java of a session, for `what`; UsageError if the session is of Spark Connect, which has none on this machine."""
    java = getattr(spark, "_jvm", None)
    if java is None:
        raise errors.UsageError(
            f"{what} needs a driver with its own Java, and Spark Connect has none: use spark-submit, or "
            "txlayer_spark.session() without remote. Reading topics and tables works over Spark Connect"
        )
    return java


@contextmanager
def _environment_of_java(java_home: str) -> Iterator[None]:
    """What Spark's launcher takes from the environment and from nowhere else, while it starts Java; then as before."""
    needed = {
        "JAVA_HOME": java_home,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Spark's workers are `python -m pyspark…`: they must not find a module in the working directory.
        "PYTHONSAFEPATH": "1",
    }
    before = {name: os.environ.get(name) for name in needed}
    os.environ.update(needed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def build_session(
    *, name: str, master: str | None, jars: Sequence[Path] = (), settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process; a second call gives the first one's session.

    `master` None leaves it to `spark-submit`, which has brought its own jars and settings.
    """
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    wanted = dict(SETTINGS)
    if master is not None and master.startswith("local"):
        wanted.update(LOCAL_SETTINGS)
    if jars:
        wanted["spark.jars"] = ",".join(str(jar) for jar in jars)
    return _built(builder, {**wanted, **(settings or {})})


def _built(builder: Any, settings: Mapping[str, str]) -> SparkSession:
    for key, value in settings.items():
        builder = builder.config(key, value)
    built: SparkSession = builder.getOrCreate()
    return built


def our_files(spark: SparkSession) -> DataFrameReader:
    """A reader that fails at a file that is gone or broken. Where the session's settings ignore such files, their rows would be missing."""
    return spark.read.options(ignoreMissingFiles=False, ignoreCorruptFiles=False)


def source_options(
    *, bootstrap_servers: str, topics: Sequence[str] | str, kafka_options: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Options of `format("kafka")` for one read of several topics, or of those whose name has a form (Java's).

    `kafka_options` are settings of Kafka's Java client without their prefix (`security.protocol`, `sasl.jaas.config`, …).
    """
    ours = {
        **({"subscribePattern": topics} if isinstance(topics, str) else {"subscribe": ",".join(topics)}),
        "includeHeaders": "true",
        # If the log is shortened while it is read, fail: the missing records cannot be judged.
        "failOnDataLoss": "true",
        "kafka.bootstrap.servers": bootstrap_servers,
        # Without this, an audit would count aborted records.
        "kafka.isolation.level": "read_committed",
        # The connector asks for a partition's ends once per poll, and keeps what was polled until it is read: polls that are
        # few enough, and small enough to be read before Java cleans up, which else copies them (a sixth of bronze's CPU).
        "kafka.max.poll.records": "2000",
        # What is asked for is there: only the request that reads ahead at a partition's end finds nothing, and the
        # connector's next one (where does it end?) waits behind it, by default half a second.
        "kafka.fetch.max.wait.ms": "10",
        "kafka.max.partition.fetch.bytes": str(1024 * 1024),
        "kafka.fetch.max.bytes": str(64 * 1024 * 1024),
    }
    given = {f"kafka.{name}": value for name, value in (kafka_options or {}).items()}
    return {**given, **ours}


_DATA_LOSS = ("KAFKA_DATA_LOSS", "data may have been lost", "OffsetOutOfRangeException", "PARTITION_OFFSET_CHANGED")

# What the text of a failure holds → what it is. The first that fits counts.
_SIGNS: tuple[tuple[tuple[str, ...], type[errors.TxLayerError], str], ...] = (
    (
        ("Failed to find data source: kafka", "Failed to find the data source: kafka"),
        errors.UsageError,
        (
            "this Spark has no Kafka connector. Start it with txlayer_spark.session(), or with spark-submit --jars "
            '"$(txlayer-spark jars)". On a managed cluster install the library '
            f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__} and restart it; the connector must have "
            "the cluster's own version of Spark"
        ),
    ),
    (
        ("UnknownTopicOrPartitionException", "UNKNOWN_TOPIC_OR_PARTITION"),
        errors.TopicMismatchError,
        "a topic of the namespace is missing: correct the namespace, or create its topics with txlayer topics apply",
    ),
    (
        _DATA_LOSS,
        errors.UsageError,
        (
            "Kafka's retention has overtaken the reader, or a topic was made anew: records are gone before they were read, "
            "and their transactions cannot be judged. Begin again in another folder, and run more often"
        ),
    ),
    (
        ("AuthorizationException", "AuthenticationException", "SaslAuthentication", "SslAuthentication"),
        errors.NotAuthorisedError,
        "the broker refuses these credentials, or they may not describe and read the topics",
    ),
    (
        (
            "Timed out waiting for a node assignment",
            "No resolvable bootstrap urls",
            "TimeoutException",
            "DisconnectException",
            "Failed to create new KafkaAdminClient",
        ),
        errors.BrokerUnavailableError,
        "no broker answers: correct --bootstrap-servers, or start it",
    ),
    (
        ("OutOfMemoryError", "Unable to acquire"),
        errors.RetriableError,
        (
            "Spark has not enough memory: give it more with --memory, or smaller parts with "
            "--spark-setting spark.sql.shuffle.partitions=64"
        ),
    ),
)


def is_data_loss(failure: Exception) -> bool:
    """Whether Spark's Kafka source says that records, partitions or topics are gone that were to be read."""
    return any(sign in str(failure) for sign in _DATA_LOSS)


def is_done_all_the_same(failure: Exception) -> bool:
    """Whether a query ended behind a batch that it had done again and noted: started again, it goes on.

    So does the connector of Spark 4.1: after a restart it counts by offsets that it has not asked for yet.
    """
    return "IterableOps.map" in str(failure) and "scala.Option.get()" in str(failure)


_FILE_GONE = ("FileNotFoundException", "FILE_NOT_EXIST", "PATH_NOT_FOUND")
_TRIES_MAX = 5

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def done_again(job: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """For jobs that can be repeated: run the job again if files that it read were folded into others or deleted meanwhile."""

    @wraps(job)
    def again(*given: _Given.args, **named: _Given.kwargs) -> _Result:
        for _ in range(_TRIES_MAX - 1):
            try:
                return job(*given, **named)
            except (PySparkException, Py4JJavaError) as exc:
                if not any(sign in str(exc) for sign in _FILE_GONE):
                    raise
        return job(*given, **named)

    return again


@contextmanager
def failures_as_ours() -> Iterator[None]:
    """Raise known failures as txlayer's errors; anything else passes unchanged.

    Raises:
        TxLayerError: see `_SIGNS`. What the job has written before stays, and the job may be run again.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as exc:
        told = str(exc)
        for signs, kind, sentence in _SIGNS:
            if any(sign in told for sign in signs):
                raise kind(sentence) from exc
        raise
