"""What may be left out: each folder is one feature, and none knows another."""
