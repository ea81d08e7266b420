"""The databases of the run: SQLite files, one PostgreSQL and one MariaDB server, started when a test first asks."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import create_engine

from tests.support.databases import NoServerError, crashing_postgresql, mariadb_server, postgresql_server
from tests.support.debian import skip_or_fail
from tests.support.shop import Shop, make_shop

T = TypeVar("T")


def started(server: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(server())
        except NoServerError as exc:
            skip_or_fail(f"no server: {exc}")
        yield found


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    yield from started(postgresql_server)


@pytest.fixture
def forgetful_postgresql() -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of a PostgreSQL server that reports a commit before it stores it, and a call that crashes it."""
    # The writer of its log sleeps for ten seconds at a time: until then a commit is in memory alone.
    settings = {"synchronous_commit": "off", "wal_writer_delay": "10s", "fsync": "off"}
    yield from started(partial(crashing_postgresql, **settings))


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    yield from started(mariadb_server)


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of the database that the test's parameter names."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shop.db'}"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    """A small application's database with a barrier."""
    made = make_shop(create_engine(database_url))
    yield made
    made.engine.dispose()
