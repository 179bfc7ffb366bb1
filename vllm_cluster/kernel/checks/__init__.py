"""What is known to go wrong, a file a subject: pure functions from an inventory and facts to findings."""
