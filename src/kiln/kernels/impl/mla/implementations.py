"""The implementations of attention to latents."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float32, Int32, cute
from ...dispatch import arrays, launches, recorder
from ...dispatch.registry import Implementation, Registry
from ..attention.fwd.combine import partial_columns
from . import sm90
from .problem import LatentAttention
from .sm80 import LatentColumns
from .sm90_config import EARLY, TURNED_ROWS, Sm90MlaConfig, default_config, parts
from .sm90_swap_ab import turned_forward
from .split_kv_scheduler import MEMBERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device

REGISTRY = Registry("latents")

_WAYS, _MANY = 8, 8
"""Groups of threads that put pieces together where sequences have so many on average; else one."""
_LOG2_E = 1.4426950408889634


class Given(NamedTuple):
    """Queries (batch, queries, heads, columns), latents (pages, rows, columns), pages of sequences, lengths, outputs, logarithms or None,
    factor of the scores, factor of latents or None."""

    q: Any
    cache: Any
    table: Any
    lengths: Any
    out: Any
    lse: Any
    scale: float
    factor: Any = None


REGISTRY.register(LatentColumns)


@REGISTRY.register
class HopperLatents(Implementation):
    """Two warp groups that share the outputs of 64 rows (`wgmma`); the copy engine brings pages."""

    config = Sm90MlaConfig
    repeats = True

    def supports(self, problem: LatentAttention, device: Device) -> str | None:
        if not device.warp_groups:
            return "it is for sm_90a"
        if problem.dim - problem.value_dim != sm90.ROPE or problem.value_dim % 128 or problem.value_dim > 512:
            return f"values are a multiple of 128 columns, up to 512, and latents {sm90.ROPE} more"
        return None

    def configs(self, problem: LatentAttention, device: Device) -> Iterator[Sm90MlaConfig]:
        first = default_config(problem, device)
        yield first
        both = (first.turned, not first.turned) if problem.queries * problem.heads <= TURNED_ROWS else (first.turned,)
        for turned in both:
            one = dataclasses.replace(first, turned=turned)
            most = device.multiprocessors // one.tiles(problem)
            for shares in dict.fromkeys((first.shares, max(1, most), *(first.shares * turns for turns in (2, 3, 4)))):
                if shares != first.shares or one != first:
                    yield dataclasses.replace(one, shares=shares)

    def cost(self, problem: LatentAttention, config: Sm90MlaConfig, device: Device) -> float:
        return max(parts(problem, config, device).values())

    def cost_terms(self, problem: LatentAttention, config: Sm90MlaConfig, device: Device) -> dict[str, float]:
        return parts(problem, config, device)

    def check(self, problem: LatentAttention, config: Sm90MlaConfig, device: Device) -> None:
        config.check(problem, device)

    def run(self, problem: LatentAttention, config: Sm90MlaConfig, given: Given) -> None:
        q, lse = given.q, given.lse
        rows = problem.queries * problem.heads
        pieces = arrays.empty(
            q, (2 * config.shares, rows, partial_columns(problem.value_dim)), arrays.dtype_named(q, "float32")
        )
        found = arrays.empty(q, (config.shares, MEMBERS), arrays.dtype_named(q, "int32"))
        ways = _WAYS if config.shares > _MANY * problem.batches else 1
        compiled = _compiled(
            recorder.mode(), problem.dtype, _memory_of(q), problem.value_dim, lse is not None, problem.stored,
            given.factor is not None, ways, min(-(-rows // 16) * 16, TURNED_ROWS) if config.turned else 0,
            EARLY if config.turned else config.early,
        )  # fmt: skip
        # of a query the keys of those after it are hidden
        hidden = problem.queries - 1 if problem.causal else 0
        numbers = sm90.Numbers(given.scale * _LOG2_E, problem.heads, hidden, config.shares)
        q, out = (arrays.reshaped(x, (x.shape[0], rows, x.shape[3])) for x in (q, given.out))
        rest = sm90.Given(given.table, given.lengths, found, pieces, out, lse, given.factor)
        launches.run_arguments(
            compiled, [q, given.cache, rest, config.tiles(problem), numbers, arrays.stream_of(given.q)]
        )


@functools.lru_cache(maxsize=64)
def _compiled(
    _mode: Any,
    element: Any,
    space: Any,
    value_dim: int,
    lse: bool,
    stored: Any = None,
    scaled: bool = False,
    ways: int = 1,
    turned: int = 0,
    early: int = EARLY,
) -> Any:
    """The function for arrays of any shape and strides."""
    given = sm90.Given(
        _fake(Int32, 2, space), _fake(Int32, 1, space), _fake(Int32, 2, space), _fake(Float32, 3, space, 16),
        _fake(element, 3, space, 16), _fake(Float32, 3, space) if lse else None,
        _fake(Float32, 1, space) if scaled else None,
    )  # fmt: skip
    numbers = sm90.Numbers(Float32(1.0), 1, 0, 1)
    rows = [_fake(x, 3, space, 16) for x in (element, stored or element)]
    kernel: Any = (
        turned_forward(element, value_dim, turned, ways, stored)
        if turned
        else sm90.latent_forward(element, value_dim, stored, ways, early)
    )
    return cute.compile(kernel, *rows, given, Int32(1), numbers, 0)


def _memory_of(x: Any) -> Any:
    """Where an array lies: in a GPU, or anywhere."""
    on_gpu = arrays.is_torch(x) and x.device.type == "cuda"
    return cute.AddressSpace.gmem if on_gpu else cute.AddressSpace.generic


def _fake(element: Any, modes: int, space: Any, align: int = 4) -> Any:
    """The description of an array with the last mode contiguous."""
    strides = [cute.sym_int(64) for _ in range(modes - 1)]
    return cute.runtime.make_fake_tensor(
        element, tuple(cute.sym_int() for _ in range(modes)), (*strides, 1), memspace=space, assumed_align=align
    )
