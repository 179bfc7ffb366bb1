"""A file of requests is answered on the head: `batch`."""
