"""Apache Kafka through confluent-kafka: the only package that imports it."""
