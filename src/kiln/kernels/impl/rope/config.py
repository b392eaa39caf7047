"""The config of rotary embeddings."""

from __future__ import annotations

import dataclasses

from ...dispatch import arrays
from ...dispatch.config import Config


@dataclasses.dataclass(frozen=True)
class RopeConfig(Config):
    """Threads of a CTA, and heads of a token in which a thread rotates the same pairs."""

    threads: int = 128
    heads: int = 2

    def check(self) -> None:
        """Raise if the config cannot work."""
        arrays.require_threads(self)
        arrays.require(self.heads <= 16, f"{self}: heads is {self.heads!r}, and must be 1 to 16")
