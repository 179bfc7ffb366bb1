"""Who may change hosts now: a lock on each of them, held by a script."""
