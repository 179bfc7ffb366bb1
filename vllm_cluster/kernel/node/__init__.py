"""The node of a host: its container, its program, its secrets, what the head's keeps."""
