"""A compiled function as a `tvm_ffi.Function`, which C++, registries and other frameworks take.

Calls from Python are those of the compiled function, with keywords; all others run in native code (`reader.py`) without
Python, but for the first launch and for errors.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import TYPE_CHECKING, Any

import tvm_ffi  # pyright: ignore[reportMissingImports]

from ...base_dsl.diagnostics import DSLBaseError
from ..arguments import loading, plan
from ..arguments.arrays import DLTensor
from . import reader as native
from .convention import signature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...base_dsl.compiled_function import CompiledFunction


class KilnFunction(tvm_ffi.Function):
    """A compiled function for TVM-FFI.

    Attributes that TVM-FFI's functions lack (`__ptx__`, `resources`, ...) are those of `compiled`.
    """

    __slots__ = ("compiled", "for_caller")

    def _run_in_python(self, *args: object, **kwargs: object) -> Any:
        return self.compiled(*args, **kwargs)

    __call__ = _run_in_python

    def __getattr__(self, name: str) -> Any:
        if name in ("compiled", "for_caller"):
            raise AttributeError(name)
        return getattr(self.compiled, name)

    def __repr__(self) -> str:
        return f"<KilnFunction {signature(self.compiled)}>"


class LoadedFunction(tvm_ffi.Function):
    """A function of a loaded module. CUDA graphs on the CPU target replace `__call__` while they record."""

    __slots__ = ()


def loaded(address: int, keep: object) -> LoadedFunction:
    """Return the function of TVM-FFI's C convention at an address, which keeps an object alive."""
    function = LoadedFunction.__new__(LoadedFunction)
    function.__move_handle_from__(tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=keep))
    return function


def of(compiled: CompiledFunction[Any]) -> Any:
    """Return a compiled function as one of TVM-FFI's; itself where there is no native code to take the calls."""
    engine = loading.engine()
    if engine is None:
        return compiled
    entry = _entry(engine)
    caller_plan = getattr(compiled, "for_caller", None)
    takes_none = compiled.has_results or compiled.static_result is None
    keys = [compiled.keys.get(name) for name in compiled.passed]
    python = _raising_plainly(compiled, keys)
    report = _raising_plainly(compiled.reporter() or compiled)
    described = native.FunctionHandle(
        plan=plan.address_of(caller_plan) if caller_plan is not None and takes_none else 0,
        python=python.__chandle__(),
        report=report.__chandle__(),
        stream=_stream_function(),
    )
    handle = _Handle(bytes(described))
    handle.kept = (compiled, caller_plan, python, report)
    function = KilnFunction.__new__(KilnFunction)
    function.__move_handle_from__(tvm_ffi.Function.__from_extern_c__(entry, keep_alive_object=handle))
    function.compiled = compiled
    if caller_plan is not None:
        function.for_caller = caller_plan
    return function


class _Handle(bytes):
    """A `FunctionHandle`, and the objects that must live as long."""

    kept: tuple[Any, ...]


@functools.lru_cache(maxsize=1)
def _entry(engine: Any) -> int:
    """Return the address of the native entry point."""
    entry = engine.load(native.tvm_ffi_library)["kiln_call_by_tvm_ffi"]
    engine.install("wrapper", KilnFunction, "__call__", "for_caller", KilnFunction._run_in_python)
    return entry


@functools.lru_cache(maxsize=1)
def _stream_function() -> int:
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    return ctypes.cast(library.TVMFFIEnvGetStream, ctypes.c_void_p).value or 0


def _raising_plainly(function: Callable[..., object], keys: Sequence[object] = ()) -> Any:
    """Return a function for TVM-FFI that raises errors of Python's own classes, since TVM-FFI knows no others.

    `keys` are those of its arguments.
    """

    def call(*args: object) -> Any:
        try:
            return function(*itertools.starmap(_plain, itertools.zip_longest(args, keys[: len(args)])))
        except DSLBaseError as failure:
            kind = next((kind for kind in (ValueError, TypeError) if isinstance(failure, kind)), RuntimeError)
            raise kind(str(failure)) from None

    return tvm_ffi.convert(call)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _BorrowedTensor:
    """A tensor that C++ passes by address: TVM-FFI's own object of it breaks when asked for DLPack."""

    def __init__(self, tensor: Any) -> None:
        rank = len(tensor.shape)
        kind = tensor.dtype
        device = tensor.device
        self._device = device.dlpack_device_type(), device.index
        self._numbers = (ctypes.c_int64 * (2 * rank))(*tensor.shape, *tensor.strides)
        places = ctypes.addressof(self._numbers), ctypes.addressof(self._numbers) + 8 * rank
        bits = kind.type_code | kind.bits << 8 | kind.lanes << 16
        self._managed = _Managed(DLTensor(tensor.data_ptr(), *self._device, rank, bits, *places, 0))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **_: object) -> Any:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self._managed), b"dltensor", None)


def _plain(value: object, key: object = None) -> Any:
    """Return an argument as a call from Python passes it.

    TVM-FFI does not distinguish tuples, named tuples and lists; the key does.
    """
    if isinstance(value, tvm_ffi.Tensor) and not value.__chandle__():
        return _BorrowedTensor(value)
    if isinstance(value, (tvm_ffi.Array, tvm_ffi.Shape)):
        kind, *keys = key if isinstance(key, tuple) and key else (tuple,)
        elements = list(itertools.starmap(_plain, itertools.zip_longest(value, keys[: len(value)])))
        if not isinstance(kind, type) or not issubclass(kind, (tuple, list)):
            return tuple(elements)
        names = getattr(kind, "_fields", None)
        if names is None:
            return kind(elements)
        return kind(*elements) if len(elements) == len(names) else tuple(elements)  # refused later
    return value
