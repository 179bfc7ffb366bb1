"""The first cause of a failure, from logs: `explain`."""
