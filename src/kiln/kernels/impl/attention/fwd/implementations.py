"""The implementations of forward attention."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ....dispatch import arrays, devices
from ....dispatch.config import Rule
from ....dispatch.devices import features
from ....dispatch.registry import Implementation, Registry, variants
from ....parts.kv_source import transposed_v_columns
from ..args import AttentionArguments
from ..launch import kernel_object, run_kernel
from ..problem import MAX_GRID_Z, AttentionProblem
from . import decode_cost, sm80_cost, sm90_cost
from .combine import partial_columns
from .gather_pages import gather_pages_kernel
from .sm80 import Sm80ForwardKernel
from .sm80_config import Sm80AttentionConfig
from .sm90 import Sm90ForwardKernel
from .sm90_config import WARPGROUP_M, Sm90AttentionConfig
from .transpose_v import transpose_v_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device
    from ....dispatch.roofline import Roofline

REGISTRY = Registry("attention")

_L2_BYTES = 24 << 20
"""Bytes of K and V that CTAs which run at the same time may read: about half of a large L2 cache."""
_MAX_GATHERED = 4 << 30
"""Bytes that a call takes at most for K and V gathered from small pages."""


@REGISTRY.register
class Sm80Attention(Implementation):
    """FlashAttention-2 with `mma.sync`."""

    config = Sm80AttentionConfig
    repeats = True

    def supports(self, problem: AttentionProblem, device: Device) -> str | None:
        if problem.dtype.width == 8 and device.capability < (8, 9):
            return f"sm_{device.capability[0]}{device.capability[1]} cannot convert {problem.dtype.__name__}"
        return None

    def configs(self, problem: AttentionProblem, device: Device) -> Iterator[Sm80AttentionConfig]:
        first = sm80_cost.default_config(problem, device)
        if decode_cost.is_decode(problem):
            return iter(dict.fromkeys((first, *decode_cost.candidates(problem, device))))
        return variants(
            first,
            lambda config: self.check(problem, config, device),
            tile_n=(32, 64, 96),
            ctas_per_sm=(1, 2),
            num_splits=sorted({1, first.num_splits}),
        )

    def roofline(self, problem: AttentionProblem, config: Sm80AttentionConfig, device: Device) -> Roofline:
        return sm80_cost.roofline(problem, config, device)

    def rules(self, problem: AttentionProblem, config: Sm80AttentionConfig, device: Device) -> Iterator[Rule]:
        yield from config.rules(*problem.head_dims, device.smem, problem.dtype.width)
        text = f"{problem.batch} sequences times num_splits must be at most {MAX_GRID_Z}"
        yield Rule(problem.batch * config.num_splits <= MAX_GRID_Z, text)

    def run(self, problem: AttentionProblem, config: Sm80AttentionConfig, args: AttentionArguments) -> None:
        q = args.q
        partial = None
        if config.num_splits > 1:
            shape = (config.num_splits, *q.shape[:3], partial_columns(problem.head_dim_v))
            partial = arrays.empty(q, shape, arrays.dtype_named(q, "float32"))
        group_size = problem.group_size if config.pack_gqa else 1
        kernel = kernel_object(
            Sm80ForwardKernel,
            problem.has_alibi,
            problem.score_mod,
            problem.dtype,
            problem.head_dims,
            dataclasses.replace(config, num_splits=1),
            problem.masks,
            group_size,
            partial is not None,
            problem.page_size,
            problem.out_dtype,
            problem.q_dtype,
        )
        scalars = args.scalars(problem, _head_group(problem.heads // group_size, problem, args))
        run_kernel(
            kernel,
            q,
            args.k,
            args.v,
            args.out,
            partial,
            args.lse,
            args.tensors(),
            args.params.max_seqlen_q,
            scalars,
            config.num_splits,
        )


@REGISTRY.register
class Sm90Attention(Implementation):
    """FlashAttention-3: TMA and WGMMA."""

    config = Sm90AttentionConfig
    repeats = True

    def supports(self, problem: AttentionProblem, device: Device) -> str | None:
        if (why := device.lacks(features.WARPGROUP_MMA)) is not None:
            return why
        if problem.q_dtype is not None:
            return f"Q must have the type of K and V, {problem.dtype.__name__}"
        gathered = sm90_cost.gathered_bytes(problem)
        if gathered > _MAX_GATHERED:
            return f"gathering pages of {problem.page_size} rows takes {gathered} bytes; at most {_MAX_GATHERED}"
        return None

    def configs(self, problem: AttentionProblem, device: Device) -> Iterator[Sm90AttentionConfig]:
        candidates = list(sm90_cost.candidates(problem, device))
        yield from candidates
        variations = variants(
            candidates[0],
            lambda config: self.check(problem, config, device),
            consumer_warpgroups=(2, 3),
            tile_n=(64, 80, 96, 112, 128, 144, 160),
            pingpong=(True, False),
        )
        yield from (config for config in variations if config not in candidates)

    def roofline(self, problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> Roofline:
        return sm90_cost.roofline(problem, config, device)

    def rules(self, problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> Iterator[Rule]:
        yield from config.rules(*problem.head_dims, device.smem, problem.dtype.width)
        text = f"{problem.group_size} query heads share a KV head; for pack_gqa that must divide {WARPGROUP_M}"
        yield Rule(not config.pack_gqa or WARPGROUP_M % problem.group_size == 0, text, "pack_gqa=False")

    def run(self, problem: AttentionProblem, config: Sm90AttentionConfig, args: AttentionArguments) -> None:
        q = args.q
        device = devices.current()
        v = self.transposed_v(problem, config, args) if problem.dtype.width == 8 else None
        if sm90_cost.gathered_bytes(problem):
            problem, args = self.gather_pages(problem, args)
        group_size = problem.group_size if config.pack_gqa else 1
        kernel = kernel_object(
            Sm90ForwardKernel,
            problem.has_alibi,
            problem.score_mod,
            problem.dtype,
            problem.head_dims,
            dataclasses.replace(config, persistent=True, pack_gqa=False, dynamic_scheduler=False),
            problem.masks,
            config.separate_o(*problem.head_dims, device.smem, problem.dtype.width),
            group_size,
            problem.varlen,
            problem.has_seqused_k,
            problem.page_size,
            problem.out_dtype,
        )
        tiles = -(-problem.seqlen_q * group_size // config.tile_m) * (problem.heads // group_size) * problem.batch
        num_ctas = min(tiles, device.sm_count) if config.persistent else tiles
        tile_counter = None
        if config.dynamic_scheduler and tiles > num_ctas:
            tile_counter = arrays.empty(q, (1,), arrays.dtype_named(q, "int32"))
            arrays.fill(tile_counter, 0)
        head_group = problem.group_size // group_size * _head_group(problem.heads_k, problem, args)
        run_kernel(
            kernel,
            q,
            args.k,
            args.v if v is None else v,
            args.out,
            args.lse,
            args.tensors(tile_counter),
            args.scalars(problem, head_group),
            num_ctas,
        )

    def gather_pages(
        self, problem: AttentionProblem, args: AttentionArguments
    ) -> tuple[AttentionProblem, AttentionArguments]:
        """Gather K, and 16-bit V, of small pages into dense rows; returns the problem and arguments with them."""
        seqused_k = args.params.seqused_k
        table = args.params.page_table
        dense = {}
        for name in ("k", "v") if problem.dtype.width == 16 else ("k",):
            x = getattr(args, name)
            dense[name] = arrays.empty(x, (problem.batch, problem.kv_capacity, *x.shape[2:]), None)
            kernel = gather_pages_kernel(problem.dtype, x.shape[3], problem.page_size)
            run_kernel(kernel, x, dense[name], seqused_k, table)
        params = dataclasses.replace(args.params, page_table=None)
        args = dataclasses.replace(args, params=params, **dense)
        return dataclasses.replace(problem, page_size=0, has_seqused_k=True), args

    def transposed_v(self, problem: AttentionProblem, config: Sm90AttentionConfig, args: AttentionArguments) -> Any:
        """Return 8-bit V as the kernel takes it."""
        v = args.v
        params = args.params
        batch, seqlen_k, heads, head_dim = v.shape
        if params.page_table is not None:
            batch = problem.batch
            seqlen_k = params.page_table.shape[1] * problem.page_size
        columns = -(-seqlen_k // 16) * 16
        if params.cu_seqlens_k is not None:
            columns = transposed_v_columns(seqlen_k, problem.batch, config.tile_n)
        transposed = arrays.empty(v, (batch, head_dim, heads, columns), None)
        kernel = transpose_v_kernel(problem.dtype, head_dim, config.tile_n, problem.page_size)
        run_kernel(kernel, v, transposed, params.cu_seqlens_k, params.seqused_k, params.page_table)
        return transposed


def _head_group(heads: int, problem: AttentionProblem, args: AttentionArguments) -> int:
    """Return how many heads are computed side by side: as many as L2 holds K and V of, in equal groups."""
    size = args.mean_seqlen_k * sum(problem.head_dims) * problem.dtype.width // 8
    groups = -(-heads // max(1, _L2_BYTES // max(1, size)))
    return -(-heads // groups)
