"""The bindings' math dialect, as programs for CuTe DSL import it."""

import numpy as np
from cutlass._mlir.dialects import math as dialect

from kiln import Float32, cute


@cute.jit
def logarithms(x: cute.Tensor, y: cute.Tensor):
    y[0] = x[0] * 2.0 + dialect.log(x[0])
    y[1] = Float32(dialect.log(x[1].ir_value()))  # a value of the bindings gives one


def test_functions_take_numbers_and_values():
    x, y = np.array([3.0, 5.0], np.float32), np.zeros(2, np.float32)
    logarithms(x, y)
    np.testing.assert_allclose(y, [6 + np.log(3), np.log(5)], rtol=1e-6)


def test_other_names_are_the_bindings():
    assert "log" in dir(dialect) and dialect.LogOp.OPERATION_NAME == "math.log"
