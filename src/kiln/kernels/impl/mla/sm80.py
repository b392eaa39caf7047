"""MLA decode with `mma.sync`: `flash_attention`'s kernel, for some columns of the values at a time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...dispatch import arrays
from ...dispatch.config import Rule
from ...dispatch.registry import Implementation, passes
from ...dispatch.roofline import Roofline, us
from ...tuned import coefficients
from ..attention import AttentionProblem
from ..attention.args import AttentionArguments, AttentionParams
from ..attention.fwd.implementations import Sm80Attention
from ..attention.fwd.sm80_config import Sm80AttentionConfig
from ..attention.fwd.sm80_cost import roofline, splits_for
from .problem import PAGE_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .implementations import MlaArguments
    from .problem import MlaProblem

_MOST = 256
"""Most columns of values whose accumulators fit into registers."""


@dataclasses.dataclass(frozen=True)
class _Columns(AttentionProblem):
    """Attention to some columns of the compressed KV, whose heads may be longer than others."""

    def __post_init__(self) -> None:
        """Accept any sizes."""


class Sm80Mla(Implementation):
    """`mma.sync`, for some columns of the values at a time: scores are computed for each."""

    config = Sm80AttentionConfig
    repeats = True

    def supports(self, problem: MlaProblem, device: Device) -> str | None:
        return None if problem.cache_dtype is None else "an 8-bit cache needs sm_90a"

    def configs(self, problem: MlaProblem, device: Device) -> Iterator[Sm80AttentionConfig]:
        rows = problem.queries * problem.heads
        warps = 1 if rows <= 16 else 2 if rows <= 32 else 4
        steps = -(-problem.keys // 16)
        able = []
        for tile_n in (32, 16):
            for each in sorted({warps, 1}, reverse=True):
                config = Sm80AttentionConfig(16 * each, tile_n, each, 1, pack_gqa=True)
                if passes(lambda candidate: self.check(problem, candidate, device), config):
                    able.append(config)
        for config in able:
            tiles = problem.batch * -(-rows // config.tile_m)
            yield dataclasses.replace(config, num_splits=splits_for(tiles, steps, 1.0, 1, device.sm_count))

    def roofline(self, problem: MlaProblem, config: Sm80AttentionConfig, device: Device) -> Roofline:
        """Return the time of one attention for each part of the columns."""
        part = _part(problem)
        parts = problem.value_dim // part.head_dim_v
        one = roofline(part, config, device)
        read = us(
            2 * problem.batch * problem.keys * sum(part.head_dims),
            coefficients("mla_sm90", device)["sm_dram_tbps"] * device.sm_count,
        )
        units = {"attention": parts * one.us, "memory": parts * read}
        return Roofline(units)

    def rules(self, problem: MlaProblem, config: Sm80AttentionConfig, device: Device) -> Iterator[Rule]:
        yield Rule(config.pack_gqa, "all heads share the compressed KV, so pack_gqa must be True", "pack_gqa=True")
        yield from Sm80Attention().rules(_part(problem), config, device)

    def run(self, problem: MlaProblem, config: Sm80AttentionConfig, args: MlaArguments) -> None:
        part = _part(problem)
        compute = Sm80Attention()
        params = AttentionParams(
            scale=args.scale,
            seqused_k=args.lengths,
            page_table=args.page_table,
            max_seqlen_q=problem.queries,
            max_seqlen_k=problem.keys,
        )
        for first in range(0, problem.value_dim, part.head_dim_v):
            columns = slice(first, first + part.head_dim_v)
            lse = args.lse if first == 0 else None
            rows = AttentionArguments(
                args.q,
                _as_heads(args.cache),
                _as_heads(arrays.part(args.cache, 2, columns)),
                arrays.part(args.out, 3, columns),
                lse,
                params,
            )
            compute.run(dataclasses.replace(part, return_lse=lse is not None), config, rows)


def _part(problem: MlaProblem) -> _Columns:
    """Return the attention that is computed for some columns."""
    times = -(-problem.value_dim // _MOST)
    while problem.value_dim % times or problem.value_dim // times % 8:
        times += 1
    return _Columns(
        problem.batch,
        problem.queries,
        problem.keys,
        problem.heads,
        1,
        problem.dim,
        problem.value_dim // times,
        problem.dtype,
        window_right=0 if problem.causal else None,
        return_lse=problem.lse,
        has_seqused_k=True,
        page_size=PAGE_SIZE,
    )


def _as_heads(cache: Any) -> Any:
    """Return the cache as keys of one head."""
    return arrays.reshaped(cache, (cache.shape[0], cache.shape[1], 1, cache.shape[2]))
