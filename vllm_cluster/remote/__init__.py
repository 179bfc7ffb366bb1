"""Programs that run elsewhere: read as text, imported by the node program and by tests alone."""
