"""Passes over a module before its operations are expanded."""
