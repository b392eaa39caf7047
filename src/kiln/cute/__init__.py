"""The CuTe language: layouts, tensors, copies and MMAs, in kernels written in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._support.gc_pause import gc_paused

if TYPE_CHECKING:  # of two names by `*`, mypy takes the first, and Python the last
    from .layout.modes import select as select
with gc_paused:
    from .._support import lazy, unavailable
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
    from ..base_dsl.arguments import register_jit_arg_adapter as register_jit_arg_adapter
    from ..base_dsl.native_struct import native_struct as native_struct
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
    from .layout.int_tuple import pretty_str as pretty_str
    from .math import MathOperand as MathOperand
    from .math import RoundingMode as RoundingMode
    from .math import abs as abs
    from .math import absf as absf
    from .math import absi as absi
    from .math import acos as acos
    from .math import acosh as acosh
    from .math import add as add
    from .math import asin as asin
    from .math import asinh as asinh
    from .math import atan as atan
    from .math import atan2 as atan2
    from .math import atanh as atanh
    from .math import cbrt as cbrt
    from .math import ceil as ceil
    from .math import clamp as clamp
    from .math import copysign as copysign
    from .math import cos as cos
    from .math import cosh as cosh
    from .math import div as div
    from .math import erf as erf
    from .math import erfc as erfc
    from .math import exp as exp
    from .math import exp2 as exp2
    from .math import expm1 as expm1
    from .math import floor as floor
    from .math import fma as fma
    from .math import fpowi as fpowi
    from .math import ipowi as ipowi
    from .math import isfinite as isfinite
    from .math import isinf as isinf
    from .math import isnan as isnan
    from .math import isnormal as isnormal
    from .math import log as log
    from .math import log1p as log1p
    from .math import log2 as log2
    from .math import log10 as log10
    from .math import max as max
    from .math import min as min
    from .math import mul as mul
    from .math import neg as neg
    from .math import pow as pow
    from .math import rcp as rcp
    from .math import rem as rem
    from .math import round as round
    from .math import roundeven as roundeven
    from .math import rsqrt as rsqrt
    from .math import sin as sin
    from .math import sincos as sincos
    from .math import sinh as sinh
    from .math import sqrt as sqrt
    from .math import sub as sub
    from .math import tan as tan
    from .math import tanh as tanh
    from .math import trunc as trunc
    from .nvgpu.common import CacheEvictionPriority as CacheEvictionPriority
    from .nvgpu.cpasync import ReductionKind as ReductionKind
    from .nvgpu.cute_nvgpu_dialect import make_atom as make_atom
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
    "MathOperand",
    "RoundingMode",
    "abs",
    "absf",
    "absi",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "clamp",
    "copysign",
    "cos",
    "cosh",
    "div",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "fma",
    "fpowi",
    "ipowi",
    "isfinite",
    "isinf",
    "isnan",
    "isnormal",
    "log",
    "log1p",
    "log2",
    "log10",
    "max",
    "min",
    "mul",
    "neg",
    "pow",
    "rcp",
    "rem",
    "round",
    "roundeven",
    "rsqrt",
    "sin",
    "sincos",
    "sinh",
    "sqrt",
    "sub",
    "tan",
    "tanh",
    "trunc",
)
_DIVMOD = ("FastDivmodDivisor", "FastDivmodDivisorV2", "fast_divmod_create_divisor", "fast_divmod_create_divisor_v2")
_LAZY_NAMES = {
    **dict.fromkeys(_COPYING, ".atoms.copying"),
    **dict.fromkeys(_MMA, ".atoms.mma"),
    **dict.fromkeys(_DIVMOD, ".program.fast_divmod"),
    "CacheEvictionPriority": ".nvgpu.common",
    "make_atom": ".nvgpu.cute_nvgpu_dialect",
    "ReductionKind": ".nvgpu.cpasync",
    "pretty_str": ".layout.int_tuple",
    "native_struct": "..base_dsl.native_struct",
    "register_jit_arg_adapter": "..base_dsl.arguments",
    **dict.fromkeys(("struct", "union"), ".tensor.structures"),
    **dict.fromkeys(("BitCode", "ConstValue", "extern", "mangle"), ".ffi"),
    **dict.fromkeys(_MATH, ".math"),
    "print_tensor": ".program.tensor_printing",
    **dict.fromkeys(("SymInt", "sym_int", "sym_int32", "sym_int64"), ".runtime"),
}
_LAZY = ("arch", "runtime", "testing", "nvgpu", "math", "typing", "core", "atom", "experimental", "export", "ffi")


if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _LAZY_NAMES, _LAZY, unavailable.name)
