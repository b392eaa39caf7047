"""Attention: softmax(Q K^T) V, computed block by block without ever storing the scores."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from .. import cute, utils
from ..base_dsl.typing import BFloat16, Float16, Float32, Int32
from . import arrays, plans
from .attention_forward import forward
from .calls import cannot_repeat, kernel_function, mode

__all__ = ["AttentionTiling", "flash_attention"]

_LOG2_E = 1.4426950408889634
_L2_SHARE = 24 << 20
"""Bytes of keys and values that blocks of threads which run at the same time may need: about half of a large L2 cache."""
_REGISTERS = 65536
"""Registers of a multiprocessor."""


@dataclasses.dataclass(frozen=True)
class AttentionTiling:
    """How attention is cut: the queries of a block of threads, the keys of a step, warps, blocks on a multiprocessor.

    Each warp has `block_q / warps` queries: 32 of them use what is loaded from shared memory twice as often as 16, and
    hold twice as much in registers.
    """

    block_q: int = 128
    block_k: int = 32
    warps: int = 4
    blocks_per_sm: int = 2

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def m_tiles(self) -> int:
        """Tiles of 16 queries of a warp."""
        return self.block_q // (16 * self.warps)

    def smem_bytes(self, head_dim: int, head_dim_v: int) -> int:
        """Shared memory of a block: the queries or the outputs, two buffers of keys, two of values."""
        d, d_v = _padded(head_dim), _padded(head_dim_v)
        return 2 * (self.block_q * max(d, d_v) + 2 * self.block_k * (d + d_v))

    def registers(self, head_dim_v: int) -> int:
        """Registers of a thread that the accumulators take."""
        return self.m_tiles * (_padded(head_dim_v) // 2 + self.block_k // 2)

    def check(self, head_dim: int, head_dim_v: int, capacity: int) -> None:
        """Refuse what cannot work for heads of so many elements where a block has `capacity` bytes of shared memory."""
        require = arrays.require
        require(1 <= self.warps <= 32, f"{self}: a block has 1 to 32 warps")
        require(
            self.block_q > 0 and self.block_q % (16 * self.warps) == 0,
            f"{self}: the queries are a multiple of 16 for each warp, and {self.block_q} is none of {16 * self.warps}",
        )
        copied = max(self.threads // _lanes(d) for d in (head_dim, head_dim_v))
        require(
            self.block_k > 0 and self.block_k % 16 == 0 and self.block_k % copied == 0 and self.block_q % copied == 0,
            f"{self}: the keys of a step are a multiple of 16, and they and the queries of the {copied} rows that "
            f"{self.threads} threads copy at once",
        )
        require(self.blocks_per_sm >= 1, f"{self}: at least one block runs on a multiprocessor")
        available = min(255, _REGISTERS // (self.threads * self.blocks_per_sm) // 8 * 8)
        taken = self.registers(head_dim_v)
        require(
            taken + 40 <= available,
            f"{self}: accumulators for heads of {head_dim_v} take {taken} registers of a thread, which has {available}, "
            "and about 40 for the rest",
            hint="fewer queries for a warp, fewer keys in a step, or fewer blocks on a multiprocessor",
        )
        used = self.smem_bytes(head_dim, head_dim_v)
        require(
            used <= capacity,
            f"{self} takes {used} bytes of shared memory for heads of {head_dim}, and a block has {capacity}",
            hint="fewer queries or fewer keys in a step",
        )


def _padded(head_dim: int) -> int:
    return -(-head_dim // 32) * 32


def _lanes(head_dim: int) -> int:
    """Threads that copy a row of shared memory, 16 bytes each."""
    return 8 if _padded(head_dim) % 64 == 0 else 4


@kernel_function("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "out")
def flash_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    out: Any = None,
    return_lse: bool = False,
    tiling: AttentionTiling | None = None,
) -> Any:
    """softmax(scale * q k^T) v over the keys of each query; with `return_lse` also the logarithms of the sums.

    `q` is (batch, queries, heads, D), `k` (batch, keys, heads of keys, D), `v` (batch, keys, heads of keys, D of v), f16 or
    bf16; heads of keys divide heads, each serving as many queries' heads. With `cu_seqlens_q` and `cu_seqlens_k` (int32,
    one more than sequences) sequences of any lengths lie one after another: (all queries, heads, D) and (all keys, heads
    of keys, D); `max_seqlen_q` saves looking the longest up. Head dimensions are multiples of 8 up to 256.

    `causal` hides the keys after a query, the last query being aligned with the last key; `window=(left, right)` those more
    than so many before or after (None or -1: no limit). `scale` is positive, by default D ** -0.5; `softcap` c > 0 makes
    scores s into c tanh(s / c). A query that sees no key gets zeros and the logarithm -inf. Logarithms are natural,
    (batch, heads, queries) or (heads, all queries), f32.
    """
    call = _Call(q, k, v, cu_seqlens_q, cu_seqlens_k)
    left, right = _limits(causal, window)
    factor = float(call.head_dim**-0.5 if scale is None else scale)
    arrays.require(factor > 0.0, f"flash_attention with scale {scale}: it is positive")
    arrays.require(softcap >= 0.0, f"flash_attention with softcap {softcap}: it is positive, or 0 for none")
    if out is None:
        out = arrays.empty(q, (*q.shape[:-1], v.shape[-1]), None)
    arrays.require(
        tuple(out.shape) == (*q.shape[:-1], v.shape[-1]) and out.dtype == q.dtype,
        f"flash_attention into an array {tuple(out.shape)} of {out.dtype}: it is {(*q.shape[:-1], v.shape[-1])} of {q.dtype}",
    )
    lse = call.empty_lse() if return_lse else None
    if k.shape[-3] == 0:
        arrays.fill(out, 0.0)
        if lse is not None:
            arrays.fill(lse, -float("inf"))
    elif 0 not in out.shape:
        call.run(out, lse, left, right, factor, softcap, max_seqlen_q, tiling)
    return (out, lse) if return_lse else out


def _limits(causal: bool, window: Any) -> tuple[int | None, int | None]:
    """How many keys before and after its own a query sees; None: all."""
    left, right = (None, None) if window is None else window
    left, right = (None if x is None or x == -1 else int(x) for x in (left, right))
    for x in (left, right):
        arrays.require(x is None or x >= 0, f"flash_attention with window {window}: at least 0, or -1 or None for all")
    return left, 0 if causal else right


_FAR = 1 << 28
"""Further than any key."""


class _Call:
    """The arrays of a call, checked."""

    def __init__(self, q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any) -> None:
        self.arrays = q, k, v
        self.starts = starts_q, starts_k
        require = arrays.require
        require((starts_q is None) == (starts_k is None), "flash_attention with one of cu_seqlens_q and cu_seqlens_k")
        packed = starts_q is not None
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        modes = "(rows, heads, D)" if packed else "(batch, rows, heads, D)"
        require(all(x.ndim == 4 - packed for x in (q, k, v)), f"flash_attention of shapes {shapes}: they are {modes}")
        heads, heads_k = q.shape[-2], k.shape[-2]
        require(
            k.shape[:-1] == v.shape[:-1] and q.shape[-1] == k.shape[-1] and (packed or q.shape[0] == k.shape[0]),
            f"flash_attention of shapes {shapes}: batch, keys and heads of k and v agree, and D of q and k",
        )
        require(
            heads_k > 0 and heads % heads_k == 0,
            f"flash_attention of {heads} heads with {heads_k} of keys: the latter divide the former",
        )
        self.head_dim, self.head_dim_v = q.shape[-1], v.shape[-1]
        for dim in (self.head_dim, self.head_dim_v):
            require(
                0 < dim <= 256 and dim % 8 == 0,
                f"flash_attention with heads of {dim} elements: a multiple of 8, up to 256",
            )
        require(q.dtype == k.dtype == v.dtype, f"flash_attention of {q.dtype}, {k.dtype} and {v.dtype}")
        for name, starts in zip(("cu_seqlens_q", "cu_seqlens_k"), self.starts, strict=True):
            require(
                starts is None or (starts.ndim == 1 and str(starts.dtype).endswith("int32") and len(starts) >= 2),
                f"flash_attention: {name} is a vector of int32, one more than there are sequences",
            )
        require(
            not packed or len(starts_q) == len(starts_k),
            "flash_attention: cu_seqlens_q and cu_seqlens_k have as many sequences",
        )

    def empty_lse(self) -> Any:
        q = self.arrays[0]
        shape = (q.shape[1], q.shape[0]) if self.starts[0] is not None else (q.shape[0], q.shape[2], q.shape[1])
        if arrays.is_torch(q):
            import torch

            return arrays.empty(q, shape, torch.float32)
        import numpy as np

        return arrays.empty(q, shape, np.float32)

    def longest(self, said: int | None) -> int:
        """Queries of the longest sequence."""
        starts, q = self.starts[0], self.arrays[0]
        if starts is None:
            return q.shape[1]
        if said is not None:
            return int(said)
        cannot_repeat("the longest sequence is looked up in the array")
        return int((starts[1:] - starts[:-1]).max())

    def run(
        self, out: Any, lse: Any, left: int | None, right: int | None, scale: float, softcap: float, longest: int | None,
        tiling: AttentionTiling | None,
    ) -> None:  # fmt: skip
        """Compute into `out` and `lse`."""
        q, k, _ = self.arrays
        for x in (*self.arrays, out):
            _check_rows(x)
        masks = right is not None, left is not None, softcap > 0.0
        starts, longest = self.starts, self.longest(longest)
        if tiling is None:
            tiling = default_tiling(self.head_dim, self.head_dim_v, longest, _capacity_of(mode()))
        compiled = _compiled(
            mode(), str(q.dtype).rpartition(".")[2], _memory_of(q), (self.head_dim, self.head_dim_v),
            tiling, masks, starts[0] is not None, lse is not None,
        )  # fmt: skip
        rows = [x if x.ndim == 4 else arrays.with_batch(x) for x in (*self.arrays, out)]
        given = [x for x in (lse, *starts) if x is not None]
        factor = softcap * _LOG2_E if softcap > 0.0 else scale * _LOG2_E
        cap = 2.0 * _LOG2_E * scale / softcap if softcap > 0.0 else 0.0
        one_head = 2 * k.shape[-3] * (self.head_dim + self.head_dim_v)
        if starts[1] is not None:
            one_head //= len(starts[1]) - 1
        group = max(1, min(q.shape[-2], _L2_SHARE // max(1, one_head)))
        numbers = (longest, factor, cap, _FAR if left is None else left, _FAR if right is None else right, group)
        plans.run_arguments(compiled, [*rows, *given, *numbers, arrays.stream_of(q)])


def _check_rows(x: Any) -> None:
    """Refuse an array whose heads cannot be copied 16 bytes at a time."""
    last = x.ndim - 1
    arrays.require(
        arrays.strides(x)[last] == 1 and arrays.access_width(x, last) * arrays.itemsize(x) == arrays.WIDEST,
        f"flash_attention of an array with strides {arrays.strides(x)} at {arrays.address(x):#x}: the elements of a head are "
        "contiguous, and heads begin at multiples of 16 bytes",
        hint="make a contiguous copy",
    )


@functools.lru_cache(maxsize=1024)
def _compiled(
    mode: Any, dtype: str, space: Any, head_dims: tuple[int, int], tiling: AttentionTiling,
    masks: tuple[bool, bool, bool], packed: bool, lse: bool,
) -> Any:  # fmt: skip
    """The function for arrays of any shape and strides with heads of some dimensions."""
    element = _ELEMENTS.get(dtype)
    if element is None:
        raise arrays.refusal(f"flash_attention of {dtype}", hint="float16 or bfloat16")
    tiling.check(*head_dims, _capacity_of(mode))
    rows = [_fake(element, 4, space) for _ in range(4)]
    more = [_fake(Float32, 2 if packed else 3, space) if lse else None]
    more += [_fake(Int32, 1, space) if packed else None for _ in range(2)]
    kernel = forward(element, head_dims, tiling, *masks)
    return cute.compile(kernel, *rows, *more, Int32(1), Float32(1.0), Float32(1.0), 0, 0, 1, 0)


_ELEMENTS = {"float16": Float16, "bfloat16": BFloat16}


def _memory_of(x: Any) -> Any:
    """Where an array lies: in a GPU, or anywhere."""
    on_gpu = arrays.is_torch(x) and x.device.type == "cuda"
    return cute.AddressSpace.gmem if on_gpu else cute.AddressSpace.generic


def _fake(element: Any, modes: int, space: Any) -> Any:
    """The description of an array with the last mode contiguous."""
    strides = [cute.sym_int(64) for _ in range(modes - 1)]
    align = arrays.WIDEST if element.width == 16 else element.width // 8
    return cute.runtime.make_fake_tensor(
        element, tuple(cute.sym_int() for _ in range(modes)), (*strides, 1), memspace=space, assumed_align=align
    )


@functools.lru_cache(maxsize=8)
def _capacity_of(mode: Any) -> int:
    return utils.get_smem_capacity_in_bytes()


@functools.lru_cache(maxsize=1024)
def default_tiling(head_dim: int, head_dim_v: int, queries: int, capacity: int) -> AttentionTiling:
    """The tiling for heads of so many elements and at most so many queries, where a block has `capacity` bytes of shared memory.

    As many keys in a step as registers allow, since every step has its own costs.
    """
    outputs = _padded(head_dim_v)
    if queries <= 16:
        tried = [AttentionTiling(16, keys, 1, 2) for keys in (64, 32)]
    elif queries <= 64 or outputs > 128:
        tried = [AttentionTiling(64, keys, 4, 2 if outputs <= 128 else 1) for keys in (64, 32)]
        if queries > 64 and outputs <= 192:
            tried = [AttentionTiling(128, 64, 8, 1), AttentionTiling(128, 32, 8, 1), tried[-1]]
    else:
        tried = [AttentionTiling(128, keys, 4, 2) for keys in ((64, 32) if outputs <= 96 else (32,))]
        tried += [AttentionTiling(64, 32, 4, 1)]
    for tiling in tried:
        copied = tiling.threads // min(_lanes(head_dim), _lanes(head_dim_v))
        if tiling.smem_bytes(head_dim, head_dim_v) <= capacity and tiling.block_k % copied == 0:
            return tiling
    return tried[-1]
