"""Values that nobody set, on their way through operations of a warp: votes, reductions, matrices."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from sanitizer_testing import found

import kiln
from kiln import Boolean, Constexpr, Float8E4M3FN, Float8E8M0FNU, Float16, Float32, Int32, cute
from kiln.cute.runtime import from_dlpack

WARP = 32


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


def line_of(text: str) -> int:
    """The line of this file that ends with a comment."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}"))


@cute.kernel
def meeting(x: cute.Tensor, y: cute.Tensor, n: Int32, how: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    mine = cute.make_rmem_tensor(1, Int32)
    if kiln.const_expr(how.endswith("0")):
        mine.fill(0)
    if t < n:
        mine[0] = x[t]
    if kiln.const_expr(how.startswith("ptx")):
        y[t] = cute.arch.inline_ptx("add.s32 {$w0}, {$r0}, {$r0};", write_only_types=[Int32], read_only_args=[mine[0]])
    elif kiln.const_expr(how.startswith("store")):
        cute.arch.inline_ptx("st.global.b32 [{$r0}], {$r1};", read_only_args=[(y.iterator + t).toint(), mine[0]])
    elif kiln.const_expr(how.startswith("any")):
        some = cute.arch.vote_any_sync(mine[0] > 3)
        if t < n:
            y[t] = Int32(some)  # the vote
    elif kiln.const_expr(how.startswith("ballot")):
        votes = cute.arch.vote_ballot_sync(mine[0] > 3)
        if t < n:
            y[t] = votes
    else:
        total = cute.arch.warp_redux_sync(mine[0], kind="add")
        if t < n:
            y[t] = total


@cute.jit
def run_meeting(x: cute.Tensor, y: cute.Tensor, n: Int32, how: Constexpr):
    meeting(x, y, n, how).launch(grid=1, block=WARP)


@pytest.mark.parametrize("how", ["any", "ballot", "redux"])
def test_a_lane_that_brings_nothing_spoils_what_all_get(how: str) -> None:
    x, y = np.zeros(WARP, np.int32), np.zeros(WARP, np.int32)
    assert found(run_meeting, x, y, WARP, how) == []
    assert found(run_meeting, x, y, 20, how + "0") == []
    (finding,) = found(run_meeting, x, y, 20, how)
    assert (finding.rule, finding.tensor) == ("uninitialized", "y")
    if how == "any":
        assert finding.span.line == line_of("the vote")


@pytest.mark.parametrize("how", ["ptx", "store"])
def test_unset_values_are_followed_through_inline_ptx(how: str) -> None:
    x, y = np.zeros(WARP, np.int32), np.zeros(WARP, np.int32)
    assert found(run_meeting, x, y, WARP, how) == []
    assert found(run_meeting, x, y, 20, how + "0") == []
    (finding,) = found(run_meeting, x, y, 20, how)
    assert (finding.rule, finding.thread) == ("uninitialized", (20, 0, 0))


# --- matrices --------------------------------------------------------------------------------------------------------


@cute.kernel
def product(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, rows: Int32, unset: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)))
    part = mma.get_slice(t)
    mine_a, mine_b, mine_c = part.partition_A(a), part.partition_B(b), part.partition_C(c)
    place_a = part.partition_A(cute.make_identity_tensor((16, 16)))
    place_b = part.partition_B(cute.make_identity_tensor((8, 16)))
    place_c = part.partition_C(cute.make_identity_tensor((16, 8)))
    held_a, held_b = mma.make_fragment_A(mine_a), mma.make_fragment_B(mine_b)  # fragments
    held_c = mma.make_fragment_C(mine_c)  # sums
    if kiln.const_expr("c" not in unset):
        held_c.fill(0.0)
    for i in kiln.range_constexpr(cute.size(held_a)):
        if kiln.const_expr("a" not in unset):
            held_a[i] = mine_a[i]
        elif place_a[i][0] < rows:
            held_a[i] = mine_a[i]
    for i in kiln.range_constexpr(cute.size(held_b)):
        if kiln.const_expr("b" not in unset):
            held_b[i] = mine_b[i]
        elif place_b[i][0] < rows:
            held_b[i] = mine_b[i]
    cute.gemm(mma, held_c, held_a, held_b, held_c)
    for i in kiln.range_constexpr(cute.size(held_c)):
        row, column = place_c[i]
        if kiln.const_expr("!" in unset):
            mine_c[i] = held_c[i]  # all of them
        elif row < rows:
            if column < rows:
                mine_c[i] = held_c[i]


@cute.jit
def run_product(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, rows: Int32, unset: Constexpr):
    product(a, b, c, rows, unset).launch(grid=1, block=WARP)


def operands() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [
        rng.standard_normal((16, 16)).astype(np.float16),
        rng.standard_normal((8, 16)).astype(np.float16),
        np.zeros((16, 8), np.float32),
    ]


@pytest.mark.parametrize("unset", ["", "a", "b", "ab"])
def test_rows_and_columns_that_are_not_stored_may_be_unset(unset: str) -> None:
    a, b, c = operands()
    assert found(run_product, *map(from_dlpack, (a, b, c)), 5, unset) == []
    want = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c[:5, :5], want[:5, :5], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("unset", "first"), [("a", (5, 0)), ("b", (0, 5)), ("c", (0, 0)), ("", None)])
def test_an_unset_row_or_column_is_found_where_it_is_stored(unset: str, first: tuple[int, int] | None) -> None:
    findings = found(run_product, *map(from_dlpack, operands()), 5, unset + "!")
    if first is None:
        assert findings == []
        return
    places = {f.coordinate for f in findings}
    assert {(f.rule, f.tensor) for f in findings} == {("uninitialized", "c")}
    assert all(f.span.line == line_of("all of them") for f in findings)
    assert {f.other_span.line for f in findings} == {line_of("sums" if unset == "c" else "fragments")}
    mode = 0 if unset == "a" else 1
    assert all(place[mode] >= first[mode] for place in places)


@cute.kernel
def scaled_product(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, rows: Int32):
    t, _, _ = cute.arch.thread_idx()
    mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaMXF8Op(Float8E4M3FN, Float32, Float8E8M0FNU))
    part = mma.get_slice(t)
    mine_a, mine_b, mine_c = part.partition_A(a), part.partition_B(b), part.partition_C(c)
    place_a = part.partition_A(cute.make_identity_tensor((16, 32)))
    held_a, held_b = mma.make_fragment_A(mine_a), mma.make_fragment_B(mine_b)  # scaled
    held_c = mma.make_fragment_C(mine_c)
    held_c.fill(0.0)
    cute.basic_copy(mine_b, held_b)
    for i in kiln.range_constexpr(cute.size(held_a)):
        if place_a[i][0] < rows:
            held_a[i] = mine_a[i]
    scale = cute.make_rmem_tensor(cute.make_layout((32, 1, 1), stride=(0, 0, 0)), Float8E8M0FNU)
    scale.fill(1.0)
    cute.gemm(mma, held_c, [held_a, scale], [held_b, scale], held_c)
    cute.basic_copy(held_c, mine_c)


@cute.jit
def run_scaled_product(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, rows: Int32):
    scaled_product(a, b, c, rows).launch(grid=1, block=WARP)


@pytest.mark.parametrize("rows", [16, 5])
def test_unset_rows_of_an_mma_with_block_scales(rows: int) -> None:
    a, b = (np.ones((n, 32), np.float32).astype(ml_dtypes.float8_e4m3fn) for n in (16, 8))
    c = np.zeros((16, 8), np.float32)
    findings = found(run_scaled_product, *map(from_dlpack, (a, b, c)), rows)
    assert {f.rule for f in findings} == (set() if rows == 16 else {"uninitialized"})
    assert all(f.coordinate[0] >= rows and f.other_span.line == line_of("scaled") for f in findings)


# --- shared memory ---------------------------------------------------------------------------------------------------


@cute.kernel
def staged(x: cute.Tensor, y: cute.Tensor, n: Int32, how: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    buffer = cute.make_tensor(cute.arch.alloc_smem(Float32, WARP), cute.make_layout(WARP))
    mine = cute.make_rmem_tensor(1, Float32)  # the register
    if t < n:
        mine[0] = x[t]
    if kiln.const_expr(how == "guarded"):
        if t < n:
            buffer[t] = mine[0]
    else:
        buffer[t] = mine[0]  # to shared memory
    cute.arch.sync_warp()
    other = WARP - 1 - t
    if other < n:
        y[t] = buffer[other]


@cute.jit
def run_staged(x: cute.Tensor, y: cute.Tensor, n: Int32, how: Constexpr):
    staged(x, y, n, how).launch(grid=1, block=WARP)


def test_an_unset_value_is_found_on_its_way_to_shared_memory() -> None:
    x, y = np.zeros(WARP, np.float32), np.zeros(WARP, np.float32)
    assert found(run_staged, x, y, WARP, "plain") == []
    assert found(run_staged, x, y, 20, "guarded") == []
    (finding,) = found(run_staged, x, y, 20, "plain")
    assert (finding.rule, finding.tensor, finding.coordinate) == ("uninitialized", "buffer", (20,))
    assert (finding.span.line, finding.other_span.line) == (line_of("to shared memory"), line_of("the register"))


@cute.kernel
def matrix_store(x: cute.Tensor, y: cute.Tensor, filled: Boolean):
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float16, 64, alignment=16)
    tile = cute.make_tensor(memory, cute.make_layout((8, 8), stride=(8, 1)))
    atom = cute.make_copy_atom(cute.nvgpu.warp.StMatrix8x8x16bOp(), Float16)
    copy = cute.make_tiled_copy(atom, cute.make_layout(((4, 8), 2), stride=((16, 1), 8)), (8, 8))
    part = copy.get_slice(t)
    values = cute.make_rmem_tensor(cute.make_layout((2, 1, 1)), Float16)
    if filled:
        values.fill(1.0)
    cute.copy(copy, values, part.partition_D(tile))  # the matrix
    cute.arch.sync_warp()
    y[t] = Float32(tile[t // 4, t % 4])


@cute.jit
def run_matrix_store(x: cute.Tensor, y: cute.Tensor, filled: Boolean):
    matrix_store(x, y, filled).launch(grid=1, block=WARP)


def test_an_unset_fragment_is_found_where_a_matrix_is_stored() -> None:
    x, y = np.zeros(WARP, np.float32), np.zeros(WARP, np.float32)
    assert found(run_matrix_store, x, y, True) == []
    (finding,) = found(run_matrix_store, x, y, False)
    assert (finding.rule, finding.span.line) == ("uninitialized", line_of("the matrix"))
