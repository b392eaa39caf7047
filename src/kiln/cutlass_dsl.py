"""Names that programs take from the language's inner module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._support import lazy
from .base_dsl import BaseDSL
from .base_dsl.arguments import JitArgAdapterRegistry
from .base_dsl.compiled_function import CompiledFunction as CudaDialectJitCompiledFunction
from .base_dsl.compiled_function import CompiledFunction as JitCompiledFunction
from .base_dsl.diagnostics import *  # noqa: F403
from .base_dsl.diagnostics import (
    DSLCudaVerNotImplemented,
    DSLOperationBuildError,
    DSLSubprocessCallError,
    DSLTreeFlattenError,
    DSLUserCodeRuntimeError,
)
from .base_dsl.operators import all_, and_, any_, max, min, not_, or_, select_
from .base_dsl.ranges import Range as range
from .base_dsl.ranges import const_expr, dynamic_expr, range_constexpr, range_dynamic
from .base_dsl.typing import *  # noqa: F403
from .base_dsl.user_op import (
    dsl_user_op,
    extract_mlir_attributes,
    extract_mlir_values,
    is_dynamic_expression,
    new_from_mlir_values,
)
from .cuda import target_version
from .cute.program.control import LoopUnroll, for_generate, if_generate, while_generate, yield_out
from .cute.program.dsl import CuteDSL as CuTeDSL
from .hardware.architectures import Arch

__all__ = [
    "Arch",
    "BaseDSL",
    "CuTeDSL",
    "CudaDialectJitCompiledFunction",
    "CuteExperimentalDSL",
    "DSLCudaVerNotImplemented",
    "DSLOperationBuildError",
    "DSLSubprocessCallError",
    "DSLTreeFlattenError",
    "DSLUserCodeRuntimeError",
    "JitArgAdapterRegistry",
    "JitCompiledFunction",
    "LoopUnroll",
    "all_",
    "and_",
    "any_",
    "const_expr",
    "dsl_user_op",
    "dynamic_expr",
    "extract_mlir_attributes",
    "extract_mlir_values",
    "for_generate",
    "if_generate",
    "is_dynamic_expression",
    "max",
    "min",
    "new_from_mlir_values",
    "not_",
    "or_",
    "range",
    "range_constexpr",
    "range_dynamic",
    "select_",
    "target_version",
    "while_generate",
    "yield_out",
]


if TYPE_CHECKING:
    from .cute.experimental.program import CuteExperimentalDSL
else:
    # T and ir: the bindings' shorthand for types, and the bindings
    __getattr__ = lazy.names(
        __name__, {"CuteExperimentalDSL": ".cute.experimental.program", "T": ".mlir", "ir": ".mlir"}
    )
