"""Features that some architectures have and others lack."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .architectures import Architecture


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature that architectures have from sm_`since` on, and before sm_`before` if that is not 0."""

    what: str
    since: int
    suffixes: str = ""
    """The suffixes of architecture names that have it: "a" for code of one architecture alone, "f" for that of a
    family, "af" for both; empty if names without a suffix have it, too."""
    before: int = 0

    def on(self, architecture: Architecture) -> bool:
        """Return whether code for an architecture may use it."""
        suffix = architecture.suffix
        if self.suffixes and (not suffix or suffix not in self.suffixes):
            return False
        return self.since <= architecture.number and not 0 < self.before <= architecture.number

    @property
    def needs(self) -> str:
        """The architectures to compile for, in error messages."""
        newer = f"an architecture before sm_{self.before}" if self.before else "newer"
        return f"sm_{self.since}{self.suffixes[:1]} or {newer}"


CLUSTERS = Feature("a cluster of CTAs", 90)
MBARRIER_BYTES = Feature("an mbarrier that counts bytes", 90)
MBARRIER_TRY_WAIT = Feature("mbarrier.try_wait", 90)
BULK_COPY = Feature("a bulk copy", 90)
TENSOR_MAP = Feature("a tensor map", 90)
TENSOR_MAP_EDITS = Feature("editing a tensor map in a kernel", 90, suffixes="af")
STMATRIX = Feature("stmatrix", 90)
ELECT = Feature("elect.sync", 90)
GRID_DEPENDENCY = Feature("griddepcontrol", 90)
SET_MAX_REGISTERS = Feature("setmaxnreg", 90, suffixes="af")
BFLOAT16_ATOMICS = Feature("an atomic addition of bf16", 90)
VECTOR_ATOMICS = Feature("an atomic addition of vectors", 90)
TFLOAT32_TO_EVEN = Feature("a conversion to tf32 that rounds to the nearest even", 90)
BYTE_FLOAT_CONVERSIONS = Feature("conversions to floats of 8 bits", 89)
PREFERRED_CLUSTER = Feature("a preferred size of clusters", 100)
WIDE_ACCESS = Feature("an access of 32 bytes", 100)
FLOAT32_PAIRS = Feature("arithmetic on pairs of f32", 100)
BYTE_MATRICES = Feature("ldmatrix or stmatrix of bytes", 100, suffixes="af")
FLOAT_REDUX = Feature("redux.sync of f32", 100, suffixes="af", before=110)
CTA_PAIRS = Feature("a copy or an MMA of two CTAs together (CtaGroup.TWO)", 100, suffixes="af", before=120)
