"""Measurements against a by-hand floor, in one run; `python -m tests.bench` writes docs/performance.md."""
