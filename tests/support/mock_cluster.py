"""librdkafka's own mock of a broker, out of the wheel: it answers with the errors that it is told to.

It keeps no promise about transactions or offsets, so nothing is proved with it but what a client does after an error.
"""

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka

PRODUCE, OFFSET_COMMIT, OFFSET_FETCH = 0, 8, 9
_PRODUCER = 0
_TEXT_BYTES = 512


class MockCluster:
    """One broker in a thread of the library's."""

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
