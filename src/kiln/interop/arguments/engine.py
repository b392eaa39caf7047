"""The native engine: loads the native code, registers types of arguments, and installs it as `__call__` of classes.

Whatever it relies on in the memory of Python's objects is probed first, on objects with known contents; where a probe
fails, Python takes all calls.
"""

from __future__ import annotations

import ctypes
import sys
import types
from typing import TYPE_CHECKING, Any

from ..._support import fork_safe
from ...base_dsl import packages
from ...base_dsl.log import logger
from ...native.deferred_library import DeferredLibrary
from . import plan
from .cpython import API, FLAGS, VECTORCALL_OFFSET
from .process import Devices, Process, process

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = DeferredLibrary("calls", "calls", ".planned_calls", __package__)
_PROGRAMS = DeferredLibrary("programs", "programs", ".recorded_calls", __package__)
_FAST = 0x80
_KEYWORDS = 0x02
_ONE = 0x08
"""METH_FASTCALL, METH_KEYWORDS, METH_O."""


_TEXT = ctypes.c_char_p
_INT = ctypes.c_int
_SIZE = ctypes.c_ssize_t
_POINTER = ctypes.c_void_p


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [("name", _TEXT), ("function", _POINTER), ("flags", _INT), ("doc", _TEXT)]


class _MemberDef(ctypes.Structure):
    """PyMemberDef."""

    _fields_ = [("name", _TEXT), ("type", _INT), ("offset", _SIZE), ("flags", _INT), ("doc", _TEXT)]


class _MemberDescriptor(ctypes.Structure):
    """PyMemberDescrObject."""

    _fields_ = [
        ("count", _SIZE),
        ("kind", _POINTER),
        ("owner", _POINTER),
        ("name", _POINTER),
        ("qualname", _POINTER),
        ("member", ctypes.POINTER(_MemberDef)),
    ]


def _pointer_at(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def slot_offset(kind: type, slot: str) -> int:
    """Return the offset of a slot in the instances of a class, or 0 if it is not known."""
    descriptor = kind.__dict__.get(slot)
    if type(descriptor).__name__ != "member_descriptor":
        return 0
    member = _MemberDescriptor.from_address(id(descriptor))
    if member.owner != id(kind) or not member.member or member.member[0].name != slot.encode():
        return 0
    return member.member[0].offset


def _layout_matches() -> bool:
    """Return whether Python's objects have the layout that native code assumes."""

    class Probe:
        __slots__ = ("first", "second")

    probe = Probe()
    held = b"12345678"
    probe.second = held
    offset = slot_offset(Probe, "second")
    if not offset or _pointer_at(id(probe) + offset) != id(held) or _pointer_at(id(probe) + 8) != id(Probe):
        return False
    del probe.second
    return (
        _pointer_at(id(probe) + offset) == 0
        and ctypes.string_at(plan.address_of(held), 8) == held
        and plan.BYTES_DATA % 8 == 0
        and _pointer_at(id(3) + 8) == id(int)
        and all(_pointer_at(id(kind) + FLAGS) == kind.__flags__ for kind in (int, Probe, types.FunctionType))
        and 0 < _pointer_at(id(types.FunctionType) + VECTORCALL_OFFSET) < types.FunctionType.__basicsize__
    )


def begin_loading(load: Callable[..., Callable[[], object]]) -> EngineLoader | None:
    """Begin to load the engine of this process; None where it cannot work."""
    if sys.implementation.name != "cpython" or "t" in sys.abiflags:
        return None
    if ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little" or not _layout_matches():
        return None
    try:
        return EngineLoader(load, {name: _pointer_of(getattr(ctypes.pythonapi, name)) for name in API})
    except AttributeError as missing:
        logger().info("Python takes all calls: %s", missing)
        return None


class EngineLoader:
    """Loads the libraries of the engine."""

    def __init__(self, load: Callable[..., Callable[[], Any]], functions: dict[str, int]) -> None:
        self.parts: list[Any] = []
        self._load = load
        self._functions = functions
        self._calls = load(_CALLS, imports=functions)
        self._programs: Callable[[], Any] | None = None
        self._has_programs = False
        self._engine: Engine | None = None

    def finish(self) -> Engine:
        """Wait for the engine."""
        if self._engine is None:
            self.parts.append(self._calls())
            self._engine = Engine(self)
            # classes call it until the process ends
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._engine))
        return self._engine

    def begin_programs(self) -> None:
        """Begin to load the code that only the kernel library needs."""
        if self._programs is None:
            self._programs = self._load(_PROGRAMS, self.parts, self._functions)

    def load(self, library: object) -> None:
        """Load a further library, which may use the earlier ones."""
        self.parts.append(self._load(library, self.parts, self._functions)())

    def finish_programs(self) -> None:
        """Wait for the kernel library's code."""
        self.begin_programs()
        if self._programs is not None and not self._has_programs:
            self._has_programs = True
            self.parts.append(self._programs())


def _pointer_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Engine:
    """The loaded native code. There is one object for the process."""

    describe: Callable[..., bytes | None]
    """`describe(*arrays)` returns, as bytes, all that a kernel may depend on but the contents (addresses modulo
    `plan.DESCRIBED_ALIGNMENT`), or None if the type of an array is not registered. None may stand in place of an
    array."""
    address: Callable[[Any], int | None]
    """Returns the address of an array's first element, or None if its type is not registered."""
    stream: Callable[[Any], int | None]
    """Returns the handle of the stream that an array's framework works on, or None if its type is not registered."""
    call_key: Callable[..., bytes | None]
    """`call_key(holder, *args, **kwargs)` returns a key, equal for calls that the same program serves, or None if an
    argument has none. `holder` is what a slot of the role `recorded` holds. Functions, constants and parameters appear
    by address."""

    def __init__(self, loader: EngineLoader) -> None:
        self._loader = loader
        self._lock = fork_safe.lock()
        self._process: Any = Process.from_address(self._address(process.symbol))
        self._keep: list[Any] = []
        for kind in (int, bool, float, str, list, tuple, bytes, type, types.FunctionType):
            setattr(self._process, f"{kind.__name__}_type", id(kind))
        self._process.none = id(None)
        self._process.true = id(True)
        self._process.false = id(False)
        self._introduced: set[type] = set()
        self.describe = self.function("kiln_describe", _FAST)
        self.address = self.function("kiln_address_of", _ONE)
        self.stream = self.function("kiln_stream", _ONE)

    def load(self, library: Any) -> Any:
        """Load a further library of native code. Returns the addresses of its exports by symbol."""
        with self._lock:
            self._loader.load(library)
        return {symbol: self._address(symbol) for symbol in library.exports}

    def _address(self, symbol: str) -> int:
        return next(part.addresses[symbol] for part in self._loader.parts if symbol in part.addresses)

    def _definition(self, name: str, symbol: str, flags: int, signature: str = "") -> _MethodDef:
        doc = f"{name}({signature})\n--\n\n".encode() if signature else None  # the form `inspect` reads
        definition = _MethodDef(name.encode(), self._address(symbol), flags, doc)
        self._keep.append(definition)
        return definition

    def function(self, symbol: str, flags: int = _FAST, holder: bytes | None = None) -> Any:
        """Return a native function as a Python function; `holder` is its first argument."""
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self._keep.append(holder)
        return make(ctypes.addressof(self._definition(symbol, symbol, flags)), holder and id(holder), None)

    # -- registering -------------------------------------------------------------------------------------

    def install(self, role: str, kind: type, name: str, slot: str, python: Callable[..., object]) -> None:
        """Install native code as a method of a class. `python` takes the calls that it leaves. By role:

        compiled  `slot` of an instance holds a plan
        wrapper   the same, for objects of a framework that wrap a compiled function
        jit       it holds a tuple: `plan.Candidates` as bytes, then the owners of the plans
        recorded  it holds a tuple: programs (see `program`) by keys of calls; names of parameters that are numbers
                  which change; three words as bytes: a bit for each position that may be an array, a bit for each that
                  may be written to, how many of the next names may be written to; names of parameters that may be
                  arrays
        """
        offset = slot_offset(kind, slot)
        if not offset:
            return
        self._keep.append(python)
        entry = getattr(self._process, role)
        entry.slot = offset
        entry.python = id(python)
        make = ctypes.pythonapi.PyDescr_NewMethod
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.py_object, ctypes.c_void_p]
        definition = self._definition(name, f"kiln_call_{role}", _FAST | _KEYWORDS, "$self, /, *args, **kwargs")
        setattr(kind, name, make(kind, ctypes.addressof(definition)))

    def _add(self, table: str, kind: type, *values: int) -> None:
        if kind in self._introduced:
            return
        for entry in getattr(self._process, table):
            if not entry.type:
                self._keep.append(kind)
                self._introduced.add(kind)
                for (field, _), value in zip(entry._fields_[1:], values, strict=True):
                    setattr(entry, field, value)
                entry.type = id(kind)  # last: other threads look for it
                return

    def look_at_devices(self, function: Callable[[str], int] | None) -> None:
        """Launch kernels on the device of the first array. `function` returns addresses of the driver's functions by
        name; None: there is one device only."""
        names = [name for name, _ in Devices._fields_ if name.startswith("cu")]
        self._process.devices = Devices(**{name: 0 if function is None else function(name) for name in names})

    def add_numbers(self, kind: type, slot: str) -> None:
        """Set the slot in which instances of the numeric types, all subclasses of `kind`, keep their values."""
        self._process.number_slot = slot_offset(kind, slot)

    def add_prepared(self, kind: type, slot: str, array_slot: str) -> None:
        """Register a type of prepared arguments: `slot` holds an argument record, `array_slot` the array."""
        offset = slot_offset(kind, slot)
        if offset:
            self._add("prepared", kind, offset, slot_offset(kind, array_slot))

    def add_array(
        self,
        kind: type,
        read: int,
        stream: int,
        inner: int,
        bits: int,
        refused: int,
        counted: int = 0,
        count_write: int = 0,
    ) -> None:
        """Register a type of arrays with DLPack's `dltensor_from_py_object_no_sync` and `current_work_stream`; the
        others as in `ArrayType`."""
        self._add("arrays", kind, read, stream, inner, bits, refused, counted, count_write)

    def add_programs(self, kind: type, slot: str) -> None:
        """Set the slot in which programs keep their native form, and load the native code that repeats them."""
        with self._lock:
            self._loader.finish_programs()
            self.call_key = self.function("kiln_call_key", _FAST | _KEYWORDS)
        self._process.program_slot = slot_offset(kind, slot)

    def add_constant(self, kind: type) -> None:
        """Register a type of immutable objects, which keys of calls contain by address."""
        self._add("constants", kind)

    def add_stream(self, kind: type, attribute: str) -> None:
        """Register a type of streams, whose handle is an attribute, or `int()` if that is empty."""
        self._add("streams", kind, id(self.kept_name(attribute)) if attribute else 0)

    def kept_name(self, name: str) -> str:
        """Return the interned string of a name, kept alive."""
        name = sys.intern(name)
        self._keep.append(name)
        return name

    def add_numpy(self, kind: type) -> None:
        """Register `numpy.ndarray`, if its fields lie where native code expects them."""
        if kind in self._introduced:
            return
        if not _numpy_matches():
            packages.without("numpy arrays", "fields of an ndarray lie elsewhere")
            return
        self._introduced.add(kind)
        self._process.ndarray = id(kind)


def _numpy_matches() -> bool:
    """Return whether numpy's arrays have the layout that native code assumes."""
    import numpy as np

    from .arrays import WRITEABLE, NumpyArray

    x = np.zeros((3, 5, 7), np.float32)[:, ::2, 1:]
    seen: Any = NumpyArray.from_address(id(x))
    readonly = np.zeros(1)
    readonly.flags.writeable = False
    frozen: Any = NumpyArray.from_address(id(readonly))
    kinds = [np.dtype(name) for name in ("float32", "float64", "int32", "uint8", "int64", ">f4", "bool")]

    def numbers(address: int) -> tuple[int, ...]:
        return tuple((ctypes.c_int64 * 3).from_address(address))

    return (
        seen.data == x.__array_interface__["data"][0]
        and seen.rank == 3
        and numbers(seen.shape) == x.shape
        and numbers(seen.strides) == x.strides
        and seen.dtype == id(x.dtype)
        and (seen.flags & WRITEABLE, frozen.flags & WRITEABLE) == (WRITEABLE, 0)
        and len({plan.numpy_type(kind) for kind in kinds}) == len(kinds)
        and all(
            plan.numpy_type(kind) & 0xFF == ord(kind.kind) and plan.numpy_type(kind) >> 32 == kind.num for kind in kinds
        )
    )
