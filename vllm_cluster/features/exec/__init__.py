"""A command on a node or its host: `exec`."""
