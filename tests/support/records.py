"""Plain records through plain clients: what a test writes and reads beside txlayer."""

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.topic_records import Record, write_records


def write(bootstrap_servers: str, topic: str, *values: bytes) -> None:
    """Write the values to partition 0, acknowledged by all replicas."""
    write_records(bootstrap_servers, [Record(topic, value) for value in values])


def read_all(bootstrap_servers: str, topic: str) -> list[bytes | None]:
    """The values of partition 0, from the first to the end of the log as a `read_committed` reader sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    values: list[bytes | None] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None, f"no answer for {topic}, {len(values)} values read"
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
            else:
                raise AssertionError(error)
    finally:
        consumer.close()
