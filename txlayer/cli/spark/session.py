"""The Spark session of a command: Java and the connector's jars made ready, then `build_session`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from pyspark.sql import SparkSession

from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.jars import CONNECTOR
from txlayer.adapters.kafka.local.runtime import SparkRuntime, prepare_connector
from txlayer.cli.output import FetchBar
from txlayer_spark.session import build_session, failures_as_ours

_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit`, which has started the Java side already."""


def connector(config: LocalConfig | None = None) -> SparkRuntime:
    """Java and the jars of Spark's Kafka connector, fetched when they are missing.

    Raises:
        ConfigError: no Java, or no jars that fit.
        RepositoryUnreachableError: the connector could not be fetched.
    """
    with closing(FetchBar(CONNECTOR)) as progress:
        return prepare_connector(config or LocalConfig.from_environ(os.environ), progress=progress)


@contextmanager
def spark_session(
    *, master: str, memory: str = "2g", settings: Mapping[str, str] | None = None, config: LocalConfig | None = None
) -> Iterator[SparkSession]:
    """A session for the time of the block; under `spark-submit` the one that it started.

    Raises:
        ConfigError: no Java, or no jars that fit. Nothing was started.
        RepositoryUnreachableError: the connector could not be fetched.
    """
    if _SUBMITTED in os.environ:
        session = build_session(name="txlayer", master=None, settings=settings)
    else:
        runtime = connector(config)
        with _environment_of_java(str(runtime.java_home)):
            session = build_session(
                name="txlayer",
                master=master,
                jars=runtime.jars,
                settings={"spark.driver.memory": memory, **(settings or {})},
            )
    try:
        with failures_as_ours():
            yield session
    finally:
        session.stop()


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
