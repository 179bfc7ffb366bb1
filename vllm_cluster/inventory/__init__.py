"""The inventory: the one file that says which hosts make up the cluster."""
