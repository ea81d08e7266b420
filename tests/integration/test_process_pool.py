"""Processes for handlers: what stands ready behind a chunk, and what becomes of it. No broker."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import hang, pause, wait_until
from txlayer.adapters.bodies import Deserializer
from txlayer.consumer import process_pool
from txlayer.consumer.context import Context, Lease, ReceivedMessage
from txlayer.consumer.handlers import HandlerSet
from txlayer.consumer.pools import Caller, Chunk, JobOutcome, without_reported
from txlayer.consumer.process_pool import ProcessPool, SentRecord
from txlayer.core.key_queue import Item

WITHIN_S = 30.0
BIG = b"x" * 1_000_000
"""Longer than any pipe holds."""


def act(message: ReceivedMessage, context: Context) -> None:
    """What a message says."""
    word = message.raw_value or b""
    if word == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word.startswith(b"/"):
        Path(os.fsdecode(word)).touch()
        assert context.lease_lost.wait(WITHIN_S)
    if word == b"hang":
        hang()
    if word.startswith(b"until "):
        file = Path(os.fsdecode(word.removeprefix(b"until ")))
        file.with_suffix(".begun").touch()
        wait_until(file.exists, within=WITHIN_S, what="the test lets it go on")
    if word.startswith(b"fork "):
        if os.fork() == 0:  # a process of the handler's own, which has its files open and outlives it
            wait_until(Path(os.fsdecode(word.removeprefix(b"fork "))).exists, within=WITHIN_S, what="the test ends")
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    if word.startswith(b"touch "):
        Path(os.fsdecode(word.removeprefix(b"touch "))).touch()
    if word == b"is lost":
        assert not context.lease_lost.is_set()
    if word == b"fail":
        raise ValueError(BIG.decode())


class PoolStage:
    """A pool with one process, and chunks of one job per word."""

    def __init__(self, attempt_timeout_s: float = 60, deserializer: Deserializer | None = None) -> None:
        handlers = HandlerSet(is_async=False)
        handlers.add(act, topics=(), tags="*", retry=None, batch_count_max=0)
        caller = Caller(handlers.routes(("orders",)), deserializer=deserializer, attempt_timeout_s=attempt_timeout_s)
        self.pool = ProcessPool(caller, worker_count=1)
        self._chunks: list[Chunk] = []
        self._outcomes: dict[Chunk, JobOutcome] = {}

    def begin(self, *words: bytes) -> Chunk:
        """A chunk under a lease of its own."""
        chunk = Chunk(None, Lease("g", "orders", 0, token=1), [item_of(word) for word in words])
        self.pool.submit(chunk)
        self._chunks.append(chunk)
        return chunk

    def outcomes(self, count: int) -> list[JobOutcome]:
        """Those of the first chunks, when so many have ended; what was told in parts stands together."""

        def has_all() -> bool:
            self._take()
            return len(self.ended()) >= count

        wait_until(has_all, within=WITHIN_S, what=f"{count} chunks ended")
        return self.ended()

    def part_of(self, chunk: Chunk) -> JobOutcome:
        """What was reported of a chunk before it ended."""

        def found() -> JobOutcome | None:
            self._take()
            return self._outcomes.get(chunk)

        part = wait_until(found, within=WITHIN_S, what="a part")
        assert part is not None
        return part

    def _take(self) -> None:
        for outcome in filter(None, map(without_reported, self.pool.take())):
            found = self._outcomes.setdefault(outcome.chunk, JobOutcome(outcome.chunk, ()))
            self._outcomes[outcome.chunk] = found._replace(
                done=[*found.done, *outcome.done],
                failed=[*found.failed, *outcome.failed],
                not_run=[*found.not_run, *outcome.not_run],
            )

    def ended(self) -> list[JobOutcome]:
        """The chunks of which everything was told, in the order in which they began."""
        found = [self._outcomes[chunk] for chunk in self._chunks if chunk in self._outcomes]
        return [o for o in found if len([*o.done, *o.failed, *o.not_run]) == len(o.chunk.jobs)]


def item_of(word: bytes) -> Item[Any]:
    """A message that says so, with a key of its own."""
    return Item(SentRecord(("orders", 0, 0), None, word, None, (1, 0)), 0, next(_chains), 1)


_chains = count()


def words(jobs: Sequence[Any]) -> list[bytes]:
    """What these messages say."""
    return [job.record.value() for job in jobs]


def failures(outcome: JobOutcome) -> list[tuple[bytes, str]]:
    """What failed, and how."""
    jobs = words([failed.job for failed in outcome.failed])
    return list(zip(jobs, [failed.error_type for failed in outcome.failed], strict=True))


MakeStage = Callable[..., PoolStage]


@pytest.fixture
def make_stage() -> Iterator[MakeStage]:
    """Stages with settings of the test's own."""
    with ExitStack() as ends:

        def make(**settings: Any) -> PoolStage:
            made = PoolStage(**settings)
            ends.callback(made.pool.close, 0.0)
            return made

        yield make


@pytest.fixture
def stage(make_stage: MakeStage) -> PoolStage:
    return make_stage()


def test_what_stands_ready_behind_the_chunk_of_a_process_that_dies_is_charged_with_nothing(stage: PoolStage) -> None:
    stage.begin(b"first", b"die", b"last")
    behind = stage.begin(b"a", b"b")

    died, spared = stage.outcomes(2)

    assert [(b"die", "ProcessDied")] == failures(died)
    assert [b"first"] == words(died.done)
    assert [b"last"] == words(died.not_run)
    assert behind is spared.chunk
    assert not spared.failed


def test_what_failed_before_its_process_died_keeps_its_own_failure(stage: PoolStage) -> None:
    stage.begin(b"first", b"fail", b"second", b"die", b"last")

    (died,) = stage.outcomes(1)

    assert [(b"fail", "ValueError"), (b"die", "ProcessDied")] == failures(died)
    assert [b"first", b"second"] == words(died.done)
    assert [b"last"] == words(died.not_run)


@pytest.mark.fault("consumer: a handler hangs")
@pytest.mark.promise("P9")
def test_a_process_whose_handler_hangs_is_killed_and_the_next_one_goes_on(make_stage: MakeStage) -> None:
    stage = make_stage(attempt_timeout_s=0.5)
    stage.begin(b"first", b"fail", b"hang", b"last")
    stage.begin(b"a", b"b")
    hung, spared = stage.outcomes(2)
    stage.begin(b"go")
    *_, gone_on = stage.outcomes(3)

    assert [(b"fail", "ValueError"), (b"hang", "AttemptTimeout")] == failures(hung)
    assert ([b"first"], [b"last"]) == (words(hung.done), words(hung.not_run))
    assert [b"a", b"b"] == words(spared.done)
    assert [b"go"] == words(gone_on.done)


def test_a_process_that_starts_slowly_does_not_hang(make_stage: MakeStage) -> None:
    stage = make_stage(attempt_timeout_s=0.2)  # importing alone takes longer
    stage.begin(b"go")
    (outcome,) = stage.outcomes(1)

    assert [b"go"] == words(outcome.done)


class HangsElsewhere:
    """A deserializer that the first other process does not get: it waits for ever there, as an import may."""

    def __init__(self, file: Path, pid: int) -> None:
        self._given = file, pid
        if os.getpid() != pid and not file.exists():
            file.touch()
            hang()

    def __reduce__(self) -> tuple[Any, ...]:
        return HangsElsewhere, self._given

    def __call__(self, raw: bytes | None, _message: Any) -> bytes | None:
        return raw


@pytest.mark.fault("consumer: a handler process hangs before it begins a message")
@pytest.mark.parametrize("given", [[b"first", b"second"], [BIG]], ids=["small", "longer than its pipe holds"])
def test_a_process_that_never_begins_is_replaced_and_no_message_is_charged(
    make_stage: MakeStage, given: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that sends a large message waits, too."""
    monkeypatch.setattr(process_pool, "START_S", 8.0)
    stage = make_stage(deserializer=HangsElsewhere(tmp_path / "began", os.getpid()))
    stage.begin(*given)
    (never,) = stage.outcomes(1)
    monkeypatch.undo()  # a busy machine may start the next one slowly
    stage.begin(*given)
    *_, gone_on = stage.outcomes(2)

    assert given == words(never.not_run)
    assert not never.failed
    assert given == words(gone_on.done)


class DiesElsewhere(HangsElsewhere):
    """A deserializer with which the first other process is killed before it begins a message."""

    def __init__(self, file: Path, pid: int) -> None:
        self._given = file, pid
        if os.getpid() != pid and not file.exists():
            file.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def __reduce__(self) -> tuple[Any, ...]:
        return DiesElsewhere, self._given


@pytest.mark.fault("consumer: a handler process is killed before it begins a message")
@pytest.mark.promise("P9")
def test_of_a_chunk_that_a_process_did_not_begin_only_the_first_message_is_charged(
    make_stage: MakeStage, tmp_path: Path
) -> None:
    stage = make_stage(deserializer=DiesElsewhere(tmp_path / "began", os.getpid()))
    stage.begin(b"first", b"second", b"third")
    (died,) = stage.outcomes(1)

    assert [(b"first", "ProcessDied")] == failures(died)
    assert [b"second", b"third"] == words(died.not_run)


def test_a_lost_lease_stops_its_own_chunk_and_not_the_one_behind(stage: PoolStage, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    lost = stage.begin(bytes(begun), b"not run")
    stage.begin(b"is lost", b"is lost")

    wait_until(begun.exists, within=WITHIN_S, what="the first message in its handler")
    lost.lease.lost.set()
    first, second = stage.outcomes(2)

    assert [bytes(begun)] == words(first.done)
    assert [b"not run"] == words(first.not_run)
    assert [b"is lost", b"is lost"] == words(second.done)


def test_a_lease_that_is_lost_before_its_turn_is_known_behind_another_chunk(stage: PoolStage, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    first = stage.begin(bytes(begun), b"not run")
    second = stage.begin(b"a", b"b")

    wait_until(begun.exists, within=WITHIN_S, what="the first message in its handler")
    second.lease.lost.set()
    first.lease.lost.set()
    _, unrun = stage.outcomes(2)

    assert [b"a", b"b"] == words(unrun.not_run)


@pytest.mark.promise("P9")
def test_what_stands_behind_a_message_that_takes_long_goes_back_and_what_ended_is_told(
    stage: PoolStage, tmp_path: Path
) -> None:
    stage.begin(b"go", b"go")
    stage.outcomes(1)
    begun = tmp_path / "begun"
    long = stage.begin(b"first", b"fail", bytes(begun), b"behind")
    part = stage.part_of(long)

    assert ([b"first"], [b"behind"]) == (words(part.done), words(part.not_run))
    assert [(b"fail", "ValueError")] == failures(part)
    long.lease.lost.set()
    ended = stage.outcomes(2)[1]
    assert [b"first", bytes(begun)] == words(ended.done)
    assert [(b"fail", "ValueError")] == failures(ended)


@pytest.mark.promise("P9")
def test_what_is_cut_begins_in_no_process(stage: PoolStage, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    cut = stage.begin(bytes(begun), b"not run")
    wait_until(begun.exists, within=WITHIN_S, what="the first message in its handler")

    cut.is_cut = True
    wait_until(lambda: cut.told, within=WITHIN_S, what="the cut is passed on")
    cut.lease.lost.set()
    (outcome,) = stage.outcomes(1)

    assert ([bytes(begun)], [b"not run"]) == (words(outcome.done), words(outcome.not_run))


@pytest.mark.promise("P9")
def test_no_chunk_of_a_process_is_taken_for_one_that_hangs(stage: PoolStage, tmp_path: Path) -> None:
    # A later message may have begun by now; one that hangs ends with its process.
    begun = tmp_path / "begun"
    chunk = stage.begin(b"first", bytes(begun))
    wait_until(begun.exists, within=WITHIN_S, what="the second message in its handler")

    has_begun_long_ago = 0 < chunk.begun_at < time.monotonic()

    chunk.lease.lost.set()
    assert not has_begun_long_ago


def test_a_pool_that_is_closed_lets_what_was_begun_end(stage: PoolStage) -> None:
    stage.begin(b"go")
    stage.outcomes(1)
    stage.begin(b"a", b"b")
    stage.begin(b"c", b"d")

    stage.pool.close(WITHIN_S)

    assert [b"go", b"a", b"b", b"c", b"d"] == words([job for outcome in stage.outcomes(3) for job in outcome.done])


@pytest.mark.fault("consumer: a handler process dies, and a process that it forked lives on")
def test_a_process_is_dead_although_one_that_its_handler_forked_keeps_the_pipe_open(
    stage: PoolStage, tmp_path: Path
) -> None:
    file = tmp_path / "end"
    message = b"fork " + bytes(file)
    stage.begin(message)
    (died,) = stage.outcomes(1)
    stage.begin(b"go")
    *_, gone_on = stage.outcomes(2)
    file.touch()

    assert [(message, "ProcessDied")] == failures(died)
    assert [b"go"] == words(gone_on.done)


@pytest.mark.fault("consumer: a handler process is stopped and then killed, and its queue is lost meanwhile")
@pytest.mark.promise("P9")
def test_a_process_that_is_stopped_and_killed_is_replaced_although_its_handler_waits_for_the_end_of_its_lease(
    stage: PoolStage, tmp_path: Path
) -> None:
    """As on a machine without memory: the process is swapped out, the group moves on, and the system kills the process."""
    file = tmp_path / "begun"
    chunk = stage.begin(bytes(file))
    wait_until(file.exists, within=WITHIN_S, what="a handler that waits for the end of its lease")
    (process,) = multiprocessing.active_children()
    assert process.pid is not None
    pause(0.2)  # it begins to wait

    os.kill(process.pid, signal.SIGSTOP)
    chunk.lease.lost.set()
    pause(0.5)  # the pool looks at the lease meanwhile
    os.kill(process.pid, signal.SIGKILL)
    (died,) = stage.outcomes(1)
    stage.begin(b"go")
    *_, gone_on = stage.outcomes(2)

    assert [(bytes(file), "ProcessDied")] == failures(died)
    assert [b"go"] == words(gone_on.done)


@pytest.mark.fault("consumer: thousands of handler processes die one after the other")
@pytest.mark.promise("P11")
def test_nothing_of_a_process_that_died_stays_open(stage: PoolStage) -> None:
    """With what each kept, a consumer had as many files open after 400 deaths as a process may have."""
    stage.begin(b"die")
    stage.outcomes(1)
    stage.begin(b"go")
    stage.outcomes(2)
    before = open_file_count()

    stage.begin(b"die")
    stage.outcomes(3)
    stage.begin(b"go")
    stage.outcomes(4)
    kill_idle_processes()
    stage.begin(b"go")
    stage.outcomes(5)

    assert before == open_file_count()


CONSUMER = """
import sys
from tests.integration.test_process_pool import PoolStage
from txlayer.consumer import process_pool

process_pool.LONG_S = 60.0  # it dies before it takes back what waits behind the first message
stage = PoolStage()
stage.begin(f"until {sys.argv[1]}".encode(), f"touch {sys.argv[2]}".encode())
stage.begin(f"touch {sys.argv[3]}".encode(), b"go")
stage.outcomes(1)
"""


@pytest.mark.fault("consumer: is killed or frozen while its handler processes run")
@pytest.mark.promise("P9")
def test_a_process_begins_no_message_after_its_consumer_was_killed(tmp_path: Path) -> None:
    """The group gives the queue to another consumer within seconds: messages of one key would be handled side by side."""
    go_on, second, third = (tmp_path / name for name in ("go", "second", "third"))
    command = [sys.executable, "-c", CONSUMER, str(go_on), str(second), str(third)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as consumer:
        wait_until(go_on.with_suffix(".begun").exists, within=WITHIN_S, what="the first message in its handler")
        consumer.kill()
        consumer.wait()
        go_on.touch()
        assert consumer.stdout is not None
        assert b"" == consumer.stdout.read()  # its end comes when both are gone

    assert [False, False] == [second.exists(), third.exists()]


@pytest.mark.fault("consumer: is killed or frozen while its handler processes run")
@pytest.mark.promise("P9")
def test_a_process_begins_no_message_while_its_consumer_is_frozen(tmp_path: Path) -> None:
    go_on, second, third = (tmp_path / name for name in ("go", "second", "third"))
    program = CONSUMER.replace("stage = ", "process_pool.SILENT_S = 0.3\nstage = ") + "stage.outcomes(2)\n"
    command = [sys.executable, "-c", program, str(go_on), str(second), str(third)]
    with subprocess.Popen(command) as consumer:
        wait_until(go_on.with_suffix(".begun").exists, within=WITHIN_S, what="the first message in its handler")
        consumer.send_signal(signal.SIGSTOP)
        pause(1.0)  # longer than it may be silent
        go_on.touch()
        pause(0.5)  # long enough for a process that would go on
        begun = [second.exists(), third.exists()]
        consumer.send_signal(signal.SIGCONT)
        assert 0 == consumer.wait(WITHIN_S)

    assert [False, False] == begun


UNCLOSED = """
from tests.integration.test_process_pool import PoolStage

stage = PoolStage()
stage.begin(b"go")
stage.outcomes(1)
stage.begin(b"hang")
"""


@pytest.mark.fault("consumer: its program ends without `close()`, and handlers run in processes")
def test_a_program_that_does_not_close_its_consumer_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", UNCLOSED], timeout=WITHIN_S, check=False)

    assert 0 == ended.returncode


def kill_idle_processes() -> None:
    """Kill the processes for handlers, which do nothing just now."""
    for idle in multiprocessing.active_children():
        idle.kill()
    wait_until(lambda: not multiprocessing.active_children(), within=WITHIN_S, what="they are gone")


def open_file_count() -> int:
    """Files, pipes and sockets of this process."""
    gc.collect()
    return len(list(Path("/dev/fd").iterdir()))
