"""`txlayer tx` on a real broker: what is open, since when, and what became of a transaction."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.broker import create_topic, unique_name
from tests.support.crafted import Crafted, Placed
from tests.support.logs import header, read_log
from tests.support.operating import Tx
from tests.support.processes import CoordinatorProcess
from tests.support.records import write
from tests.support.waiting import wait_until
from txlayer.core.messages import HalfOptions, Resolution, Source

pytestmark = pytest.mark.kafka

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK
QUICK = {"session_timeout": "1.5s", "doubt_after": "1s", "misplaced_after": "1s"}


@pytest.fixture
def arena(broker: Broker) -> Arena:
    return make_arena(broker.bootstrap_servers)


@pytest.fixture
def crafted(arena: Arena) -> Crafted:
    return Crafted(arena.servers, arena.topics, partition_count=arena.partition_count)


@pytest.fixture
def looking(arena: Arena, capsys: pytest.CaptureFixture[str]) -> Tx:
    return Tx(arena, capsys)


@pytest.fixture
def coordinator(arena: Arena, tmp_path: Path) -> Iterator[CoordinatorProcess]:
    log_file = tmp_path / "coordinator.log"
    with CoordinatorProcess(arena.servers, arena.namespace, log_file=log_file, settings=QUICK) as started:
        started.wait_for("partitions.taken_over")
        yield started


def test_what_another_programs_kafka_transaction_hides_is_not_said_to_be_missing(
    arena: Arena, crafted: Crafted, looking: Tx
) -> None:
    stranger = Producer({"bootstrap.servers": arena.servers, "transactional.id": unique_name("stranger")})
    stranger.init_transactions(30)
    stranger.begin_transaction()
    for number in range(arena.partition_count):
        stranger.produce(arena.topics.half, b"not yet", partition=number)
    assert not stranger.flush(30)
    prepared = crafted.half("prepared/00000001", arena.targets[0])
    crafted.op(crafted.half("committed/00000001", arena.targets[0]), COMMIT)

    for what in ("prepared", f"{prepared.partition}:{prepared.offsets[0]}"):
        code, out, err = looking.run("show", what, "--json")
        assert (3, "") == (code, out)
        assert f"a Kafka transaction is open on {arena.topics.half}-0" in err
    code, out, err = looking.run("show", "committed")
    assert (0, True) == (code, "no half record read" in out)
    assert "what was written there since is not shown" in err
    stranger.abort_transaction(30)
    assert 1 == len(looking.json("show", "prepared")[0]["half_records"])


# --- list -------------------------------------------------------------------------------------------------------------


def test_an_empty_namespace_has_nothing_open(looking: Tx) -> None:
    code, out, err = looking.run("list")

    assert (0, "") == (code, err)
    assert "nothing is open in ns-" in out
    assert [] == looking.json("list")


def test_before_any_coordinator_ran_what_is_decided_is_seen_as_decided(
    arena: Arena, crafted: Crafted, looking: Tx
) -> None:
    target = arena.targets[0]
    crafted.half("open-1/00000001", target, arena.targets[1])
    crafted.op(crafted.half("committed-1/00000001", target), COMMIT)
    crafted.op(crafted.half("rolled-back-1/00000001", target), ROLLBACK)
    crafted.op(crafted.half("unknown-1/00000001", target), Resolution.UNKNOWN)

    rows = {row["txn_id"]: row for row in looking.json("list")}

    assert {"open-1": "open", "committed-1": "committing", "unknown-1": "open"} == {
        txn_id: row["state"] for txn_id, row in rows.items()
    }
    assert list(arena.targets) == rows["open-1"]["topics"]
    assert (2, 2) == (rows["open-1"]["seen_count"], rows["open-1"]["message_count"])
    assert 0 == rows["unknown-1"]["answered_count"]  # nobody was asked
    assert 0 <= rows["open-1"]["age_ms"] < 600_000


def test_list_filters_and_says_how_many_it_leaves_out(arena: Arena, crafted: Crafted, looking: Tx) -> None:
    for number in range(5):
        crafted.half(f"txn-{number}/00000001", arena.targets[0], group=f"group-{number % 2}")

    rows = looking.json("list")
    assert sorted(row["appended_ms"] for row in rows) == [row["appended_ms"] for row in rows]
    oldest = [row["txn_id"] for row in rows]

    code, out, err = looking.run("list", "--limit", "2")
    assert (0, "") == (code, err)
    assert "3 more, younger than these; --limit shows more" in out
    assert [True, True, False, False, False] == [txn_id in out for txn_id in oldest]

    code, out, err = looking.run("list", "--limit", "1", "--json")
    assert (0, "4 more, younger than these; --limit shows more\n") == (code, err)
    assert oldest[:1] == [row["txn_id"] for row in json.loads(out)]

    assert {"txn-1", "txn-3"} == {r["txn_id"] for r in looking.json("list", "--group", "group-1")}
    assert 5 == len(looking.json("list", "--state", "open", "--state", "held"))
    assert [] == looking.json("list", "--state", "held")
    assert (5, 0) == tuple(len(looking.json("list", name)) for name in ("--open", "--parked"))
    assert (5, 0) == tuple(len(looking.json("list", "--topic", topic)) for topic in arena.targets)
    assert [] == looking.json("list", "--older-than", "1h")
    assert "nothing of this kind is open" in looking.run("list", "--older-than", "1h")[1]


def test_list_and_show_find_a_transaction_by_the_users_own_id(arena: Arena, crafted: Crafted, looking: Tx) -> None:
    target, own = arena.targets[0], HalfOptions(query_id="invoice 7/2026")
    crafted.half("ours/00000001", target, options=own)
    crafted.op(crafted.half("settled/00000001", target, options=own), ROLLBACK)
    crafted.half("other/00000001", target, options=HalfOptions(query_id="invoice 8"))

    (row,) = looking.json("list", "--query-id", "invoice 7/2026")
    shown = looking.json("show", "--query-id", "invoice 7/2026")

    assert ("ours", "invoice 7/2026") == (row["txn_id"], row["query_id"])
    assert [("ours", "open"), ("settled", "rolled-back")] == sorted((each["txn_id"], each["state"]) for each in shown)
    assert {"invoice 7/2026"} == {each["query_id"] for each in shown}
    assert "invoice 7/2026" in looking.run("show", "--query-id", "invoice 7/2026")[1]
    assert [] == looking.json("list", "--query-id", "invoice 9")
    code, _, err = looking.run("show", "--query-id", "invoice 9")
    assert (1, True) == (code, "hold nothing about the id invoice 9" in err)
    assert [2, 2] == [looking.run("show", *which)[0] for which in ([], ["ours", "--query-id", "invoice 7/2026"])]


def test_list_reads_from_the_low_water_mark_and_doubt_tells_the_rest(
    arena: Arena, crafted: Crafted, looking: Tx, coordinator: CoordinatorProcess
) -> None:
    target = arena.targets[0]
    missing = unique_name("missing")
    crafted.half("forgotten/00000001", target)
    crafted.op(crafted.half("incomplete/00000001", target, count=2), COMMIT)
    crafted.op(crafted.half("held/00000001", missing), COMMIT)
    crafted.op(Placed("misplaced/00000001", 0, (1_000,)), COMMIT)

    expected = {
        "forgotten": ("open", None, "doubt"),
        "incomplete": ("parked-committed", "incomplete", "doubt"),
        "held": ("held", "topic-missing", "doubt"),
        "misplaced": ("parked", "misplaced", "doubt"),
    }
    wait_until(lambda: looking.states() == expected, within=30, what="all stand on doubt")
    wait_until(
        lambda: all(p.low_water == p.half_end for p in arena.status().partitions),
        within=30,
        what="nothing is needed of half any more",
    )
    coordinator.terminate()
    assert 0 == coordinator.wait()
    crafted.half("young/00000001", target)

    # The young one from half behind the low-water mark, the others from doubt alone.
    assert expected | {"young": ("open", None, "half")} == looking.states()
    assert ["held"] == [row["txn_id"] for row in looking.json("list", "--state", "held")]

    create_topic(arena.servers, missing)
    rows = {s["state"]: s["count"] for s in looking.json("stats")["states"]}
    assert {"open": 2, "parked-committed": 1, "held": 1, "parked": 1} == rows


def test_stats_count_by_group_and_state(arena: Arena, crafted: Crafted, looking: Tx) -> None:
    placed = [crafted.half(f"txn-{number}/00000001", arena.targets[0]) for number in range(4)]
    crafted.op(placed[0], COMMIT)

    body = looking.json("stats")
    code, out, _ = looking.run("stats")

    assert (arena.namespace, 4) == (body["namespace"], body["transaction_count"])
    assert [("orders", "committing", 1), ("orders", "open", 3)] == [
        (s["producer_group"], s["state"], s["count"]) for s in body["states"]
    ]
    assert 0 == code
    assert "4 not settled" in out
    assert "no responder answers check-backs for the group orders" in out
    assert [("orders", False, [])] == [
        (r["producer_group"], r["is_answered"], r["members"]) for r in body["responders"]
    ]


# --- quarantined -------------------------------------------------------------------------------------------------------


def test_what_the_coordinator_kept_aside_is_counted_listed_and_shown(
    arena: Arena, crafted: Crafted, looking: Tx, coordinator: CoordinatorProcess
) -> None:
    write(arena.servers, arena.topics.half, b"a secret")
    write(arena.servers, arena.topics.op, b"garbage\nof two lines")
    crafted.half("young/00000001", arena.targets[0])
    half, op = (f"origin/{topic}/0/" for topic in (arena.topics.half, arena.topics.op))
    names = {f"{half}0", f"{op}0:0", f"{op}0:1"}
    wait_until(
        lambda: names == {row["name"] for row in looking.json("list", "--kept-aside")},
        within=20,
        what="all are quarantined",
    )
    coordinator.terminate()
    assert 0 == coordinator.wait()

    code, out, err = looking.run("list")
    assert (0, "") == (code, err)
    assert "young" in out
    assert "3 quarantined; --kept-aside shows what" in out

    code, out, err = looking.run("list", "--kept-aside", "--limit", "2")
    assert (0, "") == (code, err)
    assert "undecodable" in out
    assert "1 more, younger than these" in out
    assert [] == looking.json("list", "--kept-aside", "--older-than", "1h")
    assert [] == looking.json("list", "--kept-aside", "--group", "shop")  # they name no group
    assert "3 quarantined; --kept-aside shows what\n" == looking.run("list", "--json")[2]

    body = looking.json("stats")
    assert (1, 3) == (body["transaction_count"], body["kept_aside_count"])

    (row,) = looking.json("show", f"{half}0")
    assert ("undecodable", None, 8) == (row["reason"], row["key_bytes"], row["value_bytes"])
    assert [row["name"]] == [r["name"] for r in looking.json("show", "0:0")]
    code, out, _ = looking.run("show", f"{op}0:1")
    assert 0 == code
    assert f"line 1 of the record {arena.topics.op}-0@0" in out
    assert "secret" not in looking.run("show", "0:0")[1]


def test_nothing_kept_aside_is_said_so(arena: Arena, looking: Tx) -> None:
    name = f"origin/{arena.topics.half}/0/5"

    assert [] == looking.json("list", "--kept-aside")
    assert "nothing is quarantined in ns-" in looking.run("list", "--kept-aside")[1]
    for missing in (name, f"origin/{arena.topics.half}/99/5"):
        code, out, err = looking.run("show", missing)
        assert (1, "") == (code, out)
        assert f"not found: {arena.topics.doubt} holds nothing under {missing}" in err


# --- show -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("coordinator")
def test_show_tells_what_became_of_a_transaction_by_its_id(arena: Arena, crafted: Crafted, looking: Tx) -> None:
    target = arena.targets[0]
    committed = crafted.half("committed/00000001", target, arena.targets[1], value=b"a secret")
    crafted.op(committed, COMMIT)
    crafted.op(committed, ROLLBACK, source=Source.OPERATOR, reason="too late")
    rolled_back = crafted.half("rolled-back/00000001", target)
    crafted.op(rolled_back, ROLLBACK, source=Source.OPERATOR, reason="ticket 12")
    crafted.op(crafted.half("incomplete/00000001", target, count=2), COMMIT)
    arena.wait_until_applied(within=30)
    wait_until(lambda: "incomplete" in looking.states(), within=30, what="it is parked")

    (row,) = looking.json("show", "committed")
    assert ("committed", True, None) == (row["state"], row["is_applied"], row["reason"])
    assert list(zip(committed.offsets, arena.targets, strict=True)) == [
        (r["offset"], r["topic"]) for r in row["half_records"]
    ]
    assert [("COMMIT", "producer", None), ("ROLLBACK", "operator", "too late")] == [
        (n["resolution"], n["source"], n["reason"]) for n in row["op_lines"]
    ]
    (row,) = looking.json("show", "rolled-back")
    assert ("rolled-back", True, "ticket 12") == (row["state"], row["is_applied"], row["reason"])
    (row,) = looking.json("show", "incomplete")
    assert ("parked-committed", "incomplete") == (row["state"], row["reason"])
    assert 1 == row["doubt"]["seen_count"]
    code, out, _ = looking.run("show", "committed")
    assert 0 == code
    assert "committed (carried out)" in out
    assert "secret" not in out


@pytest.mark.usefixtures("coordinator")
def test_show_finds_a_transaction_by_the_origin_that_its_messages_carry(
    arena: Arena, crafted: Crafted, looking: Tx
) -> None:
    placed = crafted.half("order-1/00000001", *arena.targets)
    crafted.op(placed, COMMIT)
    arena.wait_until_applied(within=30)
    (record,) = read_log(arena.servers, [arena.targets[1]])[arena.targets[1]]
    origin = (header(record.headers, "txl-origin") or b"").decode()

    (row,) = looking.json("show", origin)
    assert ("order-1", "committed", 2) == (row["txn_id"], row["state"], len(row["half_records"]))
    assert [row] == looking.json("show", f"{placed.partition}:{placed.offsets[0]}")


def test_what_is_not_found_is_said_with_what_was_searched(arena: Arena, crafted: Crafted, looking: Tx) -> None:
    placed = crafted.half("1:0/00000001", arena.targets[0])
    partition = placed.partition
    name = f"{arena.topics.half}-{partition}"

    for arguments, said in [
        (["nobody", "--since", "5m"], "half, op and check of the last 5m, and doubt, of the namespace"),
        ([f"{partition}:77"], f"{name} holds the offsets from 0 to before 1, not 77"),
        (["99:0"], f"{arena.topics.half} has the partitions 0 to 3, not 99"),
    ]:
        code, out, err = looking.run("show", *arguments)
        assert (1, "") == (code, out)
        assert err.startswith("not found: ")
        assert said in err
    assert (1, "[]\n") == looking.run("show", "nobody", "--json")[:2]
    assert "1:0" == looking.json("show", "1:0", "--id")[0]["txn_id"]


def test_a_place_that_holds_garbage_is_said_to_hold_garbage(arena: Arena, looking: Tx) -> None:
    write(arena.servers, arena.topics.half, b"garbage")

    code, _, err = looking.run("show", "0:0")

    assert 1 == code
    assert f"{arena.topics.half}-0@0 is no half message: it has no header txl" in err
