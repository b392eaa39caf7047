"""Enumerations of the primitives. A member's value is the name in PTX; functions also take it as a string."""

from __future__ import annotations

import enum
from typing import Any


def names(name: str, members: str, **values: str) -> Any:
    """Return an enumeration whose values are its names in PTX, in lower case unless given."""
    found = {member: values.get(member, member.lower()) for member in members.split()}
    return enum.Enum(name, found, module=__name__)


AtomicOp: Any = names("AtomicOp", "AND OR XOR CAS EXCH ADD INC DEC MIN MAX")
BarrierReduction: Any = names("BarrierReduction", "AND OR POPC")
CpAsyncModifier: Any = names("CpAsyncModifier", "CA CG")
CpReduceOp: Any = names("CpReduceOp", "ADD MIN MAX INC DEC AND OR XOR")
CpReduceType: Any = names("CpReduceType", "F16 BF16 B32 B64 U32 U64 S32 S64 F32 F64")
CTAGroup: Any = names("CTAGroup", "CTA_1 CTA_2")
GridDepAction: Any = names("GridDepAction", "WAIT LAUNCH_DEPENDENTS")
LoadShape: Any = names("LoadShape", "M8N8 M8N16 M16N16")
LoadSrcFormat: Any = names("LoadSrcFormat", "B16 B8 B4X16_P64 B6X16_P32")
MBarrierScope: Any = names("MBarrierScope", "CTA CLUSTER")
MBarrierWait: Any = names("MBarrierWait", "TEST TRY")
MemOrder: Any = names("MemOrder", "WEAK RELAXED ACQUIRE RELEASE ACQ_REL SC MMIO VOLATILE CONSTANT")
MemScope: Any = names("MemScope", "CTA CLUSTER GPU SYS")
MMALayout: Any = names("MMALayout", "ROW COL")
PermuteMode: Any = names("PermuteMode", "DEFAULT F4E B4E RC8 ECL ECR RC16")
Proxy: Any = names("Proxy", "ALIAS ASYNC ASYNC_GLOBAL ASYNC_SHARED TENSORMAP GENERIC")
ReductionKind: Any = names("ReductionKind", "ADD AND MAX MIN OR UMAX UMIN XOR FMIN FMAX")
ReductionOp: Any = names("ReductionOp", "ADD MIN MAX INC DEC AND OR XOR")
ReductionType: Any = names("ReductionType", "S32 U32 S64 U64 F16 F16X2 BF16 BF16X2 F32 F64 B32 B64")
SetMaxRegisterAction: Any = names("SetMaxRegisterAction", "DECREASE INCREASE")
SharedSpace: Any = names("SharedSpace", "shared_cta shared_cluster")
Shfl: Any = names("Shfl", "IDX UP DOWN BFLY")
StoreShape: Any = names("StoreShape", "M8N8 M16N8")
TensormapField: Any = names(
    "TensormapField",
    "GLOBAL_ADDRESS RANK BOX_DIM GLOBAL_DIM GLOBAL_STRIDE ELEMENT_STRIDE ELEMTYPE INTERLEAVE_LAYOUT SWIZZLE_MODE "
    "SWIZZLE_ATOMICITY FILL_MODE",
)
VoteSync: Any = names("VoteSync", "ANY ALL UNI BALLOT")
