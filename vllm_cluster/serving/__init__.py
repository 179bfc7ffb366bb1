"""The cluster and what it serves: up, serve, status, endpoint, down."""
