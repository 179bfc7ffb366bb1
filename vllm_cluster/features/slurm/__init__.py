"""One Slurm job that serves a model: its script, and what becomes of it."""
