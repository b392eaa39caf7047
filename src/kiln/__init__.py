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

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

from ._support.gc_pause import gc_paused

with gc_paused:
    from . import _alias, base_dsl, hardware, interop, targets
    from ._support import lazy, unavailable
    from .base_dsl import typing
    from .base_dsl.arguments import register_jit_arg_adapter
    from .base_dsl.diagnostics import (
        CompilerDiagnosticError,
        DSLBaseError,
        DSLCudaRuntimeError,
        DSLNotImplemented,
        DSLOptimizationWarning,
        DSLRuntimeError,
        DSLSyntaxError,
        DSLUserCodeError,
        DSLUserCodeTypeError,
        DSLUserCodeValueError,
        DSLWarning,
    )
    from .base_dsl.operators import all_, and_, any_, max, min, not_, or_, select_
    from .base_dsl.ranges import Range as range
    from .base_dsl.ranges import const_expr, dynamic_expr, range_constexpr, range_dynamic
    from .base_dsl.target import target
    from .base_dsl.typing import *
    from .base_dsl.user_op import dsl_user_op, extract_mlir_values, new_from_mlir_values

base_dsl.uncaught.install()
unavailable.error = DSLNotImplemented
typing.__getattr__ = lazy.names(typing.__name__, {"Vector": "..cute.program.wrapped_values"})
base_dsl.dsl.default_language = lambda: importlib.import_module(f"{__name__}.cute.program.dsl").DSL
base_dsl.entry_points.exporter = lambda: importlib.import_module(f"{__name__}.interop.aot")
hardware.measuring_kernels = lambda: importlib.import_module(f"{__name__}.cute.measuring")

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
)


_PLACES = {
    "AddressSpace": ".cute.tensor.pointer",
    **dict.fromkeys(("Array", "make_array_view"), ".cute.tensor.array"),
    "CUDA_VERSION": ".cuda",
    "GridConstant": ".cute.program.wrapped_values",
    "Layout": ".cute.layout",
    "Pointer": ".cute.program.wrapped_values",
    "Swizzle": ".cute.layout.swizzle",
    "Vector": ".cute.program.wrapped_values",
    "export": ".interop.aot.exporting",
    "full": ".cute.tensor.tensor_ssa",
    "inttoptr": ".cute.tensor.raw_pointer",
    "print_nd_vector": ".cute.program.wrapped_values",
    **dict.fromkeys(("for_generate", "if_generate", "while_generate", "yield_out"), ".cute.program.control"),
    "target_version": ".cuda",
    "tuned": ".tunings",
}
"""Where names are defined that are not loaded with the package."""


__getattr__ = lazy.names(__name__, _PLACES, _LAZY, _alias.junction)
