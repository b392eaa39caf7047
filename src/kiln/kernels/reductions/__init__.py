"""Sums, means, extrema and their places."""
