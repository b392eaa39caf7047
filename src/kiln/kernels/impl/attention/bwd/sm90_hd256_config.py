"""The config of the Hopper backward kernels for head_dim over 128, and their roofline model."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch.config import Config, Rule
from ....dispatch.roofline import Roofline
from ..config_rules import fits_registers
from .sm90_config import REGISTERS, WARPGROUP_ROWS, WARPGROUPS, equal_groups, mean_visible_queries
from .sm90_cost import BackwardCoefficients, busy_us, other_kernels_us, waves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device
    from .problem import AttentionBackwardProblem

DKV_TILE_N = WARPGROUP_ROWS
"""Keys of a CTA's tile in the dK/dV kernel."""
DQ_TILE_M = WARPGROUP_ROWS * WARPGROUPS
"""Queries of a CTA's tile in the dQ kernel."""
SWIZZLED_DIMS = 64
"""Elements of a head that lie side by side in smem, 128 bytes."""
P_STAGES = 2
"""Stages of P on its way from one warpgroup to the other."""
_BARRIER_BYTES = 1024
_OTHER_REGISTERS = 32
"""Registers that a consumer thread needs besides its fragments."""
_L2_BYTES = 32 << 20
"""Bytes of Q and dO that are in use at the same time."""


def padded_head_dims(head_dims: tuple[int, int]) -> tuple[int, int]:
    """Return the elements of K's and V's heads in smem; TMA fills in zeros."""
    dim, dim_v = head_dims
    return -(-dim // SWIZZLED_DIMS) * SWIZZLED_DIMS, -(-dim_v // SWIZZLED_DIMS) * SWIZZLED_DIMS


@dataclasses.dataclass(frozen=True)
class Sm90AttentionBackwardHd256Config(Config):
    """Tile shapes and stages of the Hopper backward kernels for head_dim over 128.

    In the dK/dV kernel, a CTA has 64 keys and steps of `tile_m` queries, in `q_stages` stages; one warpgroup has dV,
    the other dK, and the first `kv_dims_in_regs` elements of K and V are kept in registers. In the dQ kernel, a CTA has
    128 queries, 64 for each warpgroup, and steps of `tile_n` keys, in `k_stages` stages of K and `v_stages` of V;
    `q_dims_in_regs` elements of Q are kept in registers."""

    may_be_zero = ("kv_dims_in_regs", "q_dims_in_regs")

    tile_m: int = 48
    q_stages: int = 3
    kv_dims_in_regs: int = 0
    tile_n: int = 32
    k_stages: int = 3
    v_stages: int = 3
    q_dims_in_regs: int = 0

    def smem_bytes(self, head_dims: tuple[int, int]) -> int:
        """Return the smem of a CTA, the larger of both kernels', for padded head dimensions."""
        lse_delta = 8 * self.q_stages * self.tile_m
        p = 2 * P_STAGES * DKV_TILE_N * self.tile_m
        dkv = 2 * (DKV_TILE_N + self.q_stages * self.tile_m) * sum(head_dims) + p + lse_delta
        kv_stages = 2 * self.tile_n * (self.k_stages * head_dims[0] + self.v_stages * head_dims[1])
        return max(dkv, 2 * DQ_TILE_M * sum(head_dims) + kv_stages) + _BARRIER_BYTES

    def rules(self, head_dims: tuple[int, int], capacity: int) -> Iterator[Rule]:
        """Yield the rules for padded head dimensions and `capacity` bytes of smem."""
        yield from self.multiples(16, 256, "tile_m", "tile_n")
        yield Rule(self.q_stages >= 2 and self.k_stages >= 2, "q_stages and k_stages must be at least 2")
        for name in ("kv_dims_in_regs", "q_dims_in_regs"):
            dims = getattr(self, name)
            text = f"{name} must be 16, 32 or a multiple of {SWIZZLED_DIMS}"
            yield Rule(dims in (16, 32) or dims % SWIZZLED_DIMS == 0, text)
        dim, dim_v = head_dims
        # accumulators, scores and operands of the dV warpgroup, the dK warpgroup, and a dQ warpgroup
        used = max(
            dim_v // 2 + self.tile_m * 3 // 4 + min(self.kv_dims_in_regs, dim) // 4,
            dim // 2 + self.tile_m * 3 // 4 + min(self.kv_dims_in_regs, dim_v) // 4,
            dim // 2 + self.tile_n * 5 // 4 + min(self.q_dims_in_regs, dim) // 4,
        )
        what = f"accumulators, scores and operands with head_dim {head_dims}"
        hint = "a smaller tile_m or tile_n"
        yield fits_registers(what, used, _OTHER_REGISTERS, REGISTERS[1], f"{hint}, or fewer dims in registers")
        yield self.fits_smem(self.smem_bytes(head_dims), capacity, hint, f" for head_dim {head_dims}")


def default_config(problem: AttentionBackwardProblem, device: Device) -> Sm90AttentionBackwardHd256Config:
    """Return the config for a problem."""
    dim, dim_v = padded_head_dims(problem.attention.head_dims)
    both = dim + dim_v
    dkv = (48, 3, 128) if both > 384 else (48, 4, 192) if both > 320 else (64, 4, 192)
    dq = (32, 4, 2, 128) if both > 384 or dim > 192 else (64, 3, 2 if both > 320 else 3, 0)
    if problem.functions is not None:  # they need registers of their own
        dq = (32, 4, 2, 0) if dq[0] == 32 else (48, 3, 3, 0)
    return Sm90AttentionBackwardHd256Config(*dkv, *dq)


def head_group(problem: AttentionBackwardProblem, device: Device) -> int:
    """Return how many KV heads are computed side by side: enough for all SMs, and few enough for L2; more under a mask,
    where some KV tiles are shorter than others."""
    of = problem.attention
    masked = of.window_left is not None or of.window_right is not None
    tiles = max(1, -(-of.seqlen_k // DKV_TILE_N))
    in_cache = _L2_BYTES // (2 * of.group_size * of.seqlen_q * sum(padded_head_dims(of.head_dims)))
    heads = max(1, round(device.sm_count / tiles), min(in_cache, 4 if masked else 2))
    return equal_groups(of.heads_k * of.batch, heads)


def step_cycles(config: Sm90AttentionBackwardHd256Config, head_dims: tuple[int, int]) -> list[dict[str, float]]:
    """Return the cycles of a step of the dK/dV kernel and of the dQ kernel in each unit, which work at the same time:
    tensor cores, smem at 128 bytes a cycle, and exp2."""
    dim = head_dims[0]
    both = sum(head_dims)
    # A operands of S and dP that are not in registers; B operands of these and of the gradients, and TMA writes, for
    # each warpgroup; in the dK/dV kernel also P, written and read
    dkv_operands = DKV_TILE_N * sum(max(0, n - config.kv_dims_in_regs) for n in head_dims) + 3 * config.tile_m * both
    dq_operands = DQ_TILE_M * (both - min(config.q_dims_in_regs, dim))
    dq_operands += config.tile_n * (WARPGROUPS * (both + dim) + both)

    def units(pairs: int, gemm_columns: int, smem_elements: int) -> dict[str, float]:
        mma = 2 * pairs * gemm_columns / 4096
        return {"tensor cores": mma, "shared memory": 2 * smem_elements / 128, "exp2": pairs / 16}

    dkv_pairs = DKV_TILE_N * config.tile_m
    dq_pairs = DQ_TILE_M * config.tile_n
    return [units(dkv_pairs, 2 * both, dkv_operands + 2 * dkv_pairs), units(dq_pairs, both + dim, dq_operands)]


def _work(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config) -> list[tuple[int, float]]:
    """Return CTAs and the mean steps of one, of both kernels."""
    of = problem.attention
    queries = min(mean_visible_queries(problem), of.seqlen_q)
    keys = queries * of.seqlen_k / max(1, of.seqlen_q)  # that a query sees, on average
    return [
        (-(-of.seqlen_k // DKV_TILE_N) * of.heads_k * of.batch, of.group_size * max(1.0, queries / config.tile_m)),
        (-(-of.seqlen_q // DQ_TILE_M) * of.heads * of.batch, max(1.0, keys / config.tile_n)),
    ]


def roofline(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config, device: Device) -> Roofline:
    """Return what a backward pass is expected to spend time on."""
    kernels, other_us = units(problem, config, device)
    cycles = step_cycles(config, padded_head_dims(problem.attention.head_dims))
    dkv, dq = (busy_us(*pair, device) for pair in zip(cycles, _work(problem, config), strict=True))
    c = BackwardCoefficients.on(device)
    slowdowns = c.dkv_hd256_slowdown, c.dq_hd256_slowdown
    steps_us = sum(ctas * slowdown * step for (ctas, step), slowdown in zip(kernels, slowdowns, strict=True))
    phases = {"prologue and epilogue": sum(ctas for ctas, _ in kernels) * c.hd256_cta_us, "other kernels": other_us}
    return Roofline({name: dkv[name] + dq[name] for name in dkv}, phases, steps_us)


def units(
    problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config, device: Device
) -> tuple[list[tuple[float, float]], float]:
    """Return, of both kernels, CTAs of an SM and the microseconds of the busiest unit in the steps of one, and the
    microseconds of launches and preprocess."""
    cycles = step_cycles(config, padded_head_dims(problem.attention.head_dims))
    kernels = [
        (waves(problem, ctas, device), steps * max(step.values()) / BackwardCoefficients.on(device).cycles_per_us)
        for (ctas, steps), step in zip(_work(problem, config), cycles, strict=True)
    ]
    return kernels, other_kernels_us(problem, device, 4)  # O and dO are read
