"""How gradients of attention are cut for the warp groups of Hopper."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch import arrays

if TYPE_CHECKING:
    from ....dispatch.devices import Device
    from .problem import AttentionBackwardProblem

GROUP = 128
"""Threads of a warp group."""
GROUPS = 2
"""Warp groups that compute."""
KEYS = 64 * GROUPS
"""Keys of a block of threads, 64 of each warp group."""
BUFFERS = 2
"""Of gradients of scores, those of a step being multiplied in the next, and of dQ, on its way to be added."""
REGISTERS = (24, 240)
"""Registers of a thread that copies, and of one that computes."""
_BARRIERS = 1024
"""Bytes of shared memory for mbarriers."""
_REST = 24
"""Registers of a thread that computes besides its accumulators, at least."""
_APART = 2.4
"""Steps between the beginnings of blocks of threads that have successive keys of a head, so that they hardly wait for each other."""
_IN_CACHE = 32 << 20
"""Bytes of queries, gradients of outputs and sums of dQ that are used at the same time: what is added to sums should be in the L2 cache."""
_TURN = 0.6
"""Steps that pass until an addition is known to the block of threads that is next."""
_LITTLE, _MOST_PARTS = 0.03, 8
"""Which part of the time blocks of threads may wait, and how many sums of dQ there are at most so that they do not."""
_ALL = 1 << 30
"""Blocks of keys: more than there are."""
_CONVERTED = {128: 8, 64: 7}
"""Steps of a block of threads beside which a warp makes gradients of a block of queries, by elements of a head, filled up."""


def padded(head_dims: tuple[int, int]) -> int:
    """Elements of a head in shared memory; the copy engine fills in zeros."""
    return 64 if max(head_dims) <= 64 else 128


@dataclasses.dataclass(frozen=True)
class Sm90AttentionBackwardConfig:
    """How gradients of attention are cut on Hopper: a block of threads has 128 keys, `tile_m` are the queries of a step.

    Two warp groups have 64 keys each; one more loads for them and adds to the gradients of queries. `stages`: buffers of queries and
    of gradients of outputs. `operands_in_regs`: 1, values are held in registers, 2, keys are, too; 0, neither.
    """

    tile_m: int = 64
    q_stages: int = 2
    operands_in_regs: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (GROUPS + 1)

    def smem_bytes(self, elements: int) -> int:
        """Shared memory of a block for heads of so many elements, filled up."""
        rows = 2 * KEYS + 2 * self.q_stages * self.tile_m
        known = 8 * self.q_stages * self.tile_m
        return (
            2 * rows * elements
            + 2 * BUFFERS * self.tile_m * KEYS
            + 4 * BUFFERS * self.tile_m * elements
            + known
            + _BARRIERS
        )

    @arrays.checked_once
    def check(self, elements: int, capacity: int) -> None:
        """Refuse what cannot work for heads of so many elements, filled up, where a block has `capacity` bytes of shared memory."""
        require = arrays.require
        require(
            self.tile_m % 16 == 0 and 16 <= self.tile_m <= 256,
            f"{self}: queries of a step are a multiple of 16, up to 256",
        )
        require(0 <= self.operands_in_regs <= 2, f"{self}: values, or values and keys, are held in registers")
        require(self.q_stages >= 2, f"{self}: there are at least two buffers of queries")
        taken = elements + self.tile_m + self.tile_m // 4 + self.operands_in_regs * elements // 4
        require(
            taken + _REST <= REGISTERS[1],
            f"{self}: gradients, scores, theirs and weights for heads of {elements} take {taken} registers of a thread, which has "
            f"{REGISTERS[1]}, and {_REST} for the rest",
            hint="fewer queries in a step",
        )
        used = self.smem_bytes(elements)
        require(
            used <= capacity,
            f"{self} takes {used} bytes of shared memory for heads of {elements}, and a block has {capacity}",
            hint="fewer queries in a step",
        )


def _most_seen_by(problem: AttentionBackwardProblem) -> int:
    """Queries that see a block of keys, at most."""
    of = problem.attention
    return (
        of.seqlen_q
        if of.window_left is None or of.window_right is None
        else min(of.seqlen_q, of.window_left + of.window_right + KEYS)
    )


def equal_shares(heads: int, wanted: int) -> int:
    """About so many heads each time, equally many if that can be: a few that are left would be alone at the end."""
    near = [n for n in range(wanted // 2 + 1, wanted * 3 // 2 + 1) if heads % n == 0]
    return min(near, key=lambda n: max(n / wanted, wanted / n)) if near else -(-heads // -(-heads // wanted))


def side_by_side(
    problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device
) -> tuple[int, int, int]:
    """Heads whose blocks of keys are done side by side, equally many each time; blocks of keys that add to the same sums, and how many parts
    that makes of those of a head."""
    of = problem.attention
    masked, steps = of.window_left is not None or of.window_right is not None, _steps(problem, config)
    heads, blocks, at_once = of.heads_k * of.batch, max(1, -(-of.seqlen_k // KEYS)), device.multiprocessors
    in_cache = _IN_CACHE // (of.group_size * of.seqlen_q * padded(of.head_dims) * 8)
    # blocks of keys that have fewer queries than others are all there are at the end of some heads: enough of them for all multiprocessors
    least = 2 * round(at_once / blocks) if masked else 1
    side = equal_shares(heads, max(1, least, min(in_cache, round(_APART * at_once / steps))))
    parts = 1
    if problem.deterministic and not masked and not of.varlen:
        # those of a head that begin together come to the same queries together, and wait for each other
        together = min(blocks, -(-at_once // side))
        lost, all_steps = together * _TURN, max(steps, steps * heads * blocks // at_once)
        parts = max(1, min(_MOST_PARTS, blocks, int(lost / (_LITTLE * all_steps))))
    if parts == 1:
        return side, _ALL, 1
    part = -(-blocks // parts)
    return side, part, -(-blocks // part)


def made_meanwhile(
    problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, side: int, parts: int
) -> int:
    """Heads of queries whose gradients are made while those of others are computed: all but those that are done last.

    None if there are parts, which are added up when all are complete, or if nobody knows when they are; and none if a block of threads has
    fewer steps than that would take beside them.
    """
    of = problem.attention
    if not problem.deterministic or parts > 1 or of.varlen:
        return 0
    each = of.group_size * -(-of.seqlen_q // config.tile_m) / max(1, -(-of.seqlen_k // KEYS))
    enough = _CONVERTED[padded(of.head_dims)] * each <= _steps(problem, config)
    return of.group_size * ((of.heads_k * of.batch - 1) // side * side) if enough else 0


def seen_by(problem: AttentionBackwardProblem) -> float:
    """Queries that see a block of keys, on average."""
    of = problem.attention
    # under a mask on one side half of them, and half of what is around the diagonal
    one_sided = (of.window_left is None) != (of.window_right is None)
    return (_most_seen_by(problem) + KEYS) / 2 if one_sided else _most_seen_by(problem)


def _steps(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig) -> int:
    """Of a block of threads, on average."""
    return problem.attention.group_size * max(1, int(seen_by(problem) // config.tile_m))
