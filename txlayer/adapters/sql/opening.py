"""Open a barrier or an inbox from a database URL, for programs without an engine of their own. The URL is not shown in errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from txlayer.adapters.sql.barrier import SqlBarrier, told
from txlayer.adapters.sql.inbox import INBOX_NAME, Inbox
from txlayer.adapters.sql.purge import TRANSACTION_AGE_MAX
from txlayer.adapters.sql.tables import DEFAULT_NAME
from txlayer.errors import ConfigError, RetriableError, UsageError


@contextmanager
def opened_barrier(
    url: str,
    *,
    table: str = DEFAULT_NAME,
    schema: str | None = None,
    transaction_age_max: timedelta = TRANSACTION_AGE_MAX,
) -> Iterator[SqlBarrier]:
    """A barrier in the database at `url` (SQLAlchemy's form); its connections are closed at the end of the block.

    Database errors inside the block become txlayer errors with kind and number, without addresses, users and passwords.

    Raises:
        ConfigError: `url` cannot be used.
        RetriableError: the database does not answer, or refused temporarily.
        UsageError: the database refused the statement: a missing table or a missing right.
    """
    with _opened(url, create_command="txlayer barrier create") as engine:
        yield SqlBarrier(engine, table=table, schema=schema, transaction_age_max=transaction_age_max)


@contextmanager
def opened_inbox(url: str, *, group: str, table: str = INBOX_NAME, schema: str | None = None) -> Iterator[Inbox]:
    """An inbox in the database at `url`; like `opened_barrier`.

    Raises:
        TxLayerError: what `opened_barrier` raises.
    """
    with _opened(url, create_command="txlayer inbox create") as engine:
        yield Inbox(engine, group=group, table=table, schema=schema)


@contextmanager
def _opened(url: str, *, create_command: str) -> Iterator[Engine]:
    try:
        engine = create_engine(make_url(url), hide_parameters=True)
    except ImportError as exc:
        raise ConfigError(
            f"the driver {exc.name or 'of this database'} is not installed", name="url", expected="an installed driver"
        ) from exc
    except (ArgumentError, NoSuchModuleError, ValueError):
        # The original error texts quote the address.
        raise ConfigError(
            "no address of a database", name="url", expected="DIALECT+DRIVER://USER:PASSWORD@HOST/DATABASE"
        ) from None
    try:
        yield engine
    except DBAPIError as exc:
        raise _ours(exc, create_command) from None
    except SQLAlchemyError as exc:
        raise RetriableError(f"the database did not answer: {type(exc).__name__}") from None
    finally:
        engine.dispose()


def _ours(error: DBAPIError, create_command: str) -> UsageError | RetriableError:
    kind = type(error).__name__
    if kind == "ProgrammingError" or "no such table" in str(error.orig):
        return UsageError(
            f"the database refused the statement ({told(error)}): is the table there (`{create_command}`), "
            "and may this user use it?"
        )
    return RetriableError(f"the database did not answer, or refused for now ({told(error)})")
