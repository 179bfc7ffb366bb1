"""What runs in a temporary container of an image: its Python, 3.10 or newer."""
