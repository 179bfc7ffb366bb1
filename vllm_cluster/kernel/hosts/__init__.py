"""The hosts of an inventory: connects, observes, runs programs there."""
