"""P1-P8 while each component is restarted many times in a row under load: a bounded run, or `make restarts`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Broker
from tests.support.arena import Arena, make_arena
from tests.support.handling_order import judge_handling
from tests.support.history import History
from tests.support.left_out import raise_if_marker_left_out, run_again_if_marker_left_out
from tests.support.load import Load
from tests.support.logs import ends, header, read_log
from tests.support.orphans import ORPHANS
from tests.support.processes import ROOT
from tests.support.restarts import Company, Restart, restart_broker
from tests.support.run_checker import judge_history
from tests.support.sampler import Sampler
from tests.support.seed import SEED, say
from tests.support.selling import SELLERS
from tests.support.waiting import TimedOutError, wait_until
from tests.support.witness import Witness
from txlayer.adapters.kafka.local import LocalBroker, LocalConfig
from txlayer.core import codec
from txlayer.core.messages import HalfHeader, OpMessage, Resolution, txn_id_of

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.nightly]

TIMES = int(os.environ.get("E2E_RESTARTS", "2"))
BROKER_TIMES = int(os.environ.get("E2E_BROKER_RESTARTS", "0"))
"""0: on the broker of the whole run, which nobody stops; test_broker_crash.py is the bounded one for brokers."""
RATE = 60
RUN_COUNT_MAX = 3
REST_S = 120.0


@pytest.mark.promise("P1")
@pytest.mark.promise("P2")
@pytest.mark.promise("P6")
@pytest.mark.promise("P7")
@pytest.mark.promise("P8")
def test_restarts_of_each_component_in_a_row_leave_the_promises_true(
    broker: Broker, local_config: LocalConfig, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def one(run: int) -> None:
        folder = tmp_path / f"run-{run}"
        folder.mkdir()
        if BROKER_TIMES:
            with LocalBroker(config=local_config, data=folder / "broker") as own:
                live_through(own, folder)
        else:
            live_through(broker, folder)

    run_again_if_marker_left_out(request, one, run_count_max=RUN_COUNT_MAX)


def live_through(broker: Broker, folder: Path, *, releases: Sequence[Path] = (ROOT,)) -> Company:
    """Restart everything under load, come to rest, and judge; the processes are of these releases in turn."""
    began = time.monotonic()
    with ExitStack() as stack:
        arena = make_arena(broker.bootstrap_servers)
        load = arena.load(rate=RATE, seed=SEED)
        company = Company(arena, folder=folder, stack=stack, seed=SEED, releases=releases)
        with (
            marker_left_out_is_said(broker),
            Witness(arena.servers, arena.targets) as witness,
            Sampler(arena) as sampler,
        ):
            load.start()
            company.orphans.start()
            company.wait_until_at_work()
            say(f"{time.monotonic() - began:.0f} s: everybody is at work")
            done = company.restart_all(TIMES)
            say(f"{time.monotonic() - began:.0f} s: everybody was restarted")
            for number in range(BROKER_TIMES):
                assert isinstance(broker, LocalBroker)
                done.append(restart_broker(broker, is_killed=number % 2 == 0))
                witness.wait_for_more()
            say(f"{time.monotonic() - began:.0f} s: the broker was restarted")
            come_to_rest(company, load)
            sampler.take_last(within=REST_S)
            witness.wait_until_at_end(arena.targets, within=REST_S)
        company.end()
        say(f"{time.monotonic() - began:.0f} s: at rest")

        report(done)
        history = history_of(company, load, witness, sampler)
        verdict = judge_history(history)
        said = verified(arena)
        say(verdict.counts, verdict.doubt_states, f"aborted {arena.aborted_count()}")
        assert ([], [], []) == (verdict.findings[:20], witness.repeated(), load.failures)
        assert [] == [f for f in said["findings"] if f["breaks"]]
        assert {"proved"} == {promise["status"] for promise in said["promises"].values()}
        agree_with_the_database(company, history)
        agree_with_the_handlers(company, history)
        assert TIMES * 4 + BROKER_TIMES == len(done)
        return company


@contextmanager
def marker_left_out_is_said(broker: Broker) -> Iterator[None]:
    """What is late because Kafka forgot a marker says so."""
    try:
        yield
    except TimedOutError as exc:
        if isinstance(broker, LocalBroker):
            raise_if_marker_left_out(broker, exc)
        raise


def come_to_rest(company: Company, load: Load) -> None:
    """Nothing new; what somebody can answer for is decided, what is decided applied, what is visible handled."""
    arena = company.arena
    company.stop_selling()
    load.stop(within=REST_S)

    wait_until_decided(arena)
    arena.wait_until_applied(within=REST_S)
    topic = arena.targets[0]
    visible = {(r.partition, r.offset) for r in read_log(arena.servers, [topic])[topic]}
    wait_until(
        lambda: visible <= {(call.partition, call.offset) for call in company.calls()},
        within=REST_S,
        what="everything is handled",
        growing=lambda: len(company.calls()),
    )


def wait_until_decided(arena: Arena) -> None:
    """Return when the answers to all check-backs are in op; fails with those that nobody answered."""
    left: list[str] = []

    def is_decided() -> bool:
        left[:] = undecided(arena)
        return not left

    try:
        wait_until(is_decided, within=REST_S, what="decided", growing=lambda: -len(left))
    except TimedOutError as exc:
        raise TimedOutError(f"{exc}: {left[:20]}") from exc


def undecided(arena: Arena) -> list[str]:
    """Of the groups that somebody answers for: in half, and without a word in op. Cheap enough to be asked often."""
    half, op = arena.topics.half, arena.topics.op
    read = read_log(arena.servers, [half, op])
    heads = [codec.decode_half_header(header(r.headers, codec.HALF_HEADER) or b"") for r in read[half]]
    lines = [line for record in read[op] for line in (record.value or b"").decode().split("\n")]
    ops = [codec.decode_op(line) for line in lines]
    decided = {op.key for op in ops if isinstance(op, OpMessage) and op.resolution is not Resolution.UNKNOWN}
    return [
        head.key
        for head in heads
        if isinstance(head, HalfHeader) and head.producer_group in (SELLERS, ORPHANS) and head.key not in decided
    ]


def report(done: list[Restart]) -> None:
    """A line per component."""
    for component in dict.fromkeys(one.component for one in done):
        of = [one for one in done if one.component == component]
        killed = sum(one.is_killed for one in of)
        took = sorted(one.took_s for one in of)
        say(
            f"{component:<12} {len(of):>3} restarts, {killed} by SIGKILL; at work again after "
            f"{took[0]:.1f} to {took[-1]:.1f} s"
        )


def history_of(company: Company, load: Load, witness: Witness, sampler: Sampler) -> History:
    """What the judge of runs is fed with."""
    arena = company.arena
    topics = arena.topics
    logs = [topics.half, topics.op, topics.doubt, *arena.targets]
    stable = ends(arena.servers, logs, isolation="read_committed")
    whole = ends(arena.servers, logs, isolation="read_uncommitted")
    return History(
        logs=arena.logs(),
        half_topic=topics.half,
        op_topic=topics.op,
        partition_count=arena.partition_count,
        samples=sampler.samples,
        witnessed=witness.records,
        ends={place: (stable[place], end) for place, end in whole.items()},
        acknowledged=[
            *((topics.half, s.partition, offset) for s in load.sent for offset in s.acknowledged),
            *((topics.op, p, offset) for p, offset in load.acknowledged_ops),
        ],
        local=company.rows(),
    )


def verified(arena: Arena) -> Any:
    """What `txlayer verify` says, whose readers are not the tests'."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "txlayer",
            "verify",
            "-b",
            arena.servers,
            "-n",
            arena.namespace,
            "--since",
            "1h",
            "--grace",
            "0ms",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return json.loads(done.stdout)


def agree_with_the_database(company: Company, history: History) -> None:
    """Visible is what the database committed, of those that sold and of those that are gone; and nothing else."""
    rows = company.rows()
    committed = {txn_id_of(key) for key, word in rows.items() if word is Resolution.COMMIT}
    theirs = {txn_id_of(key) for key in company.orphans.keys} | {txn_id_of(key) for key in rows}
    visible = {(header(record.headers, codec.ID_HEADER) or b"").decode() for record in history.logs.real}
    told = {line.split()[1] for line in company.sold.read_text().splitlines()}
    say(f"{len(theirs)} with the database, {len(committed)} committed, {len(told)} told so")
    assert committed == visible & theirs
    assert told <= committed
    assert company.orphans.rolled_back_count() > TIMES


def agree_with_the_handlers(company: Company, history: History) -> None:
    """Each message at least once, those of one key in their order, none given up."""
    topic = company.arena.targets[0]
    visible = [record for record in history.logs.real if record.topic == topic]
    handling = judge_handling(company.calls(), visible)
    say(
        f"{handling.handled_count} handled, {handling.repeated_count} again, {handling.refused_count} with an old token"
    )
    assert [] == handling.findings[:20]
    assert [] == read_log(company.arena.servers, [company.letters])[company.letters]
