"""What Spark is started with: the connector of its own version, and a Java that accepts its arguments."""

import dataclasses
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.programs import run_program
from tests.support.spark_processes import FIRST_COMPILER
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.runtime import (
    CONNECTOR,
    VECTOR_MODULE,
    bundled_java,
    has_vector_module,
    installed_pyspark,
    locked_releases,
    prepare_connector,
    read_lock,
    verify,
    write_launcher,
)
from txlayer.errors import ConfigError

REPOSITORY = Path(__file__).parents[3]


def test_every_locked_connector_is_of_its_own_release_of_spark() -> None:
    assert ["4.0.0", "4.1.1", "4.2.0"] == locked_releases(CONNECTOR)
    assert installed_pyspark() in locked_releases(CONNECTOR)
    for release in locked_releases(CONNECTOR):
        lock = read_lock(CONNECTOR, spark=release)

        assert release == lock.version
        assert {64} == {len(jar.sha256) for jar in lock.jars}
        assert lock.folder_name.startswith(f"spark-kafka-{release}-")
        assert {release} == {jar.version for jar in lock.jars if jar.group == "org.apache.spark"}


@pytest.mark.parametrize("extra", ["spark", "local"])
def test_what_pip_installs_is_what_the_program_accepts(extra: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    (wanted,) = (r for r in project["optional-dependencies"][extra] if r.startswith("pyspark"))

    name, _, newest = wanted.partition(">=4.0.0,<=")

    assert "pyspark" == name
    assert locked_releases(CONNECTOR)[-1] == newest


@pytest.mark.kafka
def test_the_connector_is_fetched_and_verified(local_config: LocalConfig) -> None:
    runtime = prepare_connector(local_config)

    lock = read_lock(CONNECTOR, spark=installed_pyspark())
    verify(runtime.jars[0].parent, lock.jars)
    assert [jar.file_name for jar in lock.jars] == [path.name for path in runtime.jars]
    assert (runtime.java_home / "bin" / "java").exists()


def test_a_spark_whose_connector_is_not_locked_is_told_the_ways_out() -> None:
    with pytest.raises(ConfigError, match=r"pyspark 4\.0\.0, 4\.1\.1, 4\.2\.0 alone.*spark-submit"):
        read_lock(CONNECTOR, spark="4.1.2")


@pytest.mark.kafka
def test_the_java_of_the_wheel_starts_with_sparks_argument_through_the_launcher(tmp_path: Path) -> None:
    java = bundled_java()
    assert java is not None
    asked = f"--add-modules={VECTOR_MODULE}"

    home = write_launcher(tmp_path / "a blank", java)

    assert not has_vector_module(java)
    started = run_program(
        [home / "bin" / "java", asked, "-Da=b c", "-XshowSettings:properties", "-version"], within=60, check=True
    )
    assert "a = b c" in started.stderr


def test_a_launcher_that_is_there_already_is_used_without_writing(tmp_path: Path) -> None:
    java = tmp_path / "java"
    launcher = write_launcher(tmp_path / "home", java) / "bin" / "java"
    before = launcher.stat()

    assert tmp_path / "home" == write_launcher(tmp_path / "home", java)

    assert (before.st_ino, before.st_mtime_ns) == (launcher.stat().st_ino, launcher.stat().st_mtime_ns)


@pytest.mark.kafka
@pytest.mark.slow
def test_spark_runs_on_the_java_of_the_wheel_and_without_a_connector_says_what_to_do(
    local_config: LocalConfig, tmp_path: Path
) -> None:
    without_java = dataclasses.replace(local_config, java_home=None, search_path=str(tmp_path))
    runtime = prepare_connector(without_java)
    program = (
        "from txlayer_spark.sessions import build_session\n"
        "spark = build_session(name='t', master='local[1]')\n"
        "print('rows', spark.range(7).selectExpr('id % 2 AS k').groupBy('k').count().count())\n"
        "from txlayer_spark import session, stream_topic\n"
        "for read in (session, lambda: stream_topic(spark, 'orders', bootstrap_servers='127.0.0.1:9')):\n"
        "    try:\n"
        "        read()\n"
        "    except Exception as exc:\n"
        "        print(type(exc).__name__, exc)\n"
        "spark.stop()\n"
    )

    done = run_program(
        [sys.executable, "-c", program],
        within=120,
        check=True,
        env={
            "PATH": "/usr/bin:/bin",
            "JAVA_HOME": str(runtime.java_home),
            "PYTHONPATH": ":".join(sys.path),
            "SPARK_SUBMIT_OPTS": FIRST_COMPILER,
        },
    )

    assert "rows 2" in done.stdout
    assert 2 == done.stdout.count("UsageError this Spark has no Kafka connector. Start it with txlayer_spark.session()")
    assert f"spark-sql-kafka-0-10_2.13:{installed_pyspark()}" in done.stdout
