"""What is known to go wrong, before it does: `check`."""
