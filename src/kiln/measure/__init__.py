"""Clocks and statistics: how long programs take."""
