"""A plain Kafka transactional producer, as a child of bench/compare.py: each thread commits a Kafka transaction a message.

    python bench/peers/plain.py SERVERS TOPIC COUNT THREADS

It has no database: that is what it cannot do. It prints one JSON line with its start.
"""

from __future__ import annotations

import json
import os
import sys
import uuid

from confluent_kafka import Producer
from threads import in_threads

VALUE = os.urandom(512) * 2


def run(servers: str, topic: str, count: int, thread_count: int) -> dict[str, float]:
    """Commit `count` messages of 1 KB from threads that each wait for their own commit."""
    producers = []
    for _ in range(thread_count):
        producer = Producer({"bootstrap.servers": servers, "transactional.id": f"plain-{uuid.uuid4()}", "linger.ms": 0})
        producer.init_transactions(30)
        producers.append(producer)

    def work(producer: Producer) -> None:
        for number in range(count // thread_count):
            producer.begin_transaction()
            producer.produce(topic, VALUE, f"customer-{number % 1_000}".encode())
            producer.commit_transaction(30)

    return in_threads(work, producers)


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))), flush=True)
