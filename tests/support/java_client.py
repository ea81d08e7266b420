"""Programs that use Kafka's own client for Java; the sources in `java/` say how they are spoken to."""

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.support.debian import program
from tests.support.programs import run_program
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.runtime import prepare_runtime

SOURCES = Path(__file__).parent / "java"
TIMEOUT_S = 120
NULL = "~"


class JavaRecord(NamedTuple):
    """What one line says."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def write_with_java(
    config: LocalConfig, servers: str, topic: str, records: Iterable[JavaRecord], *, codec: str
) -> None:
    """Write into partition 0, in one Kafka transaction."""
    lines = (
        "\t".join([_text(r.key), _text(r.value), *(f"{name}={_text(value)}" for name, value in r.headers)])
        for r in records
    )
    run_java(config, "JavaClient.java", "write", servers, topic, codec, told="\n".join(lines))


def read_with_java(config: LocalConfig, servers: str, topic: str, count: int) -> list[JavaRecord]:
    """The first records of partition 0 that a reader of committed records sees; fewer where no more come."""
    found = []
    for line in run_java(config, "JavaClient.java", "read", servers, topic, str(count)).splitlines():
        key, value, *headers = line.split("\t")
        pairs = (header.split("=", 1) for header in headers)
        found.append(JavaRecord(_bytes(key), _bytes(value), tuple((name, _bytes(text)) for name, text in pairs)))
    return found


def run_java(config: LocalConfig, source: str, *arguments: str, told: str = "") -> str:
    """What the program `source` prints."""
    runtime = prepare_runtime(config)
    java = program("javac", package="default-jdk-headless").resolve().parent / "java"
    line = [str(java), "-XX:TieredStopAtLevel=1", "-cp", f"{runtime.jar_folder}/*", str(SOURCES / source), *arguments]
    ended = run_program(line, within=TIMEOUT_S, input=told)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def _text(value: bytes | None) -> str:
    return NULL if value is None else base64.b64encode(value).decode()


def _bytes(text: str) -> bytes | None:
    return None if text == NULL else base64.b64decode(text)
