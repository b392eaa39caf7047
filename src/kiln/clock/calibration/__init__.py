"""Kernels that measure the units of a GPU, one by one, and write what they find as `kiln.clock.units`.

Each module measures some units: `measure(board)` yields rows. Cycles are of `clock64` inside a kernel; times are of `globaltimer`.
Loops run twice, for different counts, so that what begins and ends them cancels.
"""
