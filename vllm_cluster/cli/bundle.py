"""`vcluster bundle`."""
