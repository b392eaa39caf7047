"""Synchronization of GPUs, and multicast memory: kernels that communicate.

A lock is a 32-bit number in memory that all of them see. `scope` says who takes part: the GPU, or the system. Multicast
memory (`multimem`) is an address that stands for the same memory on several GPUs (from sm_90 on).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .._support import lazy
from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int32
from ..cute import Tensor, TensorSSA, arch, crd2idx, make_rmem_tensor, size
from ..cute.arch import multicast
from ..cute.program.dsl import DSL
from ..cute.typing import Pointer

__dir__ = lazy.listing(__name__)
__all__ = [
    "atomicAdd",
    "ld_bypass",
    "multimem_ld_reduce",
    "multimem_ld_reduce_1xf32",
    "multimem_ld_reduce_2xbf16",
    "multimem_ld_reduce_2xf16",
    "multimem_ld_reduce_2xf32",
    "multimem_ld_reduce_4xbf16",
    "multimem_ld_reduce_4xe4m3",
    "multimem_ld_reduce_4xe5m2",
    "multimem_ld_reduce_4xf16",
    "multimem_ld_reduce_4xf32",
    "multimem_ld_reduce_8xbf16",
    "multimem_ld_reduce_8xe4m3",
    "multimem_ld_reduce_8xe5m2",
    "multimem_ld_reduce_8xf16",
    "multimem_ld_reduce_16xe4m3",
    "multimem_ld_reduce_16xe5m2",
    "multimem_red_add1",
    "multimem_red_relaxed_gpu_add1",
    "multimem_red_release_sys_add1",
    "multimem_st",
    "multimem_st_1xb32",
    "multimem_st_2xb32",
    "multimem_st_4xb32",
    "red_add1",
    "spin_lock_atom_cas_acquire_wait",
    "spin_lock_atom_cas_relaxed_wait",
    "spin_lock_ld_lt_relaxed_wait",
]


def atomicAdd(dst_ptr: object, val: object, loc: object = None, ip: object = None) -> object:
    """Add `val` to the element at a pointer atomically, for all GPUs and with relaxed order, and return its old value."""
    return arch.atomic_add(dst_ptr, val, sem="relaxed", scope="sys")


def ld_bypass(input_tensor: Tensor, *, loc: object = None, ip: object = None) -> TensorSSA:
    """Load a tensor as other GPUs wrote it, past the L1 cache: each element with relaxed order, for the whole system.

    Args:
        input_tensor: a tensor of static shape in global memory. The result is a vector with its shape.
    """
    fragment = make_rmem_tensor(input_tensor.shape, input_tensor.element_type)
    for index in range(size(input_tensor.shape)):
        element = input_tensor.iterator + crd2idx(index, input_tensor.layout)
        fragment[index] = arch.load(element, input_tensor.element_type, sem="relaxed", scope="sys")
    return fragment.load()


def red_add1(lock_ptr: object, *, order: str, scope: str, loc: object = None, ip: object = None) -> None:
    """Add 1 to a lock. `order` is relaxed or release."""
    arch.red(lock_ptr, Int32(1), op="add", sem=order, scope=scope)


def multimem_red_add1(lock_ptr: Any, *, order: str, scope: str, loc: object = None, ip: object = None) -> None:
    """Add 1 to a lock in multicast memory: on every GPU."""
    _choose("order", order, ("relaxed", "release"))
    _choose("scope", scope, ("gpu", "sys"))
    multicast.red(lock_ptr, 1, "add", "u32", order, scope)


def multimem_red_relaxed_gpu_add1(lock_ptr: object, *, loc: object = None, ip: object = None) -> None:
    """Add 1 to a lock in multicast memory: on every GPU, with relaxed order in the scope of one."""
    multimem_red_add1(lock_ptr, order="relaxed", scope="gpu")


def multimem_red_release_sys_add1(lock_ptr: object, *, loc: object = None, ip: object = None) -> None:
    """Add 1 to a lock in multicast memory: on every GPU, after what this thread wrote before is seen by all of them."""
    multimem_red_add1(lock_ptr, order="release", scope="sys")


@DSL.jit
def _spin_on_swap(lock_ptr: Any, expected: Int32, reset: Int32, order: Any, scope: Any):
    old = arch.atomic_cas(lock_ptr, cmp=expected, val=reset, sem=order, scope=scope)
    while old != expected:
        old = arch.atomic_cas(lock_ptr, cmp=expected, val=reset, sem=order, scope=scope)


@DSL.jit
def _spin_below(lock_ptr: Any, expected: Int32, scope: Any):
    value = arch.load(lock_ptr, Int32, sem="relaxed", scope=scope)
    while value < expected:
        value = arch.load(lock_ptr, Int32, sem="relaxed", scope=scope)


def spin_lock_atom_cas_acquire_wait(
    lock_ptr: object, *, expected_val: object, reset_val: object, scope: str, loc: object = None, ip: object = None
) -> None:
    """Wait until a lock has a value and set it to another, atomically, with acquire order."""
    _choose("scope", scope, ("gpu", "sys"))
    _spin_on_swap(lock_ptr, Int32(expected_val), Int32(reset_val), "acquire", scope)


def spin_lock_atom_cas_relaxed_wait(
    lock_ptr: object, *, expected_val: object, reset_val: object, scope: str, loc: object = None, ip: object = None
) -> None:
    """Wait until a lock has a value and set it to another, atomically, with relaxed order."""
    _choose("scope", scope, ("gpu", "sys"))
    _spin_on_swap(lock_ptr, Int32(expected_val), Int32(reset_val), "relaxed", scope)


def spin_lock_ld_lt_relaxed_wait(
    lock_ptr: object, *, expected_val: object, scope: str, loc: object = None, ip: object = None
) -> None:
    """Wait while a lock is less than a value, with relaxed order."""
    _choose("scope", scope, ("gpu", "sys"))
    _spin_below(lock_ptr, Int32(expected_val), scope)


_REDUCED = {
    (Float32, 4): ("f32", ""),
    (Float32, 2): ("f32", ""),
    (Float32, 1): ("f32", ""),
    (Float16, 8): ("f16x2", "acc::f32"),
    (Float16, 4): ("f16x2", "acc::f32"),
    (Float16, 2): ("f16x2", "acc::f32"),
    (BFloat16, 8): ("bf16x2", "acc::f32"),
    (BFloat16, 4): ("bf16x2", "acc::f32"),
    (BFloat16, 2): ("bf16x2", "acc::f32"),
    (Float8E4M3FN, 16): ("e4m3x4", "acc::f16"),
    (Float8E4M3FN, 8): ("e4m3x4", "acc::f16"),
    (Float8E4M3FN, 4): ("e4m3x4", "acc::f16"),
    (Float8E5M2, 16): ("e5m2x4", "acc::f16"),
    (Float8E5M2, 8): ("e5m2x4", "acc::f16"),
    (Float8E5M2, 4): ("e5m2x4", "acc::f16"),
}
"""What a word holds, and the type of the accumulator, by element type and number of elements."""


def multimem_ld_reduce(
    mc_ptr: Pointer, *, dtype: Any, num_elements: int, loc: object = None, ip: object = None
) -> tuple[Int32, ...]:
    """Return elements added over all GPUs, as 32-bit words."""
    reduction = _REDUCED.get((dtype, num_elements))
    if reduction is None:
        counts = sorted(n for t, n in _REDUCED if t is dtype)
        raise type_error(
            f"multimem_ld_reduce cannot add {num_elements} elements of {getattr(dtype, '__name__', dtype)} at once",
            f"num_elements is one of {counts}" if counts else "f32, f16, bf16 and 8-bit floats can be added",
        )
    kind, wide = reduction
    words = max(num_elements * dtype.width // 32, 1)
    return multicast.load_reduce(mc_ptr, kind, words, wide, "relaxed", "sys")


def multimem_ld_reduce_4xf32(
    mc_ptr: Pointer, *, ptx_string: str | None = None, loc: object = None, ip: object = None
) -> tuple[Int32, ...]:
    """Return four f32 added over all GPUs, as 32-bit words.

    Args:
        mc_ptr: a pointer to multicast memory.
        ptx_string: another instruction for it: `$0` to `$3` are the words, `$4` is the address.
    """
    if ptx_string is None:
        return multicast.load_reduce(mc_ptr, "f32", 4, "", "weak", "")
    code = re.sub(r"\$([0-4])", lambda m: f"{{$w{m[1]}}}" if int(m[1]) < 4 else "{$r0}", ptx_string)
    words = arch.inline_ptx(code, write_only_types=[Int32] * 4, read_only_args=[mc_ptr.toint()])
    return tuple(words)


def _reducing(dtype: type, num_elements: int) -> Callable[..., tuple[Int32, ...]]:
    def reduce(mc_ptr: Pointer, *, loc: object = None, ip: object = None) -> tuple[Int32, ...]:
        return multimem_ld_reduce(mc_ptr, dtype=dtype, num_elements=num_elements)

    reduce.__doc__ = f"Return {num_elements} {dtype.__name__} added over all GPUs, as 32-bit words."
    return reduce


multimem_ld_reduce_16xe4m3 = _reducing(Float8E4M3FN, 16)
multimem_ld_reduce_16xe5m2 = _reducing(Float8E5M2, 16)
multimem_ld_reduce_1xf32 = _reducing(Float32, 1)
multimem_ld_reduce_2xbf16 = _reducing(BFloat16, 2)
multimem_ld_reduce_2xf16 = _reducing(Float16, 2)
multimem_ld_reduce_2xf32 = _reducing(Float32, 2)
multimem_ld_reduce_4xbf16 = _reducing(BFloat16, 4)
multimem_ld_reduce_4xe4m3 = _reducing(Float8E4M3FN, 4)
multimem_ld_reduce_4xe5m2 = _reducing(Float8E5M2, 4)
multimem_ld_reduce_4xf16 = _reducing(Float16, 4)
multimem_ld_reduce_8xbf16 = _reducing(BFloat16, 8)
multimem_ld_reduce_8xe4m3 = _reducing(Float8E4M3FN, 8)
multimem_ld_reduce_8xe5m2 = _reducing(Float8E5M2, 8)
multimem_ld_reduce_8xf16 = _reducing(Float16, 8)


def multimem_st(mc_ptr: Any, *regs: Any, loc: object = None, ip: object = None) -> None:
    """Store 1, 2 or 4 words to the memory of every GPU."""
    if len(regs) not in (1, 2, 4):
        raise type_error(f"multimem_st takes 1, 2 or 4 words, got {len(regs)}")
    multicast.store(mc_ptr, regs, "f32", "relaxed", "sys")


def multimem_st_1xb32(mc_ptr: object, x: object, *, loc: object = None, ip: object = None) -> None:
    """Store a word to the memory of every GPU."""
    multimem_st(mc_ptr, x)


def multimem_st_2xb32(mc_ptr: object, x: object, y: object, *, loc: object = None, ip: object = None) -> None:
    """Store two words to the memory of every GPU."""
    multimem_st(mc_ptr, x, y)


def multimem_st_4xb32(
    mc_ptr: object, x: object, y: object, z: object, w: object, *, loc: object = None, ip: object = None
) -> None:
    """Store four words to the memory of every GPU."""
    multimem_st(mc_ptr, x, y, z, w)


def _choose(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise type_error(f"{what} is {value!r}", f"one of {', '.join(choices)}")
