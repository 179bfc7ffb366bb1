"""What runs in the head's container to begin, follow and fetch a batch."""
