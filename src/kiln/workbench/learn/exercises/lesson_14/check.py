"""Checks of lesson 14."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ...checking import Exercise, Wrong, same


def _contract(module: Any) -> None:
    for n in (1, 1000):
        inputs = module.get_inputs(n)
        if (
            inputs is None
            or [(getattr(x, "shape", None), getattr(x, "dtype", None)) for x in inputs]
            != [((n,), np.dtype(np.float32))] * 2
        ):
            raise Wrong(f"get_inputs({n})", expected=f"two arrays of {n} float32", got=inputs)
        if any(len(np.unique(x)) < n / 2 for x in inputs):
            raise Wrong(f"get_inputs({n})", "many numbers are equal: a wrong kernel could pass unseen")
        x, y = inputs
        same(f"reference_fn of get_inputs({n})", module.reference_fn(x, y), 2 * x + y, tolerance=1e-6)
        same(f"kernel_fn of get_inputs({n})", module.kernel_fn(x, y), module.reference_fn(x, y), tolerance=1e-6)
        if module.flops_bytes(n) != (2 * n, 12 * n):
            raise Wrong(f"flops_bytes({n})", expected=(2 * n, 12 * n), got=module.flops_bytes(n))


class _Vector(ctypes.Structure):
    """A tensor of one mode as C passes it: its address, and the extent that is not compiled in."""

    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 1)]


def _ship(module: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = module.ship(Path(folder))
        if path != Path(folder) / "libscale.so" or not path.is_file():
            raise Wrong("ship(folder)", expected="the path of folder/libscale.so", got=path.name)
        call = ctypes.CDLL(str(path)).cute_dsl_scale_wrapper
        for n in (1, 7, 200):
            # room for what is wrong
            x = np.arange(256, dtype=np.float32)
            y = np.full(256, np.nan, np.float32)
            vectors = [_Vector(array.ctypes.data, (n,)) for array in (x, y)]
            status = call(None, *map(ctypes.byref, vectors), ctypes.c_float(3))
            if status != 0:
                raise Wrong(f"the library, called with {n} elements: its status", expected=0, got=status)
            same(f"the library, called with {n} elements", y[:n], 3 * x[:n])
            if not np.isnan(y[n:]).all():
                raise Wrong(
                    f"the library, called with {n} elements, writes past the end",
                    expected=n,
                    got=int((~np.isnan(y)).sum()),
                )
        vectors = [_Vector(array.ctypes.data, (n,)) for array, n in ((x, 7), (y, 8))]
        if call(None, *map(ctypes.byref, vectors), ctypes.c_float(3)) == 0:
            hint = "describe both with the same cute.SymInt(): then a call with two lengths is refused"
            raise Wrong("the library, called with 7 and 8 elements: its status", expected="not 0", got=0, hint=hint)


EXERCISES = (
    Exercise(
        "a contract",
        _contract,
        (
            "The reference is one line of numpy.",
            "f32 has 4 bytes: x and y are read, out is written, so 12 bytes for each element.",
        ),
    ),
    Exercise(
        "ship it",
        _ship,
        (
            "n = cute.SymInt() stands for one length; use it in both tensors, and they must agree in each call.",
            'kiln.export(scale, x, y, 1.0, to=folder / "libscale.so", archs=("cpu",)) returns the library and its header.',
        ),
    ),
)
