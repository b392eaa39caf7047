"""Attention: softmax(Q K^T) V, computed block by block without ever storing the scores."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

from ...dispatch import arrays, devices
from ...dispatch.recorder import cannot_repeat, kernel_function
from .fwd.implementations import REGISTRY, Given
from .fwd.sm80 import Lengths
from .problem import ALL_ELEMENTS, ELEMENTS, MAX_GRID_Z, AttentionProblem
from .score_mod import check_score

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["flash_attention"]

_ARRAYS = 13
_FAR = 1 << 28
"""Further than any key."""


@kernel_function(
    "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "page_table", "alibi_slopes", "sinks", "q_descale", "k_descale",
    "v_descale", "out",
)  # fmt: skip
def flash_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    score: Any = None,
    sinks: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_k: Any = None,
    page_table: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    out: Any = None,
    return_lse: bool = False,
    config: Any = None,
) -> Any:
    """softmax(scale * q k^T) v over the keys of each query; with `return_lse` also the logarithms of the sums.

    `q` is (batch, queries, heads, D), `k` (batch, keys, heads of keys, D), `v` (batch, keys, heads of keys, D of v), f16 or
    bf16; heads of keys divide heads, each serving as many queries' heads. With `cu_seqlens_q` and `cu_seqlens_k` (int32,
    one more than sequences) sequences of any lengths lie one after another: (all queries, heads, D) and (all keys, heads
    of keys, D). `seqused_k` (int32, one for each sequence): only so many keys of a sequence exist, as in a cache that is
    being filled. `page_table` (batch, pages; int32): keys and values lie in pages, (pages, rows of a page, heads of keys, D), and those
    of a sequence are the pages of its row of the table, of which `seqused_k` says how many keys exist; there is no `cu_seqlens_k`
    then. `max_seqlen_q`, at least the queries of the longest sequence, saves looking that up; `max_seqlen_k` only
    helps to choose how the problem is cut. Head dimensions are multiples of 8 up to 256.

    `causal` hides the keys after a query, the last query being aligned with the last key; `window=(left, right)` those more
    than so many before or after (None or -1: no limit). `scale` is positive, by default D ** -0.5; `softcap` c > 0 makes
    scores s into c tanh(s / c). `alibi_slopes` (heads, or batch and heads; f32) lowers them by slope times the distance of query and
    key, the last being aligned. `score(s, b, h, q, k)` is a Python function that gives the score that takes the place of s, for sequence b,
    head h, query q and key k, each dynamic_scheduler from 0 in its sequence; it may branch. `sinks` (heads, f32): logits of one more key for each
    head, which has no value. Queries, keys and values may be float8_e4m3fn, with factors `q_descale`, `k_descale` and `v_descale` (batch, heads
    of keys; f32, positive or 0: then all keys that are seen weigh the same) or without; outputs are bfloat16 then, or what `out` is. A query that sees no key gets zeros and the logarithm -inf, or its sink. Logarithms are natural,
    (batch, heads, queries) or (heads, all queries), f32. The same call gives the same bits.
    """
    given = (
        q,
        k,
        v,
        out,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        page_table,
        alibi_slopes,
        sinks,
        q_descale,
        k_descale,
        v_descale,
    )
    return Asked(
        given, causal, window, scale, softcap, max_seqlen_q, max_seqlen_k, return_lse, config, score, ALL_ELEMENTS
    ).run()


def _limits(causal: bool, window: Any) -> tuple[int | None, int | None]:
    """How many keys before and after its own a query sees; None: all."""
    pair = (None, None) if window is None else window
    arrays.require(
        isinstance(pair, (tuple, list)) and len(pair) == 2 and all(x is None or int(x) == x for x in pair),
        f"flash_attention with window {window!r}: it is (keys before, keys after)",
    )
    left, right = (None if x is None or x == -1 else int(x) for x in pair)
    for x in (left, right):
        arrays.require(x is None or x >= 0, f"flash_attention with window {window}: at least 0, or -1 or None for all")
    left, right = (None if x is None or x >= _FAR else x for x in (left, right))
    return left, 0 if causal else right


def _as_rows(given: Sequence[Any]) -> list[Any]:
    return [x if x.ndim == 4 else arrays.with_batch(x) for x in given]


@dataclasses.dataclass
class Asked:
    """What `flash_attention` is asked for. Arrays after the first few that are not given are None."""

    given: tuple[Any, ...]
    causal: bool
    window: Any
    scale: float | None
    softcap: float
    max_q: int | None
    max_k: int | None
    return_lse: bool
    config: Any
    score: Any = None
    elements: Any = dataclasses.field(default_factory=lambda: ELEMENTS)
    """Types of queries, keys and values by their names."""

    def __post_init__(self) -> None:
        self.given = (*self.given, *[None] * (_ARRAYS - len(self.given)))

    # --- what is refused ---

    def check(self) -> None:
        """Refuse arrays that do not go together."""
        q, k, v, out, starts_q, starts_k, _, table, *_ = self.given
        require = arrays.require
        names = (
            "q", "k", "v", "out", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "page_table", "alibi_slopes", "sinks", "q_descale",
            "k_descale", "v_descale",
        )  # fmt: skip
        for name, x in zip(names, self.given, strict=True):
            require(x is not None or name not in ("q", "k", "v"), f"flash_attention: {name} is None")
            if x is None:
                continue
            require(
                arrays.is_torch(x) == arrays.is_torch(q) and getattr(x, "device", None) == getattr(q, "device", None),
                f"flash_attention: {name} is {_place(x)}, and q is {_place(q)}",
            )
            arrays.require_usable(x, f"flash_attention: {name}", written=name == "out")
        if table is None:
            require(
                (starts_q is None) == (starts_k is None),
                "flash_attention with one of cu_seqlens_q and cu_seqlens_k",
                hint="(batch, rows, heads, D) without both, (all rows, heads, D) with both",
            )
        else:
            require(
                starts_k is None, "flash_attention with page_table and cu_seqlens_k", hint="seqused_k has the lengths"
            )
            require(
                table.ndim == 2 and str(table.dtype).endswith("int32") and len(table) == self.batches
                and (arrays.strides(table)[1] == 1 or table.shape[1] < 2),
                f"flash_attention: page_table {tuple(table.shape)} of {table.dtype} is (sequences, pages) of int32, contiguous in its "
                f"last mode, for {self.batches} sequences",
            )  # fmt: skip
        packed, modes_k = starts_q is not None, 4 if table is not None or starts_q is None else 3
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        modes = "(all rows, heads, D)" if packed else "(batch, rows, heads, D)"
        modes += "" if table is None else ", and (pages, rows of a page, heads, D)"
        require(
            q.ndim == 4 - packed and k.ndim == v.ndim == modes_k,
            f"flash_attention of shapes {shapes}: they are {modes}",
        )
        require(
            k.shape[:-1] == v.shape[:-1]
            and q.shape[-1] == k.shape[-1]
            and (packed or table is not None or q.shape[0] == k.shape[0]),
            f"flash_attention of shapes {shapes}: batch, keys and heads of k and v agree, and D of q and k",
        )
        require(
            str(q.dtype).rpartition(".")[2] in self.elements,
            f"flash_attention of {q.dtype}",
            hint=" or ".join(self.elements),
        )
        require(
            q.dtype == k.dtype == v.dtype,
            f"flash_attention of {q.dtype}, {k.dtype} and {v.dtype}: q, k and v have one type",
        )
        self.problem()
        self._check_numbers(names[4:7])
        self._check_heads()
        if out is not None:
            shape = (*q.shape[:-1], v.shape[-1])
            require(
                tuple(out.shape) == shape and str(out.dtype) in map(str, self.out_types()),
                f"flash_attention into an array {tuple(out.shape)} of {out.dtype}: it is {shape} of {self.out_types()[0]}",
            )
            for name, x in (("k", k), ("v", v)):
                require(
                    not arrays.overlap(x, out),
                    f"flash_attention: out has memory in common with {name}, which is read after parts of it are written",
                    hint="another array; q may be out",
                )

    def _check_numbers(self, names: Sequence[str]) -> None:
        require = arrays.require
        lengths = self.given[4:7]
        for name, x, more in zip(names, lengths, (1, 1, 0), strict=True):
            if x is not None and not (
                x.ndim == 1 and str(x.dtype).endswith("int32") and len(x) >= 1 + more and arrays.strides(x)[0] == 1
            ):
                raise arrays.refusal(
                    f"flash_attention: {name} is {x.dtype} of shape {tuple(x.shape)} and strides {arrays.strides(x)}",
                    hint=f"a contiguous vector of int32, one {'more than there are' if more else 'for each of the'} sequences",
                )
        starts_q, starts_k, used = lengths
        require(
            starts_q is None or starts_k is None or len(starts_q) == len(starts_k),
            "flash_attention: cu_seqlens_q and cu_seqlens_k have as many sequences",
        )
        require(
            used is None or len(used) == self.batches,
            f"flash_attention: seqused_k has {0 if used is None else len(used)} numbers for {self.batches} sequences",
        )
        scale = self.factor
        require(0.0 < scale < math.inf, f"flash_attention with scale {self.scale}: it is positive")
        require(
            0.0 <= self.softcap < math.inf,
            f"flash_attention with softcap {self.softcap}: it is positive, or 0 for none",
        )
        for name, most in (("max_seqlen_q", self.max_q), ("max_seqlen_k", self.max_k)):
            require(most is None or most >= 0, f"flash_attention with {name} {most}")

    def _check_heads(self) -> None:
        """Refuse arrays of one number for each head that are none."""
        slopes, sinks, *factors = self.given[8:]
        narrow = str(self.given[0].dtype).rpartition(".")[2] == "float8_e4m3fn"
        arrays.require(
            narrow or factors == [None] * 3, "flash_attention with q_descale, k_descale or v_descale: of float8_e4m3fn"
        )
        arrays.require(
            (factors[0] is None) == (factors[1] is None), "flash_attention with one of q_descale and k_descale"
        )
        of_keys = ((self.batches, self.given[1].shape[-2]),)
        heads = self.given[0].shape[-2]
        for name, x, shapes in (
            ("alibi_slopes", slopes, ((heads,), (self.batches, heads))),
            ("sinks", sinks, ((heads,),)),
            *zip(("q_descale", "k_descale", "v_descale"), factors, (of_keys,) * 3, strict=True),
        ):
            arrays.require(
                x is None
                or (
                    tuple(x.shape) in shapes and str(x.dtype).endswith("float32") and arrays.strides(x)[x.ndim - 1] == 1
                ),
                f"flash_attention: {name} {() if x is None else tuple(x.shape)} is a contiguous array of f32, "
                f"{' or '.join(map(str, shapes))}",
            )

    # --- what is computed ---

    @property
    def batches(self) -> int:
        """Sequences."""
        starts = self.given[4]
        return self.given[0].shape[0] if starts is None else len(starts) - 1

    @property
    def factor(self) -> float:
        """What scores are multiplied with."""
        return float(self.given[0].shape[-1] ** -0.5 if self.scale is None else self.scale)

    def out_types(self) -> list[Any]:
        """The types that outputs may have, the first if none is given."""
        q = self.given[0]
        if str(q.dtype).rpartition(".")[2] != "float8_e4m3fn":
            return [q.dtype]
        return [arrays.dtype_named(q, name) for name in ("bfloat16", "float16")]

    def out_type(self) -> Any:
        """The type of outputs, of the program."""
        out = self.given[3]
        return ELEMENTS[str(self.out_types()[0] if out is None else out.dtype).rpartition(".")[2]]

    def longest(self) -> int:
        """Queries of the longest sequence, or more."""
        q, starts = self.given[0], self.given[4]
        if starts is None:
            return q.shape[1]
        if self.max_q is not None:
            return max(1, int(self.max_q))
        cannot_repeat("the longest sequence is looked up in the array")
        return max(1, int((starts[1:] - starts[:-1]).max()))

    def mean(self) -> int:
        """Keys of a sequence, on average."""
        k, table = self.given[1], self.given[7]
        if table is not None:
            return table.shape[1] * k.shape[1]
        return k.shape[1] if self.given[4] is None else -(-k.shape[0] // max(1, self.batches))

    def problem(self, longest: int = 1) -> AttentionProblem:
        """What is asked for, of so many queries."""
        q, k, v, _, starts, _, used, table, slopes, sinks, *_ = self.given
        left, right = _limits(self.causal, self.window)
        most, page, room = k.shape[-3], 0, 0
        if table is not None:
            most = room = self.mean()
            page = k.shape[1]
        keys = self.mean() if self.max_k is None else max(1, min(int(self.max_k), most))
        return AttentionProblem(
            self.batches, longest, keys, q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1],
            self.elements[str(q.dtype).rpartition(".")[2]], left, right, self.softcap > 0.0, self.return_lse,
            starts is not None, used is not None, page, room, has_alibi=slopes is not None, has_sinks=sinks is not None,
            score_mod=None if self.score is None else check_score(self.score),
            out_dtype=self.out_type() if len(self.out_types()) > 1 else None,
        )  # fmt: skip

    def run(self) -> Any:
        """Make the call."""
        self.check()
        q, k, v, out, *_ = self.given
        if out is None:
            out = arrays.empty(q, (*q.shape[:-1], v.shape[-1]), self.out_types()[0])
        lse = None
        if self.return_lse:
            queries = q.shape[:-2]
            shape = (q.shape[-2], *queries) if len(queries) == 1 else (queries[0], q.shape[-2], queries[1])
            lse = arrays.empty(q, shape, arrays.dtype_named(q, "float32"))
        if 0 in out.shape:
            pass
        elif 0 in k.shape[:-2] or self.mean() == 0:
            self._without_keys(out, lse)
        elif self.batches > MAX_GRID_Z:
            self._run_in_turns(out, lse)
        else:
            for x in (q, k, v, out):
                _check_rows(x)
            longest = self.longest()
            q, k, v, rows = _as_rows((q, k, v, out))
            numbers = (longest, self.mean(), self.factor, float(self.softcap))
            slopes, sinks, *factors = self.given[8:]
            if slopes is not None and slopes.ndim == 1:
                slopes = arrays.with_batch(slopes)
            given = Given(q, k, v, rows, lse, Lengths(*self.given[4:8]), *numbers, slopes, sinks, tuple(factors))
            REGISTRY.run(self.problem(longest), devices.current(), given, self.config)
        return out if lse is None else (out, lse)

    def _without_keys(self, out: Any, lse: Any) -> None:
        """What queries get that see no key: a sink is all that their logarithms are of."""
        arrays.fill(out, 0.0)
        sinks = self.given[9]
        if lse is not None and sinks is not None:
            arrays.assign(lse, arrays.part(sinks, 1, None))
        elif lse is not None:
            arrays.fill(lse, -math.inf)

    def _run_in_turns(self, out: Any, lse: Any) -> None:
        """Sequences in turns, where there are more than a grid can have."""
        cannot_repeat("parts of the arrays are computed in turns")
        q, k, v, _, starts_q, starts_k, used, table, slopes, sinks, *factors = self.given
        for first in range(0, self.batches, MAX_GRID_Z):
            turn, ends = slice(first, first + MAX_GRID_Z), slice(first, first + MAX_GRID_Z + 1)
            q_, out_ = (x if starts_q is not None else x[turn] for x in (q, out))
            k_, v_ = (x if starts_k is not None or table is not None else x[turn] for x in (k, v))
            starts = (None if x is None else x[ends] for x in (starts_q, starts_k))
            used_, table_ = (None if x is None else x[turn] for x in (used, table))
            slope = slopes[turn] if slopes is not None and slopes.ndim == 2 else slopes
            score = None if self.score is None else functools.partial(_later, self.score, first)
            factors_ = (None if x is None else x[turn] for x in factors)
            given = (q_, k_, v_, out_, *starts, used_, table_, slope, sinks, *factors_)
            result = dataclasses.replace(self, given=given, score=score).run()
            if lse is None:
                continue
            if starts_q is None:
                lse[turn] = result[1]
            else:
                rows = slice(int(starts_q[first]), int(starts_q[min(first + MAX_GRID_Z, self.batches)]))
                lse[:, rows] = result[1][:, rows]


def _later(score: Any, first: int, s: Any, b: Any, *place: Any) -> Any:
    """A function of scores where sequences are dynamic_scheduler from the first of a turn."""
    return score(s, b + first, *place)


def _place(x: Any) -> str:
    return f"a torch tensor on {x.device}" if arrays.is_torch(x) else "an array of numpy"


def _check_rows(x: Any) -> None:
    """Refuse an array whose heads cannot be copied 16 bytes at a time."""
    last = x.ndim - 1
    arrays.require(
        arrays.strides(x)[last] == 1
        and arrays.layout_of(x).width(last) * arrays.itemsize(x) == arrays.MAX_VECTOR_BYTES,
        f"flash_attention of an array with strides {arrays.strides(x)} at {arrays.address(x):#x}: the elements of a head are "
        "contiguous, and heads begin at multiples of 16 bytes",
        hint="make a contiguous copy",
    )
