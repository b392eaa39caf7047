"""The config of element-wise functions."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ...dispatch import arrays

if TYPE_CHECKING:
    from ...dispatch import devices


@dataclasses.dataclass(frozen=True)
class ElementwiseConfig:
    """How an element-wise function is cut: threads of a block, and neighbouring elements of a thread.

    By default (0) a thread has 16 bytes of the array with the widest elements.
    """

    threads: int = 256
    elements: int = 0

    def check(self, widest: int, device: devices.Device) -> ElementwiseConfig:
        """The config for arrays whose widest elements have so many bytes; refuses what cannot work."""
        arrays.require(
            isinstance(self.threads, int) and 32 <= self.threads <= 1024 and self.threads % 32 == 0,
            f"{self}: a block has 32 to 1024 threads, whole warps of 32, not {self.threads!r}",
        )
        arrays.require(
            self.elements in (0, 1, 2, 4, 8, 16, 32),
            f"{self}: a thread has 1, 2, 4, 8, 16 or 32 elements, or 0 for the default, not {self.elements!r}",
        )
        return dataclasses.replace(self, elements=self.elements or max(1, arrays.MAX_VECTOR_BYTES // widest))
