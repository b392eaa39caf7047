"""Attention forward and decode kernels."""
