"""Dispatch of library calls: arrays, problems, the registry of implementations, recorded calls and launches."""
