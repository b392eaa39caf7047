"""Native functions of this machine: compiled, linked and called; what a call reports, and what becomes of signals in it."""
