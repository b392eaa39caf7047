"""The shared memory that a CTA can have."""

from __future__ import annotations

from ..hardware import current
from ..hardware.architectures import GENERATIONS, generation_of

SMEM_CAPACITY = {f"sm{row.number}": row.smem_per_block for row in GENERATIONS}
"""The bytes of shared memory that a CTA can have, by names such as "sm90"; CuTe DSL had it until 4.2."""


def get_smem_capacity_in_bytes(compute_capability: str | None = None) -> int:
    """Return the bytes of shared memory that a CTA can have.

    Args:
        compute_capability: the architecture, such as "sm_90"; by default the current GPU's.
    """
    return generation_of(compute_capability).smem_per_block if compute_capability else current.device().smem
