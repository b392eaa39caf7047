"""The implementations of MLA decode."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from ...dispatch import arrays, launches
from ...dispatch.devices import features
from ...dispatch.registry import Implementation, Registry
from ..attention.fwd.combine import partial_columns
from ..attention.launch import run_kernel
from .problem import MlaProblem
from .sm80 import Sm80Mla
from .sm90 import Sm90MlaKernel
from .sm90_config import ROPE_DIM, SWAP_AB_ROWS, Sm90MlaConfig, default_config, roofline
from .sm90_kv_tiles import MlaScalars, MlaTensors
from .sm90_swap_ab import Sm90MlaSwapAbKernel
from .split_kv_scheduler import SPLIT_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.config import Rule
    from ...dispatch.devices import Device
    from ...dispatch.roofline import Roofline

REGISTRY = Registry("mla_decode")

_WAYS = 8
_MANY = 8
"""Thread groups of the combine kernel where sequences have so many partial outputs on average; else one."""
_LOG2_E = 1.4426950408889634


class MlaArguments(NamedTuple):
    """The arrays of a call of `mla_decode`, and the scale of its scores."""

    q: Any
    """(batch, queries, heads, columns)."""
    cache: Any
    """The compressed KV, (pages, rows, columns)."""
    page_table: Any
    """(batch, pages)."""
    lengths: Any
    """Keys of each sequence, (batch)."""
    out: Any
    """(batch, queries, heads, value_dim)."""
    lse: Any
    """(batch, heads, queries), or None."""
    scale: float
    kv_scale: Any = None
    """The scale factor of an 8-bit cache, one number on the device, or None."""


REGISTRY.register(Sm80Mla)


@REGISTRY.register
class Sm90Mla(Implementation):
    """Hopper kernels: TMA loads pages, and two consumer warpgroups compute with WGMMA. Each has half of the columns of
    O or, with swap-AB, every other KV tile."""

    config = Sm90MlaConfig
    repeats = True

    def supports(self, problem: MlaProblem, device: Device) -> str | None:
        if (why := device.lacks(features.WARPGROUP_MMA)) is not None:
            return why
        if problem.dim - problem.value_dim != ROPE_DIM or problem.value_dim % 128 or problem.value_dim > 512:
            return f"value_dim must be a multiple of 128 up to 512, and D {ROPE_DIM} more"
        return None

    def configs(self, problem: MlaProblem, device: Device) -> Iterator[Sm90MlaConfig]:
        first = default_config(problem, device)
        yield first
        both = (
            (first.swap_ab, not first.swap_ab) if problem.queries * problem.heads <= SWAP_AB_ROWS else (first.swap_ab,)
        )
        for swap_ab in both:
            one = dataclasses.replace(first, swap_ab=swap_ab)
            most = device.sm_count // one.tiles(problem)
            for num_splits in dict.fromkeys(
                (first.num_splits, max(1, most), *(first.num_splits * turns for turns in (2, 3, 4)))
            ):
                if num_splits != first.num_splits or one != first:
                    yield dataclasses.replace(one, num_splits=num_splits)

    def roofline(self, problem: MlaProblem, config: Sm90MlaConfig, device: Device) -> Roofline:
        return roofline(problem, config, device)

    def rules(self, problem: MlaProblem, config: Sm90MlaConfig, device: Device) -> Iterator[Rule]:
        return config.rules(problem, device)

    def run(self, problem: MlaProblem, config: Sm90MlaConfig, args: MlaArguments) -> None:
        q = args.q
        lse = args.lse
        rows = problem.queries * problem.heads
        partial = arrays.empty(
            q, (2 * config.num_splits, rows, partial_columns(problem.value_dim)), arrays.dtype_named(q, "float32")
        )
        splits = arrays.empty(q, (config.num_splits, SPLIT_FIELDS), arrays.dtype_named(q, "int32"))
        ways = _WAYS if config.num_splits > _MANY * problem.batch else 1
        if config.swap_ab:
            tile_rows = min(-(-rows // 16) * 16, SWAP_AB_ROWS)
            kind = Sm90MlaSwapAbKernel
            fields = (tile_rows, ways, problem.cache_dtype)
        else:
            kind = Sm90MlaKernel
            fields = (problem.cache_dtype, ways, config.early)
        kernel = launches.cached_kernel(kind, problem.dtype, problem.value_dim, *fields)
        # of a query the keys of later ones are hidden
        hidden = problem.queries - 1 if problem.causal else 0
        numbers = MlaScalars(args.scale * _LOG2_E, problem.heads, hidden, config.num_splits)
        q, out = (arrays.reshaped(x, (x.shape[0], rows, x.shape[3])) for x in (q, args.out))
        tensors = MlaTensors(args.page_table, args.lengths, splits, partial, out, lse, args.kv_scale)
        run_kernel(kernel, q, args.cache, tensors, config.tiles(problem), numbers)
