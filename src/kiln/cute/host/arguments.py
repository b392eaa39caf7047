"""Nodes of tensors, pointers, layouts, shapes and streams, which are passed to compiled functions and to kernels."""

from __future__ import annotations

import ctypes
import functools
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from ...base_dsl import packages, promises, trace, tree
from ...base_dsl.arguments import GroupNode, Node, NumericNode, SymbolKey, ValuesNode
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import DSLUserCodeValueError, error, type_error
from ...base_dsl.parameters import Parameters
from ...base_dsl.static_key import static_key
from ...base_dsl.typing import Boolean, Int32, Int64, Numeric, is_constexpr
from ...hardware import current as hardware
from ..atoms.atom import Atom, Op
from ..deferred_dialects import cute
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import Coord, IntTuple, Shape
from ..layout.layout import Layout, Stride, Tile
from ..layout.offset_width import extent_width
from ..layout.swizzle import Swizzle
from ..tensor import array as arrays_in_trace
from ..tensor.pointer import AddressSpace, Pointer, natural_alignment
from ..tensor.tensor import Tensor, TracedTensor
from . import runtime, unreadable
from .arrays import (
    Array,
    find_leading,
    is_array,
    is_torch_tensor,
    numpy_element_type,
    read_array,
    row_major,
    torch_element_type,
)
from .runtime import DynamicLeaf, FakeStream, FakeTensor, RuntimePointer, RuntimeTensor, SymInt, TensorSignature
from .stream import HANDLES, current_stream, handle_of
from .tensor_forms import array_variants
from .tensor_pattern import TensorPattern, pattern_of, read_annotations

__all__ = ["read_annotations"]


class TensorNode(Node):
    """A tensor passed from Python. `bare`: it is an array, of which its user said nothing."""

    key: TensorSignature
    is_array = True

    def __init__(
        self,
        signature: TensorSignature,
        leaves: tuple[int, ...] | None,
        array: Array | None,
        alignment: int = 0,
        symbols: list[tuple[Any, str]] | None = None,
        *,
        bare: bool = False,
    ) -> None:
        self.key = signature
        self.symbols = symbols
        self._bare = bare
        self.formats: str = signature.formats
        self._leaves = leaves if array is None or array.has_memory else None
        self._array = array
        self._alignment = alignment

    def types(self) -> list[ir.Type]:
        return self.key.types()

    def leaves(self) -> list[Any]:
        if self._leaves is None:
            kind = "fake tensor" if self._array is None else type(self._array.keep).__qualname__
            raise type_error(
                f"a {kind} has no memory, and is passed in a call",
                "it describes an argument for cute.compile; call the compiled function with real tensors. Under "
                "torch.compile and make_fx call an operator that you made with kiln.torch.op",
            )
        return list(self._leaves)

    @property
    def strength(self) -> int:  # type: ignore[override]
        return self.key.strength

    def specialized(self) -> Node:
        """Return a bare array as one whose alignment and divisibility are known."""
        if not self._bare or self._leaves is None:
            return self
        narrowed = array_variants(self.key).of(self._leaves)
        return self if narrowed is self.key else TensorNode(narrowed, self._leaves, self._array, self._alignment)

    def fit(self, expected: Hashable) -> Node | str:
        """Return this tensor as an argument of the expected signature, or why it does not fit."""
        if not isinstance(expected, TensorSignature) or self._array is None:
            return ""
        reason = expected.misfit(self._array, self._alignment)
        if reason:
            return reason
        array = self._array
        return TensorNode(
            expected, expected.leaves_of(array.address, array.shape, array.strides), array, self._alignment
        )

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return self.key.rebuild(values)


class PointerNode(Node):
    """An address passed from Python."""

    key: runtime.PointerSignature
    formats = "Q"

    def __init__(self, pointer: RuntimePointer) -> None:
        self._pointer = pointer  # holds the memory: the object it was taken from may be freed during the call
        self.key, self._leaves = pointer._argument

    def types(self) -> list[ir.Type]:
        cute.load_dialect()
        return [cute.ptr_type(self.key.dtype.mlir_type, self.key.memspace.name, self.key.alignment)]

    def leaves(self) -> list[Any]:
        return list(self._leaves)

    def fit(self, expected: Hashable) -> Node | str:
        """Return this pointer as one of another alignment, or into global memory; or why it does not fit."""
        if not isinstance(expected, runtime.PointerSignature):
            return ""
        if expected.dtype is not self.key.dtype or (
            expected.memspace is not self.key.memspace and self.key.memspace is not AddressSpace.generic
        ):
            return "its type or memory differs"
        address = self._leaves[0]
        if address % expected.alignment:
            return f"its address {address:#x} is not a multiple of {expected.alignment}"
        return PointerNode(
            RuntimePointer(expected.dtype, address, expected.memspace, expected.alignment, self._pointer)
        )

    def adapter(self) -> Callable[[Any], Any] | None:
        """An address is a pointer of the type that was compiled for."""
        kind, space, alignment = self.key
        return lambda value: RuntimePointer(kind, value, space, alignment) if type(value) is int else value

    def view(self) -> Callable[[object], object] | None:
        """A tensor is a pointer to its first element."""
        return lambda value: value.iterator if isinstance(value, runtime.RuntimeTensor) else value

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return Pointer(next(values), *self.key)


def value_node(value: object) -> Node:
    """Return the node of a value in a trace that defines its own MLIR values."""
    own = list(tree.values_of(value))
    return ValuesNode(own, lambda values: tree.rebuilt(value, [next(values) for _ in own]))


class IndexNode(NumericNode):
    """An integer of a shape or layout: its known sign and divisibility stay known."""

    def __init__(self, leaf: Any) -> None:
        super().__init__(type(leaf), leaf)
        self._facts = leaf.nonneg, leaf.divisibility if not leaf.is_static else 1

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return self.kind._make(next(values), *self._facts)


class SymbolNode(NumericNode):
    """A symbolic integer that a function is compiled for; calls pass a number."""

    def __init__(self, symbol: SymInt) -> None:
        super().__init__(Int64 if symbol.width == 64 else Int32, 0)
        self.key: SymbolKey = SymbolKey(self.kind)
        self._divisibility = symbol.divisibility

    def leaves(self) -> list[Any]:
        raise type_error("a symbolic integer is passed in a call", "it stands for a number in cute.compile")

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return self.kind._make(next(values), True, self._divisibility)


class TreeNode(GroupNode):
    """Integers in a structure: a shape, a layout. Python ints are static, typed integers are passed."""

    has_named_parts = False

    def __init__(self, key: Hashable, leaves: Sequence[object], rebuild: Callable[[Iterator[Any]], Any]) -> None:
        super().__init__(key, [IndexNode(leaf) for leaf in leaves], lambda parts: rebuild(iter(parts)))

    def fit(self, expected: Hashable) -> Node | str:
        return ""

    def static_values(self) -> list[Any]:
        return []


def layout_node(layout: Any) -> Node:
    """Return a layout: static leaves stay static."""
    leaves = list(layout._leaves())
    inner = getattr(layout, "inner", None)
    key: Any = (type(layout).__name__, str(layout))
    if inner is not None and callable(inner) and not isinstance(inner, Layout) and hasattr(inner, "__code__"):
        key = (*key, static_key(inner))
    if not leaves:
        return _StaticTree(layout, key)
    return TreeNode(key, leaves, layout._with_leaves)


class _StaticTree(Node):
    """A layout or shape without dynamic leaves."""

    def __init__(self, value: Any, key: Hashable) -> None:
        self._value = value
        self.key = key

    def fit(self, expected: Hashable) -> Node | str:
        """Return an int as an integer of the program, where that is expected."""
        if type(self._value) is not int or type(expected) is not tuple or len(expected) != 2 or expected[0] != ():
            return ""
        kind: Any = expected[1]
        if not kind.min <= self._value <= kind.max:
            return f"it is {self._value}, and {kind.__name__} goes from {kind.min} to {kind.max}"
        return TreeNode((), [kind(self._value)], next)

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return self._value

    def static_values(self) -> list[Any]:
        return [self._value]


def shape_node(value: object) -> Node:
    """Return an argument annotated as a shape, stride, coordinate or tile: Python ints in it are static."""
    if isinstance(value, (Layout, ComposedLayout)):
        return layout_node(value)
    if isinstance(value, (tuple, list)):
        children = [shape_node(v) for v in value]
        return GroupNode(tuple, children, tuple)
    if isinstance(value, Numeric):
        return TreeNode((), [value], next) if type(value).is_integer else NumericNode(type(value), value)
    return _StaticTree(value, static_key(value))


class AddressNode(Node):
    """An untyped address, `ctypes.c_void_p`, which fits compiled code that takes a pointer."""

    key: str = "an address"

    def __init__(self, address: int) -> None:
        self._address = address

    def types(self) -> list[ir.Type]:
        raise type_error(
            "an address does not say of what: ctypes.c_void_p is for calls of compiled functions",
            "compile for make_ptr(dtype, address, ...)",
        )

    leaves = types

    def fit(self, expected: Hashable) -> Node | str:
        if not isinstance(expected, runtime.PointerSignature):
            return ""
        if self._address % expected.alignment:
            return f"its address {self._address:#x} is not a multiple of {expected.alignment}"
        return PointerNode(RuntimePointer(expected.dtype, self._address, expected.memspace, expected.alignment))


class StreamNode(Node):
    """A stream, passed as its handle."""

    formats = "Q"
    key: str = "a stream"
    is_stream = True

    def __init__(self, handle: int | None, stream: Any, ambient: bool = False) -> None:
        self._handle = handle
        self._stream = stream  # its handle is invalid when it is gone
        self.ambient: Callable[[], Any] | None = current_stream if ambient else None
        """Returns what to pass where a call leaves the stream out."""

    def types(self) -> list[ir.Type]:
        return [Int64.mlir_type]

    def leaves(self) -> list[Any]:
        return [self._handle or 0]

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return Int64._make(next(values))


def check_described(value: object, annotation: object, path: str, owner: str) -> None:
    """Raise an error for a tensor that is not as its annotation describes it."""
    pattern = pattern_of(annotation)
    if pattern is None:
        return
    pattern.check(value, path, owner)
    array = _array_of(value)
    if array is not None:
        reason = pattern.signature(array).misfit(array, natural_alignment(array.dtype))
        if reason:
            raise pattern.refusal(path, reason, owner)


def _array_of(value: object) -> Array | None:
    """Return the array of an argument: a bare one, or that of a tensor; None if it is no array."""
    if type(value) is RuntimeTensor:
        return value._array
    return read_array(value) if is_array(type(value)) and not isinstance(value, Tensor) else None


def _described_node(array: Array, pattern: TensorPattern) -> Node:
    """Return an array that fits a description, as code for the description takes it."""
    _check_device(array.device)
    alignment = natural_alignment(array.dtype)
    runtime._check_address(array, alignment)
    signature = pattern.signature(array)
    leaves = signature.leaves_of(array.address, array.shape, array.strides)
    return TensorNode(signature, leaves, array, alignment, pattern.symbols)


def argument_node(value: Any, annotation: object) -> Node | None:
    """Return the node of a value of this language, or None."""
    kind = type(value)
    pattern = pattern_of(annotation)
    if pattern is not None:
        array = _array_of(value)
        if array is not None:
            return _described_node(array, pattern)
    if kind is RuntimeTensor:
        _check_device(value._array.device)
        signature, leaves = value._argument
        return TensorNode(signature, leaves, value._array, value._alignment)
    if kind is TracedTensor or kind is Pointer:
        return value_node(value)
    if kind is RuntimePointer:
        return PointerNode(value)
    if kind is SymInt:
        return SymbolNode(value)
    if kind is FakeTensor:
        return TensorNode(value._signature, None, None, symbols=value.symbols)
    if kind is Layout or kind is ComposedLayout:
        return layout_node(value)
    if kind is FakeStream:
        return StreamNode(None, value, value.use_tvm_ffi_env_stream)
    if kind is ctypes.c_void_p:
        return AddressNode(value.value or 0)
    handle = handle_of(value)
    if handle is not None:
        return StreamNode(handle, value)
    if is_array(kind):
        return array_node(value)
    if hasattr(kind, "__extract_mlir_values__") and trace.current() is not None:
        return value_node(value)
    unreadable.check(value)
    if is_tensor_annotation(annotation) and hasattr(kind, "__array__"):
        raise type_error(
            f"{kind.__module__}.{kind.__qualname__} is passed as a tensor, and does not tell where its elements are",
            "pass an array: numpy.asarray(x)",
        )
    return None


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    if hardware.compiled_for().name == "cpu" and not hardware.cuda_is_host_memory:
        raise error(
            DSLUserCodeValueError,
            "a tensor on a CUDA device is passed to a function compiled for the CPU",
            hint="pass a CPU tensor, or choose the GPU: kiln.target('nvidia')",
        )


def array_node(x: object) -> Node:
    """Return an array of another library: all of its layout is dynamic but the stride 1 of the leading mode."""
    array = read_array(x)
    _check_device(array.device)
    alignment = natural_alignment(array.dtype)
    runtime._check_address(array, alignment)
    signature, leaves = _array_argument(
        array.dtype, array.address, array.shape, array.strides, array.device, array.readonly
    )
    return TensorNode(signature, leaves, array, alignment, bare=array.has_memory)


def _array_argument(
    dtype: object, address: int, shape: tuple[int, ...], strides: tuple[int, ...], device: str, readonly: bool
) -> tuple[TensorSignature, tuple[int, ...]]:
    if 0 in shape:  # strides of an array without elements say nothing
        strides = row_major(shape)
    leading = find_leading(shape, strides)
    width = extent_width(shape)
    # strides of 0 stay static, so the pattern depends on where they are
    zeros = tuple([i for i, d in enumerate(strides) if d == 0]) if 0 in strides else ()
    key = (dtype, len(shape), leading, zeros, device, readonly, width)
    signature = _array_signatures.get(key)
    if signature is None:
        extents = tuple(DynamicLeaf(width, 1) for _ in shape)
        steps = tuple(d if i == leading or d == 0 else DynamicLeaf(64, 1) for i, d in enumerate(strides))
        space = AddressSpace.gmem if device == "cuda" else AddressSpace.generic
        signature = runtime.signature(dtype, space, natural_alignment(dtype), extents, steps, readonly)
        _array_signatures[key] = signature
    if leading is None and not zeros:
        return signature, (address, *shape, *strides)
    return signature, (address, *shape, *[d for i, d in enumerate(strides) if i != leading and d != 0])


_array_signatures: dict[tuple[Any, ...], TensorSignature] = {}


def quick_array(kind: type, specialize: bool) -> Callable[[Any], Any] | None:
    """Return a function from arrays of numpy or torch to (key, leaves), without a node; None for other types."""
    numpy = packages.loaded("numpy")
    if numpy is not None and kind is numpy.ndarray:
        read = _quick_numpy
    elif is_torch_tensor(kind) and kind.__name__ in ("Tensor", "Parameter"):
        read = _quick_torch
    else:
        return None
    return functools.partial(_quick_specialized, read) if specialize else read


def _quick_specialized(read: Callable[[Any], Any], x: object) -> Any:
    argument = read(x)
    return None if argument is None else (array_variants(argument[0]).of(argument[1]), argument[1])


# The signature and leaves of an array, by its dtype, shape and strides: calls repeat them, so only the address is new.
_seen: dict[Any, tuple[TensorSignature, tuple[int, ...], int]] = {}
_SEEN_LIMIT = 4096


def _remember(key: object, signature: TensorSignature, leaves: tuple[int, ...], alignment: int) -> tuple[Any, Any, int]:
    if len(_seen) >= _SEEN_LIMIT:
        _seen.clear()
    entry = _seen[key] = (signature, leaves[1:], alignment)
    return entry


def _quick_numpy(x: Any) -> Any:
    address, readonly = x.__array_interface__["data"]
    key = (x.dtype, x.shape, x.strides, readonly)
    entry = _seen.get(key)
    if entry is None:
        dtype = numpy_element_type(x.dtype)
        size = x.itemsize
        strides = tuple([s // size for s in x.strides])
        if min(strides, default=0) < 0 or any(s % size for s in x.strides):
            return None  # the node says what is wrong
        entry = _remember(key, *_array_argument(dtype, 0, x.shape, strides, "cpu", readonly), natural_alignment(dtype))
    signature, leaves, alignment = entry
    return None if address % alignment else (signature, (address, *leaves))


def _quick_torch(x: Any) -> Any:
    if x.is_cuda:
        device = "cuda"
    elif x.is_cpu:
        device = "cpu"
    else:
        return None
    try:
        address = x.data_ptr()
        strides = x.stride()
        key = (x.dtype, x.shape, strides, device)
    except RuntimeError:  # a sparse tensor, or one without storage
        return None
    entry = _seen.get(key)
    if entry is None:
        _check_device(device)
        dtype = torch_element_type(x.dtype)
        if dtype.width < 8 and dtype is not Boolean:
            return None
        signature, leaves = _array_argument(dtype, 0, tuple(x.shape), strides, device, False)
        entry = _remember(key, signature, leaves, natural_alignment(dtype))
    signature, leaves, alignment = entry
    if not address or address % alignment or x.is_neg():
        return None  # the node says what is wrong, if anything is
    return signature, (address, *leaves)


_SHAPE_LIKE = (Shape, Stride, Coord, Tile, IntTuple)
_kinds_by_annotation: dict[int, tuple[Any, str]] = {}


def seen_as(annotation: object) -> Callable[[Any], Any] | None:
    """Return how a parameter annotated so sees a tensor; None for other annotations."""
    return arrays_in_trace.as_array if annotation is arrays_in_trace.Array else None


def as_tensors(parameters: Parameters, args: Sequence[object]) -> list[Any]:
    """Return the arguments of a kernel with the arrays that are annotated as tensors as tensors."""
    kinds = [is_tensor_annotation(parameters.annotation(name)) for name in parameters.names]
    pairs = zip(args, [*kinds, *[False] * (len(args) - len(kinds))])
    return [a.tensor() if tensor and isinstance(a, arrays_in_trace.Array) else a for a, tensor in pairs]


def is_tensor_annotation(annotation: object) -> bool:
    """Return whether an annotation is `Tensor`, with or without a description."""
    return annotation is Tensor or pattern_of(annotation) is not None


def annotation_kind(annotation: object) -> str:
    """Return "static" (Constexpr), "shape" (Shape, Stride, Coord, Tile, IntTuple, also beside None), "described" (a tensor
    with a description) or ""."""
    entry = _kinds_by_annotation.get(id(annotation))
    if entry is not None and entry[0] is annotation:  # the entry keeps the annotation, so the id is not reused
        return entry[1]
    kind = "static" if is_constexpr(annotation) else "shape" if _is_shape_like(annotation) else ""
    kind = "described" if pattern_of(annotation) is not None else kind
    _kinds_by_annotation[id(annotation)] = (annotation, kind)
    return kind


def _is_shape_like(annotation: object) -> bool:
    if any(annotation is shape_like for shape_like in _SHAPE_LIKE):
        return True
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        # a union flattens: Optional[Shape] has the members of Shape and None
        members = set(map(str, typing.get_args(annotation))) - {"<class 'NoneType'>"}
        return any(
            members == set(map(str, typing.get_args(shape_like))) - {"<class 'NoneType'>"} for shape_like in _SHAPE_LIKE
        )
    return False


TENSOR = "tensor"
POINTER = "pointer"
LAYOUT = "layout"
STREAM = "stream"
_SHAPES = frozenset((promises.NUMBER, promises.SEQUENCE, promises.NONE, LAYOUT))


def kind_of(value: object) -> str:
    """Return the kind of a value of this language (see `promises`), empty for others."""
    if isinstance(value, (Tensor, arrays_in_trace.Array)) or is_array(type(value)):
        return TENSOR
    if isinstance(value, Pointer):
        return POINTER
    if isinstance(value, (Layout, ComposedLayout)):
        return LAYOUT
    return STREAM if isinstance(value, FakeStream) or handle_of(value) is not None else ""


def kinds_promised(annotation: object) -> promises.Kinds | None:
    """Return the kinds of values that an annotation of this language allows; None for other annotations."""
    if annotation_kind(annotation) == "shape":
        return _SHAPES
    if annotation_kind(annotation) == "described":
        return frozenset((TENSOR,))
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        members = [promises.kinds_promised(member, kinds_promised) for member in typing.get_args(annotation)]
        kinds = promises.union_of(members)
        # a number, or where it lies in memory: programs pass its address as a pointer as well
        return kinds | {POINTER} if kinds is not None and kinds >= {promises.NUMBER, TENSOR} else kinds
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, (Tensor, arrays_in_trace.Array)):
        return frozenset((TENSOR,))
    if issubclass(annotation, Pointer):
        return frozenset((POINTER,))
    if issubclass(annotation, Layout):
        return frozenset((LAYOUT, promises.SEQUENCE))  # public programs pass the shape of a compact one
    if issubclass(annotation, ComposedLayout):
        return frozenset((LAYOUT,))
    if annotation.__name__ in HANDLES:
        return frozenset((STREAM, promises.NUMBER))
    if issubclass(annotation, (Atom, Op, Swizzle)):
        return frozenset(
            (TENSOR,)
        )  # objects of no kind; programs also name the operation where they mean its accumulators
    return None


def array_layouts(nodes: Sequence[Node]) -> list[str | None]:
    """Return for each leaf of some arguments the layout of the array whose address it is, with `?` for dynamic leaves
    and with `const ` before it if the array is read-only."""
    layouts: list[str | None] = []
    for node in nodes:
        if isinstance(node, GroupNode):
            layouts += array_layouts(node.children)
        elif isinstance(node, TensorNode):
            const = "const " if node.key.readonly else ""
            layouts += [const + node.key.layout, *[None] * (len(node.types()) - 1)]
        else:
            layouts += [None] * len(node.types())
    return layouts
