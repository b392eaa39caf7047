"""What operations depend on and change, as their declarations say."""

from __future__ import annotations

from ..dialects import cute
from ..dialects.declaration import PURE

IN_HOST_CODE = frozenset(kind.OPERATION_NAME for kind in cute.OPERATIONS if kind.TRAITS is PURE and kind.OPERANDS)
"""Operations of `cute` that depend on their operands alone: host code computes them as kernels do."""
