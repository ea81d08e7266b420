"""Handling messages in order, by key: queues, leases, retries, dead letters. Services like the coordinator: loops of one thread."""
