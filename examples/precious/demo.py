"""Programs in Precious, a language of its own on Kiln's machinery.

Run it with `kiln run examples/precious/demo.py`.
"""

import numpy as np
import precious

from kiln.base_dsl.typing import Float32, Int32


@precious.Function
def dot(a, b, i, j):
    total = 0.0
    for k in range(a.columns):
        total += a[i, k] * b[k, j]
    return total


@precious.jit
def first_above(m, limit: Float32):
    for i in range(m.rows):
        for j in range(m.columns):
            if m[i, j] > limit:
                return i * m.columns + j
    return -1


@precious.jit
def collatz(n: Int32, most: Int32):
    steps = 0
    while n != 1:
        if steps == most:
            break
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@precious.jit
def matmul_relu(a, b, c):
    precious.gemm(a, b, c)
    for i in range(c.rows):
        for j in range(c.columns):
            if c[i, j] < 0.0:
                c[i, j] = 0.0


@precious.jit
def corner(a, b):
    return dot(a, b, 0, 0) + dot(a, b, a.rows - 1, b.columns - 1)


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    a = generator.standard_normal((3, 4), np.float32)
    b = generator.standard_normal((4, 5), np.float32)
    c = np.zeros((3, 5), np.float32)
    print(precious.compile(matmul_relu, a, b, c).__mlir__)
    matmul_relu(a, b, c)
    print("matmul_relu is right:", np.allclose(c, np.maximum(a @ b, 0.0), atol=1e-6))
    print("first above 1.0:", first_above(a, 1.0), "in", a.round(1).tolist())
    print("collatz(27):", collatz(27, 1000), "steps; with a limit of 10:", collatz(27, 10))
    print("corner is right:", np.isclose(corner(a, b), (a @ b)[0, 0] + (a @ b)[2, 4], atol=1e-6))
