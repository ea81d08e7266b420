"""People under the rights of their roles: the commands that they need work, and those that they must not have do not."""

import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.support.commands import run_txlayer
from tests.support.processes import ConsoleProcess
from tests.support.raw import RawWriter
from tests.support.role_acts import Stage, make_stage
from tests.support.tls_broker import TlsBroker, User
from tests.support.waiting import wait_until
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.config import ClientConfig
from txlayer.core.acls import Acl, Operation
from txlayer.operate.operators import check_operator_rights

pytestmark = pytest.mark.kafka

WHY = ("--reason", "ticket 12", "--operator", "zoe@desk")
LOOKING = (("tx", "list"), ("tx", "stats"), ("tx", "show", "{id}"), ("coordinator", "status"), ("locks", "list"))


@pytest.fixture
def stage(guarded: TlsBroker) -> Stage:
    return make_stage(guarded)


class Person:
    """Runs commands as one user."""

    def __init__(self, stage: Stage, user: User, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        settings = stage.broker.scram(user)
        patch.setenv("TXLAYER_BOOTSTRAP_SERVERS", stage.broker.sasl_servers)
        patch.setenv("TXLAYER_CLIENT_SETTINGS", ";".join(f"{n}={v}" for n, v in settings.items()))
        patch.setenv("TXLAYER_NAMESPACE", stage.arena.namespace)
        self._capsys = capsys

    def run(self, *words: str) -> tuple[int, str]:
        """(exit code, what was said)."""
        code, out, err = run_txlayer(*words, capsys=self._capsys)
        return code, out + err


@pytest.fixture
def person(stage: Stage, user: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Person:
    return Person(stage, user, capsys, monkeypatch)


def allow(stage: Stage, role: str, user: User) -> list[Acl]:
    acls = [right.acl for right in stage.rights(role, user)]
    stage.broker.allow(acls)
    return acls


@pytest.mark.parametrize("role", ["reader", "operator"])
def test_who_looks_sees_transactions_coordinators_and_leases(
    stage: Stage, user: User, person: Person, role: str
) -> None:
    allow(stage, role, user)
    open_one = RawWriter(stage.arena).prepare((stage.topics[0], b"k", b"v"))

    for words in LOOKING:
        code, said = person.run(*(w.format(id=open_one.txn_id) for w in words))
        # 1 is a finding: no coordinator runs here, and nobody holds a queue.
        assert code in (0, 1), said


def test_a_reader_settles_nothing_and_an_operator_does(stage: Stage, user: User, person: Person) -> None:
    raw = RawWriter(stage.arena)
    open_one = raw.prepare((stage.topics[0], b"k", b"v"))
    # Nobody coordinates here: that the line stands is all there is to wait for.
    settle = ("tx", "rollback", open_one.txn_id, *WHY, "--yes", "--wait", "0s")
    allow(stage, "reader", user)
    before = person.run(*settle)
    allow(stage, "operator", user)
    after = person.run(*settle)

    assert 5 == before[0], before[1]
    assert "AUTHORIZATION_FAILED" in before[1]
    assert 0 == after[0], after[1]


def test_a_console_with_allow_writes_needs_the_rights_of_an_operator(stage: Stage, user: User, person: Person) -> None:
    allow(stage, "reader", user)
    code, said = person.run("console", "--allow-writes", "--port", "0")
    allow(stage, "operator", user)
    with KafkaAdmin(ClientConfig(**stage.settings(user))) as admin:
        check_operator_rights(admin.topic_limits, stage.arena.topics)

    assert (5, True) == (code, "role operator" in said), said


def test_an_operator_says_where_coordinators_begin_and_a_reader_does_not(
    stage: Stage, user: User, person: Person
) -> None:
    reset = ("coordinator", "reset", "--to", "earliest", "--yes")
    allow(stage, "reader", user)
    before = person.run(*reset)
    allow(stage, "operator", user)
    after = person.run(*reset)

    assert 5 == before[0], before[1]
    assert f"resource='{stage.arena.topics.coordinator_group}'" in before[1]
    assert 0 == after[0], after[1]


def test_dead_letters_are_looked_at_with_a_consumers_rights(stage: Stage, user: User, person: Person) -> None:
    allow(stage, "consumer", user)

    for words in (("list", "--all"), ("list",)):
        code, said = person.run("dlq", *words, "--group", stage.group, "--topic", stage.topics[0])
        assert code in (0, 1), said


def test_without_any_right_every_command_says_so_with_code_5(person: Person) -> None:
    for words in (("tx", "list"), ("coordinator", "status"), ("topics", "check")):
        code, said = person.run(*words)

        assert (5, True) == (code, "AUTHORIZATION_FAILED" in said), said


def test_a_console_names_the_right_that_is_missing_and_shows_the_rest(stage: Stage, user: User, tmp_path: Path) -> None:
    open_one = RawWriter(stage.arena).prepare((stage.topics[0], b"k", b"v"))
    secrets = {"client_settings": ";".join(f"{n}={v}" for n, v in stage.broker.scram(user).items())}
    with ConsoleProcess(
        stage.broker.sasl_servers, stage.arena.namespace, log_file=tmp_path / "console.log", settings=secrets
    ) as process:

        def page(path: str) -> str:
            return httpx.get(process.address + path, timeout=60).text

        refused = wait_until(
            lambda: text if "not known now" in (text := page("/")) else "", within=60, what="what is refused"
        )
        assert stage.arena.topics.half in refused
        assert str(stage.broker.scram(user)["sasl.password"]) not in refused + process.output()

        rights = allow(stage, "reader", user)
        wait_until(lambda: open_one.txn_id in page("/transactions"), within=60, what="the transaction")
        # Leases are read again beside the page.
        wait_until(lambda: "ot known now" not in page("/"), within=60, what="all that was refused")

        # The right to read goes while it runs, that to describe stays: the broker answers all but the reads.
        half = stage.arena.topics.half
        reads = [a for a in rights if a.name == half and a.operation is Operation.READ]
        stage.broker.allow([replace(each, operation=Operation.DESCRIBE) for each in reads])
        stage.broker.withdraw(reads)
        second = RawWriter(stage.arena).prepare((stage.topics[0], b"k", b"v"))
        wait_until(
            lambda: re.search(rf"not known now, since ([5-9]|1\d) s: [^<]*{half}", page("/")),
            within=60,
            what="it is said for seconds on end which topic may not be read",
        )
        assert second.txn_id not in page("/transactions")

        stage.broker.allow(reads)
        wait_until(lambda: second.txn_id in page("/transactions"), within=60, what="the second transaction")
        wait_until(lambda: "ot known now" not in page("/"), within=60, what="all that was refused again")
        assert process.is_running
