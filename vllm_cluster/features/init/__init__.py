"""An inventory to begin with: `init`."""
