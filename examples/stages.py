"""When is a value known? Three ways to add, each printed twice: while tracing, and when the program runs.

Run it with `kiln run examples/stages.py`.

Python's `print` runs once, while the function is traced; a value that is only known when the program runs is shown
as `?`. `cute.printf` is part of the program.
"""

import kiln.cute as cute
from kiln import Constexpr, Float32


@cute.jit
def add_dynamic(a, b):
    """Both arguments are passed to the compiled function: one compilation serves all numbers."""
    result = a + b
    print("tracing add_dynamic:", result)
    cute.printf("running add_dynamic: {}", result)


@cute.jit
def add_static(a: Constexpr, b: Constexpr):
    """Both arguments are compiled in: Python adds them, and other numbers are another compilation."""
    result = a + b
    print("tracing add_static:", result)
    cute.printf("running add_static: {}", result)


@cute.jit
def add_mixed(a: Float32, b: Constexpr):
    """A dynamic number plus a Python number is dynamic."""
    result = a + b
    print("tracing add_mixed:", result)
    cute.printf("running add_mixed: {}", result)


if __name__ == "__main__":
    add_dynamic(5.0, 2.0)
    add_static(5.0, 2.0)
    add_mixed(5.0, 2.0)
    print("again:")
    add_dynamic(3.0, 4.0)  # already compiled: nothing is traced
    add_static(3.0, 4.0)  # other constants: traced again
    add_mixed(4.0, 2.0)
