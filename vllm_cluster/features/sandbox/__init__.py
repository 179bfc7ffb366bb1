"""A cluster on this machine: `sandbox`."""
