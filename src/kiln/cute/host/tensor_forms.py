"""Signatures of tensor arguments, which code is compiled for, and forms: prepared tensors without their address."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...base_dsl import target
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Float32, Int32, Int64, TFloat32
from ...hardware import current as hardware
from ...interop.arguments import plan
from ..deferred_dialects import cute
from ..layout.layout import fast_layout
from ..layout.offset_width import INT32_MAX, broken_promise, extent_width
from ..tensor.extents import extents_of
from ..tensor.pointer import AddressSpace, Pointer, element_bits
from ..tensor.tensor import TracedTensor
from .arrays import Array


class DynamicLeaf(NamedTuple):
    """A leaf of a layout that is passed in every call."""

    width: int = 32
    divisibility: int = 1

    def __str__(self) -> str:
        notes = (["i64"] if self.width == 64 else []) + ([f"div={self.divisibility}"] if self.divisibility > 1 else [])
        return "?{" + " ".join(notes) + "}" if notes else "?"


def other_rank(rank: int, expected: int) -> str:
    """Return that an array has another number of modes than is expected."""
    return f"it has {rank} mode{'s' * (rank != 1)}, not {expected}"


def _leaf_texts(leaves: Sequence[object]) -> str:
    inside = ",".join(map(str, leaves))
    return f"({inside})"


class TensorSignature:
    """The static description of a tensor argument. There is one object for equal signatures, so `is` compares them."""

    __kiln_static__ = True
    __slots__ = (
        "_dynamic",
        "_types",
        "alignment",
        "counted",
        "dtype",
        "formats",
        "memspace",
        "promised",
        "readonly",
        "shape",
        "stride",
    )

    def __init__(
        self,
        dtype: object,
        memspace: AddressSpace,
        alignment: int,
        shape: Any,
        stride: Any,
        readonly: bool,
        counted: bool,
    ) -> None:
        self.dtype: Any = dtype
        self.memspace: AddressSpace = memspace
        self.alignment: int = alignment
        self.shape: tuple[Any, ...] = shape
        self.stride: tuple[Any, ...] = stride
        self.readonly: bool = readonly
        self._dynamic = [leaf for leaf in (*shape, *stride) if isinstance(leaf, DynamicLeaf)]
        self.formats = "Q" + "".join("q" if leaf.width == 64 else "i4x" for leaf in self._dynamic)
        self._types: list[ir.Type] | None = None
        self.promised: bool = not any(isinstance(s, DynamicLeaf) and s.width == 64 for s in shape)
        """Whether 32-bit extents promise 32-bit offsets, see `offset_width`."""
        self.counted: bool = counted
        """Whether 32-bit extents promise fewer than 2**31 elements, too. A fake tensor promises that of each extent."""

    @property
    def strength(self) -> int:
        """How much is known of the address and of the dynamic leaves."""
        return self.alignment.bit_length() + sum(leaf.divisibility.bit_length() for leaf in self._dynamic)

    @property
    def layout(self) -> str:
        """The layout, with `?` for dynamic leaves."""
        return f"{_leaf_texts(self.shape)}:{_leaf_texts(self.stride)}"

    @property
    def brief(self) -> str:
        """As signatures of functions show it."""
        return f"Tensor([{', '.join('?' if isinstance(s, DynamicLeaf) else str(s) for s in self.shape)}], {self.dtype.__name__})"

    def __str__(self) -> str:
        space = f"{self.memspace}, align {self.alignment}" + (", read-only" if self.readonly else "")
        return f"a tensor of {self.dtype.__name__} ({space}) with layout {self.layout}"

    __repr__ = __str__

    def types(self) -> list[ir.Type]:
        """Return the IR types of the leaves: the address, then the dynamic leaves of shape and stride."""
        if self._types is None:
            cute.load_dialect()
            pointer = cute.ptr_type(self.dtype.mlir_type, self.memspace.name, self.alignment)
            widths = [Int64 if leaf.width == 64 else Int32 for leaf in self._dynamic]
            self._types = [pointer, *(t.mlir_type for t in widths)]
        return self._types

    def rebuild(self, values: Iterator[ir.Value]) -> TracedTensor:
        """Return the tensor inside the function."""
        base = Pointer(next(values), self.dtype, self.memspace, self.alignment, readonly=self.readonly)

        def leaf(x: object) -> Any:
            if not isinstance(x, DynamicLeaf):
                return x
            kind = Int64 if x.width == 64 else Int32
            return kind._make(next(values), True, x.divisibility)

        shape = tuple(leaf(s) for s in self.shape)
        stride = tuple(leaf(d) for d in self.stride)
        layout = fast_layout(shape, stride)
        return TracedTensor(base, layout, self.promised, extents_of(layout, base))

    def memref_type(self) -> ir.Type:
        """Return the IR type of the tensor as one value."""
        cute.load_dialect()
        return cute.memref_type(self.dtype.mlir_type, self.memspace.name, self.alignment, self.layout)

    def rebuild_from_memref(self, memref: ir.Value) -> TracedTensor:
        """Return the tensor inside the function, of one value."""
        leaves = [cute.leaf(memref, i, leaf.width) for i, leaf in enumerate(self._dynamic)]
        return self.rebuild(iter([cute.iter_(memref, self.types()[0]), *leaves]))

    def leaves_of(self, address: int, shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
        """Return the leaves of a tensor that fits."""
        if not self._dynamic:
            return (address,)
        dynamic = [
            n
            for n, leaf in zip((*shape, *stride), (*self.shape, *self.stride), strict=True)
            if isinstance(leaf, DynamicLeaf)
        ]
        return (address, *dynamic)

    def misfit(self, array: Array, alignment: int) -> str:
        """Return why an array cannot be passed where this is expected; empty if it can."""
        stored = (
            self.dtype,
            Float32 if self.dtype is TFloat32 else self.dtype._model,
        )  # a program's own type has a model
        if array.dtype not in stored:
            return f"its elements are {array.dtype.__name__}"
        if len(array.shape) != len(self.shape):
            return other_rank(len(array.shape), len(self.shape))
        if array.readonly and not self.readonly:
            return "it is read-only"
        if array.device == "cuda" and self.memspace is AddressSpace.generic:
            return "it is on a CUDA device"
        on_gpu = target.target_name() != "cpu" or hardware.cuda_is_host_memory
        if array.device == "cpu" and self.memspace is AddressSpace.gmem and on_gpu:
            return "it is in the memory of the host"
        if self.alignment > alignment and array.address % self.alignment:
            return f"its address {array.address:#x} is not a multiple of {self.alignment}"
        for what, expected, got in (("extent", self.shape, array.shape), ("stride", self.stride, array.strides)):
            for mode, (w, g) in enumerate(zip(expected, got, strict=True)):
                if isinstance(w, DynamicLeaf):
                    if g % w.divisibility:
                        return f"the {what} of mode {mode} is {g}, not a multiple of {w.divisibility}"
                    if w.width == 32 and g > INT32_MAX:
                        return f"the {what} of mode {mode} is {g}, beyond 32 bits"
                elif w != g and not (what == "stride" and array.shape[mode] == 1):
                    return f"the {what} of mode {mode} is {g}, not {w}"
        if not self.promised or not self._dynamic:
            return ""
        passed_wide = [isinstance(d, DynamicLeaf) and d.width == 64 for d in self.stride]
        narrow = [0 if w else d for d, w in zip(array.strides, passed_wide, strict=True)]
        return broken_promise(array.shape, narrow, self.counted)


_signatures: dict[tuple[Any, ...], TensorSignature] = {}


def signature(
    dtype: object,
    memspace: AddressSpace,
    alignment: int,
    shape: tuple[object, ...],
    stride: tuple[object, ...],
    readonly: bool = False,
    counted: bool = True,
) -> TensorSignature:
    """Return the signature of a description."""
    # DynamicLeaf(32, 1) equals the tuple (32, 1) only; ints never equal tuples
    key = (dtype, memspace, alignment, shape, stride, readonly, counted)
    cached = _signatures.get(key)
    if cached is None:
        cached = _signatures.setdefault(key, TensorSignature(*key))
    return cached


VECTOR_BYTES = 16
"""Bare arrays are specialised for addresses, strides and extents that are multiples of this."""
PLAIN, ALIGNED, ALIGNED_ROWS, WHOLE_VECTORS = range(4)
"""What is known of a bare array: nothing; its address is a multiple of 16 bytes; so are its strides (each row begins
at such an address); so is the extent of the leading mode. Each level has what the one before has."""


class ArrayVariants:
    """The signatures of bare arrays that differ only in what is known of them."""

    def __init__(self, plain: TensorSignature) -> None:
        bits = element_bits(plain.dtype)
        self.leading: int = next((i for i, d in enumerate(plain.stride) if type(d) is int and d == 1), -1)
        self.divisor: int = 8 * VECTOR_BYTES // bits if self.leading >= 0 and bits & (bits - 1) == 0 else 0
        """The elements in 16 bytes; 0 where nothing is gained: no mode is contiguous."""
        self._plain = plain
        self._strides_at = 1 + len(plain.shape)
        self.levels: list[TensorSignature] = [self._level(level) for level in range(WHOLE_VECTORS + 1)]

    def _level(self, level: int) -> TensorSignature:
        plain = self._plain
        if level == PLAIN or not self.divisor:
            return plain
        by = [self.divisor if level >= WHOLE_VECTORS and i == self.leading else 1 for i in range(len(plain.shape))]
        extents = tuple(DynamicLeaf(s.width, d) for s, d in zip(plain.shape, by, strict=True))
        step = self.divisor if level >= ALIGNED_ROWS else 1
        strides = tuple(DynamicLeaf(d.width, step) if isinstance(d, DynamicLeaf) else d for d in plain.stride)
        alignment = max(plain.alignment, VECTOR_BYTES)
        return signature(plain.dtype, plain.memspace, alignment, extents, strides, plain.readonly)

    def of(self, leaves: Sequence[int]) -> TensorSignature:
        """Return the signature of an array with these leaves: its address, its extents and its dynamic strides."""
        divisor = self.divisor
        if not divisor or leaves[0] % VECTOR_BYTES:
            return self._plain
        for stride in leaves[self._strides_at :]:
            if stride % divisor:
                return self.levels[ALIGNED]
        return self.levels[ALIGNED_ROWS if leaves[1 + self.leading] % divisor else WHOLE_VECTORS]


@functools.cache
def array_variants(plain: TensorSignature) -> ArrayVariants:
    """Return the variants of a bare array's signature."""
    return ArrayVariants(plain)


class Form:
    """The common part of prepared tensors that differ only in their address."""

    __slots__ = ("argument_record", "shape", "signature", "strides", "tail")

    def __init__(self, signature: TensorSignature, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.signature: TensorSignature = signature
        self.shape: tuple[int, ...] = shape
        """The extents, all of them numbers."""
        self.strides: tuple[int, ...] = strides
        self.tail: tuple[int, ...] = signature.leaves_of(0, shape, strides)[1:]
        """What is passed after the address."""
        device = plan.CUDA if signature.memspace is AddressSpace.gmem else plan.CPU
        self.argument_record: plan.ArgumentRecord = plan.ArgumentRecord(
            signature, device, signature.dtype, signature.readonly, shape, strides, signature.formats, self.tail
        )
        """Makes what native code reads of a tensor, of its address."""


@functools.lru_cache(maxsize=4096)
def form(
    dtype: object,
    memspace: AddressSpace,
    alignment: int,
    readonly: bool,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    leaves: tuple[tuple[object, ...], tuple[object, ...]] | None = None,
) -> Form:
    """Return the form of a layout; `leaves` are its extents and strides as compiled in, by default the numbers."""
    return Form(signature(dtype, memspace, alignment, *(leaves or (shape, strides)), readonly), shape, strides)


def _with_leaves(old: Form, strides: tuple[int, ...], extents: tuple[object, ...], steps: tuple[object, ...]) -> Form:
    signature = old.signature
    return form(
        signature.dtype,
        signature.memspace,
        signature.alignment,
        signature.readonly,
        old.shape,
        strides,
        (extents, steps),
    )


@functools.lru_cache(maxsize=4096)
def marked(old: Form, leading_dim: int | None, narrow: bool) -> Form:
    """Return the form after `RuntimeTensor.mark_layout_dynamic`."""
    shape = old.shape
    strides = old.strides
    leading = _leading_mode(shape, strides, leading_dim)
    marked_strides = tuple(
        d if i == leading or d == 0 else DynamicLeaf(_stride_width(shape, strides, narrow), 1)
        for i, d in enumerate(strides)
    )
    extent = extent_width(
        shape, [0 if isinstance(d, DynamicLeaf) and d.width == 64 else n for d, n in zip(marked_strides, strides)]
    )
    return _with_leaves(old, strides, tuple(DynamicLeaf(extent, 1) for _ in shape), marked_strides)


@functools.lru_cache(maxsize=4096)
def marked_compact(
    old: Form,
    earlier_order: tuple[int, ...] | None,
    mode: int,
    stride_order: tuple[int, ...] | None,
    divisibility: int,
    narrow: bool,
) -> tuple[Form, tuple[int, ...]]:
    """Return the form after `RuntimeTensor.mark_compact_shape_dynamic`, and the order of the modes."""
    shape = old.shape
    strides = old.strides
    rank = len(shape)
    if not 0 <= mode < rank:
        raise type_error(f"mode {mode} is not in the range [0, {rank})")
    if divisibility < 1 or shape[mode] % divisibility:
        raise type_error(
            f"the extent {shape[mode]} of mode {mode} is not a multiple of the divisibility {divisibility}"
        )
    order = _compact_order(shape, strides, earlier_order, stride_order)
    extents: list[Any] = list(old.signature.shape)
    extents[mode] = DynamicLeaf(extent_width(shape, strides), divisibility)
    marked_strides: list[Any] = [0] * rank
    static = True
    step = 1
    stride = 1
    for m in reversed(order):
        if extents[m] == 1:
            marked_strides[m] = 0
            continue
        marked_strides[m] = step if static else DynamicLeaf(_stride_width(shape, strides, narrow), step)
        if shape[m] != 1 and strides[m] != stride:
            raise type_error(f"the layout {shape}:{strides} is not compact in the order {tuple(order)}")
        stride *= shape[m]
        if isinstance(extents[m], DynamicLeaf):
            static = False
            step *= extents[m].divisibility
        else:
            step *= extents[m]
    actual = tuple(
        0 if s == 1 and isinstance(d, int) and d == 0 else strides[i]
        for i, (s, d) in enumerate(zip(extents, marked_strides, strict=True))
    )
    actual = _compact_strides(shape, order, actual, marked_strides)
    return _with_leaves(old, actual, tuple(extents), tuple(marked_strides)), order


def _compact_order(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    earlier: tuple[int, ...] | None,
    stride_order: tuple[int, ...] | None,
) -> tuple[int, ...]:
    rank = len(shape)
    if stride_order is None:
        if earlier is not None:
            return earlier
        if sum(1 for d in strides if d == 1) > 1:
            raise type_error(
                f"the order of the modes does not follow from the layout {shape}:{strides}: pass stride_order"
            )
        return tuple(sorted(range(rank), key=lambda m: -strides[m]))
    if len(stride_order) != rank:
        raise type_error(f"stride_order has {len(stride_order)} elements for {rank} modes")
    missing = sorted(set(range(rank)) - set(stride_order))
    if missing:
        raise type_error(f"stride_order {stride_order} does not contain mode {missing[0]}")
    if earlier is not None and stride_order != earlier:
        raise type_error(f"stride_order {stride_order} is not the order {earlier} of an earlier call")
    longer = [m for m in stride_order if shape[m] != 1]
    if any(strides[a] < strides[b] for a, b in itertools.pairwise(longer)):
        raise type_error(f"stride_order {stride_order} does not agree with the layout {shape}:{strides}")
    return stride_order


def _stride_width(shape: tuple[int, ...], strides: tuple[int, ...], narrow: bool) -> int:
    if not narrow:
        return 64
    reach = sum((s - 1) * abs(d) for s, d in zip(shape, strides, strict=True))
    if reach > INT32_MAX:
        raise type_error(f"32-bit strides cannot address the layout {shape}:{strides}: leave out use_32bit_stride")
    return 32


def _leading_mode(shape: Sequence[int], strides: Sequence[int], leading_dim: int | None) -> int | None:
    rank = len(shape)
    if leading_dim is not None:
        if not -rank <= leading_dim < rank:
            raise type_error(f"leading_dim {leading_dim} is not in the range [{-rank}, {rank})")
        mode = leading_dim % rank
        if strides[mode] != 1 and shape[mode] != 1:
            raise type_error(f"the leading mode must have stride 1, and the stride of mode {mode} is {strides[mode]}")
        return mode
    ones = [m for m in range(rank) if strides[m] == 1]
    if len(ones) > 1:
        longer = [m for m in ones if shape[m] > 1]
        if len(longer) != 1:
            raise type_error(
                f"the leading mode does not follow from the layout {tuple(shape)}:{tuple(strides)}: pass leading_dim"
            )
        return longer[0]
    return ones[0] if ones else None


def _compact_strides(shape: Any, order: Any, strides: Any, marked: Any) -> tuple[int, ...]:
    """Return the strides that the code gets: those of a compact layout, also where the array's are arbitrary."""
    step = 1
    steps = list(strides)
    for m in reversed(order):
        if isinstance(marked[m], int) and marked[m] == 0:
            steps[m] = 0
            continue
        steps[m] = step
        step *= shape[m]
    return tuple(steps)
