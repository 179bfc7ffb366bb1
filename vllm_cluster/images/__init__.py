"""What an image contains, the wheels that are added to it, and the build recipes."""
