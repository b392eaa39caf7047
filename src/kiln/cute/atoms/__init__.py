"""Copy and MMA atoms, and how they are tiled over threads."""
