"""The config of rotary embeddings."""

from __future__ import annotations

import dataclasses

from ...dispatch import arrays


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Threads of a CTA, and heads of a token in which a thread rotates the same pairs."""

    threads: int = 128
    heads: int = 2

    def check(self) -> None:
        """Raises if the config cannot work."""
        arrays.require(
            isinstance(self.threads, int) and 32 <= self.threads <= 1024 and self.threads % 32 == 0,
            f"{self}: a block has 32 to 1024 threads, whole warps of 32, not {self.threads!r}",
        )
        arrays.require(
            isinstance(self.heads, int) and 1 <= self.heads <= 16,
            f"{self}: a thread has 1 to 16 heads, not {self.heads!r}",
        )
