"""The broker of the whole run, and a clean environment for every test."""

import gc
import logging
import os
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, Protocol

import pytest

from tests.support.broker import GivenBroker
from tests.support.class_archive import quick_spark, use_archive
from tests.support.debian import IS_CI
from tests.support.nightly import Choice
from tests.support.repeats import Repeats
from tests.support.secured import SecuredServers, secured_broker
from txlayer.adapters.kafka.local import LocalConfig
from txlayer.adapters.kafka.local.runtime import RepositoryUnreachableError
from txlayer.errors import ConfigError

# Read once, before any test may change it.
GIVEN_SERVERS = os.environ.get("TXLAYER_TEST_BOOTSTRAP_SERVERS")
LOCAL_CONFIG = LocalConfig.from_environ(os.environ)

SHARING_FOLDERS = ("spark", "integration/security", "integration/sql")
"""Their tests share a server or a Spark session that is slow to start, so one worker runs them all."""

APART = frozenset(
    f"spark/test_{name}.py" for name in ("cluster", "commands", "object_store", "planted_modules", "report")
)
"""Files of such a folder whose tests have sessions and processes of their own, or none: any worker runs them."""

PUBLISHING = frozenset(f"spark/test_{name}.py" for name in ("jobs_page", "live", "sink", "sink_kills", "sink_window"))
"""Half of Spark's work: a second worker runs these, in a session of its own."""

LONG_FIRST = (
    "spark",
    "e2e",
    "integration/security",
    "docs",
    "integration",
    "contract",
    "simulation",
    "console",
    "reference",
)
"""Folders whose files take long. They begin first, so that no worker waits for a last one at the end."""


class Broker(Protocol):
    """What every test of a broker may use."""

    @property
    def bootstrap_servers(self) -> str:
        """Where clients reach it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which of the tests marked `nightly` run; by default all of those that the command line names."""
    parser.addoption("--nightly", default="all", help="all, none, only, or a share such as 3/20")


def pytest_configure(config: pytest.Config) -> None:
    """Repeats are counted where the results of all workers come together, and a wrong choice ends the run there, before a worker starts."""
    Choice.of(config.getoption("nightly"))
    os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_spark())  # for every session, also of a test's own process
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Repeats())


def pytest_report_header(config: pytest.Config) -> str:
    """The choice, to be repeated."""
    return f"nightly tests: {config.getoption('nightly')}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: the collector of garbage has no need to look at it, now or later, and less often than usual
    at what tests leave.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nightly tests are chosen. Long files begin first. The order within a file and among files of one folder stays the random one."""
    choice = Choice.of(config.getoption("nightly"))
    nightly = {item.nodeid for item in items if item.get_closest_marker("nightly")}
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if choice.takes(item.nodeid, nightly) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(kept, key=lambda item: _turn(_file(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `loadscope` the tests of a file stay on one worker, and so do those of a folder that shares a server."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            return _scope(_file(nodeid))

    return Scheduling(config, log)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


def _scope(file: str) -> str:
    folders = (folder for folder in SHARING_FOLDERS if file.startswith(f"{folder}/"))
    if file in PUBLISHING:
        return "spark that publishes"
    return file if file in APART else next(folders, file)


def _turn(file: str) -> int:
    starts = (turn for turn, folder in enumerate(LONG_FIRST) if file.startswith(f"{folder}/"))
    return next(starts, len(LONG_FIRST))


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own TXLAYER_ settings decide no test."""
    for name in os.environ:
        if name.startswith("TXLAYER_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs inside a test sets up logging for its process, on a stream that ends with the test."""
    root = logging.getLogger("txlayer")
    handlers, propagate, level = root.handlers[:], root.propagate, root.level
    client = logging.getLogger("txlayer.librdkafka")
    client_level = client.level
    yield
    root.handlers[:], root.propagate = handlers, propagate
    root.setLevel(level)
    client.setLevel(client_level)


@pytest.fixture(scope="session")
def local_config() -> LocalConfig:
    """Where this machine's jars and Java are. Brokers that a test starts with it find the archive of classes, too."""
    with suppress(ConfigError, RepositoryUnreachableError):  # the test itself meets what is missing
        use_archive(LOCAL_CONFIG)
    return LOCAL_CONFIG


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Broker:
    """One broker for the whole run: tests use topics and groups with names of their own, and never stop it."""
    if GIVEN_SERVERS:
        return GivenBroker(GIVEN_SERVERS)
    try:
        use_archive(LOCAL_CONFIG)
    except (ConfigError, RepositoryUnreachableError) as exc:
        # At home a machine without Java or network still runs the other tests; in CI nothing is skipped.
        if IS_CI:
            raise
        pytest.skip(f"no broker: {exc}")
    # Users' own fixture: the two never start a broker each.
    started: Broker = request.getfixturevalue("txlayer_local_kafka")
    return started


@pytest.fixture(scope="session")
def secured(broker: Broker) -> Iterator[SecuredServers]:  # noqa: ARG001 - it skips where no broker can run
    """A broker with users: a test allows them only topics and groups with names of its own."""
    servers = secured_broker(LOCAL_CONFIG)
    with servers.broker:
        yield servers
