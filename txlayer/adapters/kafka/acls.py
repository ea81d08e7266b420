"""Reads and creates the access rights (ACLs) of a Kafka cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stub forgets to export them
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from txlayer.adapters.connect import ANSWER_TIMEOUT_MS
from txlayer.adapters.errors import Code
from txlayer.adapters.kafka.admin import AdminConnection
from txlayer.config import ClientConfig
from txlayer.core.acls import Acl, AclPattern, AclResource, Operation
from txlayer.errors import UsageError

_RESOURCES: dict[AclResource, ResourceType] = {
    AclResource.TOPIC: ResourceType.TOPIC,
    AclResource.GROUP: ResourceType.GROUP,
    AclResource.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
    AclResource.CLUSTER: ResourceType.BROKER,  # so the client calls it
}
_OURS_OF_RESOURCES: dict[object, AclResource] = {theirs: ours for ours, theirs in _RESOURCES.items()}
_PATTERNS: dict[AclPattern, ResourcePatternType] = {
    AclPattern.LITERAL: ResourcePatternType.LITERAL,
    AclPattern.PREFIXED: ResourcePatternType.PREFIXED,
}
_OURS_OF_PATTERNS: dict[object, AclPattern] = {theirs: ours for ours, theirs in _PATTERNS.items()}
_OPERATIONS: dict[Operation, AclOperation] = {o: AclOperation[o.name] for o in Operation if o is not Operation.OTHER}
_OURS_OF_OPERATIONS: dict[object, Operation] = {theirs: ours for ours, theirs in _OPERATIONS.items()}


class KafkaAcls:
    """The rights on one cluster, for one thread at a time; it connects at the first question.

    Every question raises:
        UsageError: the brokers have no authorizer; nothing was changed. Only `create` finds that out: to the question
            which rights there are, the client answers "none" there.
        BrokerUnavailableError: no answer in time; a change may have happened, ask again.
        NotAuthorisedError: this principal may not see, or not change, rights; nothing was changed.
    """

    def __init__(self, config: ClientConfig, *, timeout_ms: int = ANSWER_TIMEOUT_MS) -> None:
        self._connection = AdminConnection(config, timeout_ms=timeout_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the client back."""
        self._connection.close()

    def read(self) -> frozenset[Acl]:
        """Every right that there is."""
        any_value: Any = None  # the client's stub wants a text
        everything = AclBindingFilter(
            ResourceType.ANY,
            any_value,
            ResourcePatternType.ANY,
            any_value,
            any_value,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        try:
            bindings = self._connection.wait(
                self._connection.client().describe_acls(everything, **self._connection.limits()),
                resource="cluster",
                operation="describe ACLs",
                foreseen={Code.SECURITY_DISABLED},
            )
        except KafkaException as exc:
            raise _without_authorizer() from exc
        return frozenset(_ours(binding) for binding in bindings)

    def create(self, acls: Sequence[Acl]) -> None:
        """Create these; one that is there already stays as it is."""
        if not acls:
            return
        futures = self._connection.client().create_acls([_theirs(acl) for acl in acls], **self._connection.limits())
        for binding, future in futures.items():
            try:
                self._connection.wait(
                    future, resource=binding.name, operation="create ACLs", foreseen={Code.SECURITY_DISABLED}
                )
            except KafkaException as exc:
                raise _without_authorizer() from exc


def _theirs(acl: Acl) -> AclBinding:
    return AclBinding(
        _RESOURCES[acl.resource],
        acl.name,
        _PATTERNS[acl.pattern],
        acl.principal,
        acl.host,
        _OPERATIONS[acl.operation],
        AclPermissionType.DENY if acl.is_denied else AclPermissionType.ALLOW,
    )


def _ours(binding: AclBinding) -> Acl:
    return Acl(
        _OURS_OF_RESOURCES.get(binding.restype, AclResource.OTHER),
        binding.name,
        _OURS_OF_PATTERNS.get(binding.resource_pattern_type, AclPattern.LITERAL),
        _OURS_OF_OPERATIONS.get(binding.operation, Operation.OTHER),
        binding.principal,
        binding.host,
        is_denied=binding.permission_type is AclPermissionType.DENY,
    )


def _without_authorizer() -> UsageError:
    return UsageError("the brokers have no authorizer, everybody may do everything: set authorizer.class.name on them")
