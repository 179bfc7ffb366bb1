"""What runs in the head's container to measure."""
