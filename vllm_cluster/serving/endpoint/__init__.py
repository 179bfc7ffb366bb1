"""The way to the API: its address, its key, a tunnel."""
