"""Everything that reaches outside the process: Kafka, databases, HTTP, logs and traces. Protocol rules are in `core`."""
