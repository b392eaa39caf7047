"""Bulk stores of zeros (`st.bulk`): what they write, what is refused, and what the sanitizer says of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas
from sanitizer_testing import found

import kiln
from kiln import Constexpr, Int32, Int64, Uint8, cute
from kiln.base_dsl.diagnostics import DSLArchitectureError, DSLUserCodeRuntimeError
from kiln.cute import arch
from kiln.dialects.nvgpu import definitions
from kiln.experimental import primitives as prims

BYTES = 256


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


@cute.kernel
def filled(y: cute.Tensor, start: Int32, size: Int32, ptx: Constexpr):
    t, _, _ = arch.thread_idx()
    smem = arch.alloc_smem(Uint8, BYTES, 16)
    tile = cute.make_tensor(smem, cute.make_layout(BYTES))
    for i in range(t, BYTES, 32):
        tile[i] = Uint8(i)
    arch.sync_threads()
    if t == 0:
        if kiln.const_expr(ptx is None):
            prims.st_bulk(smem + start, size)
        else:
            wide = "st.bulk.weak.shared::cta [{$r0}], {$r1}, 0;"
            short = "{ .reg .b64 g; cvta.shared.u64 g, {$r1}; st.bulk [g], {$r0}, 0; }"
            place = (smem + start).toint()
            if kiln.const_expr(ptx == "shared"):
                arch.inline_ptx(wide, read_only_args=[place, Int64(size)])
            else:
                arch.inline_ptx(short, read_only_args=[Int64(size), Int64(place)])
    arch.sync_threads()
    for i in range(t, BYTES, 32):
        y[i] = tile[i]


@cute.jit
def run_filled(y: cute.Tensor, start: Int32, size: Int32, ptx: Constexpr = None):
    filled(y, start, size, ptx).launch(grid=1, block=32)


@pytest.mark.parametrize("ptx", [None, "shared", "generic"])
@pytest.mark.parametrize(("start", "size"), [(0, BYTES), (8, 0), (16, 8), (104, 96)])
def test_zeros_are_stored(start: int, size: int, ptx: str | None) -> None:
    y = np.zeros(BYTES, np.uint8)
    run_filled(y, start, size, ptx)
    want = bytearray(range(BYTES))
    definitions.store_bulk(want, start, size)
    assert bytes(y) == bytes(want)


@pytest.mark.parametrize("size", [12, -8, (1 << 24) + 8])
def test_a_size_that_the_hardware_does_not_take(size: int) -> None:
    with pytest.raises(DSLUserCodeRuntimeError, match=rf"(?s)st.bulk of {size} bytes .*a multiple of 8 up to 16777216"):
        run_filled(np.zeros(BYTES, np.uint8), 0, size)


# --- the sanitizer ---------------------------------------------------------------------------------------------------


@cute.kernel
def shared_out(y: cute.Tensor, start: Int32, waits: Constexpr):
    """One thread clears what the others then read."""
    t, _, _ = arch.thread_idx()
    smem = arch.alloc_smem(Int32, 32, 16)
    tile = cute.make_tensor(smem, cute.make_layout(32))
    if t == 0:
        prims.st_bulk(smem + start, 128)
    if kiln.const_expr(waits):
        arch.sync_threads()
    y[t] = tile[t]


@cute.jit
def run_shared_out(y: cute.Tensor, start: Int32, waits: Constexpr):
    shared_out(y, start, waits).launch(grid=1, block=32)


def test_a_read_waits_for_the_store() -> None:
    y = np.ones(32, np.int32)
    assert found(run_shared_out, y, 0, True) == []
    assert not y.any()
    (finding,) = found(run_shared_out, y, 0, False)
    assert finding.rule in ("write-read", "read-write")


def test_a_store_stays_inside_its_allocation_and_is_aligned() -> None:
    y = np.ones(32, np.int32)
    assert [finding.rule for finding in found(run_shared_out, y, 2, True)] == ["bounds", "uninitialized"]
    assert "alignment" in [finding.rule for finding in found(run_shared_out, y, 1, True)]


# --- PTX -------------------------------------------------------------------------------------------------------------


@needs_ptxas
@pytest.mark.parametrize("arch_name", ["sm_100", "sm_103a", "sm_120"])
def test_ptx(arch_name: str) -> None:
    compiled = compile_for(
        run_filled, np.zeros(BYTES, np.uint8), Int32(0), Int32(8), arch=arch_name, options="--keep-ptx"
    )
    assert re.search(r"st\.bulk\.weak\.shared::cta \[%\w+\], %rd\d+, 0;", compiled.__ptx__)


def test_hopper_has_none() -> None:
    with pytest.raises(DSLArchitectureError, match=r"st\.bulk needs sm_100 or newer"):
        compile_for(run_filled, np.zeros(BYTES, np.uint8), Int32(0), Int32(8), arch="sm_90a")
