"""The memory of an access: an allocation in shared memory, an argument, or registers."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from .state import SHARED, SPACE_OF


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Bytes of static or dynamic shared memory."""

    start: int
    end: int
    name: str


class AccessedMemory(NamedTuple):
    """The memory of an access, as far as it is known when compiling."""

    origin: str
    """"argument", "shared", "private" or "unknown"."""
    source: Any
    """The number of the argument, the allocation, or the address of the register array."""
    space: str
    element: str
    element_bits: int
    low: int = 0
    """Where the allocation in shared memory starts, or the number of the argument plus 1."""
    high: int = 0x7FFF_FFFF
    name: str = ""
    start: int = 0

    @property
    def space_flags(self) -> int:
        return SHARED if self.origin == "shared" else SPACE_OF.get(self.space, 0)

    @property
    def site_fields(self) -> dict[str, Any]:
        """The fields of the `SanitizedSite` of an access."""
        return {
            "memory": self.name, "start": self.start, "element": self.element, "element_bits": self.element_bits
        }  # fmt: skip
