"""Tiles of shared memory that are written through one swizzle and read through another, or through the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Constexpr, Float16, Int16, Int32, cute
from kiln.cute.nvgpu import CopyUniversalOp, cpasync, warp
from kiln.cute.runtime import from_dlpack

ROWS = COLUMNS = 64


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


def composed(swizzle: Any, outer: Any) -> Any:
    """A layout by a name of its swizzle."""
    return outer if swizzle is None else cute.make_composed_layout(cute.make_swizzle(*swizzle), 0, outer)


def run(main: Any, *options: Any) -> tuple[list[Any], bool]:
    """The findings, and whether the tile came back as it was."""
    x = np.arange(ROWS * COLUMNS, dtype=np.int16).reshape(ROWS, COLUMNS)
    y = np.zeros_like(x)
    with kiln.sanitize(raises=False) as report:
        main(*(from_dlpack(a.view(np.float16), assumed_align=16) for a in (x, y)), *options)
    return report.findings, bool(np.array_equal(x, y))


@cute.kernel
def by_element(x: cute.Tensor, y: cute.Tensor, written: Constexpr, read: Constexpr, zeros: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float16, ROWS * COLUMNS, alignment=16)
    outer = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
    tile = cute.make_tensor(memory, composed(written, outer))
    seen = cute.make_tensor(memory, composed(read, outer))
    if kiln.const_expr(zeros):
        cute.make_tensor(memory + t * COLUMNS, cute.make_layout(COLUMNS)).fill(0)
        cute.arch.sync_threads()
        for i in range(0, COLUMNS, 2):
            seen[t, i].to(Int32)
        cute.arch.sync_threads()
    for i in range(COLUMNS):
        tile[t, i] = x[t, i]
    cute.arch.sync_threads()
    for i in range(ROWS):
        y[i, t] = seen[i, t]


@cute.jit
def run_by_element(x: cute.Tensor, y: cute.Tensor, written: Constexpr, read: Constexpr, zeros: Constexpr):
    by_element(x, y, written, read, zeros).launch(grid=1, block=ROWS)


@pytest.mark.parametrize("swizzle", [None, (3, 3, 3), (2, 3, 3), (1, 4, 5)])
@pytest.mark.parametrize("zeros", [False, True])
def test_one_swizzle_is_fine(swizzle: Any, zeros: bool) -> None:
    assert run(run_by_element, swizzle, swizzle, zeros) == ([], True)


@pytest.mark.parametrize(
    ("written", "read"), [((3, 3, 3), (2, 3, 3)), ((3, 3, 3), None), (None, (3, 3, 3)), ((3, 3, 3), (3, 3, 4))]
)
def test_another_swizzle_is_found(written: Any, read: Any) -> None:
    findings, same = run(run_by_element, written, read, False)
    assert not same
    (finding,) = findings
    assert (finding.kind, finding.rule) == ("memory", "swizzle")
    for said, swizzle in (("reads tile[", read), ("wrote it through", written)):
        assert said in finding.message
        assert ("no swizzle" if swizzle is None else str(cute.make_swizzle(*swizzle))) in finding.message
    assert finding.span.line == finding.other_span.line + 3


@cute.kernel
def by_hand(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Int16, ROWS * COLUMNS, alignment=16)
    outer = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
    tile = cute.make_tensor(memory, composed((3, 3, 3), outer))
    for i in range(COLUMNS):
        place = t * COLUMNS + i
        (memory + (place ^ ((place >> 3) & 0x38))).store(x[t, i])
    cute.arch.sync_threads()
    for i in range(ROWS):
        y[i, t] = tile[i, t]


@cute.jit
def run_by_hand(x: cute.Tensor, y: cute.Tensor):
    by_hand(x, y).launch(grid=1, block=ROWS)


def test_what_goes_through_no_tensor_is_the_programs_business() -> None:
    x = np.arange(ROWS * COLUMNS, dtype=np.int16).reshape(ROWS, COLUMNS)
    y = np.zeros_like(x)
    with kiln.sanitize():
        run_by_hand(x, y)
    assert np.array_equal(x, y)


@cute.kernel
def by_pointer(x: cute.Tensor, y: cute.Tensor, alignment: Constexpr, read: Constexpr):
    """Written through a pointer that swizzles addresses, read through a layout that swizzles elements."""
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float16, ROWS * COLUMNS, alignment=alignment)
    outer = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
    tile = cute.make_tensor(cute.recast_ptr(memory, cute.make_swizzle(3, 4, 3)), outer)
    seen = cute.make_tensor(memory, composed(read, outer))
    for i in range(COLUMNS):
        tile[t, i] = x[t, i]
    cute.arch.sync_threads()
    for i in range(ROWS):
        y[i, t] = seen[i, t]


@cute.jit
def run_by_pointer(x: cute.Tensor, y: cute.Tensor, alignment: Constexpr, read: Constexpr):
    by_pointer(x, y, alignment, read).launch(grid=1, block=ROWS)


@pytest.mark.parametrize("alignment", [16, 1024])
def test_a_swizzle_of_addresses_and_one_of_elements(alignment: int) -> None:
    assert run(run_by_pointer, alignment, (3, 3, 3)) == ([], True)
    findings, same = run(run_by_pointer, alignment, (2, 3, 3))
    assert not same
    assert [f.rule for f in findings] == ["swizzle"]


@cute.kernel
def by_atom(x: cute.Tensor, y: cute.Tensor, written: Constexpr, read: Constexpr):
    """Rows come by cp.async, matrices are read by ldmatrix."""
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float16, ROWS * COLUMNS, alignment=128)
    outer = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
    tile = cute.make_tensor(memory, composed(written, outer))
    seen = cute.make_tensor(memory, composed(read, outer))
    arriving = cute.make_copy_atom(cpasync.CopyG2SOp(), Float16, num_bits_per_copy=128)
    threads = cute.make_layout((4, 8), stride=(8, 1))
    loads = cute.make_tiled_copy_tv(arriving, threads, cute.make_layout((1, 8))).get_slice(t)
    cute.copy(arriving, loads.partition_S(x), loads.partition_D(tile))
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    mma = cute.make_tiled_mma(warp.MmaF16BF16Op(Float16, Float16, (16, 8, 16)))
    reading = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), Float16)
    copies = cute.make_tiled_copy_A(reading, mma)
    fragment = mma.make_fragment_A(mma.get_slice(t).partition_A(seen))
    cute.copy(copies, copies.get_slice(t).partition_S(seen), copies.get_slice(t).retile(fragment))
    leaving = cute.make_tiled_copy_A(cute.make_copy_atom(CopyUniversalOp(), Float16), mma)
    out = leaving.get_slice(t)
    cute.copy(leaving, out.retile(fragment), out.partition_S(y))


@cute.jit
def run_by_atom(x: cute.Tensor, y: cute.Tensor, written: Constexpr, read: Constexpr):
    by_atom(x, y, written, read).launch(grid=1, block=32)


def test_copies_of_the_hardware_are_followed() -> None:
    for swizzle in ((3, 3, 3), (2, 3, 3), None):
        assert run(run_by_atom, swizzle, swizzle) == ([], True)
    findings, same = run(run_by_atom, (3, 3, 3), (2, 3, 3))
    assert not same
    assert [f.rule for f in findings] == ["swizzle"]


@cute.kernel
def filled(x: cute.Tensor, y: cute.Tensor, by: Constexpr, columns: Constexpr):
    """Filled with one value through a plain view, and then partly written through a swizzle."""
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float16, ROWS * COLUMNS, alignment=128)
    tile = cute.make_tensor(memory, composed((3, 3, 3), cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))))
    row = cute.make_tensor(memory + t * COLUMNS, cute.make_layout(COLUMNS))
    if kiln.const_expr(by == "registers"):
        zeros = cute.make_rmem_tensor(cute.make_layout(COLUMNS), Float16)
        zeros.fill(0.0)
        cute.autovec_copy(zeros, row)
    else:
        for i in range(COLUMNS):
            row[i] = x[0, 0]
    cute.arch.sync_threads()
    for i in range(columns):
        tile[t, i] = x[t, i]
    cute.arch.sync_threads()
    for i in range(ROWS):
        y[i, t] = tile[i, t]


@cute.jit
def run_filled(x: cute.Tensor, y: cute.Tensor, by: Constexpr, columns: Constexpr):
    filled(x, y, by, columns).launch(grid=1, block=ROWS)


@pytest.mark.parametrize("by", ["registers", "elements"])
@pytest.mark.parametrize("columns", [0, 43, COLUMNS])
def test_a_tile_may_be_filled_with_one_value_through_any_view(by: str, columns: int) -> None:
    assert run(run_filled, by, columns) == ([], columns == COLUMNS)


@cute.kernel
def by_address(x: cute.Tensor, y: cute.Tensor, right: Constexpr):
    """Swizzles addresses as integers where it writes, and reads through the layout."""
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float16, ROWS * COLUMNS, alignment=1024)
    outer = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
    seen = cute.make_tensor(cute.recast_ptr(memory, cute.make_swizzle(3, 4, 3)), outer)
    for i in range(COLUMNS):
        address = (memory + t * COLUMNS + i).toint()
        moved = address ^ ((address & 0x380) >> 3) if kiln.const_expr(right) else address
        place = cute.make_ptr(Float16, moved, cute.AddressSpace.smem, assumed_align=2)
        cute.make_tensor(place, cute.make_layout(1))[0] = x[t, i]
    cute.arch.sync_threads()
    for i in range(ROWS):
        y[i, t] = seen[i, t]


@cute.jit
def run_by_address(x: cute.Tensor, y: cute.Tensor, right: Constexpr):
    by_address(x, y, right).launch(grid=1, block=ROWS)


@pytest.mark.parametrize("right", [True, False])
def test_addresses_that_a_program_swizzles_itself(right):
    """Nothing is known of their swizzle: no finding, whether the values are right or not."""
    findings, same = run(run_by_address, right)
    assert same == right and not findings
