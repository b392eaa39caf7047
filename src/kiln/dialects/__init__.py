"""Kiln's MLIR dialects, defined in Python: `cute` (tiles, memory, the grid) and `nvgpu` (NVIDIA's hardware units)."""
