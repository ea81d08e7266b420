"""Native Spark jobs over the topics of txlayer; the extra `txlayer[spark]` brings what they need."""
