"""The models in the caches of hosts."""
