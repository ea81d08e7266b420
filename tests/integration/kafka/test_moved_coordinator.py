"""The real client beside a broker in trouble: one that cannot write any more, a record that is there already, a group's coordinator that moves, a broker that does not answer."""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from tests.support.waiting import wait_until
from txlayer.adapters import connect
from txlayer.adapters.errors import Code
from txlayer.adapters.kafka.admin import KafkaAdmin
from txlayer.adapters.kafka.local.server import free_ports
from txlayer.adapters.kafka.writers import KafkaIdempotentWriter
from txlayer.adapters.ports import StoredOffset
from txlayer.config import ClientConfig, CoordinatorConfig, ProducerConfig
from txlayer.errors import BrokerUnavailableError, FencedError

PRODUCE, OFFSET_COMMIT, OFFSET_FETCH = 0, 8, 9
_PRODUCER = 0
_TEXT_BYTES = 512


class MockCluster:
    """librdkafka's own mock of a broker, in a thread of the library: it answers with the errors that a test chooses.

    It keeps no promise about transactions or offsets, so nothing is proved with it but what a client does after an error.
    """

    def __init__(self) -> None:
        self._lib = _library()
        words = ctypes.create_string_buffer(_TEXT_BYTES)
        conf = self._lib.rd_kafka_conf_new()
        # Its own client connects to nothing, and would say so.
        self._lib.rd_kafka_conf_set(conf, b"log_level", b"0", words, _TEXT_BYTES)
        self._handle = self._lib.rd_kafka_new(_PRODUCER, conf, words, _TEXT_BYTES)
        assert self._handle, words.value
        self._cluster = self._lib.rd_kafka_mock_cluster_new(self._handle, 1)
        assert self._cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
        self._lib.rd_kafka_destroy(self._handle)

    @property
    def bootstrap_servers(self) -> str:
        """Where clients reach it."""
        servers: bytes = self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return servers.decode()

    def create_topic(self, name: str, *, partitions: int) -> None:
        """Create a topic."""
        failure = self._lib.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)
        assert 0 == failure

    def refuse(self, api: int, *codes: int) -> None:
        """The next requests of this kind are answered with these codes, one each."""
        told = (ctypes.c_int * len(codes))(*codes)
        self._lib.rd_kafka_mock_push_request_errors_array(self._cluster, api, len(codes), told)


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    (path,) = folder.glob("librdkafka*.so*")
    lib = ctypes.CDLL(str(path))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    signatures: dict[str, tuple[object, list[object]]] = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (number, [pointer, text, text, text, ctypes.c_size_t]),
        "rd_kafka_new": (pointer, [number, pointer, text, ctypes.c_size_t]),
        "rd_kafka_destroy": (None, [pointer]),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, number]),
        "rd_kafka_mock_cluster_destroy": (None, [pointer]),
        "rd_kafka_mock_cluster_bootstraps": (text, [pointer]),
        "rd_kafka_mock_topic_create": (number, [pointer, text, number, number]),
        "rd_kafka_mock_push_request_errors_array": (
            None,
            [pointer, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(number)],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


MOVED = [KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE]
PLACES = [("half", 0), ("half", 1)]


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as started:
        started.create_topic("half", partitions=2)
        yield started


def admin_of(cluster: MockCluster, *, timeout_ms: int = 10_000) -> KafkaAdmin:
    config = ClientConfig(bootstrap_servers=cluster.bootstrap_servers)
    return KafkaAdmin(config, timeout_ms=timeout_ms)


def test_stored_offsets_are_asked_for_until_the_groups_coordinator_is_found(cluster: MockCluster) -> None:
    cluster.refuse(OFFSET_FETCH, *MOVED * 2)

    with admin_of(cluster) as admin:
        assert dict.fromkeys(PLACES) == admin.stored_offsets("group", PLACES)


def test_offsets_are_stored_as_soon_as_the_groups_coordinator_is_found(cluster: MockCluster) -> None:
    wanted = dict.fromkeys(PLACES, StoredOffset(0, ""))
    cluster.refuse(OFFSET_COMMIT, *MOVED * 2)

    with admin_of(cluster) as admin:
        admin.store_offsets("group", wanted)

        assert wanted == admin.stored_offsets("group", PLACES)


def test_a_coordinator_that_is_never_found_is_told_when_the_time_is_over(cluster: MockCluster) -> None:
    cluster.refuse(OFFSET_FETCH, *[KafkaError.NOT_COORDINATOR] * 1000)
    cluster.refuse(OFFSET_COMMIT, *[KafkaError.NOT_COORDINATOR] * 1000)

    with admin_of(cluster, timeout_ms=3_000) as admin:
        with pytest.raises(BrokerUnavailableError, match="NOT_COORDINATOR"):
            admin.stored_offsets("group", PLACES)
        with pytest.raises(BrokerUnavailableError, match="NOT_COORDINATOR"):
            admin.store_offsets("group", {PLACES[0]: StoredOffset(0, "")})


def test_a_client_that_can_write_nothing_any_more_says_so_and_raises_nothing_of_its_own() -> None:
    """Otherwise the thread that serves it ends, and says that txlayer is broken."""
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        config = ProducerConfig(bootstrap_servers=cluster.bootstrap_servers)
        writer = KafkaIdempotentWriter(config, batch_bytes_max=1_000_000, message_timeout_ms=20_000, linger_ms=1)
        reports: list[Any] = []
        cluster.refuse(PRODUCE, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)

        def failure() -> Any:
            writer.poll(0.1)
            return reports and writer.failure()

        writer.produce("orders", b"v", None, 0, lambda error, _: reports.append(error))
        found = wait_until(failure, within=20, what="a failure")
        writer.close(1)

    assert isinstance(found, FencedError)


@pytest.mark.fault(
    "producer: the answer to a batch is lost, and the answer to a later one shows that it was stored, but not where"
)
@pytest.mark.parametrize("code", [Code.NO_ERROR, Code.DUPLICATE_SEQUENCE_NUMBER])
def test_a_record_that_the_broker_has_already_is_stored_and_nobody_tells_where(code: Code) -> None:
    with MockCluster() as cluster:
        cluster.create_topic("orders", partitions=1)
        config = ProducerConfig(bootstrap_servers=cluster.bootstrap_servers)
        writer = KafkaIdempotentWriter(config, batch_bytes_max=1_000_000, message_timeout_ms=20_000, linger_ms=1)
        reports: list[tuple[Any, int | None]] = []
        cluster.refuse(PRODUCE, code)

        writer.produce("orders", b"v", None, 0, lambda e, r: reports.append((e, r.offset())))
        wait_until(lambda: writer.poll(0.1), within=20, what="the report")
        writer.close(1)

    assert [(None, 0 if code is Code.NO_ERROR else None)] == reports


@pytest.mark.parametrize("is_one_shot", [False, True])
def test_a_command_waits_as_long_as_a_command_and_a_coordinator_as_it_does(
    monkeypatch: pytest.MonkeyPatch, *, is_one_shot: bool
) -> None:
    (port,) = free_ports(1)
    config = CoordinatorConfig(bootstrap_servers=f"127.0.0.1:{port}")
    monkeypatch.setattr(connect, "ANSWER_MS", 300)
    monkeypatch.setattr(connect, "ANSWER_TIMEOUT_MS", 1_500)
    asking = connect.connect_coordinator(config, is_one_shot=is_one_shot)
    try:
        with pytest.raises(BrokerUnavailableError) as caught:
            asking.start_offsets([(config.topics.half, 0)])
    finally:
        asking.close()

    # Less than the longer limit by no more than a clock's step; the shorter one is a second away.
    assert is_one_shot == ((caught.value.waited_ms or 0) >= 1_400)
