"""Calls from Python: plans of compiled functions, programs of library functions, native code for both."""
