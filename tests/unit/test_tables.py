"""What commands print for a person: nothing is cut off in a narrow terminal, and nothing from the log is markup."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from txlayer.adapters.ports import GroupMember
from txlayer.cli import output, topics
from txlayer.cli.coordinator import owner_name, status_table
from txlayer.cli.health import show_findings
from txlayer.config import ClientConfig
from txlayer.core.topics import CreateTopic, Difference
from txlayer.operate.doctor import ClusterFinding, Level
from txlayer.operate.topics import CoordinatorStatus, Drain, PartitionStatus

CLI = Path(output.__file__).parent
NARROW = 80
BIG = 9_876_543_210
"""An offset of a namespace that has worked for years."""
CONFIG = ClientConfig(bootstrap_servers="127.0.0.1:9092")


def unfolded_tables(path: Path) -> list[int]:
    """Lines that make a table with columns by themselves; a grid has none that anybody names."""
    calls = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)]
    return [n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id in {"Table", "RowsTable"}]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setattr(output, "console", lambda: Console(width=NARROW, highlight=False))


def test_every_table_is_made_where_nothing_is_cut_off() -> None:
    found = {path.name: unfolded_tables(path) for path in CLI.glob("*.py")}

    assert {"output.py"} == {name for name, lines in found.items() if lines}


def test_a_cell_that_does_not_fit_is_folded() -> None:
    row = {"id": "x" * 100, "why": "q" * 100}
    made = output.rows_table([row], {"id": "id", "why": "why"}, title="open [now]")
    console = Console(width=NARROW)

    with console.capture() as caught:
        console.print(made)

    assert (100, 100) == (caught.get().count("x"), caught.get().count("q"))
    assert "…" not in caught.get()
    assert "open [now]" in caught.get()


@pytest.mark.usefixtures("narrow")
def test_an_id_is_shown_as_it_is_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    txn_id = "01a20430-17cb-72af-8394-34c683501ecb"
    found = Drain(
        ({"producer_group": "[/]", "state": "open", "count": 1, "oldest_ms": 60_000, "txn_ids": [txn_id, "[bold]"]},),
        1,
        0,
        (1,),
    )

    topics.show_drain("txlayer", found, is_growing=False, as_json=False)

    out = capsys.readouterr().out
    assert "[/]" in out
    assert "[bold]" in out
    assert "…" not in out


@pytest.mark.usefixtures("narrow")
def test_topics_that_were_made_are_told_as_done_and_what_is_left_as_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    made = CreateTopic("loyalty.sales.replay", 3, None, {"cleanup.policy": "delete"}, "why")
    left = Difference("loyalty.sales.dlq", "partitions", "1", "3", "why")

    topics.show_changes([left], done=[made], config=CONFIG, group="loyalty", as_json=False)

    done, _, to_do = capsys.readouterr().out.partition("group loyalty: to do")
    assert "group loyalty: done" in done
    assert "was" in done
    assert "loyalty.sales.replay" in done
    assert "cleanup.policy=delete" in done
    assert "loyalty.sales.dlq" in to_do


def test_what_mends_is_one_line_to_be_copied_however_narrow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "console", lambda: Console(width=40, highlight=False))
    mend = "kafka-acls.sh --add --allow-principal User:coordinator --operation Describe --topic '[a]'"
    found = [ClusterFinding("acl", Level.ERROR, name, "missing", mend) for name in ("op", "half")]

    show_findings(found, namespace="txlayer", show_all=False)

    out = capsys.readouterr().out
    assert f"mend it by: {mend}\n" in out
    assert "error    acl  op, half\n" in out
    assert 1 == out.count(mend)


def test_two_coordinators_that_nobody_named_have_two_names() -> None:
    first = GroupMember("rdkafka-3cd1e9e1-1a2f-4392-92f4", "rdkafka", "10.0.0.7", ())
    second = GroupMember("rdkafka-aa11e9e1-1a2f-4392-92f4", "rdkafka", "10.0.0.7", ())
    named = GroupMember("blue-bb11e9e1-1a2f-4392-92f4", "blue", "10.0.0.8", ())

    names = [owner_name(member) for member in (first, second, named)]

    assert ["10.0.0.7/3cd1e9e1", "10.0.0.7/aa11e9e1", "blue@10.0.0.8/bb11e9e1"] == names


def printed(make: Callable[[], RenderableType], *, width: int) -> str:
    """What a terminal of this width would show."""
    console = Console(width=width, highlight=False, color_system=None)
    with pytest.MonkeyPatch.context() as patched, console.capture() as caught:
        patched.setattr(output, "console", lambda: console)
        console.print(make())
    return caught.get()


def status(*, offset: int) -> CoordinatorStatus:
    """Two partitions of a coordinator that has done so much."""
    member = GroupMember("rdkafka-3cd1e9e1-1a2f", "rdkafka", "10.0.200.107", (("half", 0),))
    parts = [PartitionStatus(p, offset, offset, offset, offset, offset - 5, offset, "") for p in (0, 1)]
    return CoordinatorStatus("txlayer.coordinator", "stable", (member,), tuple(parts))


@pytest.mark.parametrize("offset", [7, BIG])
def test_the_status_can_be_read_at_80_columns(offset: int) -> None:
    said = printed(lambda: status_table(status(offset=offset)), width=NARROW)

    words = {"partition", "op next", "op end", "op lag", "owner", "low water", "half end", "read again", "doubt"}
    heads = [line for line in said.splitlines() if "partition" in line]
    assert words == {cell.strip() for head in heads for cell in head.split("┃") if cell.strip()}
    assert "txlayer.coordinator: stable, 1 member, op lag 0" in said
    assert "10.0.200.107/3cd1e9e1" in said
    assert f" {offset} " in said
    assert f" {offset - 5}-{offset} " in said
    assert NARROW >= max(len(line) for line in said.splitlines())


def test_the_status_is_one_table_where_it_fits() -> None:
    assert 2 == printed(lambda: status_table(status(offset=7)), width=NARROW).count("┏")
    assert 1 == printed(lambda: status_table(status(offset=7)), width=120).count("┏")
    assert 1 == printed(lambda: status_table(status(offset=BIG)), width=output.WIDE).count("┏")
