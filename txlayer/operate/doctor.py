"""What a cluster must allow, as the settings say it."""

from __future__ import annotations

from txlayer.config import IMMUNITY_MAX, ConsumerConfig, CoordinatorConfig, milliseconds
from txlayer.core.cluster_facts import Limits


def limits_of(config: CoordinatorConfig) -> Limits:
    """The settings that the cluster must allow."""
    return Limits(
        check_immunity_ms=milliseconds(config.check_immunity),
        check_interval_ms=milliseconds(config.check_interval),
        check_interval_max_ms=milliseconds(config.check_interval_max),
        check_max=config.check_max,
        transaction_age_max_ms=milliseconds(config.transaction_age_max),
        immunity_max_ms=milliseconds(IMMUNITY_MAX),
        doubt_after_ms=milliseconds(config.doubt_after),
        kafka_transaction_timeout_ms=milliseconds(config.kafka_transaction_timeout),
        session_timeout_ms=milliseconds(config.session_timeout),
        metadata_bytes_max=ConsumerConfig().metadata_bytes_max,
    )
