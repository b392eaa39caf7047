"""Passes over kernels: threads that wait as coroutines, loops in versions, matrix operations that meet once."""
