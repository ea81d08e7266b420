"""An outbox table in PostgreSQL with a poller, as children of bench/compare.py; nothing here imports txlayer.

    python bench/peers/outbox.py service URL COUNT THREADS
    python bench/peers/outbox.py poller URL SERVERS TOPIC COUNT

The service's threads each commit one row at a time. The poller takes up to 1,000 rows in order, produces them, waits until
Kafka has them, and deletes them: a crash between the last two sends them twice. Each prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import psycopg
from confluent_kafka import Producer
from threads import in_threads

VALUE = os.urandom(512) * 2
BATCH_COUNT = 1_000
IDLE_S = 0.005
TABLE = "CREATE TABLE IF NOT EXISTS outbox (id bigserial PRIMARY KEY, key bytea NOT NULL, value bytea NOT NULL)"


def run_service(url: str, count: int, thread_count: int) -> dict[str, float]:
    """Local transactions of one insert."""
    connections = [psycopg.connect(url) for _ in range(thread_count)]

    def work(connection: psycopg.Connection[Any]) -> None:
        for number in range(count // thread_count):
            connection.execute(
                "INSERT INTO outbox (key, value) VALUES (%s, %s)", (f"customer-{number % 1_000}".encode(), VALUE)
            )
            connection.commit()

    return in_threads(work, connections)


def run_poller(url: str, servers: str, topic: str, count: int) -> dict[str, float]:
    """Move rows to Kafka until `count` are there."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1})
    moved = 0
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
        connection.commit()
        print("ready", flush=True)
        while moved < count:
            rows = connection.execute(
                "SELECT id, key, value FROM outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED", (BATCH_COUNT,)
            ).fetchall()
            for _, key, value in rows:
                producer.produce(topic, value, key)
            producer.flush()
            if rows:
                connection.execute("DELETE FROM outbox WHERE id = ANY(%s)", ([row[0] for row in rows],))
            connection.commit()
            moved += len(rows)
            if not rows:
                time.sleep(IDLE_S)
    return {"moved": moved}


if __name__ == "__main__":
    if sys.argv[1] == "service":
        result = run_service(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        result = run_poller(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    print(json.dumps(result), flush=True)
