"""What an image contains, the wheels that are added to it, the recipes, and how hosts get it."""
