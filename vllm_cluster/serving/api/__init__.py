"""The API of what is served, as this program asks it."""
