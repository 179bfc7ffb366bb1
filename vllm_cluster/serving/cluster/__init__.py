"""A cluster comes up, and goes."""
