"""What runs in a temporary container to see a model cache: its Python, 3.10 or newer."""
