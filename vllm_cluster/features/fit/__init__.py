"""Whether a model fits: `fit`."""
