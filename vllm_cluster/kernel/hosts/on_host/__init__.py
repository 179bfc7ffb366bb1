"""What runs on a host itself: the Python that is there, 3.8 or newer."""
