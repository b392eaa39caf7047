"""The arguments of attention: what users pass, how it is checked, and what kernels receive.

`flash_attention`, `flash_attention_backward` and `paged_attention` put their options into one `AttentionParams`; with
Q, K, V and the results that makes `AttentionArguments`, which implementations take. Kernels take `AttentionTensors` and
`AttentionScalars`."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ....utils.tiles.online_softmax import LOG2_E
from ...dispatch import arrays
from ...dispatch.recorder import cannot_repeat
from .problem import ALL_ELEMENTS, ELEMENTS, AttentionProblem
from .score_mod import check_score_mod

if TYPE_CHECKING:
    from .... import Float32, Int32, cute

_UNBOUNDED = 1 << 28
"""A window that reaches beyond all keys."""


class AttentionTensors(NamedTuple):
    """Optional arrays of an attention: each is None where an option is not used."""

    cu_seqlens_q: Any = None
    """Where sequences of queries begin (batch + 1), int32."""
    cu_seqlens_k: Any = None
    seqused_k: Any = None
    """Keys of each sequence that exist (batch), int32."""
    page_table: Any = None
    """Pages of each sequence's keys (batch, pages), int32."""
    alibi_slopes: Any = None
    """(batch or 1, heads), f32."""
    sinks: Any = None
    """Logits of the attention sinks (heads), f32."""
    tile_counter: Any = None
    """The tile that a dynamic scheduler takes next (1), int32."""
    q_descale: Any = None
    """Scale factors of fp8 Q, K and V (batch, heads of K), f32."""
    k_descale: Any = None
    v_descale: Any = None


_OPTIONAL = tuple(name for name in AttentionTensors._fields if name != "tile_counter")
"""The arrays of `AttentionTensors` that users pass."""


class AttentionScalars(NamedTuple):
    """The numbers of a forward launch."""

    scale_log2: Float32 | float
    """The scale of the softmax in powers of two; with softcap or a score modification, what is left of it after them.
    """
    softcap_scale: Any
    """2 log2(e) scale / softcap."""
    score_scale: Float32 | float
    """What makes accumulators the scores that ALiBi and score modifications see."""
    window_left: Int32 | int
    window_right: Int32 | int
    head_group: Int32 | int
    """Heads whose tiles are computed side by side, for L2 reuse of their keys."""


class BackwardScalars(NamedTuple):
    """The numbers of a backward launch; see `AttentionScalars`."""

    scale_log2: Float32 | float
    softcap_scale: Any
    score_scale: Float32 | float
    window_left: Int32 | int
    window_right: Int32 | int
    scale: Float32 | float
    """What makes dS the gradient of Q K^T."""


@dataclasses.dataclass(frozen=True)
class AttentionParams:
    """The options of an attention: mask, scale, score modification, varlen, paging and quantisation."""

    causal: bool = False
    window: Any = None
    scale: float | None = None
    softcap: float = 0.0
    score_mod: Any = None
    """The user's function, or None."""
    alibi_slopes: Any = None
    sinks: Any = None
    q_descale: Any = None
    k_descale: Any = None
    v_descale: Any = None
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    seqused_k: Any = None
    page_table: Any = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None

    def window_limits(self, name: str) -> tuple[int | None, int | None]:
        """Return how many keys before and after its own a query sees; None means all."""
        pair = (None, None) if self.window is None else self.window
        arrays.require(
            isinstance(pair, (tuple, list)) and len(pair) == 2 and all(x is None or int(x) == x for x in pair),
            f"{name}: window is {self.window!r}; it must be (keys before, keys after)",
        )
        left, right = (None if x is None or x == -1 else int(x) for x in pair)
        for x in (left, right):
            arrays.require(
                x is None or x >= 0,
                f"{name}: window is {self.window}; limits must be at least 0, or -1 or None for all",
            )
        left, right = (None if x is None or x >= _UNBOUNDED else x for x in (left, right))
        return left, 0 if self.causal else right

    def of_sequences(self, first: int, count: int) -> AttentionParams:
        """Return the params of `count` sequences from the `first` on."""
        part = slice(first, first + count)
        ends = slice(first, first + count + 1)
        names = ("seqused_k", "page_table", "q_descale", "k_descale", "v_descale")
        sliced = {name: None if getattr(self, name) is None else getattr(self, name)[part] for name in names}
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            sliced[name] = None if getattr(self, name) is None else getattr(self, name)[ends]
        if self.alibi_slopes is not None and self.alibi_slopes.ndim == 2:
            sliced["alibi_slopes"] = self.alibi_slopes[part]
        if self.score_mod is not None:
            sliced["score_mod"] = lambda s, b, *place: self.score_mod(s, b + first, *place)
        return dataclasses.replace(self, **sliced)


@dataclasses.dataclass(frozen=True)
class AttentionArguments:
    """Q, K, V, the results and the params of an attention.

    Implementations get 4-D arrays, (batch, rows, heads, D), with batch 1 for varlen, and `params` with `max_seqlen_q`
    filled in. `labels` are the names that a function gives Q, K, V and params, where they differ."""

    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any
    params: AttentionParams
    name: str = "flash_attention"
    labels: tuple[tuple[str, str], ...] = ()

    # --- what is computed ---

    @property
    def batch(self) -> int:
        """Sequences."""
        cu_seqlens = self.params.cu_seqlens_q
        return self.q.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1

    @property
    def scale(self) -> float:
        """The scale of scores: by default head_dim ** -0.5."""
        return resolve_scale(self.name, self.q, self.params.scale)

    @property
    def kv_capacity(self) -> int:
        """Keys that a sequence has at most, or on average with varlen."""
        table = self.params.page_table
        if table is not None:
            return table.shape[1] * self.k.shape[1]
        varlen = self.params.cu_seqlens_k is not None
        return -(-self.k.shape[-3] // max(1, self.batch)) if varlen else self.k.shape[-3]

    @property
    def mean_seqlen_k(self) -> int:
        """Keys of a sequence, as far as they are known."""
        limit = self.params.max_seqlen_k
        paged = self.params.page_table is not None
        return self.kv_capacity if limit is None or not paged else min(int(limit), self.kv_capacity)

    def out_dtypes(self) -> list[Any]:
        """Return the array types that O may have; the first is the default."""
        if dtype_name(self.q) in ELEMENTS:
            return [self.q.dtype]
        return [arrays.dtype_named(self.q, name) for name in ("bfloat16", "float16")]

    def longest_q(self) -> int:
        """Return the queries of the longest sequence, or more; it is looked up if `max_seqlen_q` does not say."""
        return longest(self.params.cu_seqlens_q, self.params.max_seqlen_q, self.q)

    def problem(self, seqlen_q: int = 1) -> AttentionProblem:
        """Return the problem for `seqlen_q` queries."""
        q = self.q
        k = self.k
        v = self.v
        params = self.params
        left, right = params.window_limits(self.name)
        limit = params.max_seqlen_k
        capacity = k.shape[-3] if params.page_table is None else self.kv_capacity
        seqlen_k = self.kv_capacity if limit is None else min(int(limit), capacity)
        kv_dtype, q_dtype = (ALL_ELEMENTS[dtype_name(x)] for x in (k, q))
        out_dtype = ELEMENTS[dtype_name(self.out_dtypes()[0] if self.out is None else self.out)]
        paged = params.page_table is not None
        return AttentionProblem(
            self.batch,
            seqlen_q,
            seqlen_k if limit is None else max(1, seqlen_k),
            q.shape[-2],
            k.shape[-2],
            q.shape[-1],
            v.shape[-1],
            kv_dtype,
            left,
            right,
            params.softcap > 0.0,
            self.lse is not None,
            params.cu_seqlens_q is not None,
            params.seqused_k is not None,
            k.shape[1] if paged else 0,
            self.kv_capacity if paged else 0,
            params.alibi_slopes is not None,
            params.sinks is not None,
            None if params.score_mod is None else check_score_mod(params.score_mod),
            out_dtype if kv_dtype.width == 8 else None,
            None if q_dtype is kv_dtype else q_dtype,
        )

    def as_4d(self) -> AttentionArguments:
        """Return the arguments as implementations take them."""
        params = self.params
        slopes = self.params.alibi_slopes
        if slopes is not None and slopes.ndim == 1:
            slopes = arrays.with_batch(slopes)
        params = dataclasses.replace(params, alibi_slopes=slopes, max_seqlen_q=self.longest_q())
        return dataclasses.replace(
            self, q=as_4d(self.q), k=as_4d(self.k), v=as_4d(self.v), out=as_4d(self.out), params=params
        )

    # --- what kernels receive ---

    def tensors(self, tile_counter: Any = None) -> AttentionTensors:
        """Return the optional arrays for a kernel."""
        return AttentionTensors(**{x: getattr(self.params, x) for x in _OPTIONAL}, tile_counter=tile_counter)

    def scalars(self, problem: AttentionProblem, head_group: int) -> AttentionScalars:
        """Return the numbers of a forward launch."""
        scale = self.scale
        softcap = float(self.params.softcap)
        modified = problem.has_alibi or problem.score_mod is not None
        return AttentionScalars(
            LOG2_E * (1.0 if modified else softcap or scale),
            2.0 * LOG2_E * scale / softcap if softcap else 0.0,
            softcap or scale,
            _UNBOUNDED if problem.window_left is None else problem.window_left,
            _UNBOUNDED if problem.window_right is None else problem.window_right,
            head_group,
        )

    # --- checks ---

    def label(self, name: str) -> str:
        """Return what the function calls an argument."""
        return dict(self.labels).get(name, name)

    def check(self, dtypes: dict[str, type[cute.Numeric]], fp8_cache: bool = False) -> None:
        """Raise if arrays do not fit together; with `fp8_cache`, K and V may be e4m3 where Q is not."""
        q = self.q
        k = self.k
        v = self.v
        name = self.name
        require = arrays.require
        arguments = {"q": q, "k": k, "v": v, "out": self.out, **self.tensors()._asdict()}
        check_arrays(name, {self.label(x): array for x, array in arguments.items()}, {"out", *AttentionTensors._fields})
        self._check_layout()
        require(dtype_name(q) in dtypes, f"{name}: q is {q.dtype}; it must be {' or '.join(dtypes)}")
        same = q.dtype == k.dtype == v.dtype
        require(
            same or (fp8_cache and k.dtype == v.dtype and dtype_name(k) == "float8_e4m3fn"),
            f"{name}: q is {q.dtype}, {self.label('k')} is {k.dtype} and {self.label('v')} is {v.dtype}; "
            "they must be of one type" + (", or the caches of float8_e4m3fn" if fp8_cache else ""),
        )
        self.problem()
        self._check_lengths()
        self._check_head_arrays(fp8_cache)
        check_out(
            name, self.out, (*q.shape[:-1], v.shape[-1]), self.out_dtypes(), {self.label("k"): k, self.label("v"): v}
        )

    def _check_layout(self) -> None:
        q = self.q
        k = self.k
        v = self.v
        params = self.params
        require = arrays.require
        paged = params.page_table is not None
        varlen = params.cu_seqlens_q is not None
        if paged:
            require(
                params.cu_seqlens_k is None,
                f"{self.name}: page_table and cu_seqlens_k are given; lengths of paged sequences are in seqused_k",
            )
            check_page_table(self.name, params.page_table, self.batch)
        else:
            require(
                varlen == (params.cu_seqlens_k is not None),
                f"{self.name}: one of cu_seqlens_q and cu_seqlens_k is given; pass both or neither",
            )
        rows = "(all rows, heads, D)" if varlen else "(batch, rows, heads, D)"
        shapes = f"q {tuple(q.shape)}, {self.label('k')} {tuple(k.shape)} and {self.label('v')} {tuple(v.shape)}"
        require(
            q.ndim == 4 - varlen and k.ndim == v.ndim == (4 if paged or not varlen else 3),
            f"{self.name}: shapes are {shapes}; they must be {rows}"
            + (", and (pages, rows of a page, heads, D) for K and V" if paged else ""),
        )
        require(
            k.shape[:-1] == v.shape[:-1]
            and q.shape[-1] == k.shape[-1]
            and (varlen or paged or q.shape[0] == k.shape[0]),
            f"{self.name}: shapes are {shapes}; batch, rows and heads of K and V must agree, and D of q and K",
        )

    def _check_lengths(self) -> None:
        params = self.params
        require = arrays.require
        for name, extra in (("cu_seqlens_q", 1), ("cu_seqlens_k", 1), ("seqused_k", 0)):
            if getattr(params, name) is not None:
                check_lengths(self.name, self.label(name), getattr(params, name), self.batch, extra)
        require(
            0.0 <= params.softcap < math.inf,
            f"{self.name}: softcap is {params.softcap}; it must be positive, or 0 for none",
        )
        _ = self.scale
        for name in ("max_seqlen_q", "max_seqlen_k"):
            limit = getattr(params, name)
            require(limit is None or limit >= 0, f"{self.name}: {self.label(name)} is {limit}; it must be at least 0")

    def _check_head_arrays(self, fp8_cache: bool) -> None:
        params = self.params
        heads = self.q.shape[-2]
        heads_k = self.k.shape[-2]
        descales = [getattr(params, x) for x in ("q_descale", "k_descale", "v_descale")]
        arrays.require(
            dtype_name(self.k) == "float8_e4m3fn" or all(x is None for x in descales),
            f"{self.name}: q_descale, k_descale or v_descale is given; K and V must be float8_e4m3fn for that, "
            f"not {self.k.dtype}",
        )
        arrays.require(
            fp8_cache or (descales[0] is None) == (descales[1] is None),
            f"{self.name}: one of q_descale and k_descale is given; pass both or neither",
        )
        shapes: dict[str, Any] = {x: [(self.batch, heads_k)] for x in ("q_descale", "k_descale", "v_descale")}
        shapes |= {"alibi_slopes": [(heads,), (self.batch, heads)], "sinks": [(heads,)]}
        for name, allowed in shapes.items():
            if getattr(params, name) is not None:
                check_array(self.name, name, getattr(params, name), "float32", *allowed)


def dtype_name(x: Any) -> str:
    """Return the name of an array's type, or of a type of its library: "float16"."""
    return str(getattr(x, "dtype", x)).rpartition(".")[2]


def as_4d(x: Any) -> Any:
    """Return (rows, heads, D) as (1, rows, heads, D); 4-D arrays stay."""
    return x if x.ndim == 4 else arrays.with_batch(x)


def lse_shape(q: Any) -> tuple[int, ...]:
    """Return the shape of LSE: (batch, heads, queries), or (heads, all queries) with varlen."""
    return (q.shape[-2], q.shape[0]) if q.ndim == 3 else (q.shape[0], q.shape[2], q.shape[1])


def longest(cu_seqlens: Any, limit: int | None, x: Any) -> int:
    """Return the rows of the longest sequence, or more: `limit` if the user gave one, otherwise they are looked up."""
    if cu_seqlens is None:
        return x.shape[1]
    if limit is not None:
        return max(1, int(limit))
    cannot_repeat("the longest sequence is looked up in the array")
    return max(1, int((cu_seqlens[1:] - cu_seqlens[:-1]).max()))


def resolve_scale(name: str, q: Any, scale: float | None) -> float:
    """Return the scale of scores; by default head_dim ** -0.5."""
    scale = float(q.shape[-1] ** -0.5 if scale is None else scale)
    arrays.require(0.0 < scale < math.inf, f"{name}: scale is {scale}; it must be positive")
    return scale


def check_arrays(name: str, arguments: dict[str, Any], optional: set[str], written: tuple[str, ...] = ("out",)) -> None:
    """Raise if arrays are missing, of different libraries, on different devices, or cannot be used."""
    q = arguments["q"]
    for label, x in arguments.items():
        arrays.require(x is not None or label in optional, f"{name}: {label} is None")
        if x is not None:
            arrays.require(
                arrays.is_torch(x) == arrays.is_torch(q) and getattr(x, "device", None) == getattr(q, "device", None),
                f"{name}: {label} is {_place(x)}, and q is {_place(q)}; they must be in one place",
            )
            arrays.require_usable(x, f"{name}: {label}", written=label in written)


def _place(x: Any) -> str:
    return f"a torch tensor on {x.device}" if arrays.is_torch(x) else "a numpy array"


def check_page_table(name: str, table: Any, batch: int) -> None:
    """Raise if a page table is not (batch, pages), int32 and contiguous in its last mode."""
    arrays.require(
        table.ndim == 2
        and str(table.dtype).endswith("int32")
        and len(table) == batch
        and (arrays.strides(table)[1] == 1 or table.shape[1] < 2),
        f"{name}: page_table is {table.dtype} of shape {tuple(table.shape)}; it must be (batch, pages) of int32, "
        f"contiguous in its last mode, for {batch} sequences",
    )


def check_array(name: str, label: str, x: Any, dtype: str, *shapes: tuple[int, ...], note: str = "") -> None:
    """Raise unless an array has an element type, one of some shapes, and a contiguous last mode."""
    arrays.require(
        tuple(x.shape) in shapes and dtype_name(x) == dtype and arrays.strides(x)[x.ndim - 1] == 1,
        f"{name}: {label} is {x.dtype} of shape {tuple(x.shape)}; it must be a contiguous array of {dtype}, "
        f"{' or '.join(map(str, shapes))}{note}",
    )


def check_lengths(name: str, label: str, x: Any, batch: int, extra: int = 0) -> None:
    """Raise unless `x` is a contiguous int32 vector of a number for each sequence, and `extra` more."""
    check_array(name, label, x, "int32", (max(1, batch) + extra,), note=f", for {batch} sequences")


def check_out(name: str, out: Any, shape: tuple[int, ...], dtypes: list[Any], read: dict[str, Any]) -> None:
    """Raise if results cannot be written to `out`; `read` are arrays that are read after parts of it are written."""
    if out is None:
        return
    arrays.require(
        tuple(out.shape) == shape and str(out.dtype) in map(str, dtypes),
        f"{name}: out is {out.dtype} of shape {tuple(out.shape)}; it must be {dtypes[0]} of shape {shape}",
    )
    for label, x in read.items():
        arrays.require(
            not arrays.overlap(x, out),
            f"{name}: out shares memory with {label}, which is read after parts of out are written",
            hint="pass another array",
        )


def check_aligned(name: str, label: str, x: Any) -> None:
    """Raise if the heads of an array cannot be copied 16 bytes at a time."""
    last = x.ndim - 1
    arrays.require(
        arrays.strides(x)[last] == 1
        and arrays.layout_of(x).width(last) * arrays.itemsize(x) == arrays.MAX_VECTOR_BYTES,
        f"{name}: {label} has strides {arrays.strides(x)} at {arrays.address(x):#x}; elements of a head must be "
        "contiguous, and heads must begin at multiples of 16 bytes",
        hint="make a contiguous copy",
    )
