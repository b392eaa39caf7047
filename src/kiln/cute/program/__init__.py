"""Programs: jit functions and kernels, launches, compiling, control flow that programs build themselves."""
