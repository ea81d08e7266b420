"""An archive of the classes that a broker loads, with which each one that tests start takes a third less CPU until it is ready.

`make jars` makes it: `python -m tests.support.class_archive`.
"""

import os
from pathlib import Path

from txlayer.adapters.kafka.local import LocalBroker, LocalConfig, server
from txlayer.adapters.kafka.local.runtime import Runtime, prepare_runtime


def archive_of(config: LocalConfig, runtime: Runtime) -> Path:
    """Where it is, beside the jars that txlayer fetches, also if other jars are used."""
    return (config.home / "jars").absolute() / f"classes-{runtime.kafka_version}.jsa"


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


def main() -> None:
    """Start a broker that writes it at its end, unless it is there."""
    config = LocalConfig.from_environ(os.environ)
    archive = archive_of(config, prepare_runtime(config))
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        part = archive.with_suffix(f".{os.getpid()}")
        broker = LocalBroker(config=config)
        broker._flags = (*server.BRIEF, f"-XX:ArchiveClassesAtExit={part}")  # type: ignore[assignment]  # likewise
        with broker:
            broker.stop()
        if part.exists():  # not every Java can
            part.rename(archive)


if __name__ == "__main__":
    main()
