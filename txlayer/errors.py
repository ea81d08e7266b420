"""The errors of txlayer: the class shows what to do next, the fields what happened.

::

    TxLayerError
    ├─ RetriableError            it did not happen          → the same call again
    │  ├─ BrokerUnavailableError       .bootstrap_servers .waited_ms
    │  ├─ OpenTransactionLimitError    .producer_group .partitions .open_count
    │  └─ NotAcceptingError            .namespace .closed_at_ms
    ├─ OutcomeUnknownError       it may have happened       → do not repeat; the check settles it
    │                                  .txn_id .step
    ├─ RollbackRequiredError     this transaction is lost   → roll back locally; the producer goes on
    │  │                               .txn_id
    │  └─ BarrierRefusedError          .resolution
    ├─ FencedError               a newer owner exists       → close this instance, never retry
    │  ├─ ProducerFencedError          .transactional_id
    │  ├─ MemberFencedError            .group
    │  ├─ InstanceFencedError          .group
    │  └─ LeaseLostError               .queue .token .current_token
    ├─ PoisonMessageError        it never succeeds          → park or dead-letter it, go on
    │  │                               .origin .reason
    │  └─ RefusedRecordError           .topic .size_bytes .size_bytes_max .txn_key .doubt_key
    ├─ UsageError                the caller is wrong        → fix code or settings
    │  ├─ ConfigError                  .name .value .expected
    │  ├─ TopicMismatchError           .topic .expected .found
    │  ├─ ForbiddenTopicError          .topic .reason
    │  ├─ ReservedHeaderError          .header
    │  ├─ NotAuthorisedError           .resource .operation
    │  └─ LifecycleError               .state
    └─ InvariantError            txlayer is wrong           → end the process, keep the log
       └─ InvalidTransitionError       .txn_id .state .kind

A class also has the fields of its parents; `.origin` is (topic, partition, offset).
Fields are keyword-only and make the message; every error can be pickled. This module imports nothing of txlayer.
"""

from __future__ import annotations

from typing import Any, ClassVar


def _rebuild(cls: type[TxLayerError], detail: str, fields: dict[str, Any]) -> TxLayerError:
    return cls(detail, **fields)


class TxLayerError(Exception):
    """Base class of txlayer's errors. `detail` is the sentence; the fields are attributes."""

    field_names: ClassVar[tuple[str, ...]] = ()  # those of its parents, and what the class annotates

    def __init_subclass__(cls) -> None:
        cls.field_names = (*cls.field_names, *cls.__annotations__)

    def __init__(self, detail: str = "", **fields: Any) -> None:
        unknown = sorted(set(fields) - set(self.field_names))
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(unknown)}")
        self.detail = detail
        self.fields = {name: fields.get(name) for name in self.field_names}
        for name, value in self.fields.items():
            setattr(self, name, value)
        super().__init__(detail)

    def __str__(self) -> str:
        known = ", ".join(f"{k}={v!r}" for k, v in self.fields.items() if v is not None)
        if self.detail and known:
            return f"{self.detail} ({known})"
        return self.detail or known or type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.detail, self.fields)


class RetriableError(TxLayerError):
    """The operation did not happen: repeat the same call."""


class BrokerUnavailableError(RetriableError):
    """No broker answered within `waited_ms`."""

    bootstrap_servers: str | None
    waited_ms: int | None


class OpenTransactionLimitError(RetriableError):
    """The producer group has reached its limit of open transactions in these half partitions. Nothing was sent."""

    producer_group: str | None
    partitions: tuple[int, ...] | None
    open_count: int | None


class NotAcceptingError(RetriableError):
    """An operator closed the namespace to new transactions at `closed_at_ms`, so that it drains. Nothing was sent."""

    namespace: str | None
    closed_at_ms: int | None


class OutcomeUnknownError(TxLayerError):
    """The operation may have happened: do not repeat it; the check-back settles it."""

    txn_id: str | None
    step: str | None


class RollbackRequiredError(TxLayerError):
    """This transaction is lost: roll back locally. The producer remains usable."""

    txn_id: str | None


class BarrierRefusedError(RollbackRequiredError):
    """A check-back came first; the barrier row in the user's database contains its resolution."""

    resolution: str | None


class FencedError(TxLayerError):
    """A newer owner exists: close this instance and do not retry."""


class ProducerFencedError(FencedError):
    """The broker refused this producer because a newer one uses its transactional id."""

    transactional_id: str | None


class MemberFencedError(FencedError):
    """The consumer group continued without this member; what the member was about to store is not stored."""

    group: str | None


class InstanceFencedError(FencedError):
    """Another process joined the consumer group with the same `instance_id`; this client cannot join again."""

    group: str | None


class LeaseLostError(FencedError):
    """Another holder has the queue's lease now."""

    queue: str | None
    token: int | None
    current_token: int | None


class PoisonMessageError(TxLayerError):
    """This message never succeeds: park or dead-letter it, and continue."""

    origin: tuple[str, int, int] | None
    reason: str | None


class RefusedRecordError(PoisonMessageError):
    """The broker, or a check before it, refuses this record: too large, invalid, or its topic does not exist."""

    topic: str | None
    size_bytes: int | None
    size_bytes_max: int | None
    txn_key: str | None
    doubt_key: bytes | None


class UsageError(TxLayerError):
    """The caller made a mistake: fix the code or the settings. Nothing happened."""


class ConfigError(UsageError):
    """A setting has no usable value."""

    name: str | None
    value: object
    expected: str | None


class TopicMismatchError(UsageError):
    """A topic does not match the requirements."""

    topic: str | None
    expected: str | None
    found: str | None


class ForbiddenTopicError(UsageError):
    """Messages to this topic are not allowed: it is unknown, not on the allow-list, or a system topic."""

    topic: str | None
    reason: str | None


class ReservedHeaderError(UsageError):
    """Headers with the prefix `txl` are reserved for txlayer."""

    header: str | None


class NotAuthorisedError(UsageError):
    """The broker refuses these credentials or their permissions. A repeat does not help until the permission is granted."""

    resource: str | None
    operation: str | None


class LifecycleError(UsageError):
    """The call is not allowed in the current state of the object, which is unchanged."""

    state: str | None


class InvariantError(TxLayerError):
    """txlayer has a bug: end the process and keep the log."""


class InvalidTransitionError(InvariantError):
    """The transition table has no entry for this state and kind."""

    txn_id: str | None
    state: str | None
    kind: str | None
