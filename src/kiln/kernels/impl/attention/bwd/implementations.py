"""The implementations of attention's backward pass."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Int32, Int64, const_expr, cute
from ....dispatch import arrays, devices
from ....dispatch.devices import features
from ....dispatch.registry import Implementation, Registry, variants
from ....parts.kv_source import VECTOR
from ....parts.tensor_views import permuted
from ..args import AttentionArguments, BackwardScalars
from ..fwd.sm80_config import padded_head_dim
from ..launch import kernel_object, run_kernel
from ..score_mod import NO_SCORE_MOD, ScoreMod
from . import sm80_config, sm90_config, sm90_cost, sm90_hd256_config
from .preprocess import BackwardPreprocess, SinkBackward
from .problem import AttentionBackwardProblem
from .sm80 import Sm80BackwardKernel
from .sm80_config import Sm80AttentionBackwardConfig
from .sm90 import Sm90BackwardKernel
from .sm90_config import BackwardSchedule, Sm90AttentionBackwardConfig
from .sm90_dq import DqKernel
from .sm90_hd256_config import Sm90AttentionBackwardHd256Config
from .sm90_hd256_dkv import Sm90Hd256DkDvKernel
from .sm90_hd256_dq import Sm90Hd256DqKernel
from .sm90_scheduler import DqCounters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ....dispatch.config import Rule
    from ....dispatch.devices import Device
    from ....dispatch.roofline import Roofline
    from ..args import AttentionTensors

REGISTRY = Registry("attention_backward")

_MAX_JOINT_HEAD_DIM = 128
"""head_dim up to which dK and dV fit into the registers of one kernel."""


class BackwardArrays(NamedTuple):
    """The arrays of a call: what is read, the gradients, and the workspace between its kernels."""

    dout: Any
    """(batch, rows, heads, D), as are all but LSE and what follows `dv`."""
    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any
    """(batch, heads, queries)."""
    dq: Any
    dk: Any
    dv: Any
    dsinks: Any = None
    lse_delta: Any = None
    """LSE in powers of two and delta, (2, batch, heads, rows)."""
    dq_acc: Any = None
    """dQ accumulators of `Sm90BackwardKernel`; then its `DqCounters`."""
    additions: Any = None
    next_tile: Any = None


class BackwardArguments(NamedTuple):
    """The arguments of the forward pass, the arrays without workspace, and at least the longest sequence's keys."""

    forward: AttentionArguments
    arrays: BackwardArrays
    max_seqlen_k: int


class BackwardLaunch:
    """All kernels of a call: preprocess, dsinks, and those of a subclass's `main`."""

    def __init__(self, dtype: Any, head_dim_v: int, tile_m: int = 0) -> None:
        self.dtype = dtype
        self.tile_m = tile_m
        self.preprocess: BackwardPreprocess = BackwardPreprocess(dtype, head_dim_v, tile_m)
        self.sinks: SinkBackward = SinkBackward(tile_m)

    @cute.jit
    def __call__(
        self,
        x: BackwardArrays,
        tensors: AttentionTensors,
        max_seqlen_q: Int32,
        max_seqlen_k: Int32,
        scalars: BackwardScalars,
        schedule: BackwardSchedule | None,
        stream: Int64,
    ):
        """Launch the kernels for `BackwardArrays`."""
        x = x._replace(**{name: permuted(getattr(x, name), None, VECTOR) for name in ("dout", "out", "dq")})
        counters = None if const_expr(x.next_tile is None) else DqCounters(x.additions, x.next_tile)
        cu_seqlens_q = tensors.cu_seqlens_q if const_expr(self.tile_m > 0) else None
        self.preprocess(x.dout, x.out, x.lse, x.lse_delta, counters, cu_seqlens_q, max_seqlen_q, stream)
        if const_expr(x.dsinks is not None):
            self.sinks(x.lse_delta, tensors.sinks, x.dsinks, tensors.cu_seqlens_q, Int32(x.q.shape[1]), stream)
        tensors = tensors._replace(sinks=None)
        self.main(x, tensors, (max_seqlen_q, max_seqlen_k), scalars, schedule, stream)

    def main(
        self,
        x: BackwardArrays,
        tensors: AttentionTensors,
        seqlens: tuple[Int32, Int32],
        scalars: BackwardScalars,
        schedule: BackwardSchedule | None,
        stream: Int64,
    ) -> None:
        """Launch the kernels after the preprocess; `seqlens` are the queries and keys of the longest sequence."""
        raise NotImplementedError


class Sm80BackwardLaunch(BackwardLaunch):
    """dK and dV in one kernel, or in one each for a large head_dim, then dQ."""

    def __init__(
        self,
        dtype: Any,
        head_dims: tuple[int, int],
        config: Sm80AttentionBackwardConfig,
        masks: tuple[bool, bool, bool],
        score_mod: ScoreMod = NO_SCORE_MOD,
    ) -> None:
        super().__init__(dtype, head_dims[1])
        make = functools.partial(Sm80BackwardKernel, dtype, head_dims, config, masks, score_mod=score_mod)
        joint = max(map(padded_head_dim, head_dims)) <= _MAX_JOINT_HEAD_DIM
        self.dkv: list[Sm80BackwardKernel] = (
            [make(False, True, True)] if joint else [make(False, True, False), make(False, False, True)]
        )
        self.dq: Sm80BackwardKernel = make(True, True, False)

    def main(
        self,
        x: BackwardArrays,
        tensors: AttentionTensors,
        seqlens: tuple[Int32, Int32],
        scalars: BackwardScalars,
        schedule: Any,
        stream: Int64,
    ) -> None:
        kv = (x.k, x.v)
        q_do = (x.q, x.dout)
        rest = (scalars, stream)
        for kernel in self.dkv:
            to = (x.dk if kernel.computes_ds_u else None, x.dv if kernel.computes_p_w else None)
            kernel(kv, q_do, to, x.lse_delta, tensors, seqlens[1], *rest)
        self.dq(q_do, kv, (x.dq, None), x.lse_delta, tensors, seqlens[0], *rest)


class Sm90BackwardLaunch(BackwardLaunch):
    """All gradients in one kernel, then the conversion of dQ."""

    def __init__(
        self,
        dtype: Any,
        head_dims: tuple[int, int],
        config: Sm90AttentionBackwardConfig,
        masks: tuple[bool, bool, bool],
        deterministic: bool,
        varlen: bool,
        has_seqused_k: bool,
        staggers_heads: bool,
        score_mod: ScoreMod = NO_SCORE_MOD,
    ) -> None:
        super().__init__(dtype, head_dims[1], config.tile_m)
        padded = sm90_config.padded_head_dim(head_dims)
        self.kernel: Sm90BackwardKernel = Sm90BackwardKernel(
            dtype, padded, config, masks, deterministic, varlen, has_seqused_k, staggers_heads, score_mod
        )
        self.dq: DqKernel = DqKernel(self.kernel, head_dims[0])

    def main(
        self,
        x: BackwardArrays,
        tensors: AttentionTensors,
        seqlens: tuple[Int32, Int32],
        scalars: BackwardScalars,
        schedule: BackwardSchedule,
        stream: Int64,
    ) -> None:
        early_dq = None if x.additions is None or self.kernel.varlen else x.dq
        self.kernel(
            (x.k, x.v),
            (x.q, x.dout),
            (x.dk, x.dv),
            early_dq,
            x.lse_delta,
            x.dq_acc,
            DqCounters(x.additions, x.next_tile),
            tensors,
            seqlens[1],
            scalars,
            schedule,
            stream,
        )
        self.dq(
            x.dq_acc,
            x.additions,
            x.dq,
            tensors.cu_seqlens_q,
            seqlens[0],
            scalars.scale,
            schedule.converted_heads,
            stream,
        )


class Sm90Hd256BackwardLaunch(BackwardLaunch):
    """dK and dV, then dQ."""

    def __init__(
        self,
        dtype: Any,
        head_dims: tuple[int, int],
        config: Sm90AttentionBackwardHd256Config,
        masks: tuple[bool, bool, bool],
        varlen: bool,
        has_seqused_k: bool,
        score_mod: ScoreMod = NO_SCORE_MOD,
    ) -> None:
        super().__init__(dtype, head_dims[1], config.tile_m)
        key = (dtype, sm90_hd256_config.padded_head_dims(head_dims), config, masks, varlen, has_seqused_k, score_mod)
        self.dkv: Sm90Hd256DkDvKernel = Sm90Hd256DkDvKernel(*key)
        self.dq: Sm90Hd256DqKernel = Sm90Hd256DqKernel(*key)

    def main(
        self,
        x: BackwardArrays,
        tensors: AttentionTensors,
        seqlens: tuple[Int32, Int32],
        scalars: BackwardScalars,
        schedule: BackwardSchedule,
        stream: Int64,
    ) -> None:
        kv = (x.k, x.v)
        q_do = (x.q, x.dout)
        rest = (scalars, schedule, stream)
        self.dkv(kv, q_do, (x.dk, x.dv), x.lse_delta, tensors, seqlens[1], *rest)
        self.dq(q_do, kv, (x.dq,), x.lse_delta, tensors, seqlens[0], *rest)


# --- implementations ---


class AttentionBackward(Implementation):
    """What the implementations share: choosing configs by a cost model, and launching a `BackwardLaunch`."""

    repeats = True
    model: Any
    """The module of the cost model, with `default_config` and `roofline`."""
    variations: dict[str, tuple[int, ...]]
    """Values of config fields that a tuner tries."""

    def head_dims(self, problem: AttentionBackwardProblem) -> int | tuple[int, int]:
        """Return the head dimensions that configs are checked for."""
        raise NotImplementedError

    def configs(self, problem: AttentionBackwardProblem, device: Device) -> Iterator[Any]:
        first = self.model.default_config(problem, device)
        return variants(first, lambda config: self.check(problem, config, device), **self.variations)

    def roofline(self, problem: AttentionBackwardProblem, config: Any, device: Device) -> Roofline:
        return self.model.roofline(problem, config, device)

    def rules(self, problem: AttentionBackwardProblem, config: Any, device: Device) -> Iterable[Rule]:
        return config.rules(self.head_dims(problem), device.smem)

    def launch(
        self,
        kind: type[Any],
        key: tuple[Any, ...],
        problem: AttentionBackwardProblem,
        args: BackwardArguments,
        schedule: BackwardSchedule | None = None,
        **workspace: Any,
    ) -> None:
        """Run the kernels of a call."""
        forward = args.forward
        of = problem.attention
        x = args.arrays._replace(**workspace)
        kernels = kernel_object(kind, of.has_alibi, problem.functions, *key)
        scalars = BackwardScalars(*forward.scalars(of, 1)[:-1], forward.scale)
        lengths = (forward.params.max_seqlen_q, args.max_seqlen_k)
        run_kernel(kernels, x, forward.tensors(), *lengths, scalars, schedule)


def _q_tiles(problem: AttentionBackwardProblem, tile_m: int, q: Any) -> int:
    """Return the query tiles of a head; each varlen sequence has its own."""
    of = problem.attention
    rows = q.shape[1]
    return rows // tile_m + of.batch if of.varlen else -(-rows // tile_m)


@REGISTRY.register
class Sm80AttentionBackward(AttentionBackward):
    """FlashAttention-2 with `mma.sync`: kernels for dK and dV, and for dQ."""

    config = Sm80AttentionBackwardConfig
    model = sm80_config
    variations = {"tile_n": (16, 32, 64)}

    def supports(self, problem: AttentionBackwardProblem, device: Device) -> str | None:
        return None

    def head_dims(self, problem: AttentionBackwardProblem) -> tuple[int, int]:
        return problem.attention.head_dims

    def run(
        self, problem: AttentionBackwardProblem, config: Sm80AttentionBackwardConfig, args: BackwardArguments
    ) -> None:
        q = args.arrays.q
        of = problem.attention
        key = (problem.dtype, of.head_dims, config, of.masks)
        lse_delta = arrays.empty(q, (2, *args.forward.lse.shape), arrays.dtype_named(q, "float32"))
        self.launch(Sm80BackwardLaunch, key, problem, args, lse_delta=lse_delta)


@REGISTRY.register
class Sm90AttentionBackward(AttentionBackward):
    """FlashAttention-3: TMA and WGMMA, all gradients in one kernel, for head_dim up to 128."""

    config = Sm90AttentionBackwardConfig
    model = sm90_cost
    variations = {
        "tile_m": (48, 64, 80, 96, 112),
        "q_stages": (2, 3),
        "operands_in_regs": (0, 1, 2),
        "kv_stages": (1, 2),
    }

    def supports(self, problem: AttentionBackwardProblem, device: Device) -> str | None:
        head_dim = max(problem.attention.head_dims)
        if (why := device.lacks(features.WARPGROUP_MMA)) is not None:
            return why
        return f"head_dim {head_dim} is over {_MAX_JOINT_HEAD_DIM}" if head_dim > _MAX_JOINT_HEAD_DIM else None

    def head_dims(self, problem: AttentionBackwardProblem) -> int:
        return sm90_config.padded_head_dim(problem.attention.head_dims)

    def run(
        self, problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, args: BackwardArguments
    ) -> None:
        q = args.arrays.q
        of = problem.attention
        device = devices.current()
        masks_right, masks_left, has_softcap = of.masks
        # what masks keys before a window masks those far after it, too: one kernel less
        masks = (masks_right or masks_left, masks_left, has_softcap)
        key = (problem.dtype, of.head_dims, config, masks, problem.deterministic, of.varlen, of.has_seqused_k)
        f32, i32 = (arrays.dtype_named(q, name) for name in ("float32", "int32"))
        head_group, tiles_per_dq, dq_parts = sm90_config.head_groups(problem, config, device)
        tiles = _q_tiles(problem, config.tile_m, q)
        layers = dq_parts * q.shape[0]
        rows = tiles * config.tile_m
        lse_delta = arrays.empty(q, (2, q.shape[0], of.heads, rows), f32)
        dq_acc = arrays.empty(q, (layers, of.heads, rows * sm90_config.padded_head_dim(of.head_dims)), f32)
        additions = None
        if problem.deterministic:  # the first addition to a dQ accumulator writes it
            additions = arrays.empty(q, (layers, of.heads, tiles), i32)
        else:
            arrays.fill(dq_acc, 0.0)
        head_group, stride = sm90_config.staggered_heads(problem, head_group, dq_parts)
        converted = sm90_config.converted_heads(problem, config, head_group, dq_parts, stride > 0)
        schedule = BackwardSchedule(head_group, stride, tiles_per_dq, converted, device.sm_count)
        key = (*key, stride > 0)
        self.launch(
            Sm90BackwardLaunch,
            key,
            problem,
            args,
            schedule,
            lse_delta=lse_delta,
            dq_acc=dq_acc,
            additions=additions,
            next_tile=arrays.empty(q, (1,), i32),
        )


@REGISTRY.register
class Sm90AttentionBackwardHd256(AttentionBackward):
    """TMA and WGMMA, kernels for dK and dV, and for dQ, for head_dim over 128."""

    config = Sm90AttentionBackwardHd256Config
    model = sm90_hd256_config
    variations = {
        "tile_m": (48, 64),
        "q_stages": (3, 4),
        "kv_dims_in_regs": (0, 128, 192),
        "tile_n": (32, 48, 64),
        "q_dims_in_regs": (0, 128),
    }

    def supports(self, problem: AttentionBackwardProblem, device: Device) -> str | None:
        head_dim = max(problem.attention.head_dims)
        if (why := device.lacks(features.WARPGROUP_MMA)) is not None:
            return why
        return f"head_dim {head_dim} is not over {_MAX_JOINT_HEAD_DIM}" if head_dim <= _MAX_JOINT_HEAD_DIM else None

    def head_dims(self, problem: AttentionBackwardProblem) -> tuple[int, int]:
        return sm90_hd256_config.padded_head_dims(problem.attention.head_dims)

    def run(
        self, problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config, args: BackwardArguments
    ) -> None:
        q = args.arrays.q
        of = problem.attention
        key = (problem.dtype, of.head_dims, config, of.masks, of.varlen, of.has_seqused_k)
        rows = _q_tiles(problem, config.tile_m, q) * config.tile_m
        lse_delta = arrays.empty(q, (2, q.shape[0], of.heads, rows), arrays.dtype_named(q, "float32"))
        schedule = BackwardSchedule(sm90_hd256_config.head_group(problem, devices.current()), 0, 1, 0, 1)
        self.launch(Sm90Hd256BackwardLaunch, key, problem, args, schedule, lse_delta=lse_delta)
