"""Models come to every host: `pull`, `models`."""
