"""What several suites share: waiting, brokers, factories."""
