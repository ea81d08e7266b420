"""Plain records through plain clients: what a test writes and reads beside txlayer."""

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition


def write(bootstrap_servers: str, topic: str, *values: bytes) -> None:
    """Write the values to partition 0, acknowledged by all replicas."""
    failed: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=on_delivery)
    left = producer.flush(30)
    assert (0, []) == (left, failed)


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
