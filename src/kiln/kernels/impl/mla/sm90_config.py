"""How attention to latents is cut on Hopper."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ...dispatch import arrays

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .problem import LatentAttention

ROWS = 64
"""Queries and heads of a tile: rows of the products of a warp group."""
ROPE = 64
"""Columns of keys that are no values: as many as keys of a block, so that the weights of a block fit there."""
ROPE_PART = 2
"""The part of a block that these are, besides two halves of its values. The warps of these numbers load parts, the next one queries."""
TURNED_ROWS = 32
"""Queries and heads of a tile where latents are the rows of products: outputs of more do not fit into registers."""
GROUP = 128
"""Threads of a warp group."""
THREADS = 3 * GROUP
"""Of a block: one warp group loads, two compute."""
REGISTERS: tuple[int, ...] = (24, 240)
"""Of a thread that loads, and of one that computes."""
NARROW_REGISTERS = (32, 208, 64)
"""The same where latents of 8 bits are made such of 16 in shared memory, and of a thread that does that."""
EARLY = 4
"""Eighths of the columns of values."""


@dataclasses.dataclass(frozen=True)
class Sm90MlaConfig:
    """How attention to latents is cut on Hopper: into `shares`, equal numbers of keys of all sequences together, one for each tile of
    queries and heads. `turned`: latents are the rows of products and up to 32 queries and heads their columns, not 64 their rows.
    `early`: eighths of the columns of values whose part of the scores of a block is begun before the weights of the block before are there."""

    shares: int = 132
    turned: bool = False
    early: int = EARLY

    def check(self, problem: LatentAttention, device: Device) -> None:
        """Refuse what cannot work."""
        arrays.require(1 <= self.shares <= 65535, f"{self}: keys are cut into 1 to 65535 shares")
        arrays.require(0 <= self.early <= 8, f"{self}: early is 0 to 8 eighths")
        # queries and two blocks of keys; or one of 8 bits and its last columns again, and of 16 three halves and last columns twice
        each = 6 * problem.dim if problem.stored is None or self.turned else 8 * problem.dim - 2 * problem.value_dim
        used = ROWS * each + 3072
        arrays.require(
            used <= device.smem,
            f"{self} takes {used} bytes of shared memory for latents of {problem.dim}, and a block has {device.smem}",
        )

    def tiles(self, problem: LatentAttention) -> int:
        """Tiles of a sequence's rows."""
        return -(-problem.queries * problem.heads // (TURNED_ROWS if self.turned else ROWS))


def default_config(problem: LatentAttention, device: Device) -> Sm90MlaConfig:
    """As many shares as multiprocessors have blocks of threads at once, or a few less if no sequence is cut then, all being alike; not more
    than there are blocks of keys."""
    most = problem.batches * max(1, -(-problem.keys // ROWS))
    turned = problem.queries * problem.heads <= TURNED_ROWS
    tiles = Sm90MlaConfig(turned=turned).tiles(problem)
    shares = max(1, min(device.multiprocessors // tiles, most))
    whole = (n for n in range(shares, int(_ENOUGH * shares), -1) if problem.batches % n == 0)
    return Sm90MlaConfig(next(whole, shares), turned)


_ENOUGH = 0.95
"""The part of all shares that may be used so that sequences are not cut: beginning and ending a sequence takes as long as some blocks."""


_PRODUCTS = {(False, False): 4.6e6, (False, True): 3.6e6, (True, False): 8.9e6, (True, True): 5.6e6}
"""Multiplications and additions of 64 rows that a multiprocessor does in a microsecond: whether a config is turned, and latents have 8 bits."""
BYTES = 3.1e4
"""Bytes that one multiprocessor of all loads in a microsecond."""
_BEGIN = 4.0
"""Microseconds that beginning, ending and putting together take."""


def parts(problem: LatentAttention, config: Sm90MlaConfig, device: Device) -> dict[str, float]:
    """Microseconds of what is done side by side."""
    keys = problem.batches * problem.keys
    turns = -(-config.shares * config.tiles(problem) // device.multiprocessors)
    at_once = min(config.shares * config.tiles(problem), device.multiprocessors)
    work = 2 * ROWS * (problem.dim + problem.value_dim) * keys / config.shares
    narrow = problem.stored is not None
    size = 1 if narrow else 2
    return {
        "products": _BEGIN + turns * work / _PRODUCTS[config.turned, narrow],
        "memory": _BEGIN + size * keys * problem.dim / (BYTES * at_once),
    }
