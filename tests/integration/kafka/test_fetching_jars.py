"""Kafka's jars from a repository on this machine, and everything that goes wrong."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from txlayer.adapters.kafka.local import runtime
from txlayer.adapters.kafka.local.runtime import (
    BROKER,
    Jar,
    JarLock,
    LocalConfig,
    RepositoryUnreachableError,
    WrongChecksumError,
    default_url,
    fetch_jars,
    find_java,
    prepare_runtime,
    verify,
)
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Repository:
    """Where it is, and how often each file was fetched."""

    url: str
    fetched: Counter[str] = field(default_factory=Counter)


@contextmanager
def serve(files: Mapping[str, bytes]) -> Iterator[Repository]:
    """A repository that holds exactly `files`, by path."""
    fetched: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(has_body=True)

        def do_HEAD(self) -> None:
            self._answer(has_body=False)

        def _answer(self, *, has_body: bool) -> None:
            content = files.get(self.path.lstrip("/"))
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if has_body and content is not None:
                fetched[self.path.rpartition("/")[2]] += 1
                self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            """Nothing: a test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Repository(f"http://127.0.0.1:{server.server_port}", fetched)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


pytestmark = pytest.mark.kafka

CONTENT = {"kafka_2.13": b"the broker" * 1000, "slf4j-simple": b"the log"}
GROUPS = {"kafka_2.13": "org.apache.kafka", "slf4j-simple": "org.slf4j"}
LOCK = JarLock(
    tuple(
        Jar(GROUPS[name], name, "4.3.0", len(content), hashlib.sha256(content).hexdigest())
        for name, content in CONTENT.items()
    )
)
FILES = {
    f"{jar.group.replace('.', '/')}/{jar.artifact}/{jar.version}/{jar.file_name}": CONTENT[jar.artifact]
    for jar in LOCK.jars
}


def names_in(cache: Path) -> list[str]:
    """What a cache holds, but for lock files."""
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_a_cache_that_cannot_be_made_is_a_wrong_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", "utf-8")

    with pytest.raises(ConfigError, match="this folder cannot be written: Not a directory"):
        fetch_jars(LOCK, cache=tmp_path / "file" / "jars", maven_url=None)


def test_jars_are_fetched_once_and_then_come_from_the_cache(tmp_path: Path) -> None:
    said: list[str] = []

    with serve(FILES) as repository:
        folder = fetch_jars(LOCK, cache=tmp_path, maven_url=repository.url, say=said.append)
    again = fetch_jars(LOCK, cache=tmp_path, maven_url=repository.url, say=said.append)

    verify(folder, LOCK.jars)
    assert folder == again
    assert {jar.file_name: 1 for jar in LOCK.jars} == dict(repository.fetched)
    assert ["Fetching Kafka 4.3.0, once: 2 jars, 0 MB"] == said
    assert [folder.name] == names_in(tmp_path)


def test_a_jar_with_other_bytes_is_refused_by_name_and_nothing_is_kept(tmp_path: Path) -> None:
    forged = {path: content.replace(b"o", b"0") for path, content in FILES.items()}

    with serve(forged) as repository, pytest.raises(WrongChecksumError) as refused:
        fetch_jars(LOCK, cache=tmp_path, maven_url=repository.url)

    assert "kafka_2.13-4.3.0.jar" == refused.value.file
    assert "package mirror" in str(refused.value)
    assert [] == names_in(tmp_path)


def test_an_unreachable_repository_is_told_with_the_ways_out(tmp_path: Path) -> None:
    (port,) = free_ports(1)

    with pytest.raises(RepositoryUnreachableError, match="TXLAYER_MAVEN_URL") as failed:
        fetch_jars(LOCK, cache=tmp_path, maven_url=f"http://127.0.0.1:{port}")

    assert "TXLAYER_KAFKA_HOME" in str(failed.value)
    assert [] == names_in(tmp_path)


def test_ctrl_c_does_not_wait_for_a_repository_that_says_nothing(tmp_path: Path) -> None:
    # A run that a shell started in the background ignores SIGINT, and what it starts inherits that.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from txlayer.cli import run; run()"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        settings = {
            "TXLAYER_HOME": str(tmp_path),
            "TXLAYER_MAVEN_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "TXLAYER_KAFKA_HOME": "",
        }
        with subprocess.Popen(
            [sys.executable, "-c", program, "broker", "fetch"],
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                asking = [silent.accept()[0] for _ in range(runtime.FETCHES_AT_ONCE)]
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=runtime.FETCH_TIMEOUT_S / 2)
            finally:
                process.kill()
        for each in asking:
            each.close()

    assert (130, "") == (process.returncode, out)
    assert "Fetching Kafka" in err
    assert 1 == len(err.splitlines())


def test_a_jar_that_the_repository_lacks_is_told(tmp_path: Path) -> None:
    some = dict(list(FILES.items())[:1])

    with serve(some) as repository, pytest.raises(RepositoryUnreachableError, match="slf4j-simple"):
        fetch_jars(LOCK, cache=tmp_path, maven_url=repository.url)

    assert [] == names_in(tmp_path)


def test_two_who_fetch_at_once_fetch_once(tmp_path: Path) -> None:
    with serve(FILES) as repository, ThreadPoolExecutor(max_workers=2) as pool:
        both = [pool.submit(fetch_jars, LOCK, cache=tmp_path, maven_url=repository.url) for _ in range(2)]

    assert both[0].result() == both[1].result()
    assert {1} == set(repository.fetched.values())


def test_a_damaged_jar_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    with serve(FILES) as repository:
        folder = fetch_jars(LOCK, cache=tmp_path, maven_url=repository.url)
        (folder / LOCK.jars[0].file_name).write_bytes(b"cut short")

        fetch_jars(LOCK, cache=tmp_path, maven_url=repository.url)

    verify(folder, LOCK.jars)


def test_the_repository_of_ivy_is_used_when_none_is_named() -> None:
    assert default_url(BROKER).startswith("https://")


def test_without_pyspark_the_extra_and_the_setting_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "find_spec", lambda _name: None)

    with pytest.raises(ConfigError, match=r"txlayer\[local\].*TXLAYER_MAVEN_URL"):
        fetch_jars(LOCK, cache=tmp_path, maven_url=None)


def test_without_any_java_the_extra_is_named() -> None:
    with pytest.raises(ConfigError, match=r"txlayer\[local\]"):
        find_java(LocalConfig(search_path=""), bundled=None)


def test_a_java_that_does_not_fit_is_passed_over(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n", "utf-8")
    java.chmod(0o755)
    bundled = tmp_path / "bundled"

    found = find_java(LocalConfig(java_home=str(tmp_path), search_path=str(java.parent)), bundled=bundled)

    assert bundled == found


def test_an_unpacked_kafka_is_used_as_it_is(local_config: LocalConfig, tmp_path: Path) -> None:
    locked = prepare_runtime(local_config)
    (tmp_path / "libs").symlink_to(locked.jar_folder)
    config = LocalConfig(
        home=tmp_path / "cache",
        java_home=local_config.java_home,
        search_path=local_config.search_path,
        kafka_home=str(tmp_path),
    )

    found = prepare_runtime(config)

    assert (locked.kafka_version, tmp_path / "libs") == (found.kafka_version, found.jar_folder)


@pytest.mark.parametrize("jars", [[], ["kafka_2.13-3.8.1.jar"]])
def test_a_folder_without_a_kafka_that_is_supported_is_refused(
    local_config: LocalConfig, tmp_path: Path, jars: list[str]
) -> None:
    (tmp_path / "libs").mkdir()
    for name in jars:
        (tmp_path / "libs" / name).touch()

    with pytest.raises(ConfigError, match=r"no Kafka 3\.9 or later there"):
        prepare_runtime(LocalConfig(home=tmp_path, search_path=local_config.search_path, kafka_home=str(tmp_path)))
