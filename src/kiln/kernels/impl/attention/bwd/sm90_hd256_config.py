"""How gradients of attention are cut on Hopper for heads of more than 128 elements, and what they are expected to take."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch import arrays
from ....tuned import coefficients
from .sm90_config import GROUPS, REGISTERS, equal_shares, seen_by

if TYPE_CHECKING:
    from ....dispatch.devices import Device
    from .problem import AttentionBackwardProblem

ROWS = 64
"""Keys of a block of threads, and queries of a warp group."""
QUERIES = ROWS * GROUPS
"""Of a block of threads in the pass of queries."""
SENT = 2
"""Buffers of weights on their way from one warp group to the other."""
_BARRIERS = 1024
"""Bytes of shared memory for mbarriers."""
_REST = 32
"""Registers of a thread that computes besides its accumulators, at least."""

_IN_CACHE = 32 << 20
"""Bytes of queries and gradients of outputs that are used at the same time."""
_CYCLES = 1980.0
"""Of a microsecond, in bursts."""
_MODEL = coefficients("attention_backward_sm90")
_LAUNCHES: float = _MODEL["launches_us"]
"""Microseconds of three launches."""
_STEP_FACTORS: tuple[float, float] = (_MODEL["dkv_hd256_factor"], _MODEL["dq_hd256_factor"])
"""The time of a step of the dK/dV kernel, and of the dQ kernel, relative to that of its busiest unit."""
_CTA_US: float = _MODEL["hd256_cta_us"]
"""Microseconds of the prologue and the epilogue of a CTA of either kernel."""
_BYTES = 4.2e6
"""Bytes that the pass before the products moves in a microsecond."""


def padded(head_dims: tuple[int, int]) -> tuple[int, int]:
    """Elements of keys and of values in shared memory; the copy engine fills in zeros."""
    return -(-head_dims[0] // 64) * 64, -(-head_dims[1] // 64) * 64


@dataclasses.dataclass(frozen=True)
class Sm90AttentionBackwardHd256Config:
    """How gradients of attention are cut on Hopper for heads of more than 128 elements, in two passes.

    For keys and values, a block of threads has 64 keys and steps of `tile_m` queries, in `stages` buffers; one warp group has the gradients of values, the other
    those of keys, and the first `kv_dims_in_regs` elements of keys and values are held in registers. For queries, a block has 128, 64 for each warp group, and steps of `tile_n` keys, in
    `k_stages` buffers, and of as many values, in `v_stages`; `q_dims_in_regs` elements of queries are held in registers.
    """

    tile_m: int = 48
    q_stages: int = 3
    kv_dims_in_regs: int = 0
    tile_n: int = 32
    k_stages: int = 3
    v_stages: int = 3
    q_dims_in_regs: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (GROUPS + 1)

    def smem_bytes(self, elements: tuple[int, int]) -> int:
        """Shared memory of a block for heads of so many elements, filled up."""
        known = 8 * self.q_stages * self.tile_m
        of_keys = 2 * (ROWS + self.q_stages * self.tile_m) * sum(elements) + 2 * SENT * ROWS * self.tile_m + known
        of_queries = 2 * QUERIES * sum(elements) + 2 * self.tile_n * (
            self.k_stages * elements[0] + self.v_stages * elements[1]
        )
        return max(of_keys, of_queries) + _BARRIERS

    @arrays.checked_once
    def check(self, elements: tuple[int, int], capacity: int) -> None:
        """Refuse what cannot work for heads of so many elements, filled up, where a block has `capacity` bytes of shared memory."""
        require = arrays.require
        for name, rows in (("queries", self.tile_m), ("keys", self.tile_n)):
            require(rows % 16 == 0 and 16 <= rows <= 256, f"{self}: {name} of a step are a multiple of 16, up to 256")
        require(
            self.q_stages >= 2 and self.k_stages >= 2 and self.v_stages >= 1,
            f"{self}: there are at least two buffers of queries and of keys, and one of values",
        )
        for held in (self.kv_dims_in_regs, self.q_dims_in_regs):
            require(held >= 0 and held % 16 == 0, f"{self}: elements that are held in registers are a multiple of 16")
        of_keys, of_values = elements
        # sums, scores and what becomes of them, and what is held: of the warp group of values, that of keys, and one of queries
        taken = max(
            of_values // 2 + self.tile_m * 3 // 4 + min(self.kv_dims_in_regs, of_keys) // 4,
            of_keys // 2 + self.tile_m * 3 // 4 + min(self.kv_dims_in_regs, of_values) // 4,
            of_keys // 2 + self.tile_n * 5 // 4 + min(self.q_dims_in_regs, of_keys) // 4,
        )
        require(
            taken + _REST <= REGISTERS[1],
            f"{self}: gradients, scores, what becomes of them, and what is held take {taken} registers of a thread for heads of {elements}, which has "
            f"{REGISTERS[1]}, and {_REST} for the rest",
            hint="fewer queries or keys in a step, or fewer elements that are held",
        )
        used = self.smem_bytes(elements)
        require(
            used <= capacity,
            f"{self} takes {used} bytes of shared memory for heads of {elements}, and a block has {capacity}",
            hint="fewer queries or keys in a step",
        )


def default_config(problem: AttentionBackwardProblem, device: Device) -> Sm90AttentionBackwardHd256Config:
    """The config for a problem."""
    of_keys, of_values = padded(problem.attention.head_dims)
    both = of_keys + of_values
    keys = (48, 3, 128) if both > 384 else (48, 4, 192) if both > 320 else (64, 4, 192)
    queries = (32, 4, 2, 128) if both > 384 or of_keys > 192 else (64, 3, 2 if both > 320 else 3, 0)
    if problem.functions is not None:  # which need registers of their own
        queries = (32, 4, 2, 0) if queries[0] == 32 else (48, 3, 3, 0)
    return Sm90AttentionBackwardHd256Config(*keys, *queries)


def side_by_side(problem: AttentionBackwardProblem, device: Device) -> int:
    """Heads of keys whose blocks are done side by side: enough for all multiprocessors, and few enough that what they read is in the L2 cache. Under a mask, some are
    shorter than others, so that there are more of them."""
    of = problem.attention
    masked = of.window_left is not None or of.window_right is not None
    blocks = max(1, -(-of.seqlen_k // ROWS))
    in_cache = _IN_CACHE // (2 * of.group_size * of.seqlen_q * sum(padded(of.head_dims)))
    wanted = max(1, round(device.multiprocessors / blocks), min(in_cache, 4 if masked else 2))
    return equal_shares(of.heads_k * of.batch, wanted)


def cycles(
    config: Sm90AttentionBackwardHd256Config, elements: tuple[int, int]
) -> tuple[dict[str, float], dict[str, float]]:
    """Cycles of a step side by side, of the pass of keys and of that of queries: of tensor cores, of shared memory at 128 bytes each, and of the unit for powers."""
    of_keys, both = elements[0], sum(elements)
    # left operands of scores and their gradients that are not held, right operands of these and of sums, what comes in; weights, sent and read
    read = sum(max(0, n - config.kv_dims_in_regs) for n in elements)
    moved = 2 * ROWS * read + 3 * 2 * config.tile_m * both + 2 * 2 * ROWS * config.tile_m
    # the same for two warp groups, but for weights
    moved_q = 2 * QUERIES * (both - min(config.q_dims_in_regs, of_keys)) + 2 * config.tile_n * (
        GROUPS * (both + of_keys) + both
    )
    return (
        {
            "tensor cores": 4 * ROWS * config.tile_m * both / 4096,
            "shared memory": moved / 128,
            "powers": ROWS * config.tile_m / 16,
        },
        {
            "tensor cores": 2 * QUERIES * config.tile_n * (both + of_keys) / 4096,
            "shared memory": moved_q / 128,
            "powers": QUERIES * config.tile_n / 16,
        },
    )


def _work(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config) -> list[tuple[int, float]]:
    """Of both passes: blocks of threads, and steps of one on average."""
    of = problem.attention
    seen = min(seen_by(problem), of.seqlen_q)
    keys = seen * of.seqlen_k / max(1, of.seqlen_q)  # that a query sees, on average
    return [
        (-(-of.seqlen_k // ROWS) * of.heads_k * of.batch, of.group_size * max(1.0, seen / config.tile_m)),
        (-(-of.seqlen_q // QUERIES) * of.heads * of.batch, max(1.0, keys / config.tile_n)),
    ]


def parts(
    problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config, device: Device
) -> dict[str, float]:
    """Microseconds side by side of the units of a multiprocessor, if nothing waits."""
    found: dict[str, float] = {}
    for (blocks, steps), units in zip(
        _work(problem, config), cycles(config, padded(problem.attention.head_dims)), strict=True
    ):
        for name, count in units.items():
            found[name] = found.get(name, 0.0) + blocks * steps / device.multiprocessors / _CYCLES * count
    return found


def expected(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config, device: Device) -> float:
    """Microseconds that gradients take."""
    passes, rest = units(problem, config, device)
    return rest + sum(
        rounds * (over * steps + _CTA_US) for (rounds, steps), over in zip(passes, _STEP_FACTORS, strict=True)
    )


def units(
    problem: AttentionBackwardProblem, config: Sm90AttentionBackwardHd256Config, device: Device
) -> tuple[list[tuple[float, float]], float]:
    """Of both passes: blocks of threads of a multiprocessor, and microseconds that the busiest unit takes for the steps of each; and microseconds of what is before."""
    of = problem.attention
    masked, found = of.window_left is not None or of.window_right is not None, []
    for (blocks, steps), each in zip(_work(problem, config), cycles(config, padded(of.head_dims)), strict=True):
        rounds = blocks / device.multiprocessors
        if not masked:  # all are equally long
            rounds = -(-blocks // device.multiprocessors)
        found.append((max(1.0, rounds), steps * max(each.values()) / _CYCLES))
    return found, _LAUNCHES + 4 * of.seqlen_q * of.heads * of.batch * of.head_dim_v / _BYTES
