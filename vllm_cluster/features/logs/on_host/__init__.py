"""What runs in each node to follow its logs."""
