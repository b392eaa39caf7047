"""The implementations of attention."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, Int32, cute
from ....dispatch import arrays, devices, launches, recorder
from ....dispatch.registry import Implementation, Registry, variants
from ..problem import MAX_GRID_Z, AttentionProblem
from ..score_mod import score_function
from . import decode_cost, sm90, sm90_config, sm90_cost
from .combine import partial_columns
from .gather_pages import gather_pages_kernel
from .sm80 import Forward, Lengths, Numbers, OfHeads, forward
from .sm80_config import Sm80AttentionConfig
from .sm80_cost import default_config, expected
from .sm90_config import Sm90AttentionConfig
from .transpose_v import places_of_all, transpose_v_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device
    from ....parts.element_functions import Functions

REGISTRY = Registry("attention")

_LOG2_E = 1.4426950408889634
_L2_SHARE = 24 << 20
"""Bytes of keys and values that blocks of threads which run at the same time may need: about half of a large L2 cache."""
_MOST_LAID = 4 << 30
"""Bytes that a call takes for keys and values in succession, at most, where they lie in small pages."""
_FAR = 1 << 28
"""Further than any key."""


class Given(NamedTuple):
    """The arrays of attention: (batch, rows, heads, D), batch 1 for sequences one after another; logarithms, or None; lengths.

    `longest`: queries of the longest sequence, or more. `mean`: keys of a sequence on average.
    """

    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any
    lengths: Lengths
    longest: int
    mean: int
    scale: float
    softcap: float
    slopes: Any = None
    sinks: Any = None
    factors: tuple[Any, Any, Any] = (None, None, None)


@REGISTRY.register
class Sm80Attention(Implementation):
    """FlashAttention-2 with `mma.sync`."""

    config = Sm80AttentionConfig
    repeats = True

    def supports(self, problem: AttentionProblem, device: Device) -> str | None:
        if problem.dtype.width == 8 and device.capability < (8, 9):
            return f"sm_{device.capability[0]}{device.capability[1]} does not convert {problem.dtype.__name__}"
        return None

    def configs(self, problem: AttentionProblem, device: Device) -> Iterator[Sm80AttentionConfig]:
        def check(config: Sm80AttentionConfig) -> None:
            self.check(problem, config, device)

        first = default_config(problem, device)
        if decode_cost.few(problem):
            return iter(dict.fromkeys((first, *decode_cost.candidates(problem, device))))
        return variants(first, check, tile_n=(32, 64, 96), ctas_per_sm=(1, 2), num_splits=sorted({1, first.num_splits}))

    def cost(self, problem: AttentionProblem, config: Sm80AttentionConfig, device: Device) -> float:
        took = expected(problem, config, device)
        if decode_cost.few(problem):
            return took
        first = default_config(problem, device)
        # of one problem the first was measured: what is estimated of others does not speak against it
        return took if config == first else max(took, expected(problem, first, device))

    def check(self, problem: AttentionProblem, config: Sm80AttentionConfig, device: Device) -> None:
        config.check(*problem.head_dims, device.smem, problem.dtype.width)
        arrays.require(
            problem.batch * config.num_splits <= MAX_GRID_Z,
            f"{config}: {problem.batch} sequences in {config.num_splits} parts are more than {MAX_GRID_Z} together",
        )

    def run(self, problem: AttentionProblem, config: Sm80AttentionConfig, given: Given) -> None:
        q, head_dims = given.q, problem.head_dims
        found = None
        if config.num_splits > 1:
            shape = (config.num_splits, *q.shape[:3], partial_columns(problem.head_dim_v))
            found = arrays.empty(q, shape, arrays.dtype_named(q, "float32"))
        share = problem.group_size if config.pack_gqa else 1
        shape = (
            problem.dtype, head_dims, dataclasses.replace(config, num_splits=1),
            (problem.window_right is not None, problem.window_left is not None, problem.has_softcap), share, found is not None,
            problem.page_size, problem.out_dtype, problem.q_dtype,
        )  # fmt: skip
        of_heads = OfHeads(given.slopes, given.sinks, *given.factors)
        compiled = _compiled(
            recorder.mode(), _kernel(forward, Forward, problem.score_mod, shape), _memory_of(q), problem.return_lse,
            tuple(x is not None for x in given.lengths), tuple(x is not None for x in of_heads),
        )  # fmt: skip
        scale, cap, left, right = _factors(problem, given)
        numbers = Numbers(
            scale,
            cap,
            given.softcap or given.scale,
            left,
            right,
            group=_side_by_side(problem.heads // share, problem.dtype.width // 8 * given.mean * sum(head_dims)),
            num_splits=config.num_splits,
        )
        rows = (q, given.k, given.v, given.out, found, given.lse)
        launches.run_arguments(compiled, [*rows, given.lengths, of_heads, given.longest, numbers, arrays.stream_of(q)])


@REGISTRY.register
class Sm90Attention(Implementation):
    """Warp groups that multiply from shared memory (`wgmma`), which the copy engine fills."""

    config = Sm90AttentionConfig
    repeats = True

    def supports(self, problem: AttentionProblem, device: Device) -> str | None:
        if not device.warp_groups:
            return "it is for sm_90a"
        if problem.q_dtype is not None:
            return f"its queries have the type of keys and values, {problem.dtype.__name__}"
        laid = sm90_cost.laid_bytes(problem)
        if laid > _MOST_LAID:
            return f"rows of pages of {problem.page_size} are laid in succession, which takes {laid} bytes: up to {_MOST_LAID}"
        return None

    def configs(self, problem: AttentionProblem, device: Device) -> Iterator[Sm90AttentionConfig]:
        def check(config: Sm90AttentionConfig) -> None:
            self.check(problem, config, device)

        found = list(sm90_cost.candidates(problem, device))
        yield from found
        steps = (64, 80, 96, 112, 128, 144, 160)
        others = variants(found[0], check, consumer_warpgroups=(2, 3), tile_n=steps, pingpong=(True, False))
        yield from (config for config in others if config not in found)

    def cost(self, problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> float:
        return sm90_cost.expected(problem, config, device)

    def cost_terms(self, problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> dict[str, float]:
        return sm90_cost.parts(problem, config, device)

    def check(self, problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> None:
        config.check(*problem.head_dims, device.smem, problem.dtype.width)
        arrays.require(
            not config.pack_gqa or sm90_config.ROWS % problem.group_size == 0,
            f"{config}: {problem.group_size} heads that share keys do not divide {sm90_config.ROWS} rows of a warp group",
            hint="pack_gqa=False",
        )

    def run(self, problem: AttentionProblem, config: Sm90AttentionConfig, given: Given) -> None:
        q, device = given.q, devices.current()
        values = self.laid(problem, config, given) if problem.dtype.width == 8 else None
        if sm90_cost.laid_bytes(problem):
            problem, given = self.in_succession(problem, given)
        masks = (problem.window_right is not None, problem.window_left is not None, problem.has_softcap)
        share = problem.group_size if config.pack_gqa else 1
        kernel_config = dataclasses.replace(config, persistent=True, pack_gqa=False, dynamic_scheduler=False)
        shape = (
            problem.dtype, problem.head_dims, kernel_config, masks,
            config.own_outputs(*problem.head_dims, device.smem, problem.dtype.width), share,
            problem.varlen, problem.has_seqused_k, problem.has_alibi, problem.page_size, problem.out_dtype,
        )  # fmt: skip
        kernel = _kernel(sm90.sm90_forward_kernel, sm90.Sm90ForwardKernel, problem.score_mod, shape)
        tiles = -(-problem.seqlen_q * share // config.tile_m) * (problem.heads // share) * problem.batch
        blocks = min(tiles, device.multiprocessors) if config.persistent else tiles
        counter = None
        if config.dynamic_scheduler and tiles > blocks:
            counter = arrays.empty(q, (1,), arrays.dtype_named(q, "int32"))
            arrays.fill(counter, 0)
        more = sm90.More(*given.lengths, given.slopes, given.sinks, counter, *given.factors)
        compiled = _compiled_sm90(
            recorder.mode(), kernel, _memory_of(q), problem.return_lse, tuple(x is not None for x in more)
        )
        scale, cap, left, right = _factors(problem, given)
        numbers = sm90.Numbers(
            scale, cap, given.softcap or given.scale, left, right,
            problem.group_size // share
            * _side_by_side(problem.heads_k, given.mean * sum(problem.head_dims) * problem.dtype.width // 8),
            blocks,
        )  # fmt: skip
        rows = (q, given.k, given.v if values is None else values, given.out, given.lse)
        launches.run_arguments(compiled, [*rows, more, numbers, arrays.stream_of(q)])

    def in_succession(self, problem: AttentionProblem, given: Given) -> tuple[AttentionProblem, Given]:
        """Keys, and values of 16 bits, that lay in pages."""
        lengths, laid = given.lengths, []
        for x in (given.k, given.v) if problem.dtype.width == 16 else (given.k,):
            laid.append(arrays.empty(x, (problem.batch, problem.kv_capacity, *x.shape[2:]), None))
            kernel = gather_pages_kernel(problem.dtype, x.shape[3], problem.page_size)
            compiled = _compiled_rows(recorder.mode(), kernel, _memory_of(x), lengths.used is not None)
            launches.run_arguments(compiled, [x, laid[-1], lengths.used, lengths.table, arrays.stream_of(x)])
        given = given._replace(lengths=lengths._replace(table=None), **dict(zip("kv", laid)))
        return dataclasses.replace(problem, page_size=0, has_seqused_k=True), given

    def laid(self, problem: AttentionProblem, config: Sm90AttentionConfig, given: Given) -> Any:
        """Values of 8 bits as the kernel takes them."""
        q, v, lengths = given.q, given.v, given.lengths
        batches, keys, heads, dim = v.shape
        if lengths.table is not None:
            batches, keys = lengths.table.shape[0], lengths.table.shape[1] * problem.page_size
        places = -(-keys // 16) * 16
        if lengths.starts_k is not None:
            places = places_of_all(keys, problem.batch, config.tile_n)
        values = arrays.empty(v, (batches, dim, heads, places), None)
        more = (lengths.starts_k, lengths.used, lengths.table)
        compiled = _compiled_transposed(
            recorder.mode(), transpose_v_kernel(problem.dtype, dim, config.tile_n, problem.page_size), _memory_of(q),
            tuple(x is not None for x in more),
        )  # fmt: skip
        launches.run_arguments(compiled, [v, values, *more, arrays.stream_of(q)])
        return values


def _kernel(kept: Any, make: Any, score: Functions | None, shape: tuple[Any, ...]) -> Any:
    """One kernel object for equal shapes and functions of scores."""
    if score is None:
        return kept(*shape)
    return launches.cached_kernel_of(score, lambda: make(*shape, score=score_function(score)), make, *shape)


def _factors(problem: AttentionProblem, given: Given) -> tuple[float, float, int, int]:
    """Factors of the scores (in powers of two) and of the cap, keys seen before and after a query's own."""
    scale, softcap = given.scale, given.softcap
    changed = problem.has_alibi or problem.score_mod is not None  # scores are then natural ones
    return (
        _LOG2_E * (1.0 if changed else softcap or scale),
        2.0 * _LOG2_E * scale / softcap if softcap else 0.0,
        _FAR if problem.window_left is None else problem.window_left,
        _FAR if problem.window_right is None else problem.window_right,
    )


def _side_by_side(heads: int, size: int) -> int:
    """Heads that are done side by side, with keys and values of some size in bytes each: equally many each time."""
    turns = -(-heads // max(1, _L2_SHARE // max(1, size)))
    return -(-heads // turns)


@functools.lru_cache(maxsize=1024)
def _compiled(
    _mode: Any, kernel: Forward, space: Any, lse: bool, lengths: tuple[bool, ...], of_heads: tuple[bool, ...]
) -> Any:
    """The function for arrays of any shape and strides with heads of some dimensions."""
    rows = [_fake(dtype, 4, space) for dtype in (kernel.q_dtype, kernel.stored, kernel.stored, kernel.out_dtype)]
    more = [
        _fake(Float32, 5, space) if kernel.parts else None,
        _fake(Float32, 2 if lengths[0] else 3, space) if lse else None,
    ]
    vectors = Lengths(*(_fake(Int32, 1 + (n == 3), space) if there else None for n, there in enumerate(lengths)))
    modes = (2, 1, 2, 2, 2)
    others = OfHeads(*(_fake(Float32, n, space) if there else None for n, there in zip(modes, of_heads, strict=True)))
    numbers = Numbers(Float32(1.0), Float32(1.0), Float32(1.0), 0, 0, 1, 1)
    return cute.compile(kernel, *rows, *more, vectors, others, Int32(1), numbers, 0)


@functools.lru_cache(maxsize=1024)
def _compiled_sm90(_mode: Any, kernel: sm90.Sm90ForwardKernel, space: Any, lse: bool, more: tuple[bool, ...]) -> Any:
    """The function for arrays of any shape and strides with heads of some dimensions."""
    rows = [_fake(dtype, 4, space) for dtype in (*[kernel.dtype] * 3, kernel.out_dtype)]
    kinds = (*[(Int32, 1)] * 3, (Int32, 2), (Float32, 2), (Float32, 1), (Int32, 1), *[(Float32, 2)] * 3)
    others = sm90.More(*(_fake(*kind, space) if there else None for kind, there in zip(kinds, more, strict=True)))
    numbers = sm90.Numbers(Float32(1.0), Float32(1.0), Float32(1.0), 0, 0, 1, 1)
    logarithms = _fake(Float32, 2 if kernel.packed else 3, space) if lse else None
    return cute.compile(kernel, *rows, logarithms, others, numbers, 0)


@functools.lru_cache(maxsize=64)
def _compiled_transposed(_mode: Any, kernel: Any, space: Any, there: tuple[bool, ...]) -> Any:
    """The function that lays values of 8 bits as the kernel takes them, for starts, lengths and pages that are there."""
    rows = [_fake(kernel.dtype, 4, space) for _ in range(2)]
    more = [_fake(Int32, modes, space) if given else None for given, modes in zip(there, (1, 1, 2), strict=True)]
    return cute.compile(kernel, *rows, *more, 0)


@functools.lru_cache(maxsize=64)
def _compiled_rows(_mode: Any, kernel: Any, space: Any, used: bool) -> Any:
    """The function that lays rows of pages in succession."""
    rows = [_fake(kernel.dtype, 4, space) for _ in range(2)]
    return cute.compile(kernel, *rows, _fake(Int32, 1, space) if used else None, _fake(Int32, 2, space), 0)


def _memory_of(x: Any) -> Any:
    """Where an array lies: in a GPU, or anywhere."""
    on_gpu = arrays.is_torch(x) and x.device.type == "cuda"
    return cute.AddressSpace.gmem if on_gpu else cute.AddressSpace.generic


def _fake(element: Any, modes: int, space: Any) -> Any:
    """The description of an array with the last mode contiguous."""
    strides = [cute.sym_int(64) for _ in range(modes - 1)]
    align = arrays.MAX_VECTOR_BYTES if element.width in (8, 16) or modes == 5 else element.width // 8
    return cute.runtime.make_fake_tensor(
        element, tuple(cute.sym_int() for _ in range(modes)), (*strides, 1), memspace=space, assumed_align=align
    )
