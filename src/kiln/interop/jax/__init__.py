"""JAX: kernels that XLA calls, in this process and exported. `kiln.jax` gives it to programs."""
