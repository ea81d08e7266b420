"""Every rule of txlayer, and nothing else: no clock, no dice, no thread, no IO, no Kafka type."""
