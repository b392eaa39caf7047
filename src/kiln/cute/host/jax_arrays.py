"""Reads arrays of JAX by their own methods: DLPack takes twenty times as long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base_dsl import packages
from ...base_dsl.diagnostics import DSLUserCodeTypeError
from ...interop.arguments import jax_arrays as native
from . import unreadable
from .arrays import Array, dlpack_capsule, dlpack_type, numpy_element_type, read_dlpack

if TYPE_CHECKING:
    from ...interop.arguments.engine import Engine

_DEVICES = {"cpu": ("cpu", 1), "gpu": ("cuda", 2), "cuda": ("cuda", 2)}
"""Devices by JAX's names: Kiln's name, and DLPack's number."""


def read_jax(x: Any) -> Array:
    """Return an array of JAX, by its own methods or, where they fail, by DLPack."""
    unreadable.check(x)
    try:
        x.block_until_ready()
        (device,) = x.devices()
        layout = x.format.layout if hasattr(x, "format") else x.layout.device_local_layout  # before JAX 0.7
        order = layout.major_to_minor
        where, number = _DEVICES[device.platform]
        shape = x.shape
        address = x.unsafe_buffer_pointer()
        dtype = numpy_element_type(x.dtype)
    except (AttributeError, KeyError, ValueError, DSLUserCodeTypeError):
        return read_dlpack(x)
    strides = [1] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    array = Array(address, shape, tuple(strides), dtype, where, False, x)
    if _kinds is not None:
        _kinds.add(x, array, number, getattr(device, "local_hardware_id", device.id))
    return array


def hold(x: Any) -> Any:
    """Return a reference to the memory of an array: JAX neither frees it then nor donates it."""
    try:
        return memoryview(x)  # a fifth of the time of DLPack, for some types on the host
    except (BufferError, RuntimeError, TypeError, ValueError):
        return dlpack_capsule(x)


_kinds: _Kinds | None = None


def introduce_jax(engine: Engine, kind: type) -> bool:
    """Register JAX's arrays with native code; return whether it can read them."""
    global _kinds
    try:
        _kinds = _Kinds(engine, kind)
    except AttributeError as missing:
        packages.without("jax arrays", missing)
    return _kinds is not None


class _Kinds:
    """The table by which native code reads JAX's arrays."""

    def __init__(self, engine: Engine, kind: type) -> None:
        names = ("aval", "_sharding", "_pjrt_layout")
        self._kept: list[Any] = [None] * native.KINDS
        self._used = 0
        self._engine = engine
        methods = ("is_ready", "block_until_ready", "unsafe_buffer_pointer", "is_deleted")
        self._methods = [getattr(kind, name) for name in methods]
        for name in names:
            getattr(kind, name)
        addresses = engine.load(native.reading)
        self._table: Any = native.Jax.from_address(addresses[native.jax.symbol])
        table = self._table
        table.aval, table.sharding, table.layout = (id(engine.kept_name(name)) for name in names)
        table.is_ready, table.wait, table.pointer, table.is_deleted = map(id, self._methods)
        engine.add_array(kind, addresses[native.read_jax.symbol], 0, *_NEVER_REFUSED)

    def add(self, x: Any, array: Array, device: int, number: int) -> None:
        """Add arrays that share the aval, sharding and layout of this one to the table. The oldest kind is replaced."""
        facts = (x.aval, x._sharding, x._pjrt_layout)
        same = all(one is other for one, other in zip(facts, (x.aval, x._sharding, x._pjrt_layout)))
        if not same:
            packages.without("jax arrays", "what tells of an array is made anew each time")
        if not same or len(array.shape) > native.RANK or dlpack_type(array.dtype) < 0:
            return
        place = self._used % native.KINDS
        self._used += 1
        kind = self._table.kinds[place]
        kind.aval = 0  # first: other threads look for it
        for seen in self._table.seen if self._kept[place] else ():
            seen.array = 0
        self._kept[place] = facts
        kind.sharding = id(facts[1])
        kind.layout = id(facts[2])
        kind.device = device
        kind.device_number = number
        kind.type = dlpack_type(array.dtype)
        kind.rank = len(array.shape)
        for axis, (extent, stride) in enumerate(zip(array.shape, array.strides)):
            kind.shape[axis] = extent
            kind.strides[axis] = stride
        kind.aval = id(facts[0])
        self._table.count = min(self._used, native.KINDS)


_NEVER_REFUSED = (8, 0, 0)
"""As `ArrayType` has it: no bit of the first word of its type."""
