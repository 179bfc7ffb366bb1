"""Measures the links between hosts."""
