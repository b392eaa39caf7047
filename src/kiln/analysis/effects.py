"""What operations depend on and change, as their declarations say."""

from __future__ import annotations

from ..dialects import cute, nvgpu
from ..dialects.declaration import PURE, OpView

KINDS: dict[str, type[OpView]] = {kind.OPERATION_NAME: kind for kind in (*cute.OPERATIONS, *nvgpu.OPERATIONS)}
"""The declarations of all operations, by name."""
IN_HOST_CODE = frozenset(kind.OPERATION_NAME for kind in cute.OPERATIONS if kind.TRAITS is PURE and kind.OPERANDS)
"""Operations of `cute` that depend on their operands alone: host code computes them as kernels do."""


def _operands(accesses: str) -> frozenset[tuple[str, int]]:
    return frozenset(
        (name, list(kind.OPERANDS).index(access.operand))
        for name, kind in KINDS.items()
        for access in getattr(kind, accesses)
    )


READS = _operands("READS")
"""Operations that read memory, each with the number of an operand that leads to it."""
WRITES = _operands("WRITES")
"""Operations that write memory, each with the number of an operand that leads to it."""
