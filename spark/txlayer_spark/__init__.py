"""Spark reads the topics of a namespace: bronze, ledger, reconciliation, report, and streams for jobs of one's own."""

from txlayer_spark.jobs.ledger import read_ledger
from txlayer_spark.jobs.sink import Publication, SinkSettings, transactional_batches, write_transactional
from txlayer_spark.reading import committed_stream, read_topic, stream_topic

__all__ = [
    "Publication",
    "SinkSettings",
    "committed_stream",
    "read_ledger",
    "read_topic",
    "stream_topic",
    "transactional_batches",
    "write_transactional",
]
