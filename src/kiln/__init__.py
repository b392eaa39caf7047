"""Kiln: a Python kernel language.

    import kiln
    import kiln.cute as cute

    @cute.kernel
    def hello():
        tid, _, _ = cute.arch.thread_idx()
        if tid == 0:
            cute.printf("Hello from thread {}", tid)

    @cute.jit
    def main():
        hello().launch(grid=1, block=32)

    main()

Importing this package loads neither MLIR nor a target.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

from ._support.gc_pause import gc_paused

with gc_paused:
    from . import _alias, base_dsl, hardware, interop, targets
    from ._support import lazy, unavailable
    from .base_dsl import conventions as _conventions
    from .base_dsl import typing as typing
    from .base_dsl import uncaught as _uncaught
    from .base_dsl.arguments import register_jit_arg_adapter as register_jit_arg_adapter
    from .base_dsl.diagnostics import CompilerDiagnosticError as CompilerDiagnosticError
    from .base_dsl.diagnostics import DSLBaseError as DSLBaseError
    from .base_dsl.diagnostics import DSLCudaRuntimeError as DSLCudaRuntimeError
    from .base_dsl.diagnostics import DSLNotImplemented as DSLNotImplemented
    from .base_dsl.diagnostics import DSLOptimizationWarning as DSLOptimizationWarning
    from .base_dsl.diagnostics import DSLRuntimeError as DSLRuntimeError
    from .base_dsl.diagnostics import DSLSyntaxError as DSLSyntaxError
    from .base_dsl.diagnostics import DSLUserCodeError as DSLUserCodeError
    from .base_dsl.diagnostics import DSLUserCodeTypeError as DSLUserCodeTypeError
    from .base_dsl.diagnostics import DSLUserCodeValueError as DSLUserCodeValueError
    from .base_dsl.diagnostics import DSLWarning as DSLWarning
    from .base_dsl.operators import all_ as all_
    from .base_dsl.operators import and_ as and_
    from .base_dsl.operators import any_ as any_
    from .base_dsl.operators import max as max
    from .base_dsl.operators import min as min
    from .base_dsl.operators import not_ as not_
    from .base_dsl.operators import or_ as or_
    from .base_dsl.operators import select_ as select_
    from .base_dsl.ranges import DynamicIterator as DynamicIterator
    from .base_dsl.ranges import Range as _Range
    from .base_dsl.ranges import const_expr as const_expr
    from .base_dsl.ranges import dynamic_expr as dynamic_expr
    from .base_dsl.ranges import range_constexpr as range_constexpr
    from .base_dsl.ranges import range_dynamic as range_dynamic
    from .base_dsl.target import target as target
    from .base_dsl.typing import *
    from .base_dsl.user_op import dsl_user_op as dsl_user_op
    from .base_dsl.user_op import extract_mlir_values as extract_mlir_values
    from .base_dsl.user_op import new_from_mlir_values as new_from_mlir_values

range = _Range  # an import under another name would not export it
_uncaught.install()
unavailable.error = DSLNotImplemented
lazy.name_beside = _alias.name_beside
typing.__getattr__ = lazy.names(typing.__name__, dict.fromkeys(("Pointer", "Vector"), "..cute.program.wrapped_values"))
base_dsl.dsl.default_language = lambda: _importlib.import_module(f"{__name__}.cute.program.dsl").DSL
_conventions.exporter = lambda: _importlib.import_module(f"{__name__}.interop.aot")
hardware.measuring_kernels = lambda: _importlib.import_module(f"{__name__}.cute.measuring")

if TYPE_CHECKING:  # what loads when it is first used
    from . import aot as aot
    from . import bank_conflicts as _bank_conflicts
    from . import base_dsl as base_dsl
    from . import cuda as cuda
    from . import cute as cute
    from . import cutlass_dsl as cutlass_dsl
    from . import experimental as experimental
    from . import jax as jax
    from . import kernels as kernels
    from . import mlir as mlir
    from . import nn as nn
    from . import pipeline as pipeline
    from . import sanitize as _sanitize
    from . import testing as testing
    from . import torch as torch
    from . import utils as utils
    from . import vector as vector
    from . import workbench as workbench
    from .bank_conflicts import coalescing as coalescing
    from .base_dsl.arguments import JitArgAdapterRegistry as JitArgAdapterRegistry
    from .cuda import CUDA_VERSION as CUDA_VERSION
    from .cuda import target_version as target_version
    from .cute.layout import ComposedLayout as ComposedLayout
    from .cute.layout import Layout as Layout
    from .cute.layout.swizzle import Swizzle as Swizzle
    from .cute.program.control import LoopUnroll as LoopUnroll
    from .cute.program.control import for_generate as for_generate
    from .cute.program.control import if_generate as if_generate
    from .cute.program.control import while_generate as while_generate
    from .cute.program.control import yield_out as yield_out
    from .cute.program.wrapped_values import GridConstant as GridConstant
    from .cute.program.wrapped_values import Pointer as Pointer
    from .cute.program.wrapped_values import Vector as Vector
    from .cute.program.wrapped_values import print_nd_vector as print_nd_vector
    from .cute.runtime import SymInt as SymInt
    from .cute.runtime import sym_int as sym_int
    from .cute.runtime import sym_int32 as sym_int32
    from .cute.runtime import sym_int64 as sym_int64
    from .cute.tensor.array import Array as Array
    from .cute.tensor.array import make_array_view as make_array_view
    from .cute.tensor.pointer import AddressSpace as AddressSpace
    from .cute.tensor.raw_pointer import apply_swizzle as apply_swizzle
    from .cute.tensor.raw_pointer import inttoptr as inttoptr
    from .cute.tensor.raw_pointer import load_swizzled as load_swizzled
    from .cute.tensor.raw_pointer import store_swizzled as store_swizzled
    from .cute.tensor.tensor import Tensor as Tensor
    from .cute.tensor.tensor_ssa import full as full
    from .cute.tensor.tensor_ssa import full_like as full_like
    from .cute.typing import is_int_tuple as is_int_tuple
    from .cute.typing import is_integer as is_integer
    from .hardware.architectures import Arch as Arch
    from .interop.aot.exporting import export as export
    from .tunings import tuned as tuned

    bank_conflicts: _bank_conflicts._Callable = _bank_conflicts._Callable("bank_conflicts")
    sanitize: _sanitize._Callable = _sanitize._Callable("sanitize")

_LAZY = (
    "cute",
    "sanitize",
    "bank_conflicts",
    "pipeline",
    "utils",
    "torch",
    "jax",
    "nn",
    "cutlass_dsl",
    "testing",
    "kernels",
    "mlir",
    "base_dsl",
    "cuda",
    "experimental",
    "vector",
    "aot",
    "workbench",
)


_PLACES = {
    "AddressSpace": ".cute.tensor.pointer",
    "Arch": ".hardware.architectures",
    "ComposedLayout": ".cute.layout.composed_layout",
    "JitArgAdapterRegistry": ".base_dsl.arguments",
    "LoopUnroll": ".cute.program.control",
    "Tensor": ".cute.tensor.tensor",
    **dict.fromkeys(("SymInt", "sym_int", "sym_int32", "sym_int64"), ".cute.runtime"),
    **dict.fromkeys(("apply_swizzle", "load_swizzled", "store_swizzled"), ".cute.tensor.raw_pointer"),
    **dict.fromkeys(("is_int_tuple", "is_integer"), ".cute.typing"),
    **dict.fromkeys(("Array", "make_array_view"), ".cute.tensor.array"),
    "CUDA_VERSION": ".cuda",
    "GridConstant": ".cute.program.wrapped_values",
    "Layout": ".cute.layout",
    "Pointer": ".cute.program.wrapped_values",
    "Swizzle": ".cute.layout.swizzle",
    "Vector": ".cute.program.wrapped_values",
    "coalescing": ".bank_conflicts",
    "export": ".interop.aot.exporting",
    **dict.fromkeys(("full", "full_like"), ".cute.tensor.tensor_ssa"),
    "inttoptr": ".cute.tensor.raw_pointer",
    "print_nd_vector": ".cute.program.wrapped_values",
    **dict.fromkeys(("for_generate", "if_generate", "while_generate", "yield_out"), ".cute.program.control"),
    "target_version": ".cuda",
    "tuned": ".tunings",
}
"""Where names are defined that are not loaded with the package."""


if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES, _LAZY)
