"""The config of MLA on sm_90a, and its cost model."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ...dispatch.config import Config, Rule
from ...dispatch.roofline import Roofline, us
from ...tuned import coefficients

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .problem import MlaProblem

Q_TILE = 64
"""Rows of a Q tile, queries and heads: M of the MMA."""
ROPE_DIM = 64
"""RoPE columns of a key, which are no values: as many as keys of a tile, so that P of a tile fits there."""
ROPE_PART = 2
"""The number of the RoPE columns among the parts of a KV tile; the halves of its values are 0 and 1. Producer warps 0
to 2 load the part of their number, the next one loads Q."""
SWAP_AB_ROWS = 32
"""Rows of a Q tile with swap-AB: accumulators of more do not fit into registers."""
WARPGROUP = 128
"""Threads of a warpgroup."""
REGISTERS: tuple[int, ...] = (24, 240)
"""Registers of a producer and of a consumer thread."""
FP8_REGISTERS = (32, 208, 64)
"""The same where an 8-bit cache is converted in shared memory, and those of a converting thread."""
DEFAULT_EARLY = 4
"""The default of `early`."""


@dataclasses.dataclass(frozen=True)
class Sm90MlaConfig(Config):
    """The config of MLA decode on sm_90a."""

    may_be_zero = ("early",)

    num_splits: int = 132
    """Splits into which the KV tiles of all sequences are divided; a CTA computes one of them for one Q tile."""
    swap_ab: bool = False
    """Whether the KV tile is operand A, and up to 32 query rows (queries times heads) are operand B."""
    early: int = DEFAULT_EARLY
    """How many eighths of S = Q K^T are issued before P of the previous KV tile has come from the other warpgroup."""

    def rules(self, problem: MlaProblem, device: Device) -> Iterator[Rule]:
        yield Rule(self.num_splits <= 65535, f"num_splits is {self.num_splits}, and must be 1 to 65535")
        yield Rule(self.early <= 8, f"early is {self.early}, and must be 0 to 8")
        dim = problem.dim
        # Q and two KV tiles; or an 8-bit KV tile and its RoPE columns twice, three f16 halves and RoPE columns twice
        row_bytes = 6 * dim if problem.cache_dtype is None or self.swap_ab else 8 * dim - 2 * problem.value_dim
        yield self.fits_smem(Q_TILE * row_bytes + 3072, device.smem, "", f" for D of {dim}")

    def tiles(self, problem: MlaProblem) -> int:
        """Return the Q tiles of a sequence."""
        return -(-problem.queries * problem.heads // (SWAP_AB_ROWS if self.swap_ab else Q_TILE))


def default_config(problem: MlaProblem, device: Device) -> Sm90MlaConfig:
    """Return a config with as many splits as CTAs run at once, or a few less if equally long sequences then stay whole;
    at most one for each KV tile."""
    most = problem.batch * max(1, -(-problem.keys // Q_TILE))
    swap_ab = problem.queries * problem.heads <= SWAP_AB_ROWS
    tiles = Sm90MlaConfig(swap_ab=swap_ab).tiles(problem)
    num_splits = max(1, min(device.sm_count // tiles, most))
    whole = (n for n in range(num_splits, int(_UNCUT_CTAS * num_splits), -1) if problem.batch % n == 0)
    return Sm90MlaConfig(next(whole, num_splits), swap_ab)


_UNCUT_CTAS = 0.95
"""The share of CTAs that must remain busy for sequences to stay whole: a split sequence costs a prologue, an epilogue
and a combine more."""


def roofline(problem: MlaProblem, config: Sm90MlaConfig, device: Device) -> Roofline:
    """Return what an MLA decode is expected to spend time on."""
    keys = problem.batch * problem.keys
    turns = -(-config.num_splits * config.tiles(problem) // device.sm_count)
    at_once = min(config.num_splits * config.tiles(problem), device.sm_count)
    work = 2 * Q_TILE * (problem.dim + problem.value_dim) * keys / config.num_splits
    narrow = problem.cache_dtype is not None
    size = 1 if narrow else 2
    c = coefficients("mla_sm90", device)
    tflops = c[f"f{8 * size}{'_swap_ab' * config.swap_ab}_tflops"]  # tiles count as 64 rows
    units = {
        "tensor cores": turns * us(work, tflops),
        "memory": us(size * keys * problem.dim, c["sm_dram_tbps"] * at_once),
    }
    return Roofline(units, {"launch and combine": c["launch_us"]})
