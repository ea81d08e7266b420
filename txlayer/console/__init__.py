"""The console: what is in doubt, and settling it, in a browser. A face like the command line: no rule, no Kafka."""
