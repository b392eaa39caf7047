"""The bridge to JAX: kernels as functions of arrays under `jax.jit`, called by XLA without Python.

    call = kiln.jax.cutlass_call(launch, output_shape_dtype=jax.ShapeDtypeStruct(x.shape, x.dtype), scale=2.0)
    y = jax.jit(call)(x)

`launch(stream, *inputs, *outputs, **keywords)` is a jit function, or a plain function or lambda of the language.
`kiln/interop/jax` implements it.
"""

from .._support import lazy as _lazy
from ..base_dsl import packages as _packages

try:
    _jax = _packages.load("jax")
except ModuleNotFoundError:
    raise ModuleNotFoundError("kiln.jax needs JAX: pip install 'kiln-dsl[jax]'", name="jax") from None

from ..base_dsl.diagnostics import mark_internal as _mark_internal
from ..cute.runtime import from_dlpack
from ..interop.jax.call import cutlass_call, differentiable
from ..interop.jax.handler import get_export_disabled_safety_checks
from ..interop.jax.spec import TensorSpec, cutlass_to_jax_dtype, jax_to_cutlass_dtype

_mark_internal(_jax.__path__[0] + "/")  # XLA traces deep inside JAX, for a line of the program

__dir__ = _lazy.listing(__name__)
TensorMode = TensorSpec
"""An earlier name of `TensorSpec`."""


def is_available() -> bool:
    """Return whether JAX is there: always, as importing this module needs it."""
    return True


__all__ = [
    "TensorMode",
    "TensorSpec",
    "cutlass_call",
    "cutlass_to_jax_dtype",
    "differentiable",
    "from_dlpack",
    "get_export_disabled_safety_checks",
    "is_available",
    "jax_to_cutlass_dtype",
]
