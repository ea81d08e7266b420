"""Answers of a broker, byte by byte, as Kafka 4.3 gave them or its protocol guide says."""

from __future__ import annotations

import struct

import pytest

from txlayer.adapters.kafka.wire import WireError, read_features, read_quotas
from txlayer.core.cluster_facts import Quota

FEATURES = (
    b"\0\0\x02\0\x12\0\0\0\x04\0\0\0\0\0\x03\0\x17\x02\x11metadata.version\0\x07\0\x1e\0\x01\x08\0\0\0\0\0\0\0\x2a"
    b"\x02\x1a\x02\x14transaction.version\0\x02\0\x02\0"
)


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def test_what_a_broker_supports_and_what_is_in_force_are_told_apart() -> None:
    found = read_features(FEATURES)

    assert ({"metadata.version": (7, 30)}, {"transaction.version": 2}) == (found.supported, found.finalized)  # fmt: skip


def test_a_quota_names_whom_it_limits() -> None:
    entry = (
        b"\x03" + text("user") + text("shop") + b"\0" + text("client-id") + text(None) + b"\0"
        + b"\x02" + text("producer_byte_rate") + struct.pack(">d", 1024.0) + b"\0" + b"\0"
    )  # fmt: skip
    answer = b"\0" + b"\0\0\0\0" + b"\0\0" + b"\1" + b"\x02" + entry + b"\0"

    assert [Quota("user=shop, default client-id", "producer_byte_rate", 1024.0)] == read_quotas(answer)  # fmt: skip


def test_no_quota_is_an_empty_list() -> None:
    assert [] == read_quotas(b"\0" + b"\0\0\0\0" + b"\0\0" + b"\1" + b"\1" + b"\0")


def test_a_refusal_is_told_by_its_number() -> None:
    with pytest.raises(WireError, match="error 31"):
        read_quotas(b"\0" + b"\0\0\0\0" + b"\0\x1f" + b"\1" + b"\1" + b"\0")


@pytest.mark.parametrize("size", range(0, len(FEATURES), 7))
def test_a_cut_answer_is_an_error_of_its_own(size: int) -> None:
    with pytest.raises(WireError):
        read_features(FEATURES[:size])
