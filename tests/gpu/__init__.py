"""Measures a cluster of real GPU hosts, step by step, and writes a report; needs nothing but vcluster itself."""
