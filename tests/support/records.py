"""Plain records through plain clients: what a test writes and reads beside txlayer."""

from tests.support.logs import read_log
from tests.support.topic_records import Record, write_records


def write(bootstrap_servers: str, topic: str, *values: bytes) -> None:
    """Write the values to partition 0, acknowledged by all replicas."""
    write_records(bootstrap_servers, [Record(topic, value) for value in values])


def read_all(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    """The values of a topic of one partition, to the end of the log as a `read_committed` reader sees it."""
    return [record.value for record in read_log(bootstrap_servers, [topic])[topic]]
