"""What runs in the node's container: the standard library alone, Python 3.10 or newer."""
