"""Talk with what is served: `chat`, `complete`."""
