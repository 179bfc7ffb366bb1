"""Whether a model fits: pure arithmetic over its config, its weights and the GPUs; no I/O."""
