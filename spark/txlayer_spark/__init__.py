"""Spark reads the topics of a namespace: bronze, ledger, reconciliation, report, and streams for jobs of one's own."""

from txlayer_spark.reading import read_topic, stream_topic

__all__ = ["read_topic", "stream_topic"]
