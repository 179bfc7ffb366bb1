"""The inventory: the file that declares the hosts and settings of the cluster."""
