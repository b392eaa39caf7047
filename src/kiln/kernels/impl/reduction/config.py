"""The config of reductions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ...dispatch.config import Config, Rule

MAX_PARTS = 65535


@dataclasses.dataclass(frozen=True)
class ReductionConfig(Config):
    """The config of a reduction.

    A CTA of `threads` reduces some rows, `row_threads` of them each (0: by the length of the rows; columns choose for
    themselves). A thread has `vectors` loads in flight. `parts` CTAs share a row or column, and a second kernel reduces
    their partial results (0: as many as keep the device busy).
    """

    may_be_zero = ("row_threads", "parts")

    threads: int = 256
    row_threads: int = 0
    vectors: int = 4
    parts: int = 0

    def rules(self) -> Iterator[Rule]:
        for name, least, most in (("threads", 32, 1024), ("row_threads", 0, self.threads), ("vectors", 1, 16)):
            value = getattr(self, name)
            text = f"{name} is {value!r}, not a power of two from {least} to {most}"
            yield Rule(least <= value <= most and value & (value - 1) == 0, text)
        yield Rule(self.parts <= MAX_PARTS, f"parts is {self.parts!r}, not 0 to {MAX_PARTS}")
