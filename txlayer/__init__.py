"""Transactional messages for Apache Kafka: a database change and its messages, both or neither."""

__version__ = "0.1.0"
