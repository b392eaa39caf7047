"""Kiln: a Python kernel language."""

__version__ = "0.1.0.dev0"
