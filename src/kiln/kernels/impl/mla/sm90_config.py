"""How attention to latents is cut on Hopper."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ...dispatch import arrays

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .problem import MlaProblem

Q_TILE = 64
"""Queries and heads of a tile: rows of the products of a warp group."""
ROPE_DIM = 64
"""Columns of keys that are no values: as many as keys of a block, so that the weights of a block fit there."""
ROPE_PART = 2
"""The part of a block that these are, besides two halves of its values. The warps of these numbers load parts, the next one queries."""
SWAP_AB_ROWS = 32
"""Queries and heads of a tile where latents are the rows of products: outputs of more do not fit into registers."""
WARPGROUP = 128
"""Threads of a warp group."""
THREADS = 3 * WARPGROUP
"""Of a block: one warp group loads, two compute."""
REGISTERS: tuple[int, ...] = (24, 240)
"""Of a thread that loads, and of one that computes."""
FP8_REGISTERS = (32, 208, 64)
"""The same where latents of 8 bits are made such of 16 in shared memory, and of a thread that does that."""
DEFAULT_EARLY = 4
"""Eighths of the columns of values."""


@dataclasses.dataclass(frozen=True)
class Sm90MlaConfig:
    """How attention to latents is cut on Hopper: into `shares`, equal numbers of keys of all sequences together, one for each tile of
    queries and heads. `turned`: latents are the rows of products and up to 32 queries and heads their columns, not 64 their rows.
    `early`: eighths of the columns of values whose part of the scores of a block is begun before the weights of the block before are there."""

    num_splits: int = 132
    swap_ab: bool = False
    early: int = DEFAULT_EARLY

    def check(self, problem: MlaProblem, device: Device) -> None:
        """Refuse what cannot work."""
        arrays.require(1 <= self.num_splits <= 65535, f"{self}: keys are cut into 1 to 65535 shares")
        arrays.require(0 <= self.early <= 8, f"{self}: early is 0 to 8 eighths")
        # queries and two blocks of keys; or one of 8 bits and its last columns again, and of 16 three halves and last columns twice
        each = (
            6 * problem.dim if problem.cache_dtype is None or self.swap_ab else 8 * problem.dim - 2 * problem.value_dim
        )
        used = Q_TILE * each + 3072
        arrays.require(
            used <= device.smem,
            f"{self} takes {used} bytes of shared memory for latents of {problem.dim}, and a block has {device.smem}",
        )

    def tiles(self, problem: MlaProblem) -> int:
        """Tiles of a sequence's rows."""
        return -(-problem.queries * problem.heads // (SWAP_AB_ROWS if self.swap_ab else Q_TILE))


def default_config(problem: MlaProblem, device: Device) -> Sm90MlaConfig:
    """As many shares as multiprocessors have blocks of threads at once, or a few less if no sequence is cut then, all being alike; not more
    than there are blocks of keys."""
    most = problem.batch * max(1, -(-problem.keys // Q_TILE))
    swap_ab = problem.queries * problem.heads <= SWAP_AB_ROWS
    tiles = Sm90MlaConfig(swap_ab=swap_ab).tiles(problem)
    num_splits = max(1, min(device.multiprocessors // tiles, most))
    whole = (n for n in range(num_splits, int(_UNCUT_SHARE * num_splits), -1) if problem.batch % n == 0)
    return Sm90MlaConfig(next(whole, num_splits), swap_ab)


_UNCUT_SHARE = 0.95
"""The part of all shares that may be used so that sequences are not cut: beginning and ending a sequence takes as long as some blocks."""


_FLOPS_PER_US = {(False, False): 4.6e6, (False, True): 3.6e6, (True, False): 8.9e6, (True, True): 5.6e6}
"""Multiplications and additions of 64 rows that a multiprocessor does in a microsecond: whether a config is turned, and latents have 8 bits."""
BYTES_PER_US = 3.1e4
"""Bytes that one multiprocessor of all loads in a microsecond."""
_FIXED_US = 4.0
"""Microseconds that beginning, ending and putting together take."""


def parts(problem: MlaProblem, config: Sm90MlaConfig, device: Device) -> dict[str, float]:
    """Microseconds of what is done side by side."""
    keys = problem.batch * problem.keys
    turns = -(-config.num_splits * config.tiles(problem) // device.multiprocessors)
    at_once = min(config.num_splits * config.tiles(problem), device.multiprocessors)
    work = 2 * Q_TILE * (problem.dim + problem.value_dim) * keys / config.num_splits
    narrow = problem.cache_dtype is not None
    size = 1 if narrow else 2
    return {
        "products": _FIXED_US + turns * work / _FLOPS_PER_US[config.swap_ab, narrow],
        "memory": _FIXED_US + size * keys * problem.dim / (BYTES_PER_US * at_once),
    }
