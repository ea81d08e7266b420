"""A consumer's program in the hands of those who develop and operate it: reloaded, reset, restarted, and slow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.conftest import Broker
from tests.e2e.test_consumer_process import Program, values
from tests.support.commands import run_txlayer
from tests.support.consumers import PATIENCE_S, Stage
from tests.support.lab_kafka import KafkaLab
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka
