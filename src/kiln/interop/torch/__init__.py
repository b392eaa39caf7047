"""PyTorch: reading its tensors, kernels as its operators, in this process and exported. `kiln.torch` gives it to
programs."""
