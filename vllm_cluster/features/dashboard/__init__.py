"""The cluster as a page: `dashboard`."""
