"""Numbers of GPUs by architecture, for programs that ask where there is no GPU, and for sizes that depend on it only."""

from __future__ import annotations

import dataclasses
import os
import re

DEFAULT = "sm_90"
"""The architecture whose numbers are given where there is no GPU and `CUTE_DSL_ARCH` names none."""


@dataclasses.dataclass(frozen=True)
class GpuModel:
    """A well-known GPU of an architecture; sizes in bytes. `smem_per_block` is what one block can have at most."""

    major: int
    minor: int
    multiprocessors: int
    l2_cache: int
    smem_per_block: int
    threads_per_multiprocessor: int = 2048
    blocks_per_multiprocessor: int = 32


_MIB, _KIB = 1 << 20, 1 << 10
_MODELS = (
    GpuModel(8, 0, 108, 40 * _MIB, 163 * _KIB),
    GpuModel(8, 6, 84, 6 * _MIB, 99 * _KIB, 1536, 16),
    GpuModel(8, 7, 16, 4 * _MIB, 163 * _KIB, 1536, 16),
    GpuModel(8, 9, 128, 72 * _MIB, 99 * _KIB, 1536, 24),
    GpuModel(9, 0, 132, 50 * _MIB, 227 * _KIB),
    GpuModel(10, 0, 148, 126 * _MIB, 227 * _KIB),
    GpuModel(10, 1, 20, 32 * _MIB, 227 * _KIB, 1536, 24),
    GpuModel(10, 3, 148, 126 * _MIB, 227 * _KIB),
    GpuModel(11, 0, 20, 32 * _MIB, 227 * _KIB, 1536, 24),
    GpuModel(12, 0, 170, 96 * _MIB, 99 * _KIB, 1536, 24),
    GpuModel(12, 1, 48, 24 * _MIB, 99 * _KIB, 1536, 24),
)
_BY_CAPABILITY = {(model.major, model.minor): model for model in _MODELS}


def capability(architecture: str) -> tuple[int, int]:
    """The compute capability of an architecture: (9, 0) for "sm_90" and "sm_90a"."""
    named = re.fullmatch(r"(?:sm_?|compute_)?(\d+)(\d)[af]?", architecture.strip().lower())
    if named is None:
        raise ValueError(f"{architecture!r} is not a GPU architecture: expected a name such as 'sm_90'")
    return int(named[1]), int(named[2])


def of_architecture(architecture: str) -> GpuModel:
    """The GPU that stands for an architecture; of one not known here, the next older one's with its capability."""
    asked = capability(architecture)
    if asked in _BY_CAPABILITY:
        return _BY_CAPABILITY[asked]
    older = [known for known in _BY_CAPABILITY if known <= asked]
    if not older:
        raise ValueError(f"{architecture} is older than sm_80, the first architecture Kiln knows")
    return dataclasses.replace(_BY_CAPABILITY[max(older)], major=asked[0], minor=asked[1])


def chosen() -> GpuModel:
    """The GPU of `CUTE_DSL_ARCH`, or of `DEFAULT`."""
    return of_architecture(os.environ.get("CUTE_DSL_ARCH", "").strip() or DEFAULT)
