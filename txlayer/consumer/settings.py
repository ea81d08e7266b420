"""What all consumers are made with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict


class ConsumerSettings(TypedDict, total=False):
    """The optional settings of a consumer, by their names in `ConsumerConfig`, which says what each one means."""

    client_settings: Mapping[str, Any]
    is_insecure_allowed: bool
    in_flight_max: int
    worker_count: int
    record_count_max: int
    record_bytes_max: int
    attempt_count_max: int
    attempt_timeout: timedelta
    hung_handlers_max: int
    store_interval: timedelta
    store_timeout: timedelta
    metadata_bytes_max: int
    parked_keys_max: int
    revoke_timeout: timedelta
    close_timeout: timedelta
    session_timeout: timedelta
    lease_renewal: timedelta
    lease_expiry: timedelta
    kafka_transaction_timeout: timedelta
    recycle_after: timedelta
    start_timeout: timedelta
    instance_id: str
