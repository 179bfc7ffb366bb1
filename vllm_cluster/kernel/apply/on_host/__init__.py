"""What runs in a node's container as it is made."""
