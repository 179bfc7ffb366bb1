"""Where an inventory is read from."""
