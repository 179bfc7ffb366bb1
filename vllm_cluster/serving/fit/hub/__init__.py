"""Reads what is known of a model without loading it: from the hub, or from a folder."""
