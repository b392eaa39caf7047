"""The implementations of attention's backward pass."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, Int32, Int64, const_expr, cute
from ....dispatch import arrays, devices, launches, recorder
from ....dispatch.registry import Implementation, Registry, variants
from ..args import AttentionArguments, BackwardScalars
from ..fwd.implementations import fake_tensor, fake_tensors, memory_space, present
from ..fwd.sm80_config import padded_head_dim
from ..score_mod import ALIBI, NO_SCORE_MOD, ScoreMod
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
    from collections.abc import Iterator

    from ....dispatch.devices import Device

REGISTRY = Registry("attention_backward")

_MAX_JOINT_HEAD_DIM = 128
"""head_dim up to which dK and dV fit into the registers of one kernel."""


class BackwardArguments(NamedTuple):
    """The arguments of the forward pass, whose `out` and `lse` are its results, the gradient of O, and arrays for the
    other gradients."""

    forward: AttentionArguments
    dout: Any
    dq: Any
    dk: Any
    dv: Any
    dsinks: Any
    max_seqlen_k: int
    """The keys of the longest sequence, or more."""


class Inputs(NamedTuple):
    """The arrays that all kernels of a call read: (batch, rows, heads, D), and LSE (batch, heads, queries)."""

    dout: Any
    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any


class Gradients(NamedTuple):
    """The arrays that a call writes."""

    dq: Any
    dk: Any
    dv: Any


class Workspace(NamedTuple):
    """Memory between the kernels of a call: LSE and delta, (2, batch, heads, rows), and for `Sm90BackwardKernel` dQ
    accumulators and `DqCounters`."""

    lse_delta: Any
    dq_acc: Any = None
    additions: Any = None
    next_tile: Any = None


class KernelArguments(NamedTuple):
    """What the kernels after the preprocess receive."""

    kv: Any
    q_do: Any
    gradients: Any
    workspace: Any
    tensors: Any
    max_seqlen_q: Any
    max_seqlen_k: Any
    scalars: Any
    schedule: Any
    stream: Any


class BackwardLaunch:
    """All kernels of a call: preprocess, dsinks, and those of a subclass's `main`."""

    def __init__(self, dtype: Any, head_dim_v: int, tile_m: int = 0) -> None:
        self.dtype, self.tile_m = dtype, tile_m
        self.preprocess, self.sinks = BackwardPreprocess(dtype, head_dim_v, tile_m), SinkBackward(tile_m)

    @cute.jit
    def __call__(
        self, inputs: Any, gradients: Any, workspace: Any, tensors: Any, dsinks: Any, max_seqlen_q: Int32,
        max_seqlen_k: Int32, scalars: Any, schedule: Any, stream: Int64,
    ):  # fmt: skip
        """Launch the kernels."""
        lse_delta, dq_acc, additions, next_tile = workspace
        dout, out = self.preprocess.aligned(inputs.dout), self.preprocess.aligned(inputs.out)
        counters = None if const_expr(next_tile is None) else DqCounters(additions, next_tile)
        # in a fixed order, the first addition to a dQ accumulator writes it
        cleared = dq_acc if const_expr(additions is None) else None
        cu_seqlens_q = tensors.cu_seqlens_q if const_expr(self.tile_m > 0) else None
        self.preprocess(dout, out, inputs.lse, lse_delta, cleared, counters, cu_seqlens_q, max_seqlen_q, stream)
        if const_expr(dsinks is not None):
            rows = Int32(inputs.q.shape[1])
            self.sinks(lse_delta, tensors.sinks, dsinks, tensors.cu_seqlens_q, rows, stream)
        args = KernelArguments(
            (inputs.k, inputs.v), (inputs.q, dout), gradients, workspace, tensors._replace(sinks=None), max_seqlen_q,
            max_seqlen_k, scalars, schedule, stream,
        )  # fmt: skip
        self.main(args)

    def main(self, args: KernelArguments) -> None:
        """Launch the kernels after the preprocess."""
        raise NotImplementedError


class Sm80BackwardLaunch(BackwardLaunch):
    """dK and dV in one kernel, or in one each for a large head_dim, then dQ."""

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Any, masks: Any, score_mod: ScoreMod = NO_SCORE_MOD
    ) -> None:
        super().__init__(dtype, head_dims[1])
        make = functools.partial(Sm80BackwardKernel, dtype, head_dims, config, masks, score_mod=score_mod)
        joint = max(map(padded_head_dim, head_dims)) <= _MAX_JOINT_HEAD_DIM
        self.dkv = [make(False, True, True)] if joint else [make(False, True, False), make(False, False, True)]
        self.dq = make(True, True, False)

    def main(self, args: KernelArguments) -> None:
        lse_delta, gradients = args.workspace.lse_delta, args.gradients
        for kernel in self.dkv:
            to = (gradients.dk if kernel.computes_ds_u else None, gradients.dv if kernel.computes_p_w else None)
            kernel(args.kv, args.q_do, to, lse_delta, args.tensors, args.max_seqlen_k, args.scalars, args.stream)
        to = (gradients.dq, None)
        self.dq(args.q_do, args.kv, to, lse_delta, args.tensors, args.max_seqlen_q, args.scalars, args.stream)


class Sm90BackwardLaunch(BackwardLaunch):
    """All gradients in one kernel, then the conversion of dQ."""

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Any, masks: Any, deterministic: bool, varlen: bool,
        has_seqused_k: bool, score_mod: ScoreMod = NO_SCORE_MOD,
    ) -> None:  # fmt: skip
        super().__init__(dtype, head_dims[1], config.tile_m)
        padded = sm90_config.padded_head_dim(head_dims)
        self.kernel = Sm90BackwardKernel(dtype, padded, config, masks, deterministic, varlen, has_seqused_k, score_mod)
        self.dq = DqKernel(self.kernel, head_dims[0])

    def main(self, args: KernelArguments) -> None:
        lse_delta, dq_acc, additions, next_tile = args.workspace
        dq, schedule = self.preprocess.aligned(args.gradients.dq), args.schedule
        early_dq = None if additions is None or self.kernel.varlen else dq
        self.kernel(
            args.kv, args.q_do, args.gradients[1:], early_dq, lse_delta, dq_acc, DqCounters(additions, next_tile),
            args.tensors, args.max_seqlen_k, args.scalars, schedule, args.stream,
        )  # fmt: skip
        cu_seqlens_q, scale = args.tensors.cu_seqlens_q, args.scalars.scale
        self.dq(dq_acc, additions, dq, cu_seqlens_q, args.max_seqlen_q, scale, schedule.converted_heads, args.stream)


class Sm90Hd256BackwardLaunch(BackwardLaunch):
    """dK and dV, then dQ."""

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Any, masks: Any, varlen: bool, has_seqused_k: bool,
        score_mod: ScoreMod = NO_SCORE_MOD,
    ) -> None:  # fmt: skip
        super().__init__(dtype, head_dims[1], config.tile_m)
        key = (dtype, sm90_hd256_config.padded_head_dims(head_dims), config, masks, varlen, has_seqused_k, score_mod)
        self.dkv, self.dq = Sm90Hd256DkDvKernel(*key), Sm90Hd256DqKernel(*key)

    def main(self, args: KernelArguments) -> None:
        lse_delta, rest = args.workspace.lse_delta, (args.scalars, args.schedule, args.stream)
        self.dkv(args.kv, args.q_do, args.gradients[1:], lse_delta, args.tensors, args.max_seqlen_k, *rest)
        self.dq(args.q_do, args.kv, args.gradients.dq, lse_delta, args.tensors, args.max_seqlen_q, *rest)


# --- implementations ---


class AttentionBackward(Implementation):
    """What the implementations share: choosing configs by a cost model, and launching a `BackwardLaunch`."""

    repeats = True
    model: Any
    """The module of the cost model, with `default_config` and `expected`, and `parts` if it has named terms."""
    variations: dict[str, tuple[int, ...]]
    """Values of config fields that a tuner tries."""

    def head_dims(self, problem: AttentionBackwardProblem) -> Any:
        """Return the head dimensions that configs are checked for."""
        raise NotImplementedError

    def configs(self, problem: AttentionBackwardProblem, device: Device) -> Iterator[Any]:
        first = self.model.default_config(problem, device)
        return variants(first, lambda config: self.check(problem, config, device), **self.variations)

    def cost(self, problem: AttentionBackwardProblem, config: Any, device: Device) -> float:
        return self.model.expected(problem, config, device)

    def cost_terms(self, problem: AttentionBackwardProblem, config: Any, device: Device) -> dict[str, float]:
        return self.model.parts(problem, config, device) if hasattr(self.model, "parts") else {}

    def check(self, problem: AttentionBackwardProblem, config: Any, device: Device) -> None:
        config.check(self.head_dims(problem), device.smem)

    def launch(
        self, kind: type[Any], key: tuple[Any, ...], problem: AttentionBackwardProblem, args: BackwardArguments,
        workspace: Workspace, schedule: Any = None,
    ) -> None:  # fmt: skip
        """Run the kernels of a call."""
        forward, of = args.forward, problem.attention
        if problem.functions is None:
            kernels = launches.cached_kernel(kind, *key, ALIBI if of.has_alibi else NO_SCORE_MOD)
        else:
            make = lambda: kind(*key, ScoreMod(of.has_alibi, problem.functions))
            kernels = launches.cached_kernel_of(problem.functions, make, kind, *key, of.has_alibi)
        tensors = forward.tensors()
        compiled = _compiled(
            recorder.mode(), kernels, memory_space(forward.q), present(tensors), args.dsinks is not None,
            present(workspace), schedule is not None,
        )  # fmt: skip
        forward_scalars = forward.scalars(of, 1)
        scalars = BackwardScalars(
            forward_scalars.scale_log2, forward_scalars.softcap_scale, forward.scale, forward_scalars.window_left,
            forward_scalars.window_right, forward_scalars.score_scale,
        )  # fmt: skip
        inputs = Inputs(args.dout, forward.q, forward.k, forward.v, forward.out, forward.lse)
        launches.run_arguments(
            compiled,
            [
                inputs, Gradients(args.dq, args.dk, args.dv), workspace, tensors, args.dsinks,
                forward.params.max_seqlen_q, args.max_seqlen_k, scalars, schedule, arrays.stream_of(forward.q),
            ],
        )  # fmt: skip


def _q_tiles(problem: AttentionBackwardProblem, tile_m: int, q: Any) -> int:
    """Return the query tiles of a head; each varlen sequence has its own."""
    of, rows = problem.attention, q.shape[1]
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

    def run(self, problem: AttentionBackwardProblem, config: Any, args: BackwardArguments) -> None:
        q, of = args.forward.q, problem.attention
        key = (problem.dtype, of.head_dims, config, of.masks)
        lse_delta = arrays.empty(q, (2, *args.forward.lse.shape), arrays.dtype_named(q, "float32"))
        self.launch(Sm80BackwardLaunch, key, problem, args, Workspace(lse_delta))


@REGISTRY.register
class Sm90AttentionBackward(AttentionBackward):
    """FlashAttention-3: TMA and WGMMA, all gradients in one kernel, for head_dim up to 128."""

    config = Sm90AttentionBackwardConfig
    model = sm90_cost
    variations = {"tile_m": (48, 64, 80, 96, 112), "q_stages": (2, 3), "operands_in_regs": (0, 1, 2)}

    def supports(self, problem: AttentionBackwardProblem, device: Device) -> str | None:
        head_dim = max(problem.attention.head_dims)
        if not device.warp_groups:
            return "it is for sm_90a"
        return f"head_dim {head_dim} is over {_MAX_JOINT_HEAD_DIM}" if head_dim > _MAX_JOINT_HEAD_DIM else None

    def head_dims(self, problem: AttentionBackwardProblem) -> int:
        return sm90_config.padded_head_dim(problem.attention.head_dims)

    def run(self, problem: AttentionBackwardProblem, config: Any, args: BackwardArguments) -> None:
        q, of, device = args.forward.q, problem.attention, devices.current()
        masks_right, masks_left, has_softcap = of.masks
        # what masks keys before a window masks those far after it, too: one kernel less
        masks = (masks_right or masks_left, masks_left, has_softcap)
        key = (problem.dtype, of.head_dims, config, masks, problem.deterministic, of.varlen, of.has_seqused_k)
        f32, i32 = (arrays.dtype_named(q, name) for name in ("float32", "int32"))
        head_group, tiles_per_dq, dq_parts = sm90_config.head_groups(problem, config, device)
        tiles, layers = _q_tiles(problem, config.tile_m, q), dq_parts * q.shape[0]
        rows = tiles * config.tile_m
        lse_delta = arrays.empty(q, (2, q.shape[0], of.heads, rows), f32)
        dq_acc = arrays.empty(q, (layers, of.heads, rows * sm90_config.padded_head_dim(of.head_dims)), f32)
        additions = arrays.empty(q, (layers, of.heads, tiles), i32) if problem.deterministic else None
        workspace = Workspace(lse_delta, dq_acc, additions, arrays.empty(q, (1,), i32))
        converted = sm90_config.converted_heads(problem, config, head_group, dq_parts)
        schedule = BackwardSchedule(head_group, tiles_per_dq, converted, device.sm_count)
        self.launch(Sm90BackwardLaunch, key, problem, args, workspace, schedule)


@REGISTRY.register
class Sm90AttentionBackwardHd256(AttentionBackward):
    """TMA and WGMMA, kernels for dK and dV, and for dQ, for head_dim over 128."""

    config = Sm90AttentionBackwardHd256Config
    model = sm90_hd256_config
    variations = {
        "tile_m": (48, 64), "q_stages": (3, 4), "kv_dims_in_regs": (0, 128, 192), "tile_n": (32, 48, 64),
        "q_dims_in_regs": (0, 128),
    }  # fmt: skip

    def supports(self, problem: AttentionBackwardProblem, device: Device) -> str | None:
        head_dim = max(problem.attention.head_dims)
        if not device.warp_groups:
            return "it is for sm_90a"
        return f"head_dim {head_dim} is not over {_MAX_JOINT_HEAD_DIM}" if head_dim <= _MAX_JOINT_HEAD_DIM else None

    def head_dims(self, problem: AttentionBackwardProblem) -> tuple[int, int]:
        return sm90_hd256_config.padded_head_dims(problem.attention.head_dims)

    def run(self, problem: AttentionBackwardProblem, config: Any, args: BackwardArguments) -> None:
        q, of = args.forward.q, problem.attention
        key = (problem.dtype, of.head_dims, config, of.masks, of.varlen, of.has_seqused_k)
        rows = _q_tiles(problem, config.tile_m, q) * config.tile_m
        lse_delta = arrays.empty(q, (2, q.shape[0], of.heads, rows), arrays.dtype_named(q, "float32"))
        schedule = BackwardSchedule(sm90_hd256_config.head_group(problem, devices.current()), 1, 0, 1)
        self.launch(Sm90Hd256BackwardLaunch, key, problem, args, Workspace(lse_delta), schedule)


@functools.lru_cache(maxsize=1024)
def _compiled(
    _mode: Any, kernels: BackwardLaunch, space: Any, has: tuple[bool, ...], dsinks: bool, used: tuple[bool, ...],
    scheduled: bool,
) -> Any:  # fmt: skip
    row, f32 = lambda: fake_tensor(kernels.dtype, 4, space), functools.partial(fake_tensor, Float32, space=space)
    inputs = Inputs(row(), row(), row(), row(), row(), f32(3))
    memory = ((Float32, 4), (Float32, 3), (Int32, 3), (Int32, 1))
    workspace = Workspace(*(fake_tensor(*kind, space) if x else None for kind, x in zip(memory, used, strict=True)))
    scalars = BackwardScalars(Float32(1.0), Float32(1.0), Float32(1.0), 0, 0, Float32(1.0))
    return cute.compile(
        kernels, inputs, Gradients(row(), row(), row()), workspace, fake_tensors(has, space),
        f32(1) if dsinks else None, Int32(1), Int32(1), scalars, BackwardSchedule(1, 1, 0, 1) if scheduled else None, 0,
    )  # fmt: skip
