"""The Engine API of a host, spoken over a stream of the connection."""
