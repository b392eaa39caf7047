"""The config of rotary embeddings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ...dispatch.config import Config, Rule, whole_warps


@dataclasses.dataclass(frozen=True)
class RopeConfig(Config):
    """Threads of a CTA, and heads of a token in which a thread rotates the same pairs."""

    threads: int = 128
    heads: int = 2

    def rules(self) -> Iterator[Rule]:
        yield whole_warps(self.threads)
        yield Rule(self.heads <= 16, f"heads is {self.heads!r}, and must be 1 to 16")
