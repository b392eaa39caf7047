"""Which lane holds which element, as the PTX manual's figures say, written out independently of Kiln's layouts."""

from __future__ import annotations

LANES = range(32)


def group(lane: int) -> int:
    return lane >> 2


def place(lane: int) -> int:
    return lane % 4


def f16_k8_a(lane: int, i: int) -> tuple[int, int]:
    return group(lane) + (8 if i >= 2 else 0), place(lane) * 2 + (i & 1)


def f16_k8_b(lane: int, i: int) -> tuple[int, int]:
    return group(lane), place(lane) * 2 + i


def f16_k16_a(lane: int, i: int) -> tuple[int, int]:
    row = group(lane) if 0 <= i < 2 or 4 <= i < 6 else group(lane) + 8
    column = place(lane) * 2 + (i & 1) + (8 if i >= 4 else 0)
    return row, column


def f16_k16_b(lane: int, i: int) -> tuple[int, int]:
    return group(lane), place(lane) * 2 + (i & 1) + (8 if i >= 2 else 0)


def tf32_k4_a(lane: int, i: int) -> tuple[int, int]:
    return group(lane) + 8 * i, place(lane)


def tf32_k4_b(lane: int, i: int) -> tuple[int, int]:
    return group(lane), place(lane)


def tf32_k8_a(lane: int, i: int) -> tuple[int, int]:
    return group(lane) + (8 if i in (1, 3) else 0), place(lane) + (4 if i >= 2 else 0)


def tf32_k8_b(lane: int, i: int) -> tuple[int, int]:
    return group(lane), place(lane) + 4 * i


def i8_k16_a(lane: int, i: int) -> tuple[int, int]:
    return group(lane) + (8 if i >= 4 else 0), place(lane) * 4 + (i & 3)


def i8_k16_b(lane: int, i: int) -> tuple[int, int]:
    return group(lane), place(lane) * 4 + (i & 3)


def byte_k32_a(lane: int, i: int) -> tuple[int, int]:
    row = group(lane) if 0 <= i < 4 or 8 <= i < 12 else group(lane) + 8
    return row, place(lane) * 4 + (i & 3) + (16 if i >= 8 else 0)


def byte_k32_b(lane: int, i: int) -> tuple[int, int]:
    return group(lane), place(lane) * 4 + (i & 3) + (16 if i >= 4 else 0)


def f64_m8(lane: int, i: int) -> tuple[int, int]:
    return group(lane), place(lane)


def f64_m16_a(lane: int, i: int) -> tuple[int, int]:
    return group(lane) + 8 * (i % 2), place(lane) + 4 * (i // 2)


def f64_m16_b(lane: int, i: int) -> tuple[int, int]:
    return group(lane), place(lane) + 4 * i


def accumulator_8(lane: int, i: int) -> tuple[int, int]:
    return group(lane), place(lane) * 2 + (i & 1)


def accumulator_16(lane: int, i: int) -> tuple[int, int]:
    return group(lane) + (8 if i >= 2 else 0), place(lane) * 2 + (i & 1)


def loaded_matrix_element(lane: int, i: int, transpose: bool) -> tuple[int, int, int]:
    """(matrix, row, column) of element i of 16 bits that `ldmatrix` gives a lane."""
    matrix, half = divmod(i, 2)
    row, column = group(lane), place(lane) * 2 + half
    return (matrix, column, row) if transpose else (matrix, row, column)
