"""The shared memory that a CTA can have."""

from __future__ import annotations

from ..hardware import current
from ..hardware.architectures import generation_of


def get_smem_capacity_in_bytes(compute_capability: str | None = None) -> int:
    """Return the bytes of shared memory a CTA can have on an architecture ("sm_90"), by default the current GPU's."""
    return generation_of(compute_capability).smem_per_block if compute_capability else current.device().smem
