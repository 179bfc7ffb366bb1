"""Works on hosts: connects, observes, holds the lease, executes a plan."""
