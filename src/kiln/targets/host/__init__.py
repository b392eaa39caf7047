"""Native code of this machine: lowering, compiling, linking, calls, and reports of faults and signals."""
