"""Calls from Python without Python: native code that reads the arguments of a call and makes it."""
