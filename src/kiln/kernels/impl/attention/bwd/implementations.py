"""The implementations of gradients of attention."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, Int32, Int64, const_expr, cute
from ....dispatch import arrays, devices, launches, recorder
from ....dispatch.registry import Implementation, Registry, variants
from ..fwd.implementations import _factors, _fake, _memory_of
from ..fwd.sm80 import Lengths
from ..fwd.sm80_config import padded
from . import sm90, sm90_config, sm90_cost, sm90_hd256_config, sm90_hd256_dkv
from .preprocess import BackwardPreprocess, SinkBackward, Sinks
from .problem import AttentionBackwardProblem
from .score_mod import NOTHING, SLOPED, Change
from .sm80 import KEYS, QUERIES, Numbers, Pass
from .sm80_config import Sm80AttentionBackwardConfig, default_config, expected
from .sm90_config import Sm90AttentionBackwardConfig
from .sm90_dq_postprocess import Queries
from .sm90_hd256_config import Sm90AttentionBackwardHd256Config
from .sm90_hd256_dq import Sm90Hd256DqKernel
from .sm90_scheduler import Counters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device

REGISTRY = Registry("attention_backward")

_MOST_TOGETHER = 128
"""Elements of a head up to which the gradients of keys and of values fit into registers together."""


class Given(NamedTuple):
    """The arrays: all (batch, rows, heads, D), batch 1 for sequences one after another, logarithms (batch, heads, queries); lengths.

    `longest`: queries and keys of the longest sequences, or more.
    """

    dout: Any
    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any
    dq: Any
    dk: Any
    dv: Any
    lengths: Lengths
    longest: tuple[int, int]
    scale: float
    softcap: float
    slopes: Any = None
    sinks: Sinks | None = None


@REGISTRY.register
class Sm80AttentionBackward(Implementation):
    """Two passes with `mma.sync`: of keys and values, and of queries."""

    config = Sm80AttentionBackwardConfig
    repeats = True

    def supports(self, problem: AttentionBackwardProblem, device: Device) -> str | None:
        return None

    def configs(self, problem: AttentionBackwardProblem, device: Device) -> Iterator[Sm80AttentionBackwardConfig]:
        return variants(
            default_config(problem, device), lambda config: self.check(problem, config, device), tile_n=(16, 32, 64)
        )

    def cost(self, problem: AttentionBackwardProblem, config: Sm80AttentionBackwardConfig, device: Device) -> float:
        return expected(problem, config, device)

    def check(self, problem: AttentionBackwardProblem, config: Sm80AttentionBackwardConfig, device: Device) -> None:
        config.check(*problem.attention.head_dims, device.smem)

    def run(self, problem: AttentionBackwardProblem, config: Sm80AttentionBackwardConfig, given: Given) -> None:
        q = given.q
        shape = (problem.dtype, problem.attention.head_dims, config, problem.attention.masks)
        compiled = _compiled(
            recorder.mode(), _kernels(Sm80BackwardLaunch, problem, shape), _memory_of(q), *_there(given)
        )
        found = arrays.empty(q, (2, *given.lse.shape), arrays.dtype_named(q, "float32"))
        _launch(compiled, given, (found,), _numbers(problem, given))


@REGISTRY.register
class Sm90AttentionBackward(Implementation):
    """One pass of warp groups that multiply from shared memory (`wgmma`), which the copy engine fills; it adds up gradients of queries."""

    config = Sm90AttentionBackwardConfig
    repeats = True

    def supports(self, problem: AttentionBackwardProblem, device: Device) -> str | None:
        of = problem.attention
        if not device.warp_groups:
            return "it is for sm_90a"
        if max(of.head_dims) > _MOST_TOGETHER:
            return f"heads of {max(of.head_dims)} elements are more than {_MOST_TOGETHER}"
        return None

    def configs(self, problem: AttentionBackwardProblem, device: Device) -> Iterator[Sm90AttentionBackwardConfig]:
        first = sm90_cost.default_config(problem, device)
        return variants(
            first,
            lambda config: self.check(problem, config, device),
            tile_m=(48, 64, 80, 96, 112),
            q_stages=(2, 3),
            operands_in_regs=(0, 1, 2),
        )

    def cost(self, problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device) -> float:
        return sm90_cost.expected(problem, config, device)

    def cost_terms(
        self, problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device
    ) -> dict[str, float]:
        return sm90_cost.parts(problem, config, device)

    def check(self, problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device) -> None:
        config.check(sm90_config.padded(problem.attention.head_dims), device.smem)

    def run(self, problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, given: Given) -> None:
        q, of = given.q, problem.attention
        elements = sm90_config.padded(of.head_dims)
        right, left, capped = problem.attention.masks
        # what hides keys before a query hides those far after it, too: there is one kernel less
        masks = (right or left, left, capped)
        shape = (problem.dtype, of.head_dims, config, masks, problem.deterministic, of.varlen, of.has_seqused_k)
        compiled = _compiled_sm90(
            recorder.mode(), _kernels(Sm90BackwardLaunch, problem, shape), _memory_of(q), *_there(given)
        )
        layers, tiles = q.shape[0], _tiles(problem, config, q)
        real, number = (arrays.dtype_named(q, name) for name in ("float32", "int32"))
        device = devices.current()
        side, part, parts = sm90_config.side_by_side(problem, config, device)
        found = arrays.empty(q, (2, layers, of.heads, tiles * config.tile_m), real)
        sums = arrays.empty(q, (parts * layers, of.heads, tiles * config.tile_m * elements), real)
        turns = None
        if problem.deterministic:
            turns = arrays.empty(q, (parts * layers, of.heads, tiles), number)
        counters = Counters(turns, arrays.empty(q, (1,), number))
        scale, cap, left, right = _factors(of, given)  # type: ignore[arg-type]
        early = sm90_config.made_meanwhile(problem, config, side, parts)
        order = (side, part, early, device.multiprocessors)
        numbers = sm90.Numbers(scale, cap, given.scale, left, right, *order, given.softcap or given.scale)
        _launch(compiled, given, (found, sums, counters), numbers)


class Sm90BackwardLaunch:
    """All kernels of a call."""

    def __init__(
        self,
        dtype: Any,
        head_dims: tuple[int, int],
        config: Sm90AttentionBackwardConfig,
        masks: tuple[bool, bool, bool],
        turns: bool,
        packed: bool,
        partial: bool,
        change: Change = NOTHING,
    ) -> None:
        self.dtype, self.turns = dtype, turns
        self.rows, self.of_sinks = BackwardPreprocess(dtype, head_dims[1], config.tile_m), SinkBackward(config.tile_m)
        elements = sm90_config.padded(head_dims)
        self.main = sm90.Sm90BackwardKernel(dtype, elements, config, masks, turns, packed, partial, change)
        self.queries = Queries(self.main, head_dims[0])

    @cute.jit
    def __call__(
        self, dout: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: cute.Tensor,
        dq: cute.Tensor, dk: cute.Tensor, dv: cute.Tensor, found: cute.Tensor, sums: cute.Tensor, counters: Any,
        lengths: Any, slopes: Any, sinks: Any, longest_q: Int32, longest_k: Int32, numbers: Any, stream: Int64,
    ):  # fmt: skip
        starts = lengths.starts_q
        # in turns, the first does not add but write
        cleared = None if const_expr(self.main.turns) else sums
        dout, out, dq = (self.rows.aligned(x) for x in (dout, out, dq))
        self.rows(dout, out, lse, found, cleared, counters, starts, longest_q, stream)
        if const_expr(sinks is not None):
            self.of_sinks(found, sinks, starts, Int32(q.shape[1]), stream)
        turns = counters.turns
        meanwhile = None if const_expr(turns is None or self.main.packed) else dq
        self.main(
            (k, v), (q, dout), (dk, dv), meanwhile, found, sums, counters, lengths, slopes, longest_k, numbers, stream
        )
        self.queries(sums, turns, dq, starts, longest_q, numbers, stream)


@REGISTRY.register
class Sm90AttentionBackwardHd256(Implementation):
    """Two passes of warp groups that multiply from shared memory (`wgmma`), which the copy engine fills: for heads of more than 128 elements."""

    config = Sm90AttentionBackwardHd256Config
    repeats = True

    def supports(self, problem: AttentionBackwardProblem, device: Device) -> str | None:
        of = problem.attention
        if not device.warp_groups:
            return "it is for sm_90a"
        if max(of.head_dims) <= _MOST_TOGETHER:
            return f"heads of {max(of.head_dims)} elements are not more than {_MOST_TOGETHER}"
        return None

    def configs(self, problem: AttentionBackwardProblem, device: Device) -> Iterator[Sm90AttentionBackwardHd256Config]:
        return variants(
            sm90_hd256_config.default_config(problem, device),
            lambda config: self.check(problem, config, device),
            tile_m=(48, 64),
            q_stages=(3, 4),
            kv_dims_in_regs=(0, 128, 192),
            tile_n=(32, 48, 64),
            q_dims_in_regs=(0, 128),
        )

    def cost(
        self, problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config, device: Device
    ) -> float:
        return sm90_hd256_config.expected(problem, config, device)

    def cost_terms(
        self, problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config, device: Device
    ) -> dict[str, float]:
        return sm90_hd256_config.parts(problem, config, device)

    def check(
        self, problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config, device: Device
    ) -> None:
        config.check(sm90_hd256_config.padded(problem.attention.head_dims), device.smem)

    def run(self, problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config, given: Given) -> None:
        q, of = given.q, problem.attention
        shape = (problem.dtype, of.head_dims, config, problem.attention.masks, of.varlen, of.has_seqused_k)
        compiled = _compiled(
            recorder.mode(), _kernels(Sm90Hd256BackwardLaunch, problem, shape), _memory_of(q), *_there(given)
        )
        rows = _tiles(problem, config, q) * config.tile_m
        found = arrays.empty(q, (2, q.shape[0], of.heads, rows), arrays.dtype_named(q, "float32"))
        scale, cap, left, right = _factors(of, given)  # type: ignore[arg-type]
        side = sm90_hd256_config.side_by_side(problem, devices.current())
        numbers = sm90_hd256_dkv.Numbers(scale, cap, given.scale, left, right, side, given.softcap or given.scale)
        _launch(compiled, given, (found,), numbers)


class Sm90Hd256BackwardLaunch:
    """All kernels of a call."""

    numbers = sm90_hd256_dkv.Numbers(Float32(1.0), Float32(1.0), Float32(1.0), 0, 0, 1, Float32(1.0))

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Sm90AttentionBackwardHd256Config, masks: tuple[bool, bool, bool], packed: bool,
        partial: bool, change: Change = NOTHING,
    ) -> None:  # fmt: skip
        self.dtype = dtype
        self.rows, self.of_sinks = BackwardPreprocess(dtype, head_dims[1], config.tile_m), SinkBackward(config.tile_m)
        given = (dtype, sm90_hd256_config.padded(head_dims), config, masks, packed, partial, change)
        self.of_keys, self.of_queries = sm90_hd256_dkv.Sm90Hd256DkDvKernel(*given), Sm90Hd256DqKernel(*given)

    @cute.jit
    def __call__(
        self, dout: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: cute.Tensor,
        dq: cute.Tensor, dk: cute.Tensor, dv: cute.Tensor, found: cute.Tensor, lengths: Any, slopes: Any, sinks: Any,
        longest_q: Int32, longest_k: Int32, numbers: Any, stream: Int64,
    ):  # fmt: skip
        starts = lengths.starts_q
        dout, out = (self.rows.aligned(x) for x in (dout, out))
        self.rows(dout, out, lse, found, None, None, starts, longest_q, stream)
        if const_expr(sinks is not None):
            self.of_sinks(found, sinks, starts, Int32(q.shape[1]), stream)
        self.of_keys((k, v), (q, dout), (dk, dv), found, lengths, slopes, longest_k, numbers, stream)
        self.of_queries((q, dout), (k, v), dq, found, lengths, slopes, longest_q, numbers, stream)


def _numbers(problem: AttentionBackwardProblem, given: Given) -> Numbers:
    scale, cap, left, right = _factors(problem.attention, given)  # type: ignore[arg-type]
    return Numbers(scale, cap, given.scale, left, right, given.softcap or given.scale)


class Sm80BackwardLaunch:
    """All kernels of a call."""

    numbers = Numbers(Float32(1.0), Float32(1.0), Float32(1.0), 0, 0, Float32(1.0))

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Sm80AttentionBackwardConfig, masks: tuple[bool, bool, bool],
        change: Change = NOTHING,
    ) -> None:  # fmt: skip
        self.dtype = dtype
        self.rows, self.of_sinks = BackwardPreprocess(dtype, head_dims[1]), SinkBackward()
        made = functools.partial(Pass, dtype, head_dims, config, masks, change=change)
        self.of_queries = made(QUERIES, True, False)
        together = max(map(padded, head_dims)) <= _MOST_TOGETHER
        self.of_keys = [made(KEYS, True, True)] if together else [made(KEYS, True, False), made(KEYS, False, True)]

    @cute.jit
    def __call__(
        self, dout: cute.Tensor, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: cute.Tensor,
        dq: cute.Tensor, dk: cute.Tensor, dv: cute.Tensor, found: cute.Tensor, lengths: Any, slopes: Any, sinks: Any,
        longest_q: Int32, longest_k: Int32, numbers: Any, stream: Int64,
    ):  # fmt: skip
        dout, out = (self.rows.aligned(x) for x in (dout, out))
        self.rows(dout, out, lse, found, None, None, None, longest_q, stream)
        if const_expr(sinks is not None):
            self.of_sinks(found, sinks, lengths.starts_q, Int32(q.shape[1]), stream)
        for of_keys in self.of_keys:
            to = (dk if const_expr(of_keys.of_scores) else None, dv if const_expr(of_keys.of_weights) else None)
            of_keys((k, v), (q, dout), to, found, lengths, slopes, longest_k, numbers, stream)
        self.of_queries((q, dout), (k, v), (dq, None), found, lengths, slopes, longest_q, numbers, stream)


def _kernels(kind: type[Any], problem: AttentionBackwardProblem, shape: tuple[Any, ...]) -> Any:
    """One object for equal shapes and functions of scores."""
    sloped, functions = problem.attention.has_alibi, problem.functions
    if functions is None:
        return launches.cached_kernel(kind, *shape, SLOPED if sloped else NOTHING)
    return launches.cached_kernel_of(functions, lambda: kind(*shape, Change(sloped, functions)), kind, *shape, sloped)


def _tiles(
    problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig | Sm90AttentionBackwardHd256Config, q: Any
) -> int:
    """Blocks of queries: each of the sequences that lie one after another has its own."""
    of, queries = problem.attention, q.shape[1]
    return queries // config.tile_m + of.batch if of.varlen else -(-queries // config.tile_m)


def _launch(compiled: Any, given: Given, made: tuple[Any, ...], numbers: Any) -> None:
    """Call what was compiled, with arrays that were made for it besides those that are given."""
    rows = (given.dout, given.q, given.k, given.v, given.out, given.lse, given.dq, given.dk, given.dv)
    more = (given.lengths, given.slopes, given.sinks)
    launches.run_arguments(compiled, [*rows, *made, *more, *given.longest, numbers, arrays.stream_of(given.q)])


def _there(given: Given) -> tuple[Any, ...]:
    """Which arrays there are."""
    return tuple(x is not None for x in given.lengths), given.slopes is not None, given.sinks is not None


def _described(kernels: Any, space: Any, lengths: tuple[bool, ...], sloped: bool, sinks: bool) -> tuple[Any, ...]:
    """Five arrays that are read and three gradients, of any shape and strides; lengths, slopes and sinks."""
    rows = [_fake(kernels.dtype, 4, space) for _ in range(8)]
    vectors = Lengths(*(_fake(Int32, 1, space) if there else None for there in lengths))
    of_heads = Sinks(*(_fake(Float32, 1, space) for _ in range(2))) if sinks else None
    return rows[:5], rows[5:], (vectors, _fake(Float32, 2, space) if sloped else None, of_heads)


@functools.lru_cache(maxsize=1024)
def _compiled(_mode: Any, kernels: Sm80BackwardLaunch | Sm90Hd256BackwardLaunch, space: Any, *there: Any) -> Any:
    """The function for arrays of any shape and strides with heads of some dimensions."""
    rows, results, more = _described(kernels, space, *there)
    known = [_fake(Float32, modes, space) for modes in (3, 4)]
    return cute.compile(kernels, *rows, known[0], *results, known[1], *more, Int32(1), Int32(1), kernels.numbers, 0)


@functools.lru_cache(maxsize=1024)
def _compiled_sm90(_mode: Any, kernels: Sm90BackwardLaunch, space: Any, *there: Any) -> Any:
    """The function for arrays of any shape and strides with heads of some dimensions."""
    rows, results, more = _described(kernels, space, *there)
    real = [_fake(Float32, modes, space) for modes in (3, 4, 3)]
    counters = Counters(_fake(Int32, 3, space) if kernels.turns else None, _fake(Int32, 1, space))
    numbers = sm90.Numbers(Float32(1.0), Float32(1.0), Float32(1.0), 0, 0, 1, 1, 0, 1, Float32(1.0))
    return cute.compile(
        kernels, *rows, real[0], *results, *real[1:], counters, *more, Int32(1), Int32(1), numbers, 0
    )  # fmt: skip
