"""Enumerations of the primitives. A member's value is the name in PTX; functions also take it as a string."""

from __future__ import annotations

import enum
from typing import Any


def names(name: str, members: str, **values: str) -> Any:
    """Return an enumeration whose values are its names in PTX, in lower case unless given."""
    found = {member: values.get(member, member.lower()) for member in members.split()}
    return enum.Enum(name, found, module=__name__)


AtomicOp = names("AtomicOp", "AND OR XOR CAS EXCH ADD INC DEC MIN MAX")
BarrierReduction = names("BarrierReduction", "AND OR POPC")
CpAsyncModifier = names("CpAsyncModifier", "CA CG")
CpReduceOp = names("CpReduceOp", "ADD MIN MAX INC DEC AND OR XOR")
CpReduceType = names("CpReduceType", "F16 BF16 B32 B64 U32 U64 S32 S64 F32 F64")
CTAGroup = names("CTAGroup", "CTA_1 CTA_2")
GridDepAction = names("GridDepAction", "WAIT LAUNCH_DEPENDENTS")
LoadShape = names("LoadShape", "M8N8 M8N16 M16N16")
LoadSrcFormat = names("LoadSrcFormat", "B16 B8 B4X16_P64 B6X16_P32")
MBarrierScope = names("MBarrierScope", "CTA CLUSTER")
MBarrierWait = names("MBarrierWait", "TEST TRY")
MemOrder = names("MemOrder", "WEAK RELAXED ACQUIRE RELEASE ACQ_REL SC MMIO VOLATILE CONSTANT")
MemScope = names("MemScope", "CTA CLUSTER GPU SYS")
MMALayout = names("MMALayout", "ROW COL")
PermuteMode = names("PermuteMode", "DEFAULT F4E B4E RC8 ECL ECR RC16")
Proxy = names("Proxy", "ALIAS ASYNC ASYNC_GLOBAL ASYNC_SHARED TENSORMAP GENERIC")
ReductionKind = names("ReductionKind", "ADD AND MAX MIN OR UMAX UMIN XOR FMIN FMAX")
ReductionOp = names("ReductionOp", "ADD MIN MAX INC DEC AND OR XOR")
ReductionType = names("ReductionType", "S32 U32 U64 F16 F16X2 BF16 BF16X2 F32 F64 B32 B64")
SetMaxRegisterAction = names("SetMaxRegisterAction", "DECREASE INCREASE")
SharedSpace = names("SharedSpace", "shared_cta shared_cluster")
Shfl = names("Shfl", "IDX UP DOWN BFLY")
StoreShape = names("StoreShape", "M8N8 M16N8")
TensormapField = names(
    "TensormapField",
    "GLOBAL_ADDRESS RANK BOX_DIM GLOBAL_DIM GLOBAL_STRIDE ELEMENT_STRIDE ELEMTYPE INTERLEAVE_LAYOUT SWIZZLE_MODE FILL_MODE",
)
VoteSync = names("VoteSync", "ANY ALL UNI BALLOT")
