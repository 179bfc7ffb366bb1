"""What is there and what it does, once, on and on, and in the past."""
