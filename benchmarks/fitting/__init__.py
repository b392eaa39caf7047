"""The families of `benchmarks/fit.py`: how their configs are measured, and their cost models fitted."""
