"""Targets: each turns a module of the `cute` dialect into code that runs somewhere. Loaded by name, when chosen."""
