"""What runs on a host itself: sh, and the Python that is there, 3.8 or newer."""
