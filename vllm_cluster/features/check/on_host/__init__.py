"""What runs in an image to measure an all-reduce."""
