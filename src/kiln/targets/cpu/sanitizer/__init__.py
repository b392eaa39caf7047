"""The sanitizer: an instrumented build of a program that finds races, bad accesses and misused synchronization.

`instrument.py` and `hooks.py` add calls of the detector (`detector.py`) to the code; `finding.py` words its findings.
"""
