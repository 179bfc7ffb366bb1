"""What runs in each node while its use is watched."""
