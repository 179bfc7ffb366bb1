"""What runs in a node to read the ends of its logs."""
