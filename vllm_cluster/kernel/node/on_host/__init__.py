"""What runs in the head's container to keep the history."""
