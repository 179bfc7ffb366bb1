"""Models without weights: configs as they were published, headers of the tensors that belong to them, and a hub."""
