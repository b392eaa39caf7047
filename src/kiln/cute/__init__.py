"""The CuTe language: layouts, tensors, copies and MMAs, in kernels written in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support.gc_pause import gc_paused

with gc_paused:
    from .._support import lazy
    from ..base_dsl.typing import *
    from ..base_dsl.user_op import dsl_user_op
    from . import arch
    from .atoms.atom import *
    from .host.addresses import *
    from .layout import *
    from .layout import picture
    from .program.compiling import *
    from .program.compiling import compile
    from .program.dsl import DSL, CuteDSL
    from .tensor.assumptions import *
    from .tensor.pointer import *
    from .tensor.printing import printf
    from .tensor.tensor import *
    from .tensor.tensor_ssa import *


def _picture(x: object) -> str | None:
    from .pictures import notebook

    return notebook.picture(x)


picture.picture = _picture
jit = DSL.jit
kernel = DSL.kernel

if TYPE_CHECKING:
    from .atoms.copying import *
    from .atoms.mma import *
    from .program.fast_divmod import *
    from .tensor.structures import *

_COPYING = ("autovec_copy", "basic_copy", "basic_copy_if", "copy", "copy_atom_call", "prefetch")
_MMA = (
    "MmaAtom", "MmaOp", "MmaTrait", "RegisterMmaTrait", "ThrMma", "TiledMma", "gemm", "make_mma_atom", "make_tiled_mma",
    "mma_atom_call",
)  # fmt: skip
_MATH = (
    "acos", "asin", "atan", "atan2", "cos", "erf", "exp", "exp2", "log", "log10", "log2", "rsqrt", "sin", "sqrt", "tan",
    "tanh",
)  # fmt: skip
_LAZY_NAMES = {
    **dict.fromkeys(_COPYING, ".atoms.copying"),
    **dict.fromkeys(_MMA, ".atoms.mma"),
    **dict.fromkeys(("FastDivmodDivisor", "fast_divmod_create_divisor"), ".program.fast_divmod"),
    **dict.fromkeys(("struct", "union"), ".tensor.structures"),
    **dict.fromkeys(_MATH, ".math"),
    "print_tensor": ".program.tensor_printing",
    **dict.fromkeys(("SymInt", "sym_int", "sym_int32", "sym_int64"), ".runtime"),
}
_LAZY = ("runtime", "testing", "nvgpu", "math", "typing", "core", "atom", "experimental", "export")


__getattr__ = lazy.names(__name__, _LAZY_NAMES, _LAZY)
