"""Loading the native code into a process, telling it about Python's types, and making it the `__call__` of classes.

Everything it relies on in the memory of objects is looked at first, on objects whose contents are known; where anything
is not as expected, calls stay with Python.
"""

from __future__ import annotations

import ctypes
import sys
import types
from typing import TYPE_CHECKING, Any

from ..._support import fork_safe
from ...base_dsl import packages
from ...base_dsl.log import logger
from ...native.later import Later
from . import plan
from .cpython import API, FLAGS, VECTORCALL_OFFSET
from .process import Devices, World, world

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = Later("calls", "calls", ".planned_calls", __package__)
_PROGRAMS = Later("programs", "programs", ".recorded_calls", __package__)
_FAST, _KEYWORDS, _ONE = 0x80, 0x02, 0x08
"""METH_FASTCALL, METH_KEYWORDS, METH_O."""


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _MemberDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class _MemberDescriptor(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_ssize_t),
        ("kind", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
        ("name", ctypes.c_void_p),
        ("qualname", ctypes.c_void_p),
        ("member", ctypes.POINTER(_MemberDef)),
    ]


def _pointer_at(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def slot_offset(kind: type, slot: str) -> int:
    """Where the instances of a class keep one of its slots; 0 if that cannot be told."""
    descriptor = kind.__dict__.get(slot)
    if type(descriptor).__name__ != "member_descriptor":
        return 0
    found = _MemberDescriptor.from_address(id(descriptor))
    if found.owner != id(kind) or not found.member or found.member[0].name != slot.encode():
        return 0
    return found.member[0].offset


def _layout_is_known() -> bool:
    """Whether objects lie in memory as the native code takes them to."""

    class Probe:
        __slots__ = ("first", "second")

    probe, held = Probe(), b"12345678"
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


def begin(load: Callable[..., Callable[[], Any]]) -> Begun | None:
    """Begin to load the native code of this process; None where it cannot work."""
    if sys.implementation.name != "cpython" or "t" in sys.abiflags:
        return None
    if ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little" or not _layout_is_known():
        return None
    try:
        return Begun(load, {name: _pointer_of(getattr(ctypes.pythonapi, name)) for name in API})
    except AttributeError as missing:
        logger().info("calls are made by Python: %s", missing)
        return None


class Begun:
    """Native code that is being loaded."""

    def __init__(self, load: Callable[..., Callable[[], Any]], functions: dict[str, int]) -> None:
        self.parts: list[Any] = []
        self._load, self._functions = load, functions
        self._calls = load(_CALLS, imports=functions)
        self._programs: Callable[[], Any] | None = None
        self._has_programs = False
        self._engine: Engine | None = None

    def finish(self) -> Engine:
        """The native code, once it is loaded."""
        if self._engine is None:
            self.parts.append(self._calls())
            self._engine = Engine(self)
            # classes call it until the very end of the process
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._engine))
        return self._engine

    def begin_programs(self) -> None:
        """Begin to load what only the kernel library needs."""
        if self._programs is None:
            self._programs = self._load(_PROGRAMS, self.parts, self._functions)

    def load(self, library: Any) -> None:
        """Load another library, which uses these."""
        self.parts.append(self._load(library, self.parts, self._functions)())

    def finish_programs(self) -> None:
        """Wait for that."""
        self.begin_programs()
        if self._programs is not None and not self._has_programs:
            self._has_programs = True
            self.parts.append(self._programs())


def _pointer_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Engine:
    """The native code, loaded. One object for the process."""

    describe: Callable[..., bytes | None]
    """`describe(*arrays)`: all that a kernel may depend on of some arrays but their contents and where exactly they lie (the
    address is told modulo `plan.DESCRIBED_ALIGNMENT`); None in place of an array is told too. None if one of them is of a type
    that is not known."""
    address: Callable[[Any], int | None]
    """Where the first element of an array lies; None if its type is not known."""
    stream: Callable[[Any], int | None]
    """The handle of the stream on which an array's framework is working; None if its type is not known."""
    call_key: Callable[..., bytes | None]
    """`call_key(holder, *args, **kwargs)`: equal for calls for which the same program serves; None if an argument is not known.
    `holder` is what a slot of the role `recorded` holds. A key names functions, constants and parameters by their addresses."""

    def __init__(self, begun: Begun) -> None:
        self._begun = begun
        self._lock = fork_safe.lock()
        self._world: Any = World.from_address(self._address(world.symbol))
        self._keep: list[Any] = []
        for kind in (int, bool, float, str, list, tuple, bytes, type, types.FunctionType):
            setattr(self._world, f"{kind.__name__}_type", id(kind))
        self._world.none, self._world.true, self._world.false = id(None), id(True), id(False)
        self._known: set[type] = set()
        self.describe = self.function("kiln_describe", _FAST)
        self.address = self.function("kiln_address_of", _ONE)
        self.stream = self.function("kiln_stream", _ONE)

    def load(self, library: Any) -> Any:
        """Load another library of native code: what its functions are called, by address."""
        with self._lock:
            self._begun.load(library)
        return {symbol: self._address(symbol) for symbol in library.exports}

    def _address(self, symbol: str) -> int:
        return next(part.addresses[symbol] for part in self._begun.parts if symbol in part.addresses)

    def _definition(self, name: str, symbol: str, flags: int, signature: str = "") -> _MethodDef:
        doc = f"{name}({signature})\n--\n\n".encode() if signature else None  # the form `inspect` reads
        made = _MethodDef(name.encode(), self._address(symbol), flags, doc)
        self._keep.append(made)
        return made

    def function(self, symbol: str, flags: int = _FAST, holder: bytes | None = None) -> Any:
        """A native function as one of Python's; what it is first given is `holder`."""
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self._keep.append(holder)
        return make(ctypes.addressof(self._definition(symbol, symbol, flags)), holder and id(holder), None)

    # -- what it is told ---------------------------------------------------------------------------------

    def install(self, role: str, kind: type, name: str, slot: str, python: Callable[..., Any]) -> None:
        """Make native code a method of a class. `python` takes the calls that it leaves. By role:

        compiled  `slot` of an instance holds a plan
        door      the same, of what stands for a compiled function elsewhere
        jit       it holds a tuple: in a `bytes` object the number of plans, the address of guards for all of them, and
                  their addresses; then what owns these
        recorded  it holds a tuple: programs (see `program`) by the keys of calls; names of parameters that are numbers
                  which change; words in a `bytes` object: bits that say which positions may have arrays, bits of those that
                  may be written to, and how many of the following names are; names of parameters that may be arrays
        """
        offset = slot_offset(kind, slot)
        if not offset:
            return
        self._keep.append(python)
        known = getattr(self._world, role)
        known.slot, known.python = offset, id(python)
        make = ctypes.pythonapi.PyDescr_NewMethod
        make.restype, make.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.c_void_p]
        definition = self._definition(name, f"kiln_call_{role}", _FAST | _KEYWORDS, "$self, /, *args, **kwargs")
        setattr(kind, name, make(kind, ctypes.addressof(definition)))

    def _add(self, table: str, kind: type, *values: int) -> None:
        if kind in self._known:
            return
        for entry in getattr(self._world, table):
            if not entry.type:
                self._keep.append(kind)
                self._known.add(kind)
                for (field, _), value in zip(entry._fields_[1:], values, strict=True):
                    setattr(entry, field, value)
                entry.type = id(kind)  # last: other threads look for it
                return

    def look_at_devices(self, function: Callable[[str], int] | None) -> None:
        """There are several devices: addresses of the driver's functions, by name. None: there are not."""
        made = Devices(
            **{name: 0 if function is None else function(name) for name, _ in Devices._fields_ if name[:2] == "cu"}
        )
        self._world.devices = made

    def add_numbers(self, kind: type, slot: str) -> None:
        """Where instances of the numeric types, all derived from this class, keep their values."""
        self._world.number_slot = slot_offset(kind, slot)

    def add_prepared(self, kind: type, slot: str) -> None:
        """Take objects of this very type as prepared arguments, by the passport in a slot."""
        offset = slot_offset(kind, slot)
        if offset:
            self._add("prepared", kind, offset)

    def add_array(self, kind: type, read: int, stream: int, inner: int, bits: int, refused: int) -> None:
        """Take objects of this very type as arrays: DLPack's `dltensor_from_py_object_no_sync` and `current_work_stream`, and
        how to tell arrays that are not what lies in memory (`ArrayType`)."""
        self._add("arrays", kind, read, stream, inner, bits, refused)

    def add_programs(self, kind: type, slot: str) -> None:
        """Where programs keep themselves in memory. It is loading the native code for them, too."""
        with self._lock:
            self._begun.finish_programs()
            self.call_key = self.function("kiln_call_key", _FAST | _KEYWORDS)
        self._world.program_slot = slot_offset(kind, slot)

    def add_constant(self, kind: type) -> None:
        """Take objects of this very type, which never change, as parts of keys of calls: by their addresses."""
        self._add("constants", kind)

    def add_stream(self, kind: type, attribute: str) -> None:
        """Take objects of this very type as streams: by an attribute, or, if that is empty, by `int()`."""
        self._add("streams", kind, id(self.kept_name(attribute)) if attribute else 0)

    def kept_name(self, name: str) -> str:
        """The object that Python uses for a name, which stays."""
        name = sys.intern(name)
        self._keep.append(name)
        return name

    def add_numpy(self, kind: type) -> None:
        """Take `numpy.ndarray`."""
        if kind in self._known:
            return
        if not _numpy_is_known():
            packages.without("numpy arrays", "fields of an ndarray lie elsewhere")
            return
        self._known.add(kind)
        self._world.ndarray = id(kind)


def _numpy_is_known() -> bool:
    """Whether numpy's arrays lie in memory as the native code takes them to."""
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
