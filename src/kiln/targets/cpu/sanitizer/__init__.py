"""The sanitizer: an instrumented build of a program that watches what its threads do to memory and to each other.

`instrument.py` adds calls to the code, `detector.py` is what they call, `finding.py` says in words what was found.
"""
