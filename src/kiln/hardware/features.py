"""Features that some architectures have and others lack, and the words of an error about a missing one.

Blackwell is two families: sm_100, sm_103, sm_107 and sm_110 have tcgen05 and tensor memory; sm_120 and sm_121 have
neither, but warp MMA with block scales. What ptxas takes for which of their targets follows no order of numbers, so
these features name their architectures. `tests/hardware/ptx_forms.tsv` has PTX of each, with the targets that take it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .architectures import Architecture


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature that architectures have from sm_`since` on, and before sm_`before` if that is not 0; or `targets`."""

    what: str
    since: int = 0
    suffixes: str = ""
    """The suffixes of architecture names that have it: "a" for code of one architecture alone, "f" for that of a
    family, "af" for both; empty if names without a suffix have it, too."""
    before: int = 0
    targets: tuple[str, ...] = ()
    """The names of all architectures that have it, where numbers and suffixes do not say."""
    ptx: int = 0
    """The first version of PTX that has it, 88 for 8.8; 0 if every version for its architectures does."""
    tensor_core: bool = False
    """Whether it is an MMA instruction or belongs to one: an error then names the architecture's own MMA."""

    def on(self, architecture: Architecture) -> bool:
        """Return whether code for an architecture may use it."""
        if self.targets:
            return architecture.name in self.targets
        suffix = architecture.suffix
        if self.suffixes and (not suffix or suffix not in self.suffixes):
            return False
        return self.since <= architecture.number and not 0 < self.before <= architecture.number

    @property
    def needs(self) -> str:
        """The architectures to compile for, in error messages."""
        if self.targets:
            return _listed(self.targets)
        newer = f"an architecture before sm_{self.before}" if self.before else "newer"
        return f"sm_{self.since}{self.suffixes[:1]} or {newer}"

    def refusal(self, architecture: Architecture, what: str = "") -> str:
        """Return why code for an architecture cannot use the feature; empty if it can.

        `what` names an operation that needs it.
        """
        if self.on(architecture):
            return ""
        said = f"{what or self.what} needs {self.needs}, and this is compiled for {architecture.name}"
        same = [arch.name for arch in type(architecture) if arch.number == architecture.number and self.on(arch)]
        if same:
            return f"{said}: the same GPU has it in code for {_listed(same)}"
        own = _OWN_MMA.get(architecture.major, "") if self.tensor_core else ""
        return f"{said}: sm_{architecture.number} has {own}" if own else said


_OWN_MMA = {
    8: "mma.sync only",
    9: "wgmma and mma.sync",
    10: "tcgen05.mma, and mma.sync without block scales",
    11: "tcgen05.mma, and mma.sync without block scales",
    12: "no tcgen05 and no tensor memory, but mma.sync with block scales",
}
"""MMA instructions by major compute capability, in error messages."""


def _listed(names: tuple[str, ...] | list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _names(text: str) -> tuple[str, ...]:
    return tuple(f"sm_{one}" for one in text.split())


_SPECIFIC = _names("100a 103a 107a 110a")
_TCGEN05 = _names("100a 100f 103a 103f 107a 107f 110a 110f")
_GEFORCE = _names("120a 120f 121a 121f")

CLUSTERS = Feature("a cluster of CTAs", 90)
MBARRIER_BYTES = Feature("an mbarrier that counts bytes", 90)
MBARRIER_TRY_WAIT = Feature("mbarrier.try_wait", 90)
WARPGROUP_MMA = Feature("wgmma", targets=_names("90a"), tensor_core=True)
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
WIDE_ACCESS = Feature("an access of 32 bytes", 100, ptx=88)
FLOAT32_PAIRS = Feature("arithmetic on pairs of f32", 100)
FLOAT32_MIXED_PAIRS = Feature(
    "arithmetic on pairs of f32 with a pair of f16 or bf16", targets=_names("107a 107f"), ptx=94
)
BYTE_MATRICES = Feature("ldmatrix or stmatrix of bytes", 100, suffixes="af")
THREE_INPUT_MIN_MAX = Feature("min or max of three f32", 100, ptx=88)
MIXED_PRECISION_FMA = Feature("fma, add or sub of f32 with f16 or bf16 factors", 100)
FLOAT_REDUX = Feature("redux.sync of f32", 100, suffixes="af", before=110)
NARROW_FLOAT_CONVERSIONS = Feature("conversions of floats of 4 and 6 bits and of ue8m0", 100, suffixes="af")
UE5M3_CONVERSIONS = Feature("a conversion to or from ue5m3", targets=_names("107a 107f"), ptx=94)
BYTE_FLOATS_TO_BFLOAT16 = Feature("a conversion of e4m3 or e5m2 to bf16", 100, suffixes="af", ptx=92)
STOCHASTIC_ROUNDING = Feature(
    "a conversion with stochastic rounding (cvt.rs)", targets=_names("100a 103a 107a"), ptx=87
)
FIXED_POINT_CONVERSIONS = Feature("a conversion to or from s2f6", targets=(*_SPECIFIC, *_names("120a 121a")), ptx=91)
BULK_STORES = Feature("st.bulk, or a bulk copy with a byte mask", 100)
MULTICAST_MEMORY = Feature("multimem", 90)
MULTICAST_BYTE_FLOATS = Feature("multimem of e4m3 or e5m2", targets=(*_TCGEN05, *_names("120a 121a")))
GLOBAL_STORE_ASYNC = Feature("st.async to global memory", 100, ptx=87)

CLUSTER_LAUNCH_CONTROL = Feature("clusterlaunchcontrol", 100)
CLUSTER_LAUNCH_MULTICAST = Feature("clusterlaunchcontrol.try_cancel with multicast", 100, suffixes="af")

TMA_GATHER_TO_CTA = Feature("a TMA gather4 load to shared::cta", 100)
TMA_GATHER = Feature("a TMA gather4 load to shared::cluster, or a scatter4 store", targets=_TCGEN05)
TMA_IM2COL_W = Feature("a TMA load in mode im2col::w", targets=_TCGEN05)
TENSOR_MAP_NARROW_EDITS = Feature(
    "a tensor map of packed elements, or its swizzle atomicity", 100, suffixes="af", ptx=87
)
TENSOR_MAP_SWIZZLE_96B = Feature("a tensor map with the swizzle mode 96B", targets=_names("103a 107a"))
CTA_PAIRS = Feature("a copy or an MMA of two CTAs together (CtaGroup.TWO)", targets=_TCGEN05, tensor_core=True)

TCGEN05 = Feature("tcgen05", targets=_TCGEN05, tensor_core=True)
"""Tensor memory, and the instructions that use it: alloc, mma, cp, ld, st, commit, wait and fence."""
TCGEN05_I8 = Feature("tcgen05.mma of kind::i8", targets=_names("100a 110a"), tensor_core=True)
TCGEN05_SCALE_D = Feature(
    "tcgen05.mma with scale-input-d", targets=_names("100a 100f 103a 103f 107a 107f"), tensor_core=True
)
"""Of the kinds f16 and tf32. kind::i8 has it wherever it exists, the other kinds never."""
TCGEN05_BLOCK_SIZES = Feature("tcgen05.mma with .block16 or .block32", targets=_TCGEN05, ptx=88, tensor_core=True)
TCGEN05_SCALE_VEC = Feature("tcgen05.mma with .scale_vec", targets=_SPECIFIC, ptx=87, tensor_core=True)
"""The older spelling of the block size, which code of a family lacks: emit .block16 and .block32."""
TCGEN05_SPARSE_FP4 = Feature("tcgen05.mma.sp of kind::mxf4 or mxf4nvf4", targets=_SPECIFIC, ptx=88, tensor_core=True)
TCGEN05_K96 = Feature("tcgen05.mma of fp4 with K = 96", targets=_names("103a"), tensor_core=True)
"""A bit of the instruction descriptor, as is the absolute leading-dimension address: ptxas checks neither."""
TCGEN05_COLLECTOR_B = Feature("tcgen05.mma with .collector::b", targets=_names("107a 107f"), ptx=94, tensor_core=True)
TCGEN05_SHIFT = Feature("tcgen05.shift", targets=_SPECIFIC, tensor_core=True)
TCGEN05_LOAD_REDUCE = Feature(
    "tcgen05.ld.red", targets=_names("103a 103f 107a 107f 110a 110f"), ptx=88, tensor_core=True
)
TCGEN05_EXCLUSIVE_ALLOC = Feature("tcgen05.alloc.exclusive", targets=_TCGEN05, ptx=94, tensor_core=True)
TCGEN05_WIDE_COMMIT_MASK = Feature(
    "tcgen05.commit with a mask of 32 CTAs", targets=_names("107a 107f"), ptx=94, tensor_core=True
)

WARP_MMA_BLOCK_SCALE = Feature("mma.sync with block scales", targets=_GEFORCE, tensor_core=True)
WARP_MMA_UE8M0_BY_16 = Feature(
    "mma.sync of kind::mxf4nvf4 with scales in ue8m0", targets=_GEFORCE, ptx=91, tensor_core=True
)
WARP_MMA_NARROW_FLOATS = Feature("mma.sync of floats of 4 or 6 bits", targets=_GEFORCE, tensor_core=True)
WARP_MMA_SPARSE_FP4 = Feature("mma.sp of fp4 with block scales", targets=_names("120a 121a"), tensor_core=True)
