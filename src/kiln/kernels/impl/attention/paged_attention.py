"""Attention of the newest tokens to keys and values in pages, as engines that serve models keep them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...dispatch import arrays, devices
from ...dispatch.recorder import kernel_function
from .flash_attention import _limits
from .fwd.implementations import REGISTRY, Given
from .fwd.sm80 import Lengths
from .problem import ALL_ELEMENTS, ELEMENTS, MAX_GRID_Z, AttentionProblem

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["paged_attention"]


@kernel_function("q", "k_cache", "v_cache", "page_table", "lengths", "out", "k_descale", "v_descale")
def paged_attention(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    page_table: Any,
    lengths: Any,
    *,
    causal: bool = True,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    max_length: int | None = None,
    k_descale: Any = None,
    v_descale: Any = None,
    out: Any = None,
    return_lse: bool = False,
    config: Any = None,
) -> Any:
    """Attention of the last queries of each sequence to keys and values in pages; with `return_lse` also the logarithms of the sums.

    `q` is (batch, queries, heads, D), `k_cache` (pages, rows of a page, heads of keys, D), `v_cache` the same with its own D, f16 or
    bf16; the caches may be of e4m3 instead, with factors `k_descale` and `v_descale` (batch, heads of keys) of f32. Key n of sequence b is row `n % rows` of page `page_table[b, n // rows]`; `page_table` (batch, pages of a sequence) and
    `lengths` (batch: keys that exist, those of the queries included) are int32 and stay on the device: entries of the table beyond a
    sequence's length are not used, and rows of a page beyond it may hold anything. Pages have 1 row or more.

    The last query is aligned with the last key; `causal` hides later keys. Heads that share keys are computed together, and keys
    are cut into parts so that all multiprocessors have work: by `max_length`, the length of the longest sequence or more (by default
    as much as the table has room for), which chooses a config and changes no result but by rounding. The rest is as for
    `flash_attention`.
    """
    check(q, k_cache, v_cache, page_table, lengths, out, (k_descale, v_descale))
    require, name = arrays.require, "paged_attention"
    factor = factor_of(name, q, scale)
    require(0.0 <= softcap < math.inf, f"{name} with softcap {softcap}: it is positive, or 0 for none")
    batch, queries, heads, _ = q.shape
    size = k_cache.shape[1]
    keys = most_keys(name, page_table.shape[1] * size, max_length)
    left, right = _limits(causal, window)
    kind, stored = (ALL_ELEMENTS[str(x.dtype).rpartition(".")[2]] for x in (q, k_cache))
    others = {} if stored is kind else {"q_dtype": kind, "out_dtype": kind}
    problem = AttentionProblem(
        batch, queries, max(1, keys), heads, k_cache.shape[2], q.shape[3], v_cache.shape[3], stored, left, right, softcap > 0.0, return_lse, has_seqused_k=True, page_size=size,
        kv_capacity=page_table.shape[1] * size, **others,
    )  # fmt: skip

    def run(out: Any, lse: Any) -> None:
        given = Lengths(None, None, lengths, page_table)
        factors = (None, k_descale, v_descale)
        rows = Given(q, k_cache, v_cache, out, lse, given, queries, keys, factor, float(softcap), factors=factors)
        REGISTRY.run(problem, devices.current(), rows, config)

    return results(q, v_cache.shape[3], out, return_lse, page_table.shape[1] * k_cache.shape[0] > 0, run)


def factor_of(name: str, q: Any, scale: float | None) -> float:
    """What scores are multiplied with."""
    factor = float(q.shape[3] ** -0.5 if scale is None else scale)
    arrays.require(0.0 < factor < math.inf, f"{name} with scale {scale}: it is positive")
    return factor


def most_keys(name: str, room: int, max_length: int | None) -> int:
    """The most keys of a sequence, whose pages have `room`."""
    arrays.require(max_length is None or max_length >= 0, f"{name} with max_length {max_length}")
    return room if max_length is None else min(int(max_length), room)


def results(q: Any, dim: int, out: Any, return_lse: bool, seen: bool, run: Callable[[Any, Any], None]) -> Any:
    """Outputs, and logarithms if they are wanted, in arrays that are made here if they are not given: by `run`, or if no key can be `seen`
    those of queries that see none."""
    batch, queries, heads, _ = q.shape
    if out is None:
        out = arrays.empty(q, (batch, queries, heads, dim), None)
    lse = arrays.empty(q, (batch, heads, queries), arrays.dtype_named(q, "float32")) if return_lse else None
    if seen and 0 not in out.shape:
        run(out, lse)
    else:
        arrays.fill(out, 0.0)
        if lse is not None:
            arrays.fill(lse, -math.inf)
    return out if lse is None else (out, lse)


def check(q: Any, k: Any, v: Any, table: Any, lengths: Any, out: Any, factors: tuple[Any, Any]) -> None:
    """Refuse arrays that do not go together."""
    require, name = arrays.require, "paged_attention"
    given = {"q": q, "k_cache": k, "v_cache": v, "page_table": table, "lengths": lengths, "out": out}
    check_places(name, {**given, "k_descale": factors[0], "v_descale": factors[1]})
    shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
    require(
        all(x.ndim == 4 for x in (q, k, v)),
        f"{name} of shapes {shapes}: (batch, queries, heads, D) and (pages, rows of a page, heads of keys, D)",
    )
    require(
        k.shape[:3] == v.shape[:3] and q.shape[3] == k.shape[3],
        f"{name} of shapes {shapes}: pages, their rows and heads of k_cache and v_cache agree, and D of q and k_cache",
    )
    require(k.shape[1] > 0, f"{name}: a page has no rows")
    require(str(q.dtype).rpartition(".")[2] in ELEMENTS, f"{name} of {q.dtype}", hint="float16 or bfloat16")
    narrow = str(k.dtype).rpartition(".")[2] == "float8_e4m3fn"
    require(
        k.dtype == v.dtype and (narrow or q.dtype == k.dtype),
        f"{name} of {q.dtype}, {k.dtype} and {v.dtype}",
        hint="caches of the type of q, or of float8_e4m3fn",
    )
    for label, x in zip(("k_descale", "v_descale"), factors, strict=True):
        require(x is None or narrow, f"{name} with {label} of a cache of {k.dtype}", hint="float8_e4m3fn")
        shape = (q.shape[0], k.shape[2])
        require(
            x is None or (tuple(x.shape) == shape and str(x.dtype).endswith("float32") and arrays.strides(x)[1] == 1),
            f"{name}: {label} {() if x is None else tuple(x.shape)} is a contiguous array of f32, {shape}",
        )
    check_table(name, table, lengths, q.shape[0])
    require(q.shape[0] <= MAX_GRID_Z, f"{name} of {q.shape[0]} sequences: up to {MAX_GRID_Z} in a call")
    check_out(name, out, q, v.shape[3], {"k_cache": k, "v_cache": v})
    for label, x in (("q", q), ("k_cache", k), ("v_cache", v), ("out", out)):
        if x is not None and 0 not in x.shape:
            check_rows(name, label, x)


def check_places(name: str, given: dict[str, Any]) -> None:
    """Refuse arrays in different memories, and ones that cannot be used."""
    q = given["q"]
    for label, x in given.items():
        arrays.require(x is not None or label == "out" or label.endswith("scale"), f"{name}: {label} is None")
        if x is not None:
            arrays.require(
                arrays.is_torch(x) == arrays.is_torch(q) and getattr(x, "device", None) == getattr(q, "device", None),
                f"{name}: {label} and q are not both of one library and on one device",
            )
            arrays.require_usable(x, f"{name}: {label}", written=label == "out")


def check_table(name: str, table: Any, lengths: Any, batch: int) -> None:
    """Refuse a page table and lengths that are none."""
    for label, x, modes in (("page_table", table, 2), ("lengths", lengths, 1)):
        arrays.require(
            x.ndim == modes and str(x.dtype).endswith("int32") and x.shape[0] == batch
            and (arrays.strides(x)[-1] == 1 or 0 in x.shape),
            f"{name}: {label} {tuple(x.shape)} of {x.dtype}: it is {'(batch, pages of a sequence)' if modes == 2 else '(batch,)'}, int32, "
            f"contiguous in its last mode, for {batch} sequences",
        )  # fmt: skip


def check_out(name: str, out: Any, q: Any, dim: int, read: dict[str, Any]) -> None:
    """Refuse an array that results cannot be written to."""
    if out is None:
        return
    shape = (*q.shape[:3], dim)
    arrays.require(
        tuple(out.shape) == shape and out.dtype == q.dtype,
        f"{name} into an array {tuple(out.shape)} of {out.dtype}: it is {shape} of {q.dtype}",
    )
    for label, x in read.items():
        arrays.require(
            not arrays.overlap(x, out),
            f"{name}: out has memory in common with {label}, which is read after parts of it are written",
            hint="another array",
        )


def check_rows(name: str, label: str, x: Any) -> None:
    """Refuse an array whose heads cannot be copied 16 bytes at a time."""
    last = x.ndim - 1
    arrays.require(
        arrays.strides(x)[last] == 1
        and arrays.layout_of(x).width(last) * arrays.itemsize(x) == arrays.MAX_VECTOR_BYTES,
        f"{name}: {label} has strides {arrays.strides(x)} at {arrays.address(x):#x}: the elements of a head are contiguous, and heads "
        "begin at multiples of 16 bytes",
        hint="make a contiguous copy",
    )
