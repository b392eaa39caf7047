"""Compiles and runs one tiny function and prints its result, for `kiln doctor`.

`kiln doctor` runs this in a process of its own, since a broken native library may end the process rather than raise.
"""

import kiln.cute as cute
from kiln import Int32


@cute.jit
def probe(a: Int32, b: Int32):
    return a * b + 4


if __name__ == "__main__":
    print(int(probe(19, 2)))
