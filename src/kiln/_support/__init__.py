"""Helpers that every package may import: lazy loading, fork-safe locks, garbage collector pauses, stack checks."""
