"""What runs on a host itself to measure its links: its own Python, 3.8 or newer."""
