"""The config of element-wise functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ...dispatch.config import Config, Rule, whole_warps


@dataclasses.dataclass(frozen=True)
class ElementwiseConfig(Config):
    """Threads of a CTA, and neighbouring elements of a thread; 0 elements: 16 bytes of the array with the widest
    elements."""

    may_be_zero = ("elements",)

    threads: int = 256
    elements: int = 0

    def rules(self) -> Iterator[Rule]:
        yield whole_warps(self.threads)
        text = f"elements is {self.elements!r}, and must be 1, 2, 4, 8, 16 or 32, or 0 for the default"
        yield Rule(self.elements in (0, 1, 2, 4, 8, 16, 32), text)
