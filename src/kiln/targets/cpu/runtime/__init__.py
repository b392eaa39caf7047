"""The native half of the CPU target that no program changes: launches, the scheduler of threads, copies."""
