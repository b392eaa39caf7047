"""Functions of `math` that NVPTX has no instruction for."""
