"""Spark reads the topics of a namespace: bronze, ledger, reconciliation, report, and streams for your own jobs."""

from txlayer_spark.bodies import AvroBody, JsonBody, ProtobufBody
from txlayer_spark.jobs.ledger import read_ledger
from txlayer_spark.jobs.sink import Publication, SinkSettings, transactional_batches, write_transactional
from txlayer_spark.jobs.tables import open_tables
from txlayer_spark.progress import QueryMetrics
from txlayer_spark.reading import committed_stream, read_committed, read_topic, stream_topic, whole_transactions
from txlayer_spark.sessions import session

__all__ = [
    "AvroBody",
    "JsonBody",
    "ProtobufBody",
    "Publication",
    "QueryMetrics",
    "SinkSettings",
    "committed_stream",
    "open_tables",
    "read_committed",
    "read_ledger",
    "read_topic",
    "session",
    "stream_topic",
    "transactional_batches",
    "whole_transactions",
    "write_transactional",
]
