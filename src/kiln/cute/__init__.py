"""The CuTe language: layouts, tensors, copies and MMAs, in kernels written in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._support.gc_pause import gc_paused

with gc_paused:
    from .._support import lazy
    from ..base_dsl.typing import *
    from ..base_dsl.user_op import dsl_user_op as dsl_user_op
    from . import arch as arch
    from .atoms.atom import *
    from .host.addresses import *
    from .layout import *
    from .layout import picture
    from .program.compiling import *
    from .program.compiling import compile as compile
    from .program.dsl import DSL
    from .program.dsl import CuteDSL as CuteDSL
    from .tensor.assumptions import *
    from .tensor.pointer import *
    from .tensor.printing import printf as printf
    from .tensor.tensor import *
    from .tensor.tensor_ssa import *


def _picture(x: object) -> str | None:
    from .pictures import notebook

    return notebook.picture(x)


picture.picture = _picture
jit = DSL.jit
kernel = DSL.kernel

if TYPE_CHECKING:  # what loads when it is first used
    from . import atom as atom
    from . import core as core
    from . import experimental as experimental
    from . import export as export
    from . import math as math
    from . import nvgpu as nvgpu
    from . import runtime as runtime
    from . import testing as testing
    from . import typing as typing
    from .atoms.copying import *
    from .atoms.mma import *
    from .ffi import BitCode as BitCode
    from .ffi import ConstValue as ConstValue
    from .ffi import extern as extern
    from .ffi import ffi as ffi
    from .ffi import mangle as mangle
    from .math import acos as acos
    from .math import asin as asin
    from .math import atan as atan
    from .math import atan2 as atan2
    from .math import cos as cos
    from .math import erf as erf
    from .math import exp as exp
    from .math import exp2 as exp2
    from .math import log as log
    from .math import log2 as log2
    from .math import log10 as log10
    from .math import rsqrt as rsqrt
    from .math import sin as sin
    from .math import sqrt as sqrt
    from .math import tan as tan
    from .math import tanh as tanh
    from .program.fast_divmod import *
    from .program.tensor_printing import print_tensor as print_tensor
    from .runtime import SymInt as SymInt
    from .runtime import sym_int as sym_int
    from .runtime import sym_int32 as sym_int32
    from .runtime import sym_int64 as sym_int64
    from .tensor.structures import *

_COPYING = ("autovec_copy", "basic_copy", "basic_copy_if", "copy", "copy_atom_call", "prefetch")
_MMA = (
    "MmaAtom",
    "MmaOp",
    "MmaTrait",
    "RegisterMmaTrait",
    "ThrMma",
    "TiledMma",
    "gemm",
    "make_mma_atom",
    "make_tiled_mma",
    "mma_atom_call",
)
_MATH = (
    "acos",
    "asin",
    "atan",
    "atan2",
    "cos",
    "erf",
    "exp",
    "exp2",
    "log",
    "log10",
    "log2",
    "rsqrt",
    "sin",
    "sqrt",
    "tan",
    "tanh",
)
_LAZY_NAMES = {
    **dict.fromkeys(_COPYING, ".atoms.copying"),
    **dict.fromkeys(_MMA, ".atoms.mma"),
    **dict.fromkeys(("FastDivmodDivisor", "fast_divmod_create_divisor"), ".program.fast_divmod"),
    **dict.fromkeys(("struct", "union"), ".tensor.structures"),
    **dict.fromkeys(("BitCode", "ConstValue", "extern", "mangle"), ".ffi"),
    **dict.fromkeys(_MATH, ".math"),
    "print_tensor": ".program.tensor_printing",
    **dict.fromkeys(("SymInt", "sym_int", "sym_int32", "sym_int64"), ".runtime"),
}
_LAZY = ("arch", "runtime", "testing", "nvgpu", "math", "typing", "core", "atom", "experimental", "export", "ffi")


if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _LAZY_NAMES, _LAZY)
