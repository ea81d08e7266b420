"""What Spark needs to reach Kafka: the connector's jars of pyspark's own version, and a Java that Spark starts on."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from txlayer.adapters.kafka.local.fetch import Progress, fetch_jars
from txlayer.adapters.kafka.local.file_lock import file_lock
from txlayer.adapters.kafka.local.jars import CONNECTOR, JarLock, read_lock
from txlayer.adapters.kafka.local.java import bundled_java, find_java
from txlayer.adapters.kafka.local.runtime import QUIET, LocalConfig, find_sources
from txlayer.errors import ConfigError

VECTOR_MODULE = "jdk.incubator.vector"
"""Spark asks every Java for it, by a fixed argument; only its linear algebra would use it."""
_JAVA_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class SparkRuntime:
    """A Java and the connector's jars, ready to run."""

    java_home: Path
    jars: tuple[Path, ...]


def prepare_connector(config: LocalConfig, *, progress: Progress = QUIET) -> SparkRuntime:
    """Find Java, and find or fetch the connector that fits the installed pyspark.

    Raises:
        ConfigError: no pyspark, no Java, or jars that cannot be used. Nothing was started.
        RepositoryUnreachableError: the jars are not there and could not be fetched.
        WrongChecksumError: a fetched file is not the locked one.
    """
    lock = read_lock(CONNECTOR)
    installed = installed_pyspark(lock)
    java = find_java(
        named_home=config.named_java_home,
        java_home=config.java_home,
        search_path=config.search_path,
        bundled=bundled_java(),
    )
    home = config.home.absolute()
    java_home = java.resolve().parents[1]
    if not has_vector_module(java):
        java_home = write_launcher(home / "java", java)
    if config.spark_jars:
        return SparkRuntime(java_home, own_jars(config.spark_jars))
    check_version(installed, lock)
    folder = fetch_jars(
        lock, cache=home / "jars", sources=find_sources(config, java), progress=progress
    )
    return SparkRuntime(java_home, tuple(folder / jar.file_name for jar in lock.jars))


def installed_pyspark(lock: JarLock) -> str:
    """The version of pyspark.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return version("pyspark")
    except PackageNotFoundError as exc:
        raise ConfigError(
            'Spark is missing: pip install "txlayer[spark]"', name="pyspark", expected=lock.version
        ) from exc


def check_version(installed: str, lock: JarLock) -> None:
    """The connector must be of Spark's own version: another one fails in the middle of a job.

    Raises:
        ConfigError: this version's jars are not locked.
    """
    if installed != lock.version:
        raise ConfigError(
            f"txlayer knows the connector's checksums for pyspark {lock.version} alone: install that, "
            f"or name the connector of pyspark {installed} and what it needs with {CONNECTOR.own}",
            name="pyspark",
            value=installed,
            expected=lock.version,
        )


def own_jars(paths: tuple[str, ...]) -> tuple[Path, ...]:
    """The jars that a user names.

    Raises:
        ConfigError: one cannot be read, or the connector is not among them.
    """
    jars = tuple(Path(path.strip()).absolute() for path in paths)
    for jar in jars:
        try:
            with jar.open("rb") as content:
                is_jar = content.read(2) == b"PK"
        except OSError as exc:
            raise _wrong_jar(jar, f"it cannot be read: {exc.strerror}") from exc
        if not is_jar:
            raise _wrong_jar(jar, "it is no jar")
    if not any(jar.name.startswith(CONNECTOR.artifact) for jar in jars):
        raise _wrong_jar(jars[0], f"none of them is {CONNECTOR.artifact}")
    return jars


def _wrong_jar(jar: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{why}; correct the path, or unset it to use the locked jars",
        name=CONNECTOR.own, value=str(jar), expected=CONNECTOR.own_is,
    )  # fmt: skip


def has_vector_module(java: Path) -> bool:
    """Whether Spark's own launcher can start this Java as it is."""
    try:
        tried = subprocess.run(  # noqa: S603 - the Java that was found
            [java, f"--add-modules={VECTOR_MODULE}", "-version"],
            capture_output=True,
            timeout=_JAVA_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def write_launcher(folder: Path, java: Path) -> Path:
    """A Java home whose `java` is the given one without the argument that it would refuse.

    The same content under the same name, put in place in one step: safe for several processes at once. Where it stands
    already nothing is written, so the folder may be somebody else's: an image is made by one user and run by another.
    """
    script = (
        "#!/bin/sh\n# Spark asks for a module that this Java does not have, and does not need it.\n"
        'for argument do shift; case $argument in "--add-modules=' + VECTOR_MODULE + '") ;; '
        '*) set -- "$@" "$argument";; esac; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    launcher = folder / "bin" / "java"
    if _says(launcher, script):
        return folder
    launcher.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / ".lock"):
        if not _says(launcher, script):
            draft = launcher.with_suffix(".new")
            draft.write_text(script, "utf-8")
            draft.chmod(0o755)
            draft.replace(launcher)
    return folder


def _says(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text("utf-8") == text
