"""How a client reaches the cluster: one request, or one that is repeated until it is answered.

Which codes a client keeps to itself, and which end a Kafka transaction or the client, was measured request by request
(docs/explanation/kafka.md, Errors).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from txlayer.adapters.errors import Code
from txlayer.adapters.memory.cluster import Broker, Cluster
from txlayer.adapters.memory.world import ClientError, ClientFailureError, NoAnswerError, RefusedError, World

T = TypeVar("T")

RETRY_BACKOFF_S = 0.1
"""`retry.backoff.ms` of every client of ours."""
CONCURRENT_BACKOFF_S = 0.02
"""The client's fixed pause while the markers of the last Kafka transaction are written."""

_MOVED = {
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.CONCURRENT_TRANSACTIONS,
    Code.REQUEST_TIMED_OUT,
}

INSIDE: dict[str, frozenset[Code]] = {
    "InitProducerId": frozenset({*_MOVED, Code.UNKNOWN}),
    "AddPartitionsToTxn": frozenset({*_MOVED, Code.UNKNOWN_TOPIC_OR_PART}),
    "Produce": frozenset(
        {
            Code.UNKNOWN_TOPIC_OR_PART,
            Code.NOT_LEADER_FOR_PARTITION,
            Code.LEADER_NOT_AVAILABLE,
            Code.REQUEST_TIMED_OUT,
            Code.INVALID_MSG,
            Code.NOT_ENOUGH_REPLICAS,
            Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            Code.KAFKA_STORAGE_ERROR,
        }
    ),
    "AddOffsetsToTxn": frozenset(_MOVED),
    "TxnOffsetCommit": frozenset({*_MOVED, Code.UNKNOWN_TOPIC_OR_PART}),
    "EndTxn": frozenset(_MOVED),
}
"""Codes after which the client asks again by itself."""

FATAL: dict[str, frozenset[Code]] = {
    "InitProducerId": frozenset(
        {
            Code.INVALID_TRANSACTION_TIMEOUT,
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            Code.CLUSTER_AUTHORIZATION_FAILED,
            Code.INVALID_PRODUCER_EPOCH,
            Code.PRODUCER_FENCED,
        }
    ),
    "AddPartitionsToTxn": frozenset(
        {
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            Code.INVALID_PRODUCER_EPOCH,
            Code.PRODUCER_FENCED,
            Code.INVALID_TXN_STATE,
        }
    ),
    "Produce": frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH}),
    "AddOffsetsToTxn": frozenset(
        {Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_TXN_STATE}
    ),
    "TxnOffsetCommit": frozenset(
        {Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING, Code.INVALID_TXN_STATE}
    ),
    "EndTxn": frozenset(
        {
            Code.INVALID_PRODUCER_EPOCH,
            Code.PRODUCER_FENCED,
            Code.INVALID_TXN_STATE,
            Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        }
    ),
}
"""Codes after which a transactional client is of no use any more; every other code means: abort."""


class Link:
    """How one client process reaches the cluster."""

    __slots__ = ("bootstrap_servers", "broker", "client", "cluster", "world")

    def __init__(self, world: World, cluster: Cluster, broker: Broker, *, client: str, bootstrap_servers: str) -> None:
        self.world = world
        self.cluster = cluster
        self.broker = broker
        self.client = client
        self.bootstrap_servers = bootstrap_servers

    def ask(self, request: str, act: Callable[[], T]) -> T:
        """One request and its answer."""
        return self.world.exchange(self.client, request, act)

    def persist(self, request: str, act: Callable[[], T], *, deadline: float) -> T:
        """Ask again while no answer comes, or one that the client keeps to itself.

        The very same request is sent again: one that was only late arrives as well.

        Raises:
            RefusedError: any other answer.
            ClientFailureError: _TIMED_OUT, or the last answer to InitProducerId, at `deadline` (of the world's monotonic clock).
        """
        inside, code = INSIDE[request], Code.LOCAL_TIMED_OUT
        while True:
            try:
                return self.world.exchange(self.client, request, act)
            except NoAnswerError:
                pass
            except RefusedError as exc:
                if exc.code not in inside:
                    raise
                if request == "InitProducerId":
                    code = exc.code  # of this request alone the client tells in the end what the last answer was
            left_s = deadline - self.world.monotonic()
            if left_s <= 0:
                raise ClientFailureError(ClientError(code))
            self.pause(min(self.jittered(RETRY_BACKOFF_S), left_s))

    def jittered(self, seconds: float) -> float:
        """As clients do: 20 % around it."""
        return seconds * (0.8 + 0.4 * self.world.random.random())

    def pause(self, seconds: float) -> None:
        """Let others run for so long."""
        self.world.wait(_never, timeout_s=seconds)


def _never() -> bool:
    return False
