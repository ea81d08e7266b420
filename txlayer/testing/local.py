"""Whether a real broker can be started from its jars at once. Never: fetching anything."""

from __future__ import annotations

from pathlib import Path

from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.jars import has_all_sizes, read_lock
from txlayer.adapters.kafka.local.java import bundled_java, find_java
from txlayer.adapters.kafka.local.runtime import installed_version
from txlayer.errors import ConfigError


def why_no_local(config: LocalConfig) -> str | None:
    """Why no broker can be started here without a network; None: one can."""
    try:
        find_java(
            named_home=config.named_java_home,
            java_home=config.java_home,
            search_path=config.search_path,
            bundled=bundled_java(),
        )
        if config.kafka_home:
            installed_version(Path(config.kafka_home).absolute() / "libs")
            return None
    except ConfigError as exc:
        return str(exc)
    lock = read_lock()
    if has_all_sizes(config.home / "jars" / lock.folder_name, lock.jars):
        return None
    return "Kafka's jars are not here: `txlayer broker fetch` brings them"
