"""A topic's settings as the brokers understand them. Never: a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from txlayer.adapters.error_codes import Code
from txlayer.adapters.memory.refusal import RefusedError

HOUR_MS = 3_600_000

DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "delete.retention.ms": str(24 * HOUR_MS),
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": str(HOUR_MS),
    "message.timestamp.type": "CreateTime",
    "min.compaction.lag.ms": "0",
    "retention.ms": str(7 * 24 * HOUR_MS),
}
"""Kafka's defaults of the settings that do something here."""

WITHOUT_EFFECT: Mapping[str, str] = {
    "compression.type": "producer",
    "min.cleanable.dirty.ratio": "0.5",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "segment.bytes": str(1 << 30),
    "segment.ms": str(7 * 24 * HOUR_MS),
    "unclean.leader.election.enable": "false",
}
"""Known, kept and shown; one broker without files has no use for them."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What the log of a topic does with its records."""

    is_compacted: bool
    is_deleted: bool
    is_append_time: bool
    message_bytes_max: int
    retention_ms: int
    """-1: for ever."""
    compaction_lag_ms: int
    tombstone_ms: int
    future_ms_max: int

    @staticmethod
    def of(settings: Mapping[str, str]) -> TopicSettings:
        """The settings, over Kafka's defaults.

        Raises:
            RefusedError: INVALID_CONFIG: a setting is unknown or its value is none. Nothing was changed.
        """
        if not settings.keys() <= DEFAULTS.keys() | WITHOUT_EFFECT.keys():
            raise RefusedError(Code.INVALID_CONFIG)
        values = {**DEFAULTS, **settings}
        policies = {part.strip() for part in values["cleanup.policy"].split(",")}
        if not policies <= {"delete", "compact"} or not policies:
            raise RefusedError(Code.INVALID_CONFIG)
        if values["message.timestamp.type"] not in ("CreateTime", "LogAppendTime"):
            raise RefusedError(Code.INVALID_CONFIG)
        try:
            return TopicSettings(
                is_compacted="compact" in policies,
                is_deleted="delete" in policies,
                is_append_time=values["message.timestamp.type"] == "LogAppendTime",
                message_bytes_max=int(values["max.message.bytes"]),
                retention_ms=int(values["retention.ms"]),
                compaction_lag_ms=int(values["min.compaction.lag.ms"]),
                tombstone_ms=int(values["delete.retention.ms"]),
                future_ms_max=int(values["message.timestamp.after.max.ms"]),
            )
        except ValueError as exc:
            raise RefusedError(Code.INVALID_CONFIG) from exc


def in_effect(settings: Mapping[str, str]) -> dict[str, str]:
    """Every setting, as a broker describes them."""
    return {**DEFAULTS, **WITHOUT_EFFECT, **settings}
