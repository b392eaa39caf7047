"""Exercise 1 of lesson 2: six functions with the six commonest errors. Mend them; the docstrings say what is wanted."""

import math

import kiln.cute as cute
from kiln import Constexpr, Float32, Int32


@cute.jit
def absolute(x: Int32):
    """Return the absolute value of x."""
    # TODO: fix it
    #: if x < 0:
    #:     y = -x
    #: return y
    y = x
    if x < 0:
        y = -x
    return y
    # END


@cute.jit
def total(x: cute.Tensor):
    """Return the sum of the elements of x, an array of float32."""
    # TODO: fix it
    #: result = 0
    result = Float32(0)
    # END
    for i in range(cute.size(x)):
        result += x[i]
    return result


@cute.jit
def scale(x: cute.Tensor, by: Float32):
    """Multiply every element of x, an array of float16, by a number."""
    for i in range(cute.size(x)):
        # TODO: fix it
        #: x[i] = x[i] * by
        x[i] = (x[i] * by).to(x.element_type)
        # END


@cute.jit
def show(x: Int32):
    """Print `x = 7` if x is 7."""
    # TODO: fix it
    #: cute.printf(f"x = {x}")
    cute.printf("x = {}", x)
    # END


@cute.jit
def sigmoid(x: Float32):
    """Return 1 / (1 + exp(-x))."""
    # TODO: fix it
    #: return 1.0 / (1.0 + math.exp(-x))
    return 1.0 / (1.0 + cute.math.exp(-x))
    # END


# TODO: fix it: the annotation of i
#: @cute.jit
#: def tap(x: Float32, i: Int32):
@cute.jit
def tap(x: Float32, i: Constexpr[int]):
    # END
    """Return x times weight i of the filter (0.25, 0.5, 0.25)."""
    weights = [0.25, 0.5, 0.25]
    return x * weights[i]


assert math.isclose(sum([0.25, 0.5, 0.25]), 1.0)  # Python's math is right for Python's numbers
