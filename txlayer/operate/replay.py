"""Dead letters handled again, dropped or edited, and topics paused: what is asked, and what became of it."""

import heapq
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from functools import partial
from itertools import zip_longest
from typing import NamedTuple, TypeVar

from txlayer.adapters.ports import TopicPartition
from txlayer.core.dead_letters import (
    DLQ_HEADER,
    EDITED,
    ENDED,
    DeadLetter,
    DeadLetterHistory,
    DeadLetterReason,
    DeadLetterState,
    ReplayKind,
    ReplayOutcome,
    ReplayRecord,
    encode_dead_letter,
    encode_replay,
    is_cut,
    is_request_id,
    original_headers,
    replay_topic,
    writer_name,
)
from txlayer.core.messages import Undecodable
from txlayer.core.progress import NO_KEY, hash_of_key
from txlayer.errors import FencedError, RetriableError, TxLayerError, UsageError
from txlayer.operate import Json
from txlayer.operate.dead_letters import (
    DeadLetterFilter,
    DeadLetterLog,
    DeadLetterPosition,
    FoundLetter,
    Logs,
    QueueStatus,
    partitions_in_one_chain,
    position_json,
)
from txlayer.operate.operators import check_choice, signature_of
from txlayer.runtime.environment import REAL, Environment
from txlayer.runtime.kafka_transactions import ALONE, SMALL_BATCH_BYTES, Entry, KafkaTransactions, WriterConnections

T = TypeVar("T")


class Author(NamedTuple):
    """Who asks and why, as every request keeps it, and under which name."""

    text: str
    request_id: str


def author_of(command: str, *, operator: str | None, reason: str, request_id: str | None) -> Author:
    text = signature_of(command, operator=operator, reason=reason, recorded="it is recorded in the request")
    drawn = request_id or secrets.token_hex(6)
    if not is_request_id(drawn):
        raise UsageError(f"{command}: --request-id takes 1 to 64 of A-Z a-z 0-9 . _ -")
    return Author(text, drawn)


def standing(author: Author) -> str:
    """What is so when a command ends before its requests are answered."""
    return f"requests that were written take effect; the same command with --request-id {author.request_id} goes on"


ABLE = frozenset({DeadLetterState.OPEN, DeadLetterState.FAILED})
"""States in which something can be asked for without asking twice."""

ROUND_COUNT_MAX = 10  # how often those that joined a parked key meanwhile are asked for: then it never ends by itself


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    """What an operator asked for."""

    kind: ReplayKind
    group: str
    author: Author
    _: KW_ONLY
    topics: tuple[str, ...] = ()
    names: tuple[DeadLetterPosition, ...] = ()
    is_all: bool = False
    wanted: DeadLetterFilter = field(default_factory=DeadLetterFilter)
    limit: int | None = None
    rate: float | None = None
    patience_s: float = 0.0
    is_again: bool = False  # named ones, whatever became of them

    @property
    def command(self) -> str:
        return f"txlayer dlq {self.kind.name.lower()}"

    def check(self) -> None:
        check_choice(self.command, "dead letters", self.names, is_all=self.is_all, wanted=self.wanted, limit=self.limit)
        if self.rate is not None and not math.isfinite(self.rate):
            raise UsageError(f"{self.command}: --rate takes a number")
        if self.is_all and self.is_again:
            raise UsageError(f"{self.command}: --again goes with names: handling many twice is no accident to risk")


class DeadLetterResult(Enum):
    """What became of one dead letter that was asked for, or why it was not, in the words of --json."""

    PLANNED = "planned"  #: it would be asked for
    REQUESTED = "requested"  #: asked for, and not answered yet
    HANDLED = "handled"  #: its handler succeeded
    FAILED = "failed"  #: its handler failed again, and it stays
    DROPPED = "dropped"  #: it will not be handled
    ALREADY = "already"  #: it was handled or dropped before
    REQUESTED_ALREADY = "requested-already"  #: another request about it has no answer yet
    MISSING = "missing"  #: it was gone when its turn came
    UNKNOWN = "unknown"  #: no handler takes it, it has no content, or the group's consumers do not know such a request
    NOT_FOUND = "not-found"  #: there is no such record
    UNDECODABLE = "undecodable"  #: the record there is no dead letter of the group
    LEFT = "left"  #: the request was stopped before its turn, or an earlier one of its parked key has not ended; nothing was asked for
    LAST_OF_KEY = "last-of-key"  #: its drop would release its parked key past earlier ones that are open


_DONE = {ReplayKind.REPLAY: DeadLetterResult.HANDLED, ReplayKind.DROP: DeadLetterResult.DROPPED}


class DeadLetterOutcome(NamedTuple):
    """What became of one dead letter."""

    position: DeadLetterPosition
    result: DeadLetterResult
    state: DeadLetterState | None
    text: str = ""
    waiting: frozenset[ReplayKind] = (
        frozenset()
    )  # of one that nothing was asked for: what others asked for, and has no answer yet


def answered(position: DeadLetterPosition, history: DeadLetterHistory, request_id: str) -> DeadLetterOutcome:
    """Of one that was asked for, with what its owner answered."""
    said = history.results.get(request_id)
    if said is None or said.record.outcome is None:
        return DeadLetterOutcome(position, DeadLetterResult.REQUESTED, history.state)
    return DeadLetterOutcome(position, DeadLetterResult[said.record.outcome.name], history.state, said.record.text)


def not_asked(
    position: DeadLetterPosition, why: DeadLetterResult, history: DeadLetterHistory | None
) -> DeadLetterOutcome:
    """Of one that nothing was asked for."""
    if history is None:
        return DeadLetterOutcome(position, why, None)
    waiting = frozenset(history.asked[request_id].record.kind for request_id in history.unanswered)
    return DeadLetterOutcome(position, why, history.state, ", ".join(sorted(history.unanswered)), waiting)


def is_good(outcome: DeadLetterOutcome, kind: ReplayKind, *, is_waiting: bool) -> bool:
    if outcome.result is DeadLetterResult.ALREADY:
        return kind is ReplayKind.DROP or outcome.state is DeadLetterState.HANDLED
    if outcome.result is DeadLetterResult.REQUESTED_ALREADY:
        return not is_waiting and outcome.waiting == {kind}
    good = {_DONE[kind], DeadLetterResult.PLANNED}
    return outcome.result in good or (not is_waiting and outcome.result is DeadLetterResult.REQUESTED)


# --- which -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DeadLetterSelection:
    """What a command is about."""

    chosen: list[FoundLetter] = field(default_factory=list)  # to be asked for
    asked_before: list[FoundLetter] = field(default_factory=list)  # by the same request id
    unable: list[DeadLetterOutcome] = field(default_factory=list)
    added_count: int = 0  # of the chosen: because their parked key is replayed whole
    left_count: int = 0  # of a parked key, and not chosen to be dropped
    parked_key_count: int = 0
    undecodable_count: int = 0  # passed over by a filter
    parked: list[list[DeadLetterPosition]] = field(default_factory=list)
    """The dead letters of each parked key that is dropped or replayed, in their order, apart from those that had ended."""

    @property
    def in_turn(self) -> list[FoundLetter]:
        """The chosen: those of one partition in the order of their offsets, partitions taking turns."""
        queues: dict[tuple[str, int], list[FoundLetter]] = {}
        for each in sorted(self.chosen, key=lambda c: c.position):
            queues.setdefault(each.position[:2], []).append(each)
        return [each for turn in zip_longest(*queues.values()) for each in turn if each is not None]


def choose(order: ReplayOrder, logs: Logs) -> DeadLetterSelection:
    """What an order is about: the dead letters that it names, or those of these topics that its filter lets through.

    What its request id has asked for already is `asked_before`. The other dead letters of a parked key are
    replayed, too, and none before an earlier one (`held_back`). The last one of a parked key is not dropped while earlier ones
    are left open, or their replays have no answer: its end would release the key.

    Raises:
        UsageError: its request id asked for the other thing: a drop, where it replays, or a replay.
    """
    choice = DeadLetterSelection()
    request_id = order.author.request_id
    if order.names:
        able = frozenset(DeadLetterState) if order.is_again else ABLE
        for position in dict.fromkeys(order.names):
            log = logs.get(position.topic)
            found = None if log is None else log.at(position.partition, position.offset)
            if found is None:
                choice.unable.append(not_asked(position, DeadLetterResult.NOT_FOUND, None))
            elif (why := _sort_in(choice, found, able, order)) is not None:
                choice.unable.append(not_asked(position, why, found.history))
    else:
        letters = (found for log in logs.values() for found in log.letters(since_ms=order.wanted.since_ms))
        for found in filter(order.wanted.lets_through, letters):
            why = _sort_in(choice, found, ABLE, order)
            choice.undecodable_count += why is DeadLetterResult.UNDECODABLE
        if order.limit is not None:
            # What the same request asked for before it was killed is part of it.
            all_of_it = (*choice.asked_before, *choice.chosen)
            oldest = heapq.nsmallest(order.limit, all_of_it, key=lambda c: (c.at_ms, c.position))
            choice.chosen = [each for each in oldest if request_id not in each.history.asked]
    for log in logs.values():
        _add_parked(choice, log, order)
    choice.chosen, held = held_back(order, choice.parked, logs, choice.chosen)
    choice.unable += (_held(order, each) for each in held)
    return choice


def newcomers(order: ReplayOrder, logs: Logs, asked: Iterable[FoundLetter]) -> DeadLetterSelection:
    """What followed the parked keys of `asked` into the dead letters since, unless an earlier one of the key was not handled."""
    queues: dict[tuple[str, int, bytes | None], list[FoundLetter]] = {}
    for each in asked:
        queues.setdefault((*each.position[:2], each.key), []).append(each)
    handled = [
        each
        for chain in queues.values()
        if all(logs[c.position.topic].history(c.position).state is DeadLetterState.HANDLED for c in chain)
        for each in chain
    ]
    choice = DeadLetterSelection(asked_before=handled)
    for log in logs.values():
        _add_parked(choice, log, order)
    followed = [c for c in choice.chosen if c.reason is DeadLetterReason.KEY_PARKED]
    choice.chosen, _ = held_back(order, choice.parked, logs, followed)
    return choice


Freed = Mapping[DeadLetterPosition, Mapping[bytes | None, int]]
"""By dead letter: the offsets of those at which its key is stuck and that retention took, each with the key of its request."""


def freed_by_retention(logs: Logs, chosen: Iterable[FoundLetter]) -> Freed:
    """Where their keys are stuck at dead letters that are gone. Look for it before `still_able`: what is stuck later stays so."""
    found: dict[DeadLetterPosition, dict[bytes | None, int]] = {}
    queues = {topic: log.queues() for topic, log in logs.items()}
    looked_up: dict[DeadLetterPosition, bool] = {}
    for each in chosen:
        topic, partition, _ = each.position
        for key in dict.fromkeys((None, each.key)):  # null keys are one chain, and so is a partition in one order
            offset = queues[topic][partition].stuck.get(hash_of_key(key))
            if offset is None:
                continue
            at = DeadLetterPosition(topic, partition, offset)
            if at not in looked_up:
                looked_up[at] = logs[topic].is_gone(partition, offset)
            if looked_up[at]:
                found.setdefault(each.position, {})[key] = offset
    return found


def still_able(
    logs: Logs, chosen: Iterable[FoundLetter], *, is_again: bool
) -> tuple[list[FoundLetter], list[FoundLetter]]:
    """(those that were not asked for meanwhile, the others); both as they are now."""
    for log in logs.values():
        log.follow()
    able: list[FoundLetter] = []
    taken: list[FoundLetter] = []
    for each in chosen:
        now = each._replace(history=logs[each.position.topic].history(each.position))
        (able if is_again or now.history.state in ABLE else taken).append(now)
    return able, taken


def held_back(
    order: ReplayOrder,
    parked: Iterable[Sequence[DeadLetterPosition]],
    logs: Logs,
    chosen: Sequence[FoundLetter],
    freed: Collection[DeadLetterPosition] = (),
) -> tuple[list[FoundLetter], list[FoundLetter]]:
    """(those that may be asked for now, those of a parked key that are left, because an earlier one would come behind them).

    A replay is left where an earlier one that has not ended is not asked for now: this request id asked for it before, and it
    failed; or its replay has no answer yet, and comes before a request about a still earlier one, so that its answer is that it
    failed. `freed` ones follow a request about a dead letter that is gone, which is such an earlier one. A drop of the last one is
    left where an earlier one is open, or is to be replayed and may fail: it would release the key.
    """
    held: set[DeadLetterPosition] = set()
    asked = {each.position for each in chosen}
    is_dropping = order.kind is ReplayKind.DROP
    for positions in () if order.is_again and not is_dropping else parked:
        is_clear, newest = True, -1.0  # the newest request about those before
        if not asked.isdisjoint(positions) and any(position in freed for position in positions):
            newest = math.inf
        left: list[DeadLetterPosition] = []
        for position in positions:
            history = logs[position.topic].history(position)
            said = history.results.get(order.author.request_id)
            if position in asked:
                newest = math.inf
                held |= set() if is_clear else {position}
            elif is_dropping:
                left += [position] if history.state in ABLE or history.is_to_be_replayed else []
            elif history.unanswered:
                at = max(history.asked[request_id].offset for request_id in history.unanswered)
                is_clear = is_clear and (at > newest or not history.is_to_be_replayed)
                newest = max(newest, at)
            elif history.state not in ENDED and (said is None or said.record.outcome is not ReplayOutcome.MISSING):
                is_clear = False
        last = max(asked.intersection(positions), default=None)
        if left and last is not None and last > left[-1]:
            held.add(last)
    return [c for c in chosen if c.position not in held], [c for c in chosen if c.position in held]


def _held(order: ReplayOrder, found: FoundLetter) -> DeadLetterOutcome:
    if order.kind is ReplayKind.DROP:
        return not_asked(found.position, DeadLetterResult.LAST_OF_KEY, found.history)
    why = "an earlier one of its parked key failed, or has no answer yet"
    return DeadLetterOutcome(found.position, DeadLetterResult.LEFT, found.history.state, why)


def _sort_in(
    choice: DeadLetterSelection, found: FoundLetter, able: frozenset[DeadLetterState], order: ReplayOrder
) -> DeadLetterResult | None:
    """Put it among those to ask for, or those asked for before; else say why it is neither."""
    if isinstance(found.letter, Undecodable):
        return DeadLetterResult.UNDECODABLE
    asked = found.history.asked.get(order.author.request_id)
    if asked is not None:
        # An edit drops one and replays another, under one id.
        if asked.record.kind is not order.kind and asked.record.replaced_by is None:
            before = (
                f"request {order.author.request_id} asked for a {asked.record.kind.name.lower()} of {found.position}"
            )
            raise UsageError(f"{order.command}: {before}; take another request id. Nothing was asked for")
        choice.asked_before.append(found._replace(record=None))
    elif found.history.state in able:
        choice.chosen.append(found._replace(record=None))
    else:
        return _why_unable(found)
    return None


def _why_unable(found: FoundLetter) -> DeadLetterResult:
    return DeadLetterResult.ALREADY if found.history.state in ENDED else DeadLetterResult.REQUESTED_ALREADY


def _add_parked(choice: DeadLetterSelection, log: DeadLetterLog, order: ReplayOrder) -> None:
    """The rest of the parked keys of which one is chosen or was asked for; of a drop only how many that are."""
    is_dropping = order.kind is ReplayKind.DROP
    ours = [c for c in (*choice.chosen, *choice.asked_before) if c.position.topic == log.topic]
    if not ours:
        return
    queues = log.queues()
    whole = partitions_in_one_chain(log, queues, {c.position.partition for c in ours})

    def chain_of(partition: int, key: bytes | None) -> tuple[int, bytes]:
        return partition, NO_KEY if partition in whole else hash_of_key(key)

    keys = {chain_of(c.position.partition, c.key) for c in ours}
    parked = {chain for chain in keys if chain[1] in queues[chain[0]].parked}
    rest: list[tuple[tuple[int, bytes], FoundLetter]] = []
    chains: dict[tuple[int, bytes], list[DeadLetterPosition]] = {}
    chosen = {c.position for c in (choice.chosen if is_dropping else ours)}

    for found in log.letters(partitions={partition for partition, _ in keys}):
        chain = chain_of(found.position.partition, found.key)
        if chain not in keys or isinstance(found.letter, Undecodable):
            continue
        if found.history.state not in ENDED and found.reason is DeadLetterReason.KEY_PARKED:
            parked.add(chain)
        if found.history.state not in ENDED:
            chains.setdefault(chain, []).append(found.position)
        is_able = found.history.state in ABLE and (is_dropping or order.author.request_id not in found.history.asked)
        is_left = is_able or (is_dropping and found.history.is_to_be_replayed)
        if is_left and found.position not in chosen:
            rest.append((chain, found._replace(record=None)))

    more = [each for chain, each in rest if chain in parked]
    choice.parked_key_count += len({chain for chain, _ in rest if chain in parked})
    choice.parked += (positions for chain, positions in chains.items() if chain in parked)
    if is_dropping:
        choice.left_count += len(more)
    else:
        choice.chosen += more
        choice.added_count += len(more)


# --- writing ---------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """A request for the replay topic of `topic`."""

    topic: str
    partition: int
    key: bytes | None  # the dead letter's
    record: ReplayRecord


class WrittenRequest(NamedTuple):
    """An acknowledged request."""

    request: Request
    offset: int


FENCED_COUNT_MAX = 20  # how often one request gives way to others of the group at the same moment
GIVE_WAY_S = 0.5  # at most so long each time, by chance


@dataclass(slots=True)
class RequestWriter:
    """Writes requests of one group, which other requests of the group at the same moment cannot get between. One thread uses it.

    All writers of a group share one transactional id: who begins fences the one before. So what a Kafka transaction has read
    since it began is all that was asked for when it is committed.
    """

    connections: WriterConnections
    _: KW_ONLY
    group: str
    environment: Environment = REAL
    _transactions: KafkaTransactions | None = field(default=None, init=False)
    _batch_bytes_max: int = field(default=SMALL_BATCH_BYTES, init=False)

    def in_turn(self, act: Callable[[KafkaTransactions], T]) -> T:
        """Do `act`, whose Kafka transaction looks and then writes; again if another writer of the group began meanwhile, and each record
        as a batch of its own if a topic took no larger one.

        Raises:
            RetriableError: others began each time, or as `act` raises.
            TxLayerError: what `act` raises. What it left open is ended, or the broker's time-out ends it.
        """
        for _ in range(FENCED_COUNT_MAX):
            self._transactions = self._transactions or self._make()
            try:
                return act(self._transactions)
            except FencedError:
                self.close()
                self.environment.sleep(GIVE_WAY_S * self.environment.draw())
            except TxLayerError:
                has_refused_batch = self._transactions.has_refused_batch
                self.close()
                if has_refused_batch:
                    self._batch_bytes_max = ALONE
                    continue
                with suppress(TxLayerError), closing(self._make()) as ending:
                    ending.start()
                raise
        raise RetriableError(f"others ask for something of group {self.group} at the same moment; try again")

    def write(self, look: Callable[[], Sequence[Request]]) -> list[WrittenRequest]:
        """Write what `look` asks for, all or nothing; it may be called again. Raises as `in_turn` and `KafkaTransactions.write`."""
        asked: Sequence[Request] = ()

        def entries(_before: list[int]) -> list[Entry]:
            nonlocal asked
            asked = look()
            return [
                Entry(replay_topic(self.group, each.topic), each.partition, each.key, encode_replay(each.record))
                for each in asked
            ]

        offsets = self.in_turn(lambda transactions: transactions.write((), behind=entries))
        return list(map(WrittenRequest, asked, offsets))

    def close(self) -> None:
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            transactions.close()

    def _make(self) -> KafkaTransactions:
        name, clock = writer_name(self.group, "requests"), self.environment.clock
        return KafkaTransactions(self.connections, name=name, clock=clock, batch_bytes_max=self._batch_bytes_max)


def requests_for(
    chosen: Iterable[FoundLetter], freed: Freed, *, kind: ReplayKind, request_id: str, text: str
) -> Iterator[Request]:
    """One request for each of these dead letters, in this order.

    Where a key is stuck at a dead letter that retention took, that one is asked for first: its answer, `missing` or `dropped`,
    lets the later ones go, and the last of them release the key.
    """
    asked: set[DeadLetterPosition] = set()
    for each in chosen:
        topic, partition, _ = each.position
        for key, offset in freed.get(each.position, {}).items():
            at = DeadLetterPosition(topic, partition, offset)
            if at not in asked:
                asked.add(at)
                yield Request(topic, partition, key, ReplayRecord(kind, request_id, offset, text=text))
        yield Request(topic, partition, each.key, ReplayRecord(kind, request_id, each.position.offset, text=text))


# --- asking ----------------------------------------------------------------------------------------------------------


def planned(order: ReplayOrder, choice: DeadLetterSelection) -> list[DeadLetterOutcome]:
    return [
        *choice.unable,
        *(DeadLetterOutcome(c.position, DeadLetterResult.PLANNED, c.history.state) for c in choice.in_turn),
        *(answered(c.position, c.history, order.author.request_id) for c in choice.asked_before),
    ]


STEP_COUNT = 50
STEP_S = 0.2
"""A step of an order that is watched or has a rate: so many dead letters, or those of so long at its rate. Others may act between two steps."""
STEP_COUNT_MAX = 1_000
"""Of any other order: its Kafka transaction hides what others ask for."""


@dataclass(slots=True)
class Watch:
    """Lets an order go on in steps. Each is asked for when the one before it is answered, unless something stops the order."""

    should_stop: Callable[[], bool]
    failed_count_max: int  # more replays than this that fail stop it
    note: Callable[[int, int, int], None]  # called with how many were asked for, were answered, and failed
    stopped: str = ""  # why it stopped; empty: it did not
    _failed_before: int = 0

    def begin(self, order: ReplayOrder, logs: Logs, asked: Sequence[FoundLetter]) -> None:
        """Failures before this do not count."""
        self._failed_before = self._results(order, logs, asked)[DeadLetterResult.FAILED]

    def is_going_on(self) -> bool:
        if self.should_stop():
            self.stopped = "a person stopped it"
        return not self.stopped

    def look(self, order: ReplayOrder, logs: Logs, asked: Sequence[FoundLetter]) -> None:
        """Note how far it is, and stop it where that is due."""
        results = self._results(order, logs, asked)
        waiting, failed = results[DeadLetterResult.REQUESTED], results[DeadLetterResult.FAILED] - self._failed_before
        self.note(len(asked), len(asked) - waiting, failed)
        if not self.is_going_on():
            return
        if failed > self.failed_count_max:
            self.stopped = f"{failed:,} failed again, and it was to go on after {self.failed_count_max:,} at most"
        elif waiting and order.patience_s:
            self.stopped = f"no consumer of the group answered for {order.patience_s:g} s"

    def _results(self, order: ReplayOrder, logs: Logs, asked: Sequence[FoundLetter]) -> Counter[DeadLetterResult]:
        name = order.author.request_id
        return Counter(answered(c.position, logs[c.position.topic].history(c.position), name).result for c in asked)


def _steps(order: ReplayOrder, fresh: Sequence[FoundLetter], watch: Watch | None) -> list[Sequence[FoundLetter]]:
    """Those of one step after the other; one empty step for none."""
    count = STEP_COUNT_MAX if watch is None else STEP_COUNT
    if order.rate is not None:
        count = max(1, min(STEP_COUNT, int(order.rate * STEP_S)))
    return [fresh[start : start + count] for start in range(0, max(len(fresh), 1), count)]


class Step(NamedTuple):
    """What the last look before its requests found of a step."""

    asked: list[FoundLetter]  # with these requests, or before, if the answer to that was lost
    taken: list[FoundLetter]  # by others
    held: list[FoundLetter]
    requests: list[Request]


def _look(
    order: ReplayOrder,
    writer: RequestWriter,
    logs: Mapping[str, DeadLetterLog],
    planned: Sequence[FoundLetter],
    parked: Iterable[Sequence[DeadLetterPosition]],
) -> Step:
    """A person, or the steps before, may have taken long: another operator may have asked meanwhile, or edits one."""
    author = order.author
    freed = freed_by_retention(logs, planned)
    for topic in {each.position.topic for each in planned}:
        partitions = {each.position.partition for each in planned if each.position.topic == topic}
        _wait_until_readable(logs[topic], partitions, patience_s=HIDDEN_S, environment=writer.environment)
    able, taken = still_able(logs, planned, is_again=order.is_again)
    before = [each for each in (*able, *taken) if author.request_id in each.history.asked]
    able, taken = ([each for each in found if each not in before] for found in (able, taken))
    step, held = held_back(order, parked, logs, able, freed)
    requests = requests_for(step, freed, kind=order.kind, request_id=author.request_id, text=author.text)
    return Step([*before, *step], taken, held, list(requests))


def _look_and_write(writer: RequestWriter, look: Callable[[], Step]) -> Step:
    step = Step([], [], [], [])

    def requests() -> list[Request]:
        nonlocal step
        step = look()
        return step.requests

    writer.write(requests)
    return step


def ask(
    order: ReplayOrder,
    writer: RequestWriter,
    logs: Logs,
    choice: DeadLetterSelection,
    *,
    say: Callable[[str], None] = lambda _text: None,
    on_asked: Callable[[int, int], None] = lambda _count, _total: None,
    on_answered: Callable[[int, int], None] = lambda _count, _total: None,
    watch: Watch | None = None,
) -> list[DeadLetterOutcome]:
    """Ask the group's consumers for the chosen, wait for their answers, and return what became of each.

    With a rate or a `watch` it goes on in steps, and looks before each what others have asked for. The watch may stop it: then
    `watch.stopped` says why, and those behind are left. TxLayerError: it could not be done; the same order goes on where it was.
    """
    author, clock = order.author, writer.environment.clock
    fresh, followed = choice, [*choice.asked_before]
    taken, held, left = list[FoundLetter](), list[FoundLetter](), list[FoundLetter]()
    if watch is not None:
        watch.begin(order, logs, followed)
    if fresh.chosen:
        say(f"request id {author.request_id}")  # the name to run it again with
    due: float | None = None  # with a rate: when the next step may begin
    for _ in range(ROUND_COUNT_MAX):
        count = 0
        for planned_step in _steps(order, fresh.in_turn, watch):
            while due is not None and (early_s := due - clock()) > 0 and (watch is None or watch.is_going_on()):
                writer.environment.sleep(min(early_s, LOOK_AGAIN_S))
            if watch is not None and not watch.is_going_on():
                left += planned_step
                continue
            begun = clock()
            look = partial(_look, order, writer, logs, planned_step, fresh.parked)
            step = _look_and_write(writer, look) if planned_step else Step([], [], [], [])
            taken += step.taken
            held += step.held
            followed += step.asked
            if order.rate is not None:
                due = begun + len(step.asked) / order.rate
            count += len(step.asked)
            on_asked(count, len(fresh.chosen))
            if watch is not None:
                _wait_for_answers(order, logs, followed, on_answered, watch)
                watch.look(order, logs, followed)
        if watch is None:
            _wait_for_answers(order, logs, followed, on_answered, watch)
        is_over = order.kind is ReplayKind.DROP or (watch is not None and watch.stopped)
        fresh = DeadLetterSelection() if is_over else newcomers(order, logs, followed)
        if not fresh.chosen:
            break
        say(f"{len(fresh.chosen):,} more followed their parked keys meanwhile and are asked for too")
    outcomes = [
        *choice.unable,
        *(not_asked(t.position, _why_unable(t), t.history) for t in taken),
        *(_held(order, each) for each in held),
        *(not_asked(c.position, DeadLetterResult.LEFT, c.history) for c in left),
        *(answered(c.position, logs[c.position.topic].history(c.position), author.request_id) for c in followed),
    ]
    # The last of each: what was left may be asked for when what is before it has been handled.
    return list({outcome.position: outcome for outcome in outcomes}.values())


HIDDEN_S = 15.0
"""How long a request waits for a Kafka transaction that hides others: longer than the default time-out of a consumer's, and of an edit's."""


LOOK_AGAIN_S = 0.2  # between two looks at how far the owners of the partitions are


def _wait_for_answers(
    order: ReplayOrder,
    logs: Logs,
    asked: Sequence[FoundLetter],
    on_answered: Callable[[int, int], None],
    watch: Watch | None,
) -> None:
    """Return when all have a result, when for the order's patience none came, or when the watch is to stop."""
    if not order.patience_s:
        return
    give_up_at, answered_before = time.monotonic() + order.patience_s, -1
    while True:
        for topic in {each.position.topic for each in asked}:
            logs[topic].follow()
        positions = (each.position for each in asked)
        answered = sum(order.author.request_id in logs[p.topic].history(p).results for p in positions)
        on_answered(answered, len(asked))
        if answered > answered_before:
            give_up_at, answered_before = time.monotonic() + order.patience_s, answered
        if answered >= len(asked) or time.monotonic() >= give_up_at or (watch is not None and watch.should_stop()):
            return
        time.sleep(LOOK_AGAIN_S)


def ask_queues(
    log: DeadLetterLog, writer: RequestWriter, record: ReplayRecord, *, partitions: Sequence[int]
) -> list[WrittenRequest]:
    """Ask the owners of partitions, or of all, to pause or to resume."""
    count = log.partition_count
    for number in partitions:
        if number >= count:
            raise UsageError(f"--partition {number}: {log.topic} has the partitions 0 to {count - 1}")
    requests = [Request(log.topic, p, None, record) for p in sorted(set(partitions or range(count)))]
    return writer.write(lambda: requests)


def wait_until_taken(
    log: DeadLetterLog, written: Sequence[WrittenRequest], *, patience_s: float, paused: Collection[int] = ()
) -> set[int]:
    """The partitions whose owners have stored that they took the request.

    A resume that ended the pause of one that was `paused` counts although requests before it wait for room, and it with them.
    So does a pause that is in force where the stored progress has no room for what ended.
    """
    give_up_at = time.monotonic() + patience_s

    def is_taken(each: WrittenRequest, queue: QueueStatus) -> bool:
        kind = each.request.record.kind
        has_resumed = kind is ReplayKind.RESUME and each.request.partition in paused and not queue.is_paused
        is_in_force = kind is ReplayKind.PAUSE and queue.is_paused and not queue.tells_ends
        return has_resumed or is_in_force or queue.has_taken(each.offset)

    while True:
        queues = log.queues()
        taken = {w.request.partition for w in written if is_taken(w, queues[w.request.partition])}
        if len(taken) == len(written) or time.monotonic() >= give_up_at:
            return taken
        time.sleep(LOOK_AGAIN_S)


def overruled(log: DeadLetterLog, written: Sequence[WrittenRequest]) -> dict[int, ReplayRecord]:
    """By partition: the newest request, where it came later and says the contrary of a pause or resume."""
    log.follow()
    newest = {w.request.partition: (w, log.pause(w.request.partition)) for w in written}
    return {
        partition: said.record
        for partition, (w, said) in newest.items()
        if said is not None and said.offset > w.offset and said.record.kind is not w.request.record.kind
    }


def outcome_json(outcome: DeadLetterOutcome, kind: ReplayKind, request_id: str) -> Json:
    return {
        **position_json(outcome.position),
        "act": kind.name.lower(),
        "result": outcome.result.value,
        "state": None if outcome.state is None else outcome.state.value,
        "request_id": request_id,
        "text": outcome.text or None,
    }


# --- an edit ---------------------------------------------------------------------------------------------------------


def why_not(log: DeadLetterLog, found: FoundLetter, beside: "LettersBeside | None" = None) -> str:
    """Why an edited copy cannot take the place of this dead letter; empty: it can. `beside` spares reading the others again."""
    if not isinstance(found.letter, DeadLetter):
        return "it is no dead letter of the group"
    if found.record is not None and is_cut(found.record.headers(), found.record.value()):
        return "its topic refused its content"
    if found.history.state not in ABLE:
        return f"it is {found.history.state.value}"
    if (beside or LettersBeside(log, found)).open_of_its_key():
        return (
            "more dead letters of its parked key are open: a copy comes behind them, and the key would lose its order"
        )
    return ""


class LettersBeside:
    """The dead letters that may be of one's key, without their content: each call reads only what came since the last one."""

    def __init__(self, log: DeadLetterLog, found: FoundLetter) -> None:
        self._log, self._found = log, found
        self._read: list[FoundLetter] = []
        self._next_offset = 0
        self._is_of_any_key = False

    def open_of_its_key(self) -> list[FoundLetter]:
        """The other open dead letters of its key, if the key is parked. Requests count as far as they were read."""
        log, partition = self._log, self._found.position.partition
        queues = log.queues()
        may_be_whole = queues[partition].parked == {NO_KEY}
        if may_be_whole and not self._is_of_any_key:
            self._read, self._next_offset, self._is_of_any_key = [], 0, True
        for each in log.letters(partitions=[partition], first_offset=self._next_offset):
            self._next_offset = each.position.offset + 1
            if each.reason is not None and (self._is_of_any_key or each.key == self._found.key):
                self._read.append(each._replace(record=None))
        letters = [each._replace(history=log.history(each.position)) for each in self._read]
        whole = may_be_whole and bool(partitions_in_one_chain(log, queues, [partition], letters))
        name = NO_KEY if whole else hash_of_key(self._found.key)
        others = [
            each
            for each in letters
            if each.history.state not in ENDED
            and each.position != self._found.position
            and (whole or each.key == self._found.key)
        ]
        is_parked = name in queues[partition].parked or any(
            each.reason is DeadLetterReason.KEY_PARKED for each in others
        )
        return others if is_parked else []


def replace_value(
    log: DeadLetterLog,
    found: FoundLetter,
    value: bytes,
    *,
    author: Author,
    connections: WriterConnections,
    environment: Environment = REAL,
) -> int:
    """Store a copy with this value, drop the first one, and have the copy replayed; returns the copy's offset.

    The copy is a dead letter like any other, with the key, the headers and the origin of the first one; its error says whose
    edit it is, of which dead letter, and why. Copy, drop and replay are one Kafka transaction: all of them are there, or none.
    The drop names the copy, so a parked key stays parked until the copy is handled. The same author's request id a second time
    ends what the first time left open, and writes no second copy.

    Raises:
        UsageError: it cannot be edited, or the same request id stored another value.
        RefusedRecordError: the topic refuses the copy, most often because of its size.
        TxLayerError: anything else. In each case nothing is written, unless the commit got no answer or cannot be read yet: the
            same request id again says so.
    """
    wait = partial(_wait_until_readable, log, [found.position.partition], environment=environment)
    # However many there are, they are read before: an open Kafka transaction holds up the readers of its topics, and has a time-out.
    beside = LettersBeside(log, found)

    def store(transactions: KafkaTransactions) -> int:
        transactions.start()
        wait()
        asked = log.history(found.position).asked.get(author.request_id)
        copy = None if asked is None else asked.record.replaced_by
        if copy is None:
            copy = _write_copy(log, found, value, author, transactions, wait, beside)
            wait()
        elif (stored := log.at(found.position.partition, copy)) is not None and stored.record.value() != value:
            raise UsageError(f"this form has stored another value already, at {stored.position}; look at that one")
        return copy

    with closing(RequestWriter(connections, group=log.group, environment=environment)) as writer:
        return writer.in_turn(store)


def _write_copy(
    log: DeadLetterLog,
    found: FoundLetter,
    value: bytes,
    author: Author,
    transactions: KafkaTransactions,
    wait: Callable[..., None],
    beside: LettersBeside,
) -> int:
    position = found.position
    note = f"request {author.request_id}, copy of offset {position.offset}: {author.text}"
    header = encode_dead_letter(_editable(log, found, beside)._replace(error_type=EDITED, error_message=note))
    headers = [*original_headers(found.record.headers()), (DLQ_HEADER, header)]

    freed = freed_by_retention({log.topic: log}, [found]).get(position, {})

    def requests(offsets: list[int]) -> list[Entry]:
        (copy,) = offsets
        wait({(log.dead_letters, position.partition): copy})
        copied = found._replace(position=position._replace(offset=copy))
        drop = ReplayRecord(
            ReplayKind.DROP,
            author.request_id,
            position.offset,
            text=f"{author.text} ({copy} replaces it)",
            replaced_by=copy,
        )
        replays = requests_for(
            [copied],
            {copied.position: freed},
            kind=ReplayKind.REPLAY,
            request_id=author.request_id,
            text=f"{author.text} (it replaces {position.offset})",
        )
        asked = [Request(log.topic, position.partition, found.key, drop), *replays]
        return [Entry(log.replays, each.partition, each.key, encode_replay(each.record)) for each in asked]

    def check(offsets: list[int]) -> None:
        # Of what others ask for, the consumers read what is before the drop first.
        copy, dropped_at, *_ = offsets
        wait({(log.dead_letters, position.partition): copy, (log.replays, position.partition): dropped_at})
        _editable(log, found, beside)

    entry = Entry(log.dead_letters, position.partition, found.key, value, headers)
    copy, *_ = transactions.write([entry], behind=requests, fence=check)
    return copy


def _editable(log: DeadLetterLog, found: FoundLetter, beside: LettersBeside) -> DeadLetter:
    now = found._replace(history=log.history(found.position))
    reason = why_not(log, now, beside)
    if reason or not isinstance(found.letter, DeadLetter):
        raise UsageError(f"{found.position} cannot be edited: {reason}")
    return found.letter


READABLE_S = 4.0  # twice this is shorter than the time-out of a Kafka transaction: the copy's own is open meanwhile


def _wait_until_readable(
    log: DeadLetterLog,
    partitions: Collection[int],
    before: dict[TopicPartition, int] | None = None,
    *,
    patience_s: float = READABLE_S,
    environment: Environment,
) -> None:
    """Wait while an open Kafka transaction hides dead letters or requests, of some only `before` an offset; then read the requests."""
    give_up_at = environment.clock() + patience_s
    ends = log.ends(partitions) | (before or {})
    while log.is_hidden(ends):
        if environment.clock() >= give_up_at:
            why = f"a Kafka transaction on {log.dead_letters} or {log.replays} is open, and hides what there is; try again"
            raise RetriableError(why)
        environment.sleep(LOOK_AGAIN_S)
    log.follow()
