"""What `import txlayer` offers, and what it does not load."""

import sys

import pytest

import txlayer
from tests.support.programs import run_program
from txlayer import errors
from txlayer.adapters import sql
from txlayer.core.messages import COMMIT, ROLLBACK, UNKNOWN, Resolution, user_headers


@pytest.mark.parametrize("name", sorted({*txlayer.__all__, *dir(txlayer)}))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(txlayer, name) is not None
    assert name in dir(txlayer)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        txlayer.nonsense  # noqa: B018 - the access is the subject


def test_the_resolutions_have_plain_names() -> None:
    assert [COMMIT, ROLLBACK, UNKNOWN] == list(Resolution)


def test_the_errors_and_the_tables_are_names_of_the_package() -> None:
    assert {each for each in vars(errors) if each.endswith("Error")} <= set(txlayer.__all__)
    assert (sql.SqlBarrier, sql.Inbox) == (txlayer.SqlBarrier, txlayer.Inbox)
    assert (sql.AsyncSqlBarrier, sql.AsyncInbox) == (txlayer.AsyncSqlBarrier, txlayer.AsyncInbox)


def test_a_table_without_its_extra_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['sqlalchemy'] = None\n"  # as if it were not installed
        "from txlayer import *\n"
        "try:\n    from txlayer import SqlBarrier\nexcept ImportError as exc:\n    print(exc)"
    )

    answer = run_program([sys.executable, "-c", program], within=60, check=True)

    assert 'SqlBarrier needs SQLAlchemy: pip install "txlayer[sql]"\n' == answer.stdout


def test_no_client_is_loaded_before_it_is_needed() -> None:
    names = ("__version__", "Message", "OrderedConsumer", "AsyncOrderedConsumer", "JSON", "RetriableError")
    modules = (
        "core.codec",
        "config",
        "cli.topics",
        "cli.database",
        "producer.producer",
        "testing.stage",
        "testing.plugin",
    )
    program = (
        "import importlib, sys, txlayer\n"
        "clients = {'confluent_kafka', 'sqlalchemy', 'pyspark', 'typer', 'pydantic', 'msgspec'}\n"
        f"for name in {(*names, 'TransactionalProducer')!r}:\n"
        "    getattr(txlayer, name)\n"
        "    assert not clients & set(sys.modules), name\n"
        "assert 'txlayer.producer.producer' in sys.modules\n"
        f"for module in {modules!r}:\n"
        "    importlib.import_module(f'txlayer.{module}')\n"
        "    assert not {'confluent_kafka', 'sqlalchemy', 'pyspark'} & set(sys.modules), module\n"
    )

    answer = run_program([sys.executable, "-W", "error", "-c", program], within=60)

    assert (0, "") == (answer.returncode, answer.stderr)


def test_user_headers_are_those_that_are_not_ours() -> None:
    headers = [("a", b"1"), ("txl-id", b"x"), ("b", None), ("txl-origin", b"y")]

    assert [("a", b"1"), ("b", None)] == user_headers(headers)
    assert [] == user_headers(None)
