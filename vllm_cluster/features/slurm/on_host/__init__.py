"""What runs in a temporary container of an image during a pull."""
