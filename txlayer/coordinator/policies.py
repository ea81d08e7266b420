"""From settings to how each producer group is asked. Never asking."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from txlayer.config import CoordinatorConfig, milliseconds, parse_value
from txlayer.core.checks import CheckPolicies, CheckPolicy, Then
from txlayer.errors import ConfigError

_FIELDS: Mapping[str, str] = {
    "check_immunity": "immunity_ms",
    "check_interval": "interval_ms",
    "check_interval_max": "interval_max_ms",
    "check_rate_max": "rate_max",
    "check_max": "answered_max",
    "transaction_age_max": "age_max_ms",
    "unresolved": "then",
    "open_count_max": "open_count_max",
}
"""{setting: field of a `CheckPolicy`}."""


def check_policies(config: CoordinatorConfig) -> CheckPolicies:
    """How each producer group is asked.

    Raises:
        ConfigError: a group's setting is none of those of checks, or a value has the wrong form.
    """
    values = {name: getattr(config, name) for name in _FIELDS}
    own: dict[str, dict[str, Any]] = {}
    for name, text in config.group_policies.items():
        group, _, setting = name.rpartition(".")
        if not group or setting not in _FIELDS:
            raise ConfigError(
                "no check setting of a producer group", name=name, value=text,
                expected="GROUP.NAME=VALUE, NAME one of " + ", ".join(_FIELDS),
            )  # fmt: skip
        value = parse_value(name, setting, text, CoordinatorConfig)
        own.setdefault(group, dict(values))[setting] = value
    return CheckPolicies(_policy(values), {group: _policy(v) for group, v in own.items()})


def _policy(values: Mapping[str, Any]) -> CheckPolicy:
    made: dict[str, Any] = {}
    for name, value in values.items():
        made[_FIELDS[name]] = milliseconds(value) if isinstance(value, timedelta) else value
    try:
        made["then"] = Then(made["then"])
    except ValueError as exc:
        raise ConfigError(
            "no end for a transaction that nobody resolves", name="unresolved",
            value=made["then"], expected=" or ".join(then.value for then in Then),
        ) from exc  # fmt: skip
    for name, field in _FIELDS.items():
        if field != "then" and made[field] < 1:
            raise ConfigError(
                "not possible as a limit", name=name, value=made[field], expected="more than 0"
            )
    return CheckPolicy(**made)
