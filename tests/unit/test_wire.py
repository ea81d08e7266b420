"""Answers of a broker, byte by byte, as Kafka 4.3 gave them or its protocol guide says."""

from __future__ import annotations

import pytest

from txlayer.adapters.kafka.inspection import WireError, read_features

FEATURES = (
    b"\0\0\x02\0\x12\0\0\0\x04\0\0\0\0\0\x03\0\x17\x02\x11metadata.version\0\x07\0\x1e\0\x01\x08\0\0\0\0\0\0\0\x2a"
    b"\x02\x1a\x02\x14transaction.version\0\x02\0\x02\0"
)


def test_what_a_broker_supports_and_what_is_in_force_are_told_apart() -> None:
    found = read_features(FEATURES)

    assert ({"metadata.version": (7, 30)}, {"transaction.version": 2}) == (found.supported, found.finalized)


def test_a_refusal_is_told_by_its_number() -> None:
    with pytest.raises(WireError, match="error 35"):
        read_features(b"\0\x23" + FEATURES[2:])


@pytest.mark.parametrize("size", range(0, len(FEATURES), 7))
def test_a_cut_answer_is_an_error_of_its_own(size: int) -> None:
    with pytest.raises(WireError):
        read_features(FEATURES[:size])
