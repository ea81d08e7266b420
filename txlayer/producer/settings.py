"""What both producers are made with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict

from txlayer.config import ProducerConfig


class ProducerSettings(TypedDict, total=False):
    """The optional settings of a producer, by their names in `ProducerConfig`, which says what each one means."""

    client_settings: Mapping[str, Any]
    is_insecure_allowed: bool
    in_flight_max: int
    transaction_messages_max: int
    transaction_bytes_max: int
    prepare_timeout: timedelta
    resolution_timeout: timedelta
    close_timeout: timedelta
    start_timeout: timedelta
    check_timeout: timedelta
    check_workers: int
    check_session_timeout: timedelta


__all__ = ["ProducerConfig", "ProducerSettings"]
