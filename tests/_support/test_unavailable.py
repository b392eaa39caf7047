"""Names that Kiln does not implement: libraries import them at their top, and get an error where they use one."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

import cutlass
from kiln._support import unavailable
from kiln.base_dsl.diagnostics import DSLNotImplemented


@pytest.mark.parametrize("below", unavailable.MODULES)
def test_modules_of_placeholders_are_imported_under_both_names(below):
    module = importlib.import_module(f"cutlass.{below}")
    assert module is importlib.import_module(f"kiln.{below}")
    assert module.SomeName is module.SomeName
    with pytest.raises(DSLNotImplemented, match=f"kiln.{below}.SomeName is not available"):
        module.SomeName(1)
    with pytest.raises(AttributeError):
        _ = module.__wrapped__


@pytest.mark.parametrize(("below", "name"), [(m, n) for m, (_, *names) in unavailable.NAMES.items() for n in names])
def test_placeholders_in_modules_that_exist(below, name):
    if below == "cute.arch":
        pytest.skip("a function that kernels call: its name is looked up where it is called")
    module = importlib.import_module(f"cutlass.{below}")
    with pytest.raises(DSLNotImplemented, match=name):
        getattr(module, name)()
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = module.no_such_name


def test_what_a_placeholder_can_be_used_for():
    from cutlass.base_dsl import tvm_ffi_builder
    from cutlass.base_dsl.tvm_ffi_builder import Kind
    from cutlass.cute.nvgpu.cpasync import CopyBulkTensorTileS2GNonExecTrait

    @dataclasses.dataclass(frozen=True)
    class Mine(CopyBulkTensorTileS2GNonExecTrait):
        more: int = 1

    def function(
        kind: tvm_ffi_builder.Kind | None = tvm_ffi_builder.Kind.ONE, other: tvm_ffi_builder.List[Kind] = ()
    ) -> None: ...

    assert tvm_ffi_builder.Kind.ONE != tvm_ffi_builder.Kind.TWO
    assert not isinstance(function, tvm_ffi_builder.Kind)
    with pytest.raises(DSLNotImplemented, match="S2GNonExecTrait is not available: it is an internal"):
        Mine()


def test_modules_that_lie_elsewhere():
    from cutlass._mlir_helpers.arith import bitcast
    from cutlass.base_dsl.typing import Vector
    from cutlass.cute.experimental import iket
    from cutlass.cute.nvgpu.cpasync.copy import CopyBulkTensorTileG2SOp
    from cutlass.cute.nvgpu.cpasync.helpers import TmaInfo
    from cutlass.cute.nvgpu.warp import mma

    assert CopyBulkTensorTileG2SOp is cutlass.cute.nvgpu.cpasync.CopyBulkTensorTileG2SOp
    assert TmaInfo is cutlass.cute.nvgpu.cpasync.TmaInfo and mma.MmaFP8Op is cutlass.cute.nvgpu.warp.MmaFP8Op
    assert callable(bitcast) and Vector is cutlass.Vector and iket.range_push("a") is iket.range_pop() is None
