"""Vectors of elements: copies between memory and registers, arithmetic, and reductions over lanes of a warp."""

from __future__ import annotations

from typing import Any

from ... import BFloat16, Boolean, Float32, Uint32, cute
from ...cute import arch
from ...cute.nvgpu import CacheEvictionPriority, CopyUniversalOp, cpasync


def vector_atom(
    dtype: type[cute.Numeric], width: int, priority: cpasync.CacheEvictionPriority = CacheEvictionPriority.EVICT_NORMAL
) -> cute.CopyAtom:
    """Return the copy of a vector of `width` elements in one access, with an L2 eviction priority."""
    bits = width * max(8, dtype.width)
    return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=bits, l2_evict_priority=priority)


def async_vector_atom(dtype: type[cute.Numeric], width: int, priority: cpasync.CacheEvictionPriority) -> cute.CopyAtom:
    """Return the asynchronous copy of a vector to shared memory, which becomes zero where its predicate is false."""
    bits = width * dtype.width
    op = cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL if bits == 128 else cpasync.LoadCacheMode.ALWAYS)
    return cute.make_copy_atom(op, dtype, num_bits_per_copy=bits, l2_evict_priority=priority)


def load_vector(tile: cute.Tensor, width: int, pred: Boolean | None = None, instead: float = 0) -> cute.Tensor:
    """Load a vector from memory into registers; where it is not in bounds, another number. None: it always is."""
    registers = cute.make_rmem_tensor((width,), tile.element_type)
    if pred is not None:
        registers.fill(instead)
    cute.copy(vector_atom(tile.element_type, width), tile, registers, pred=pred)
    return registers


def rounded(value: cute.TensorSSA, dtype: type[cute.Numeric]) -> cute.Tensor:
    """Convert a vector to an element type, in registers from which it can be copied."""
    registers = cute.make_rmem_tensor((len(value),), dtype)
    registers.store(value.to(dtype))
    return registers


def maximum(a: Any, b: Any) -> Float32:
    """Return the larger number."""
    return arch.fmax(a, b)


def plus(a: Any, b: Any) -> Any:
    """Return the sum."""
    return a + b


def across(value: Any, op: Any, lanes: int) -> Any:
    """Reduce the values of `lanes` neighbouring lanes. A Python number is the same in all of them: it is summed."""
    if isinstance(value, float):
        return value * lanes
    return arch.warp_reduction(value, op, threads_in_group=lanes) if lanes > 1 else value


def total(values: Any, op: Any = None) -> Any:
    """Reduce the elements of a vector in pairs, so that additions do not wait for each other."""
    while len(values) > 1:
        half = values.reshape((len(values) // 2, 2))
        left = half[None, 0]
        right = half[None, 1]
        values = left + right if op is None else op(left, right)
    return values[0]


def larger(a: cute.TensorSSA, b: cute.TensorSSA) -> cute.TensorSSA:
    """Return the larger elements of two vectors."""
    return cute.math.max(a, b)


def inverse(values: Any) -> cute.TensorSSA:
    """Return approximate reciprocals of a vector: within 2^-22, subnormals are zero."""
    return cute.TensorSSA.from_elements([arch.rcp_approx(x) for x in values.to_elements()], Float32)


def either(condition: Boolean, some: list[cute.TensorSSA], others: list[cute.TensorSSA]) -> list[cute.TensorSSA]:
    """Selects vectors or others by one condition."""
    return [cute.where(cute.full_like(a, condition, Boolean), a, b) for a, b in zip(some, others, strict=True)]


def as_f32(value: cute.TensorSSA) -> cute.TensorSSA:
    """Convert a vector to f32. Two bf16 are the halves of a word, and each is an f32 with the other half of the word
    zero."""
    if value.dtype is not BFloat16 or len(value) % 2:
        return value.to(Float32)
    words = value.bitcast(Uint32)
    low = (words << 16).bitcast(Float32)
    high = (words & 0xFFFF0000).bitcast(Float32)
    pairs = zip(low.to_elements(), high.to_elements(), strict=True)
    return cute.TensorSSA.from_elements([x for pair in pairs for x in pair], Float32)
