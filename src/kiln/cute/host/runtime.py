"""Tensors and pointers outside a trace: made from other libraries' arrays, or from a description alone.

A runtime tensor is the address of an array with a layout, each leaf of which is static (compiled in) or dynamic
(passed in every call). `from_dlpack` gives a static layout; `mark_layout_dynamic` and `mark_compact_shape_dynamic`
make leaves dynamic. What is compiled in is the tensor's `TensorSignature`: tensors of one signature share code.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base_dsl import conventions
from ...base_dsl.bindings import context, ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Float32, NumericMeta, TFloat32
from ...hardware import current as hardware
from ...interop.arguments import plan
from ..layout.layout import Layout
from ..tensor.pointer import AddressSpace, Pointer, element_bits, natural_alignment
from ..tensor.tensor import Tensor
from . import dlpack_export
from .arrays import Array, find_leading, memory_of, read_array, reading_natively
from .symbols import symbols_of
from .tensor_forms import DynamicLeaf, Form, TensorSignature, form, marked, marked_compact, signature

__all__ = [
    "Pointer",
    "RuntimePointer",
    "RuntimeTensor",
    "SymInt",
    "find_runtime_libraries",
    "from_dlpack",
    "load_module",
    "make_fake_compact_tensor",
    "make_fake_stream",
    "make_fake_tensor",
    "make_ptr",
    "nullptr",
    "sym_int",
    "sym_int32",
    "sym_int64",
]


class _Passed(Tensor):
    """A tensor outside a trace, as a part of an argument whose class has the protocol `JitArgument`: one value."""

    __slots__ = ()
    _signature: TensorSignature

    @property
    def __cache_key__(self) -> tuple[object, ...]:
        """What compiled code knows of it: equal for tensors that a function compiled for one of them takes."""
        signature = self._signature
        return signature.dtype, signature.memspace, signature.alignment, signature.layout, signature.readonly

    def __get_mlir_types__(self) -> list[ir.Type]:
        with context():
            return [self._signature.memref_type()]

    def __new_from_mlir_values__(self, values: Sequence[ir.Value]) -> Tensor:
        (memref,) = values
        return self._signature.rebuild_from_memref(memref)


class RuntimeTensor(_Passed):
    """A tensor to pass to compiled functions. It keeps the array it was made of alive.

    `shape` and `stride` are the array's; `dynamic_shapes_mask` and `dynamic_strides_mask` say which of them are passed
    in every call rather than compiled in. Native code reads the slot `_argument_record` (see
    `interop/arguments/plan.py`).
    """

    __kiln_static__ = True
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_address",
        "_argument_record",
        "_form",
        "_keep",
        "_memory",
        "_narrow_strides",
        "_order",
    )

    def __init__(self, form: Form, address: int, keep: Any, use_32bit_stride: bool = False, memory: Any = None) -> None:
        """Make a tensor of a form at an address; `keep` is its array, and `memory` holds what that may let go of."""
        self._address = address
        self._keep = keep
        self._memory = memory
        self._narrow_strides = use_32bit_stride
        self._order: tuple[int, ...] | None = None
        self._form = form
        # Without it native code leaves the tensor to Python, which says what is wrong with one without memory.
        self._argument_record = form.argument_record(address) if address or 0 in form.shape else None

    def _set(self, form: Form) -> None:
        """Set which leaves are static and dynamic."""
        self._form = form
        self._argument_record = self._argument_record and form.argument_record(self._address)

    @property
    def _array(self) -> Array:
        form = self._form
        device = "cuda" if self._memspace is AddressSpace.gmem else "cpu"
        signature = form.signature
        keep = self._keep if self._memory is None else (self._keep, self._memory)
        return Array(self._address, form.shape, form.strides, signature.dtype, device, signature.readonly, keep)

    @property
    def _signature(self) -> TensorSignature:
        return self._form.signature

    @property
    def _alignment(self) -> int:
        return self._form.signature.alignment

    @property
    def _memspace(self) -> AddressSpace:
        return self._form.signature.memspace

    @property
    def _argument(self) -> tuple[TensorSignature, tuple[int, ...]]:
        return self._form.signature, (self._address, *self._form.tail)

    def __kiln_argument__(self) -> tuple[TensorSignature, tuple[int, ...]] | None:
        return None if self._argument_record is None else self._argument

    def __c_pointers__(self) -> list[int]:
        """Return where its address and its dynamic leaves lie in memory, as a C struct. It is kept with the tensor."""
        signature, leaves = self._argument
        packed = struct.pack("@" + signature.formats.replace("4x", ""), *leaves)
        struct_ = self.__dict__.get("_struct")
        if struct_ is None or struct_.raw[: len(packed)] != packed:  # an argument may ask more than once
            struct_ = self._struct = ctypes.create_string_buffer(packed, len(packed) + 8)
        return [ctypes.addressof(struct_)]

    def __kiln_content__(self) -> Any:
        """What a trace can know of it: not what is in its memory."""
        return self._argument

    def __dlpack__(
        self, *, stream: object = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        """Return a capsule of its memory, shape and strides. Nothing waits: work goes to the consumer's stream."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("this tensor gives its own memory, where it is, and makes no copy")
        return dlpack_export.capsule(self._array, versioned=max_version is not None and max_version[0] >= 1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack_export.device_of(self._array)

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        """The layout with all its numbers."""
        return Layout(self._form.shape, self._form.strides)

    @property
    def iterator(self) -> RuntimePointer:  # type: ignore[override]
        """The address, as a pointer to pass to compiled functions."""
        return RuntimePointer(self.element_type, self._address, self._memspace, self._alignment, self._array.keep)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._form.shape

    @property
    def stride(self) -> tuple[int, ...]:
        return self._form.strides

    @property
    def memspace(self) -> AddressSpace:
        return self._memspace

    @property
    def data_ptr(self) -> int:
        """The address of the first element."""
        return self._address

    @property
    def element_type(self) -> Any:
        """The numeric type of the elements. Assigning another type reinterprets the memory."""
        return self._form.signature.dtype

    @element_type.setter
    def element_type(self, dtype: object) -> None:
        if not isinstance(dtype, NumericMeta) or dtype.is_abstract:
            raise type_error(f"element_type takes a numeric type such as Float16, got {dtype!r}")
        array = _reinterpreted(self._array, dtype)
        self._set(_static_form(array, max(self._alignment, natural_alignment(dtype))))

    @property
    def dynamic_shapes_mask(self) -> tuple[int, ...]:
        """1 for each extent that is dynamic, 0 for each that is compiled in."""
        return tuple(int(isinstance(leaf, DynamicLeaf)) for leaf in self._signature.shape)

    @property
    def dynamic_strides_mask(self) -> tuple[int, ...]:
        """1 for each stride that is dynamic, 0 for each that is compiled in."""
        return tuple(int(isinstance(leaf, DynamicLeaf)) for leaf in self._signature.stride)

    def __str__(self) -> str:
        signature = self._signature
        if any(isinstance(leaf, DynamicLeaf) for leaf in (*signature.shape, *signature.stride)):
            layout = signature.layout
        else:
            layout = f"{self.shape}:{self.stride}"
        return f"Tensor<0x{self._address:016x}@{self._memspace} o {layout}>"

    def __repr__(self) -> str:
        return str(self)

    if not TYPE_CHECKING:

        def __getitem__(self, coord: Any, *, loc: object = None, ip: object = None) -> Any:
            raise type_error(
                "an element of a tensor is taken outside a traced function",
                "pass the tensor to a @jit function, or index the array it was made of",
            )

        def __setitem__(self, coord: object, value: object, *, loc: object = None, ip: object = None) -> None:
            self[coord]

        def load(self, *, loc: object = None, ip: object = None) -> Any:
            """Raise an error: loading needs a traced function."""
            return self[None]

        store = fill = load

    def mark_layout_dynamic(self, leading_dim: int | None = None) -> RuntimeTensor:
        """Make all extents and strides dynamic but the stride 1 of the leading mode and strides of 0.

        The leading mode is found if one mode has stride 1 (of several, the one whose extent is not 1).
        """
        self._set(marked(self._form, leading_dim, self._narrow_strides))
        return self

    def mark_compact_shape_dynamic(
        self, mode: int, stride_order: Sequence[int] | None = None, divisibility: int = 1
    ) -> RuntimeTensor:
        """Make one extent of a compact layout dynamic, and the strides that depend on it.

        `stride_order` lists the modes from the outermost to the innermost (as torch's `dim_order`); it must be given
        where the strides do not tell. `divisibility` is a number the extent will always be a multiple of.
        """
        order = None if stride_order is None else tuple(stride_order)
        form, self._order = marked_compact(self._form, self._order, mode, order, divisibility, self._narrow_strides)
        self._set(form)
        return self


def _static_form(array: Array, alignment: int | None) -> Form:
    """Return the form of an array with a static layout, whose address is a multiple of `alignment`, and of what its
    elements need."""
    if alignment is not None and (alignment < 1 or alignment & (alignment - 1)):
        raise type_error(f"the alignment {alignment} is not a power of two")
    alignment = max(alignment or 1, natural_alignment(array.dtype))
    if array.address % alignment or min(array.strides, default=0) < 0:
        _check_address(array, alignment)
    space = AddressSpace.gmem if array.device == "cuda" else AddressSpace.generic
    return form(array.dtype, space, alignment, array.readonly, tuple(array.shape), tuple(array.strides))


def as_device_memory(x: object) -> Any:
    """Return an array of the host as one of the GPU where host memory stands for GPU memory; else the array itself."""
    if not hardware.cuda_is_host_memory:
        return x
    array = read_array(x)._replace(device="cuda")
    return RuntimeTensor(_static_form(array, None), array.address, x)


def _check_address(array: Array, alignment: int) -> None:
    if array.address % alignment and 0 not in array.shape:
        natural = natural_alignment(array.dtype)
        raise type_error(
            f"the array's address {array.address:#x} is not a multiple of {alignment}",
            "pass a smaller assumed_align, or an array that is aligned"
            if alignment > natural
            else f"{array.dtype.__name__} elements lie at multiples of {natural} bytes: pass a copy of the array",
        )
    if any(d < 0 for d in array.strides):
        raise type_error(
            f"the array has negative strides {array.strides}", "pass a copy, for example numpy.ascontiguousarray(x)"
        )


def _reinterpreted(array: Array, dtype: Any) -> Array:
    """Return the same memory as elements of another type."""
    old = element_bits(array.dtype)
    new = element_bits(dtype)
    if old == new:
        return array._replace(dtype=dtype)
    leading = find_leading(array.shape, array.strides)
    if (
        leading is None
        or (array.shape[leading] * old) % new
        or any((d * old) % new for i, d in enumerate(array.strides) if i != leading)
    ):
        raise type_error(
            f"a layout {array.shape}:{array.strides} of {array.dtype.__name__} does not divide into {dtype.__name__} elements"
        )
    shape = tuple(s * old // new if i == leading else s for i, s in enumerate(array.shape))
    strides = tuple(1 if i == leading else d * old // new for i, d in enumerate(array.strides))
    return array._replace(dtype=dtype, shape=shape, strides=strides)


def from_dlpack(
    tensor_dlpack: object,
    assumed_align: int | None = None,
    use_32bit_stride: bool = False,
    *,
    enable_tvm_ffi: bool = False,
    force_tf32: bool = False,
) -> RuntimeTensor:
    """Return a tensor on the memory of an array: numpy, torch, jax, cupy or whatever has the DLPack protocol. No copy.

    The layout is static; `mark_layout_dynamic` of the result makes it dynamic.

    Args:
        tensor_dlpack: the array; the tensor keeps its memory, also if the array is deleted or donated (JAX).
        assumed_align: a multiple in bytes that the address promises to be, and that is checked; by default that of an
            element. Wide accesses and TMA need 16.
        use_32bit_stride: pass dynamic strides in 32 bits.
        enable_tvm_ffi: accepted as in CuTe DSL; functions compiled with `--enable-tvm-ffi` take any tensor.
        force_tf32: take Float32 elements as TFloat32.
    """
    native = reading_natively(tensor_dlpack)
    key = None
    if native is not None and (assumed_align is None or assumed_align <= plan.DESCRIBED_ALIGNMENT):
        key = (native.describe(tensor_dlpack), assumed_align, force_tf32)
        form = _forms.get(key)
        address = native.address(tensor_dlpack)
        if form is not None and address:
            return RuntimeTensor(form, address, tensor_dlpack, use_32bit_stride, memory_of(tensor_dlpack))
    if type(tensor_dlpack) is RuntimeTensor:
        array = tensor_dlpack._array
        keep = tensor_dlpack._keep
        memory = tensor_dlpack._memory
    else:
        array = read_array(tensor_dlpack)
        keep = array.keep
        memory = memory_of(tensor_dlpack) if array.address else None
    if force_tf32 and array.dtype is Float32:
        array = array._replace(dtype=TFloat32)
    form = _static_form(array, assumed_align)
    if key is not None and key[0] is not None:
        if len(_forms) >= _MOST_FORMS:
            _forms.clear()
        _forms[key] = form
    return RuntimeTensor(form, array.address, keep, use_32bit_stride, memory)


_forms: dict[Any, Form] = {}
"""The forms of arrays, by native code's description and the arguments of `from_dlpack`."""
_MOST_FORMS = 4096


class SymInt:
    """An extent or stride that is known only when a compiled function is called."""

    __kiln_static__ = True

    def __init__(self, width: int = 32, *, divisibility: int = 1, symbol: str | None = None) -> None:
        if width not in (32, 64):
            raise type_error(f"a symbolic integer has 32 or 64 bits, not {width}")
        if divisibility < 1:
            raise type_error(f"divisibility is {divisibility}: it is a positive number")
        self.width = width
        self.divisibility = divisibility
        self.symbol = symbol

    def __str__(self) -> str:
        return str(DynamicLeaf(self.width, self.divisibility))

    def __repr__(self) -> str:
        return str(self)

    def __mul__(self, other: int) -> SymInt:
        return SymInt(self.width, divisibility=self.divisibility * abs(int(other)))

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> SymInt:
        if self.divisibility % other:
            return SymInt(self.width)
        return SymInt(self.width, divisibility=self.divisibility // other)

    def __mod__(self, other: int) -> Any:
        return 0 if self.divisibility % other == 0 else SymInt(self.width)

    def __key(self) -> tuple[int, int, str | None]:
        return (self.width, self.divisibility, self.symbol)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymInt) and self.__key() == other.__key()

    def __hash__(self) -> int:
        return hash(self.__key())


def sym_int(width: int = 32, *, divisibility: int = 1, symbol: str | None = None) -> SymInt:
    """Return a symbolic extent or stride for `make_fake_tensor`, of `width` bits.

    It is a multiple of `divisibility`. Extents with the same `symbol` are equal in every call.
    """
    return SymInt(width, divisibility=divisibility, symbol=symbol)


def sym_int32(divisibility: int = 1, symbol: str | None = None) -> SymInt:
    """Return a symbolic integer of 32 bits, a multiple of `divisibility`; those of one `symbol` are equal."""
    return SymInt(32, divisibility=divisibility, symbol=symbol)


def sym_int64(divisibility: int = 1, symbol: str | None = None) -> SymInt:
    """Return a symbolic integer of 64 bits, a multiple of `divisibility`; those of one `symbol` are equal."""
    return SymInt(64, divisibility=divisibility, symbol=symbol)


class FakeTensor(_Passed):
    """The description of a tensor, to compile for. It has no memory and cannot be passed in a call."""

    __kiln_static__ = True

    def __init__(self, signature_: TensorSignature, shape: Any, stride: Any) -> None:
        self._signature = signature_
        self._shape = shape
        self._stride = stride
        self.symbols: list[tuple[Any, str]] = symbols_of(shape, stride)
        """The symbols that its dynamic leaves share with others."""

    def __c_pointers__(self) -> list[int]:
        """Return a null address: a fake tensor can be compiled for, but not passed in a call."""
        return [0]

    @property
    def shape(self) -> Any:
        return self._shape

    @property
    def stride(self) -> Any:
        return self._stride

    @property
    def element_type(self) -> Any:
        return self._signature.dtype

    @property
    def memspace(self) -> AddressSpace:
        return self._signature.memspace

    @property
    def _assumed_align(self) -> int:
        """The alignment in bytes, under the name that programs know."""
        return self._signature.alignment

    @property
    def leading_dim(self) -> Any:
        return next((i for i, d in enumerate(self._stride) if d == 1), None)

    def mark_layout_dynamic(self, leading_dim: int | None = None) -> FakeTensor:
        """Return the description as it is: its leaves say themselves what is dynamic."""
        return self

    def __str__(self) -> str:
        return f"FakeTensor<{self._signature.dtype.__name__}@{self._signature.memspace} o {self._signature.layout}>"

    def __repr__(self) -> str:
        return str(self)


def _pattern(x: object, what: str) -> Any:
    if isinstance(x, SymInt):
        return DynamicLeaf(x.width, x.divisibility)
    if isinstance(x, DynamicLeaf) or (isinstance(x, int) and not isinstance(x, bool)):
        return x
    raise type_error(f"{what} {x!r}: expected an int or sym_int()")


def make_fake_tensor(
    dtype: object,
    shape: object,
    stride: object,
    *,
    memspace: AddressSpace = AddressSpace.gmem,
    assumed_align: int | None = None,
) -> FakeTensor:
    """Return the description of a tensor for `cute.compile`, without memory.

    Args:
        dtype: the element type.
        shape: the extents; symbolic integers (`cute.sym_int`) are dynamic.
        stride: the strides, nested as `shape` is; symbolic integers are dynamic.
        memspace: the memory of the tensor; by default global.
        assumed_align: the alignment in bytes that calls promise; by default that of an element.
    """
    shape = _as_tuple(shape)
    stride = _as_tuple(stride)
    if len(shape) != len(stride):
        raise type_error(f"shape {shape} and stride {stride} have different numbers of modes")
    extents = tuple(_pattern(s, "extent") for s in shape)
    strides = tuple(_pattern(d, "stride") for d in stride)
    signature_ = signature(dtype, memspace, assumed_align or natural_alignment(dtype), extents, strides, counted=False)
    return FakeTensor(signature_, shape, stride)


def _as_tuple(x: object) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def make_fake_compact_tensor(
    dtype: object,
    shape: object,
    *,
    stride_order: Sequence[int] | None = None,
    memspace: AddressSpace = AddressSpace.gmem,
    assumed_align: int | None = None,
    use_32bit_stride: bool = False,
) -> FakeTensor:
    """Return the description of a compact tensor for `cute.compile`, without memory.

    Args:
        dtype: the element type.
        shape: the extents; symbolic integers (`cute.sym_int`) are dynamic.
        stride_order: a number for each mode, 0 for the fastest; by default mode 0 is. `(1, 0)` is row-major.
        memspace: the memory of the tensor; by default global.
        assumed_align: the alignment in bytes that calls promise; by default that of an element.
        use_32bit_stride: pass dynamic strides in 32 bits.
    """
    shape = _as_tuple(shape)
    order = tuple(range(len(shape))) if stride_order is None else tuple(stride_order)
    if sorted(order) != list(range(len(shape))):
        raise type_error(f"stride_order {order} is not an order of {len(shape)} modes")
    strides: list[Any] = [None] * len(shape)
    step: Any = 1
    width = 32 if use_32bit_stride else 64
    for mode in sorted(range(len(shape)), key=lambda m: order[m]):
        strides[mode] = step
        extent = _pattern(shape[mode], "extent")
        if isinstance(extent, DynamicLeaf):
            factor = step.divisibility if isinstance(step, SymInt) else step
            step = SymInt(width, divisibility=factor * extent.divisibility)
        else:
            step = step * extent
    return make_fake_tensor(dtype, shape, tuple(strides), memspace=memspace, assumed_align=assumed_align)


class FakeStream:
    """A stream to compile for. With `use_tvm_ffi_env_stream`, calls without it run on PyTorch's current stream."""

    __kiln_static__ = True

    def __init__(self, use_tvm_ffi_env_stream: bool = False) -> None:
        self.use_tvm_ffi_env_stream = use_tvm_ffi_env_stream


def make_fake_stream(*, use_tvm_ffi_env_stream: bool = False) -> FakeStream:
    """Return a stream to compile for; with `use_tvm_ffi_env_stream`, calls use PyTorch's current stream."""
    return FakeStream(use_tvm_ffi_env_stream)


class PointerSignature(NamedTuple):
    """What compiled code knows about a pointer argument."""

    dtype: Any
    memspace: AddressSpace
    alignment: int

    def __str__(self) -> str:
        return f"a pointer to {self.dtype.__name__} ({self.memspace}, align {self.alignment})"


@functools.cache
def pointer_signature(
    dtype: object, memspace: AddressSpace, alignment: int
) -> tuple[PointerSignature, plan.ArgumentRecord]:
    """Return the signature of a description, one object for equal ones, and what makes such pointers'
    argument records."""
    signature = PointerSignature(dtype, memspace, alignment)
    return signature, plan.ArgumentRecord(signature, plan.CPU, dtype, False, (), (), "Q", ())


class RuntimePointer(Pointer):
    """An address to pass to compiled functions. `keep` is what holds the memory, if known."""

    __kiln_static__ = True
    __slots__ = ("_address_value", "_argument", "_argument_record", "_memory", "keep")

    def __init__(
        self, dtype: Any, address: int, memspace: AddressSpace, alignment: int | None = None, keep: object = None
    ) -> None:
        alignment = natural_alignment(dtype) if alignment is None else alignment
        if alignment < 1 or alignment & (alignment - 1):
            raise type_error(f"the alignment {alignment} is not a power of two")
        if address % alignment:
            raise type_error(
                f"the address {address:#x} is not a multiple of {alignment}", "pass a smaller assumed_align"
            )
        self._base = None
        self._offset = self._inside = 0
        self._apart = True
        self._dtype = dtype
        self._memspace = memspace
        self._alignment = alignment
        self._swizzle = None
        self._readonly = False
        self._address_value = address
        self._memory: ctypes.c_uint64 | None = None
        signature, argument_record = pointer_signature(dtype, memspace, alignment)
        self._argument = (signature, (address,))
        self._argument_record = argument_record(address)
        self.keep: Any = keep

    def __kiln_argument__(self) -> Any:
        return self._argument

    def __kiln_content__(self) -> Any:
        """What a trace can know of it: not what is in its memory."""
        return self._argument

    @property
    def __cache_key__(self) -> tuple[object, ...]:
        """What compiled code knows of it."""
        return self._dtype, self._memspace, self._alignment

    def toint(self, *, loc: object = None, ip: object = None) -> int:
        """Return the address."""
        return self._address_value

    __tvm_ffi_opaque_ptr__ = toint

    def __c_pointers__(self) -> list[int]:
        """Return where the address lies in memory, for objects that pass a pointer on as part of themselves."""
        if self._memory is None:
            self._memory = ctypes.c_uint64(self._address_value)
        return [ctypes.addressof(self._memory)]

    @property
    def _pointer(self) -> int:
        """The address, by the name that programs use to free the memory."""
        return self._address_value

    def __add__(self, offset: object) -> Any:
        if not isinstance(offset, int):
            return NotImplemented
        step = offset * element_bits(self._dtype)
        if step % 8:
            raise type_error(f"{offset} packed elements are not whole bytes")
        address = self._address_value + step // 8
        alignment = self._alignment
        while address % alignment:
            alignment //= 2
        return RuntimePointer(self._dtype, address, self._memspace, alignment, self.keep)

    __radd__ = __add__

    def __str__(self) -> str:
        return f"Ptr<0x{self._address_value:016x}@{self._memspace}>"

    def __repr__(self) -> str:
        return str(self)


def make_ptr(
    dtype: object, value: Any, mem_space: AddressSpace = AddressSpace.generic, assumed_align: int | None = None
) -> Pointer:
    """Return a pointer to pass as an argument. The memory must outlive the calls that use it.

    Args:
        dtype: the type of its elements.
        value: the address: an int, a ctypes pointer, or what has `__int__`. TypeError if it is negative or over 64
            bits.
        mem_space: the memory it points to; by default generic.
        assumed_align: the bytes that the address is known to be a multiple of; by default those of an element.
    """
    if not isinstance(dtype, NumericMeta) or dtype.is_abstract:
        raise type_error(f"make_ptr takes a numeric type such as Float16, got {dtype!r}")
    if isinstance(value, ctypes.c_void_p):
        address = value.value or 0
    elif isinstance(value, ctypes._Pointer):
        address = ctypes.cast(value, ctypes.c_void_p).value or 0
    elif hasattr(value, "__index__"):
        address = int(value.__index__())
    elif hasattr(value, "__int__"):
        address = int(value)
    else:
        raise type_error(f"make_ptr takes an address (int or ctypes pointer), got {type(value).__name__}")
    if not 0 <= address < 1 << 64:
        what = "the negative address" if address < 0 else "an address of more than 64 bits:"
        raise type_error(f"make_ptr got {what} {address}", "addresses are 0 to 2**64 - 1")
    return RuntimePointer(dtype, address, mem_space, assumed_align)


def nullptr(dtype: object, mem_space: AddressSpace = AddressSpace.generic, assumed_align: int | None = None) -> Pointer:
    """Return a pointer with address 0, to pass where an array is optional.

    Args:
        dtype: the type of its elements.
        mem_space: the memory it points to; by default generic.
        assumed_align: the bytes that the address is known to be a multiple of; by default those of an element.
    """
    return make_ptr(dtype, 0, mem_space, assumed_align)


def find_runtime_libraries(*, enable_tvm_ffi: bool = True) -> list[str]:
    """Return the libraries that compiled code needs at run time: none, with or without `enable_tvm_ffi`.

    CuTe DSL returns the paths of its runtime here; link commands that use the list work unchanged.
    """
    return []


def load_module(file_path: object, *, enable_tvm_ffi: bool = False) -> Any:
    """Return the functions of an object or shared library that `export_to_c` wrote, as attributes.

    Args:
        file_path: the `.o` or `.so` file.
        enable_tvm_ffi: return functions of TVM-FFI; by default they take what compiled functions take, keywords
            included.
    """
    return conventions.exporter().load_module(file_path, enable_tvm_ffi=enable_tvm_ffi)


ExternalBinaryModule = load_module
"""The class of what `load_module` returns, as programs call it."""
