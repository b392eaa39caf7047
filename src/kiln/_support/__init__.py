"""Helpers that every package may import: lazy loading, locks that survive a fork, pauses of the garbage collector, stack checks."""
