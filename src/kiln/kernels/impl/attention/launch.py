"""Compiles the kernels of attention for the kinds of their arguments, and runs them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .... import Float8E5M2, Float32, Int32, cute
from ...dispatch import arrays, launches, recorder
from .args import dtype_name
from .problem import ALL_ELEMENTS
from .score_mod import ALIBI, NO_SCORE_MOD, ScoreMod

if TYPE_CHECKING:
    from .... import AddressSpace
    from ...parts.element_functions import Functions

_ELEMENTS = {**ALL_ELEMENTS, "float8_e5m2": Float8E5M2, "float32": Float32, "int32": Int32}


def kernel_object(kind: type[Any], has_alibi: bool, functions: Functions | None, *key: Any) -> Any:
    """Return one kernel object for equal keys and score modifications."""
    if functions is None:
        return launches.cached_kernel(kind, *key, ALIBI if has_alibi else NO_SCORE_MOD)
    make = lambda: kind(*key, score_mod=ScoreMod(has_alibi, functions))
    return launches.cached_kernel_of(functions, make, kind, has_alibi, *key)


def run_kernel(kernel: Any, *arguments: Any) -> None:
    """Run a kernel object with arrays, numbers, NamedTuples of both, or None, on the stream of its first array."""
    first = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
    on_gpu = arrays.is_torch(first) and first.device.type == "cuda"
    space = cute.AddressSpace.gmem if on_gpu else cute.AddressSpace.generic
    compiled = compile_kernel(recorder.mode(), kernel, space, tuple(map(kind_of, arguments)))
    launches.run_arguments(compiled, [*arguments, arrays.stream_of(first)])


def kind_of(x: Any) -> Any:
    """Return the type of a number, the element type and modes of an array, or what a NamedTuple has of them."""
    if x is None or isinstance(x, (int, float)):
        return None if x is None else Int32 if isinstance(x, int) else Float32
    if isinstance(x, tuple):
        return type(x)(*map(kind_of, x))
    return _ELEMENTS[dtype_name(x)], x.ndim


@functools.lru_cache(maxsize=1024)
def compile_kernel(_mode: tuple[str, str], kernel: Any, space: AddressSpace, kinds: tuple[Any, ...]) -> Any:
    """Compile a kernel object for arguments of some kinds (`kind_of`), and a stream."""
    return cute.compile(kernel, *(_example(kind, space) for kind in kinds), 0)


def _example(kind: Any, space: AddressSpace) -> Any:
    if kind is None or isinstance(kind, type):
        return None if kind is None else kind(1)
    if hasattr(kind, "_fields"):
        return type(kind)(*(_example(x, space) for x in kind))
    # any shape and strides, with a contiguous last mode
    element, modes = kind
    vectors = element.width in (8, 16) or modes == 5
    return cute.runtime.make_fake_tensor(
        element,
        tuple(cute.sym_int() for _ in range(modes)),
        (*(cute.sym_int(64) for _ in range(modes - 1)), 1),
        memspace=space,
        assumed_align=arrays.MAX_VECTOR_BYTES if vectors else element.width // 8,
    )
