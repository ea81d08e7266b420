"""Consumers that handle messages in order, by key: queues, leases, retries and dead letters, in a loop of one thread."""
