"""Measures what is served: `bench`."""
