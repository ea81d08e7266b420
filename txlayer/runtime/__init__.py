"""What all services share: the process around them, and how they meet Kafka."""
