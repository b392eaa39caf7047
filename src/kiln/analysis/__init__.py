"""What operations do to values and memory, as passes, targets and the sanitizer ask: one answer for all of them.

`values.py` follows values through `scf`, `pointers.py` pointers to the memory that they lead to. What each operation
does stands in its declaration (`dialects/declaration.py`).
"""
