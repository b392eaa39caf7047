"""Features: what some architectures have and others lack."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .architectures import Architecture


@dataclasses.dataclass(frozen=True)
class Feature:
    """Something that architectures have from sm_`since` on, and before sm_`before` if that is not 0."""

    what: str
    since: int
    specific: bool = False
    """Whether only names that end in "a" or "f" have it."""
    before: int = 0

    def on(self, architecture: Architecture) -> bool:
        """Whether code for an architecture may use it."""
        number = architecture.number
        return (
            number >= self.since and (not self.specific or architecture.suffix != "") and not 0 < self.before <= number
        )

    @property
    def needs(self) -> str:
        """What to compile for to have it."""
        newer = f"an architecture before sm_{self.before}" if self.before else "newer"
        return f"sm_{self.since}{'a' if self.specific else ''} or {newer}"


CLUSTERS = Feature("a cluster of blocks", 90)
MBARRIER_BYTES = Feature("an mbarrier that counts bytes", 90)
MBARRIER_TRY_WAIT = Feature("mbarrier.try_wait", 90)
BULK_COPY = Feature("a bulk copy", 90)
TENSOR_MAP = Feature("a tensor map", 90)
TENSOR_MAP_EDITS = Feature("editing a tensor map in a kernel", 90, specific=True)
STMATRIX = Feature("stmatrix", 90)
ELECT = Feature("elect.sync", 90)
GRID_DEPENDENCY = Feature("griddepcontrol", 90)
SET_MAX_REGISTERS = Feature("setmaxnreg", 90, specific=True)
BFLOAT16_ATOMICS = Feature("an atomic addition of bf16", 90)
TFLOAT32_TO_EVEN = Feature("a conversion to tf32 that rounds to the nearest even", 90)
BYTE_FLOAT_CONVERSIONS = Feature("conversions to floats of 8 bits", 89)
PREFERRED_CLUSTER = Feature("a preferred size of clusters", 100)
WIDE_ACCESS = Feature("an access of 32 bytes", 100)
FLOAT32_PAIRS = Feature("arithmetic on pairs of f32", 100)
BYTE_MATRICES = Feature("ldmatrix or stmatrix of bytes", 100, specific=True)
FLOAT_REDUX = Feature("redux.sync of f32", 100, specific=True, before=110)
