"""The kernel families: one folder each, with its problem, configs and implementations."""
