"""Atoms: what copies and MMAs are made of, how they are tiled over threads, and pictures of both."""
