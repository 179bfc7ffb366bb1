"""A model is served, replaced, stopped, and served again as before."""
