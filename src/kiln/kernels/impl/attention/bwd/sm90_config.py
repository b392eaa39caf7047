"""The config of the Hopper backward kernel for head_dim up to 128, and how its work is ordered."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from ....dispatch.config import Config, Rule
from ..config_rules import fits_registers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device
    from .problem import AttentionBackwardProblem

WARPGROUP = 128
"""Threads of a warpgroup."""
WARPGROUPS = 2
"""Consumer warpgroups."""
WARPGROUP_ROWS = 64
"""Rows of a consumer warpgroup: M of its WGMMAs."""
TILE_N = WARPGROUP_ROWS * WARPGROUPS
"""Keys of a CTA's tile."""
DS_STAGES = 2
"""Stages of dS, which is multiplied one step later, and of dQ on its way to gmem."""
REGISTERS = (24, 240)
"""Registers of a producer thread and of a consumer thread."""
_BARRIER_BYTES = 1024
_OTHER_REGISTERS = 24
"""Registers that a consumer thread needs besides its fragments."""
_STEPS_APART = 2.4
"""Steps between the starts of CTAs with adjacent KV tiles of a head at which they hardly wait for each other."""
_L2_BYTES = 32 << 20
"""Bytes of Q, dO and dQ accumulators in use at the same time: additions to dQ should hit in L2."""
_ADD_STEPS = 0.6
"""Steps until an addition to dQ is visible to the CTA that adds next."""
_MAX_WAITING = 0.03
_MAX_DQ_PARTS = 8
"""The share of the time that CTAs may wait for their turn, and how many dQ accumulators there are at most to avoid it.
"""
_STAGGERED_GROUPS = 5
"""Groups of heads from which on heads start one after the other: those of the first group wait more."""
_ALL_TILES = 1 << 30
LOADED_AHEAD = {128: 1, 64: 3}
"""Blocks of 16 queries whose LSE and delta are loaded before the scores are waited for, by padded head_dim: what
registers there are, since loads from smem take long beside WGMMAs."""
_CONVERT_STEPS = {128: 8, 64: 7}
"""Steps of a CTA in which a spare warp converts one query tile of dQ, by padded head_dim."""


def padded_head_dim(head_dims: tuple[int, int]) -> int:
    """Return the elements of a head in smem; TMA fills in zeros."""
    return 64 if max(head_dims) <= 64 else 128


@dataclasses.dataclass(frozen=True)
class Sm90AttentionBackwardConfig(Config):
    """Tile shape and stages of the Hopper backward kernel.

    A CTA has 128 keys, 64 for each of two consumer warpgroups; a step has `tile_m` queries. One more warpgroup loads
    and adds to dQ. `q_stages` stages hold Q, and as many dO. `operands_in_regs` is 1 to keep V in registers, 2 for V
    and K, 0 for neither. With `kv_stages` 2, K and V of the next KV tile are loaded while one is computed."""

    may_be_zero = ("operands_in_regs",)

    tile_m: int = 64
    q_stages: int = 2
    operands_in_regs: int = 0
    kv_stages: int = 1

    def smem_bytes(self, head_dim: int) -> int:
        """Return the smem of a CTA: K, V, Q, dO, dS, dQ, LSE and delta, for a padded head_dim."""
        kv_and_q = 2 * (2 * self.kv_stages * TILE_N + 2 * self.q_stages * self.tile_m) * head_dim
        ds = 2 * DS_STAGES * self.tile_m * TILE_N
        dq = 4 * DS_STAGES * self.tile_m * head_dim
        return kv_and_q + ds + dq + 8 * self.q_stages * self.tile_m + _BARRIER_BYTES

    def rules(self, head_dim: int, capacity: int) -> Iterator[Rule]:
        """Yield the rules for a padded head_dim and `capacity` bytes of smem."""
        operands = self.operands_in_regs
        yield from self.multiples(16, 256, "tile_m")
        yield Rule(operands <= 2, "operands_in_regs must be 0, 1 (V) or 2 (V and K)")
        yield Rule(self.q_stages >= 2, "q_stages must be at least 2")
        used = head_dim + self.tile_m + self.tile_m // 4 + operands * head_dim // 4
        what = f"dK, dV, S, dP and P with head_dim {head_dim}"
        hint = "a smaller tile_m"
        yield fits_registers(what, used, _OTHER_REGISTERS, REGISTERS[1], hint)
        yield self.fits_smem(self.smem_bytes(head_dim), capacity, hint, f" for head_dim {head_dim}")


class BackwardSchedule(NamedTuple):
    """How the KV tiles of a launch are ordered."""

    head_group: int
    """KV heads whose tiles are computed side by side."""
    head_stride: int
    """KV tiles after which the next head starts, if heads do not start together."""
    tiles_per_dq: int
    """KV tiles of a head that add to one dQ accumulator."""
    converted_heads: int
    """Query heads whose dQ a spare warp converts while later heads are computed."""
    num_ctas: int
    """CTAs that run at the same time."""


def equal_groups(heads: int, size: int) -> int:
    """Return about `size` heads to a group, in groups of equal size if possible: a few left over would run alone at
    the end."""
    near = [n for n in range(size // 2 + 1, size * 3 // 2 + 1) if heads % n == 0]
    return min(near, key=lambda n: max(n / size, size / n)) if near else -(-heads // -(-heads // size))


def head_groups(
    problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device
) -> tuple[int, int, int]:
    """Return how many KV heads are computed side by side, how many KV tiles add to one dQ accumulator, and how many
    accumulators a head has."""
    of = problem.attention
    masked = of.window_left is not None or of.window_right is not None
    steps = _mean_steps(problem, config)
    heads = of.heads_k * of.batch
    tiles = max(1, -(-of.seqlen_k // TILE_N))
    num_ctas = device.sm_count
    in_cache = _L2_BYTES // (of.group_size * of.seqlen_q * padded_head_dim(of.head_dims) * 8)
    # under a mask, the short KV tiles of a head group are all that is left at its end: enough of them for all SMs
    least = 2 * round(num_ctas / tiles) if masked else 1
    group = equal_groups(heads, max(1, least, min(in_cache, round(_STEPS_APART * num_ctas / steps))))
    parts = 1
    if problem.deterministic and not masked and not of.varlen:
        # tiles of a head that start together come to the same queries together, and wait for each other
        together = min(tiles, -(-num_ctas // group))
        lost = together * _ADD_STEPS
        all_steps = max(steps, steps * heads * tiles // num_ctas)
        parts = max(1, min(_MAX_DQ_PARTS, tiles, int(lost / (_MAX_WAITING * all_steps))))
    if parts == 1:
        return group, _ALL_TILES, 1
    tiles_per_dq = -(-tiles // parts)
    return group, tiles_per_dq, -(-tiles // tiles_per_dq)


def staggered_heads(problem: AttentionBackwardProblem, head_group: int, dq_parts: int) -> tuple[int, int]:
    """Return how many KV heads are computed side by side, and the KV tiles after which the next one starts; a stride of
    0 if those of a group start together.

    Under a one-sided mask, KV tiles that start together end together, the later ones first. So the tiles of a head
    never get apart, and wait for each other in turn."""
    of = problem.attention
    one_sided = of.window_right is not None and of.window_left is None
    if not problem.deterministic or not one_sided or of.varlen or dq_parts > 1:
        return head_group, 0
    tiles = -(-of.seqlen_k // TILE_N)
    if tiles < head_group or of.heads_k * of.batch < _STAGGERED_GROUPS * head_group:
        return head_group, 0
    stride = round(tiles / head_group)
    return -(-tiles // stride), stride


def converted_heads(
    problem: AttentionBackwardProblem,
    config: Sm90AttentionBackwardConfig,
    head_group: int,
    dq_parts: int,
    staggered: bool = False,
) -> int:
    """Return how many query heads' dQ is converted while others are computed: all but those of the last head group.

    None with several accumulators, which are added up at the end, without counters, or if a CTA has too few steps for
    it."""
    of = problem.attention
    if not problem.deterministic or dq_parts > 1 or of.varlen:
        return 0
    q_tiles_per_cta = of.group_size * -(-of.seqlen_q // config.tile_m) / max(1, -(-of.seqlen_k // TILE_N))
    enough = _CONVERT_STEPS[padded_head_dim(of.head_dims)] * q_tiles_per_cta <= _mean_steps(problem, config)
    heads = of.heads_k * of.batch
    earlier = heads - head_group if staggered else (heads - 1) // head_group * head_group
    return of.group_size * earlier if enough else 0


def _max_visible_queries(problem: AttentionBackwardProblem) -> int:
    of = problem.attention
    if of.window_left is None or of.window_right is None:
        return of.seqlen_q
    return min(of.seqlen_q, of.window_left + of.window_right + TILE_N)


def mean_visible_queries(problem: AttentionBackwardProblem) -> float:
    """Return how many queries see a KV tile, on average."""
    of = problem.attention
    most = _max_visible_queries(problem)
    # under a one-sided mask half of them, and half of the tile on the diagonal
    one_sided = (of.window_left is None) != (of.window_right is None)
    return (most + TILE_N) / 2 if one_sided else most


def _mean_steps(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig) -> int:
    return problem.attention.group_size * max(1, int(mean_visible_queries(problem) // config.tile_m))
