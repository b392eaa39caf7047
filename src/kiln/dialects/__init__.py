"""Kiln's own MLIR dialects, defined in Python: `cute` (tiles, memory, the grid)."""
