"""The embedded broker: real processes, real data."""

from __future__ import annotations

import pytest

from tests.conftest import Broker
from tests.support.broker import create_topic, unique_name

pytestmark = pytest.mark.kafka


def test_the_brokers_topics_can_be_written_at_once(broker: Broker) -> None:
    name = create_topic(broker.bootstrap_servers, unique_name("t"), partitions=2)

    assert name.startswith("t-")
