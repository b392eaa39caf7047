"""Every element is owned by the lane, and in the order, that the PTX manual says."""

from __future__ import annotations

from typing import Any

import fragment_tables as ptx
import pytest

import kiln
import kiln.cute as cute
from kiln.cute.nvgpu import CopyUniversalOp, MmaUniversalOp, cpasync, warp

F16, BF16, F32 = kiln.Float16, kiln.BFloat16, kiln.Float32
E4M3, E5M2 = kiln.Float8E4M3FN, kiln.Float8E5M2
I8, U8 = kiln.Int8, kiln.Uint8

CASES = [
    (warp.MmaF16BF16Op(F16, F32, (16, 8, 8)), ptx.f16_k8_a, ptx.f16_k8_b),
    (warp.MmaF16BF16Op(F16, F16, (16, 8, 16)), ptx.f16_k16_a, ptx.f16_k16_b),
    (warp.MmaF16BF16Op(BF16, F32, (16, 8, 16)), ptx.f16_k16_a, ptx.f16_k16_b),
    (warp.MmaTF32Op((16, 8, 4)), ptx.tf32_k4_a, ptx.tf32_k4_b),
    (warp.MmaTF32Op((16, 8, 8)), ptx.tf32_k8_a, ptx.tf32_k8_b),
    (warp.MmaI8Op(I8, shape_mnk=(8, 8, 16)), ptx.i8_k16_b, ptx.i8_k16_b),
    (warp.MmaI8Op(U8, I8, shape_mnk=(16, 8, 16)), ptx.i8_k16_a, ptx.i8_k16_b),
    (warp.MmaI8Op(I8, shape_mnk=(16, 8, 32)), ptx.byte_k32_a, ptx.byte_k32_b),
    (warp.MmaFP8Op(E4M3, F32), ptx.byte_k32_a, ptx.byte_k32_b),
    (warp.MmaFP8Op(E5M2, F16), ptx.byte_k32_a, ptx.byte_k32_b),
    (warp.MmaF64Op((8, 8, 4)), ptx.f64_m8, ptx.f64_m8),
    (warp.MmaF64Op((16, 8, 4)), ptx.f64_m16_a, ptx.f64_m16_b),
    (warp.MmaF64Op((16, 8, 8)), ptx.f64_m16_a, ptx.f64_m16_b),
    (warp.MmaF64Op((16, 8, 16)), ptx.f64_m16_a, ptx.f64_m16_b),
]


def _owned(layout: Any, rows: int, columns: int, table: Any) -> None:
    """A (lane, value) layout gives the table's element everywhere, and together every element the same number of times."""
    values = cute.size(layout[1])
    assert cute.size(layout[0]) == 32
    assert values * 32 == rows * columns
    seen = set()
    for lane in ptx.LANES:
        for i in range(values):
            row, column = table(lane, i)
            assert layout((lane, i)) == row + rows * column, (lane, i)
            seen.add((row, column))
    assert len(seen) == rows * columns


@pytest.mark.parametrize(("op", "a", "b"), CASES, ids=lambda x: str(x) if hasattr(x, "shape_mnk") else "")
def test_mma_fragments(op: Any, a: Any, b: Any) -> None:
    atom = cute.make_mma_atom(op)
    m, n, k = atom.shape_mnk
    _owned(atom.tv_layout_A, m, k, a)
    _owned(atom.tv_layout_B, n, k, b)
    _owned(atom.tv_layout_C, m, n, ptx.accumulator_8 if m == 8 else ptx.accumulator_16)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("matrices", [1, 2, 4])
@pytest.mark.parametrize("op", [warp.LdMatrix8x8x16bOp, warp.StMatrix8x8x16bOp])
def test_matrix_fragments(op: Any, matrices: int, transpose: bool) -> None:
    atom = cute.make_copy_atom(op(transpose, matrices), F16)
    load = op is warp.LdMatrix8x8x16bOp
    rows, fragments = (atom.layout_src_tv, atom.layout_dst_tv) if load else (atom.layout_dst_tv, atom.layout_src_tv)
    assert cute.size(fragments[1]) == 2 * matrices
    for lane in ptx.LANES:
        for i in range(2 * matrices):
            matrix, row, column = ptx.loaded_matrix_element(lane, i, transpose)
            assert fragments((lane, i)) == rows((8 * matrix + row, column)), (lane, i)


def test_matrices_of_bytes_hold_four_elements_a_register() -> None:
    atom = cute.make_copy_atom(warp.LdMatrix8x16x8bOp(False, 4), E4M3)
    for lane in ptx.LANES:
        for i in range(16):
            matrix, byte = divmod(i, 4)
            assert atom.layout_dst_tv((lane, i)) == atom.layout_src_tv((8 * matrix + lane // 4, 4 * (lane % 4) + byte))


def _tile_elements(layout: Any) -> list[list[int]]:
    return [[layout((t, v)) for v in range(cute.size(layout[1]))] for t in range(cute.size(layout[0]))]


@pytest.mark.parametrize("atoms", [(1, 1, 1), (2, 2, 1), (4, 1, 1), (1, 2, 2)])
def test_tiled_mma_covers_its_tile(atoms: Any) -> None:
    """Threads of the same M and K share A, of the same N and K share B, and C is split among all (but for K)."""
    am, an, ak = atoms
    tiled = cute.make_tiled_mma(
        warp.MmaF16BF16Op(F16, F32, (16, 8, 16)), atoms, permutation_mnk=(am * 16, an * 16, ak * 16)
    )
    assert tiled.size == 32 * am * an * ak
    assert [tiled.get_tile_size(i) for i in range(3)] == [am * 16, an * 16, ak * 16]
    for layout, rows, columns, table, axes in (
        (tiled.tv_layout_A_tiled, am * 16, ak * 16, ptx.f16_k16_a, (0, 2)),
        (tiled.tv_layout_B_tiled, an * 16, ak * 16, ptx.f16_k16_b, (1, 2)),
        (tiled.tv_layout_C_tiled, am * 16, an * 16, ptx.accumulator_16, (0, 1)),
    ):
        shape = (16, 8, 16)
        per_call = (16 if axes[0] == 0 else 8) * shape[axes[1]] // 32
        elements = _tile_elements(layout)
        assert {e for held in elements for e in held} == set(range(rows * columns))
        for thread, held in enumerate(elements):
            lane, warp_number = thread % 32, thread // 32
            where = (warp_number % am, warp_number // am % an, warp_number // (am * an))
            for call in range(len(held) // per_call):
                for i in range(per_call):
                    row, column = table(lane, i)
                    # the values of further calls lie past those of all threads, first along the first mode
                    extent_i = shape[axes[0]] * atoms[axes[0]]
                    calls_i = rows // extent_i
                    row += shape[axes[0]] * where[axes[0]] + extent_i * (call % calls_i)
                    column += shape[axes[1]] * where[axes[1]] + shape[axes[1]] * atoms[axes[1]] * (call // calls_i)
                    assert held[call * per_call + i] == row + rows * column


def test_permutation_by_layout() -> None:
    """Four neighbours in M belong to one thread."""
    four = cute.make_layout((16, 4), stride=(4, 1))
    tiled = cute.make_tiled_mma(
        MmaUniversalOp(F32), cute.make_layout((16, 16, 1), stride=(16, 1, 0)), permutation_mnk=(four, four, None)
    )
    for thread, held in enumerate(_tile_elements(tiled.tv_layout_C_tiled)):
        m, n = 4 * (thread // 16), 4 * (thread % 16)
        assert held == [m + i + 64 * (n + j) for j in range(4) for i in range(4)]
    assert tiled.partition_shape_C((128, 128)) == (1, (4, 2), (4, 2))
    assert tiled.partition_shape_A((128, 8)) == (1, (4, 2), 8)


def test_partition_shapes() -> None:
    tiled = cute.make_tiled_mma(warp.MmaF16BF16Op(BF16, F32, (16, 8, 16)), (4, 1, 1), permutation_mnk=(64, 16, 16))
    assert tiled.partition_shape_A((128, 64)) == ((2, 2, 2), 2, 4)
    assert tiled.partition_shape_B((64, 64)) == ((2, 2), 8, 4)
    assert tiled.partition_shape_C((128, 64)) == ((2, 2), 2, 8)


@pytest.mark.parametrize("operand", ["A", "B"])
def test_loads_of_matrices_give_the_fragments_of_the_mma(operand: str) -> None:
    """A lane receives from the matrices it is given exactly what the MMA wants of it."""
    tiled = cute.make_tiled_mma(warp.MmaF16BF16Op(F16, F32, (16, 8, 16)), (2, 2, 1), permutation_mnk=(32, 32, 16))
    make = cute.make_tiled_copy_A if operand == "A" else cute.make_tiled_copy_B
    copy = make(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), F16), tiled)
    wanted = tiled.tv_layout_A_tiled if operand == "A" else tiled.tv_layout_B_tiled
    rows, got = copy.layout_src_tv_tiled, copy.layout_dst_tv_tiled
    assert _tile_elements(got) == _tile_elements(wanted)
    for warp_number in range(4):
        for call in range(cute.size(got[1]) // 8):
            for lane in ptx.LANES:
                for i in range(8):
                    matrix, row, column = ptx.loaded_matrix_element(lane, i, False)
                    source = rows((32 * warp_number + 8 * matrix + row, 8 * call + column))
                    assert got((32 * warp_number + lane, 8 * call + i)) == source


REFUSED = [
    (lambda: warp.MmaF16BF16Op(BF16, F16, (16, 8, 16)), "MmaF16BF16Op does not accumulate BFloat16 in Float16"),
    (lambda: warp.MmaF16BF16Op(F16, F32, (8, 8, 4)), "has no shape"),
    (lambda: warp.LdMatrix8x8x16bOp(False, 3), "1, 2 or 4"),
    (lambda: warp.LdMatrix8x16x8bOp(True, 4), "does not transpose"),
    (lambda: cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), F32), "32 bits"),
    (lambda: warp.LdMatrix16x16x8bOp(False, 1), "transposed"),
    (lambda: warp.LdMatrix16x16x8bOp(True, 4), "1 or 2"),
    (lambda: warp.LdMatrix8x16x8bOp(False, 4, 5), "elements of 5 bits"),
    (lambda: warp.LdMatrix8x8x16bOp(False, 4, 4), "does not unpack"),
    (lambda: warp.StMatrix16x8x8bOp(False, 1), "transposed"),
    (lambda: warp.StMatrix16x8x8bOp(True, 1, 4), "does not unpack"),
    (lambda: cute.make_copy_atom(warp.StMatrix16x8x8bOp(True, 1), F16), "16 bits"),
    (lambda: warp.MmaMXF4Op(kiln.Int8, F32, E4M3), "a_dtype of MmaMXF4Op is Int8"),
    (lambda: warp.MmaMXF8F6F4Op(E4M3, E5M2, F32, E4M3), "sf_type of MmaMXF8F6F4Op is Float8E4M3FN it is Float8E8M0FNU"),
    (lambda: cute.make_copy_atom(cpasync.CopyG2SOp(), F16, num_bits_per_copy=16), "num_bits_per_copy=16"),
    (lambda: cute.make_copy_atom(cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL), F16, num_bits_per_copy=64), "GLOBAL"),
    (lambda: cpasync.CopyG2SOp(cpasync.LoadCacheMode.STREAMING), "ALWAYS or GLOBAL"),
    (lambda: cute.make_tiled_mma(MmaUniversalOp(F32), (2, 2, 1), permutation_mnk=(3, None, None)), "multiple of 2"),
    (lambda: cute.make_tiled_mma(MmaUniversalOp, (2, 2, 1)), "pass an instance"),
    (lambda: cute.make_mma_atom(CopyUniversalOp()), "MMA operation"),
    (lambda: MmaUniversalOp(E4M3), "MmaUniversalOp does not take Float8E4M3FN"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refused(make: Any, says: str) -> None:
    with pytest.raises(Exception) as caught:  # without its lines of this file, which has the words
        make()
    assert says in f"{caught.value.args[0]} {getattr(caught.value, 'hint', '')}"


def test_operations_are_equal_by_value() -> None:
    assert warp.MmaF16BF16Op(F16, F32, (16, 8, 16)) == warp.MmaF16BF16Op(F16, F32, (16, 8, 16))
    assert warp.MmaF16BF16Op(F16, F32, (16, 8, 16)) != warp.MmaF16BF16Op(BF16, F32, (16, 8, 16))
    assert warp.LdMatrix8x8x16bOp(False, 4) != warp.LdMatrix8x8x16bOp(True, 4)
