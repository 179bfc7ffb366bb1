"""What makes the committed pages and releases; nothing here is installed."""
