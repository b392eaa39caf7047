"""Enumerations of the primitives. A member's value is the name in PTX; functions also take it as a string."""

from __future__ import annotations

import enum


class AtomicOp(enum.Enum):
    """What an atomic operation computes; CAS compares and swaps, EXCH exchanges."""

    AND = "and"
    OR = "or"
    XOR = "xor"
    CAS = "cas"
    EXCH = "exch"
    ADD = "add"
    INC = "inc"
    DEC = "dec"
    MIN = "min"
    MAX = "max"


class BarrierReduction(enum.Enum):
    """How `barrier_cta_red` combines the predicates of its threads."""

    AND = "and"
    OR = "or"
    POPC = "popc"


class CpAsyncModifier(enum.Enum):
    """The caches that a `cp.async` goes through: CA all of them, CG the L2 cache alone."""

    CA = "ca"
    CG = "cg"


class CpReduceOp(enum.Enum):
    """What a bulk copy that reduces computes."""

    ADD = "add"
    MIN = "min"
    MAX = "max"
    INC = "inc"
    DEC = "dec"
    AND = "and"
    OR = "or"
    XOR = "xor"


class CpReduceType(enum.Enum):
    """The element type of a bulk copy that reduces."""

    F16 = "f16"
    BF16 = "bf16"
    B32 = "b32"
    B64 = "b64"
    U32 = "u32"
    U64 = "u64"
    S32 = "s32"
    S64 = "s64"
    F32 = "f32"
    F64 = "f64"


class CTAGroup(enum.Enum):
    """How many CTAs take part in a tcgen05 instruction: one, or a pair."""

    CTA_1 = "cta_1"
    CTA_2 = "cta_2"


class GridDepAction(enum.Enum):
    """What `griddepcontrol` does: wait for earlier grids, or let the next one launch."""

    WAIT = "wait"
    LAUNCH_DEPENDENTS = "launch_dependents"


class LoadShape(enum.Enum):
    """The shape of the matrices that `ldmatrix` loads."""

    M8N8 = "m8n8"
    M8N16 = "m8n16"
    M16N16 = "m16n16"


class LoadSrcFormat(enum.Enum):
    """The format of elements that `ldmatrix` reads in shared memory."""

    B16 = "b16"
    B8 = "b8"
    B4X16_P64 = "b4x16_p64"
    B6X16_P32 = "b6x16_p32"


class MBarrierScope(enum.Enum):
    """The threads that an mbarrier operation orders."""

    CTA = "cta"
    CLUSTER = "cluster"


class MBarrierWait(enum.Enum):
    """How a wait asks an mbarrier: TEST at once, TRY after some time."""

    TEST = "test"
    TRY = "try"


class MemOrder(enum.Enum):
    """The memory order of an access or a fence."""

    WEAK = "weak"
    RELAXED = "relaxed"
    ACQUIRE = "acquire"
    RELEASE = "release"
    ACQ_REL = "acq_rel"
    SC = "sc"
    MMIO = "mmio"
    VOLATILE = "volatile"
    CONSTANT = "constant"


class MemScope(enum.Enum):
    """The threads among which a memory operation is ordered."""

    CTA = "cta"
    CLUSTER = "cluster"
    GPU = "gpu"
    SYS = "sys"


class MMALayout(enum.Enum):
    """Whether an operand of an MMA is row- or column-major."""

    ROW = "row"
    COL = "col"


class PermuteMode(enum.Enum):
    """How `prmt` picks bytes."""

    DEFAULT = "default"
    F4E = "f4e"
    B4E = "b4e"
    RC8 = "rc8"
    ECL = "ecl"
    ECR = "ecr"
    RC16 = "rc16"


class Proxy(enum.Enum):
    """The proxies that `fence_proxy` orders."""

    ALIAS = "alias"
    ASYNC = "async"
    ASYNC_GLOBAL = "async_global"
    ASYNC_SHARED = "async_shared"
    TENSORMAP = "tensormap"
    GENERIC = "generic"


class ReductionKind(enum.Enum):
    """What a reduction over a warp computes."""

    ADD = "add"
    AND = "and"
    MAX = "max"
    MIN = "min"
    OR = "or"
    UMAX = "umax"
    UMIN = "umin"
    XOR = "xor"
    FMIN = "fmin"
    FMAX = "fmax"


class ReductionOp(enum.Enum):
    """What `red` computes in memory."""

    ADD = "add"
    MIN = "min"
    MAX = "max"
    INC = "inc"
    DEC = "dec"
    AND = "and"
    OR = "or"
    XOR = "xor"


class ReductionType(enum.Enum):
    """The type that `red` works on."""

    S32 = "s32"
    U32 = "u32"
    S64 = "s64"
    U64 = "u64"
    F16 = "f16"
    F16X2 = "f16x2"
    BF16 = "bf16"
    BF16X2 = "bf16x2"
    F32 = "f32"
    F64 = "f64"
    B32 = "b32"
    B64 = "b64"


class SetMaxRegisterAction(enum.Enum):
    """Whether `setmaxregister` releases registers or asks for more."""

    DECREASE = "decrease"
    INCREASE = "increase"


class SharedSpace(enum.Enum):
    """Shared memory of this CTA, or of any CTA of the cluster."""

    shared_cta = "shared_cta"
    shared_cluster = "shared_cluster"


class Shfl(enum.Enum):
    """Which lane `shfl_sync` reads from: by index, below, above, or by exclusive or."""

    IDX = "idx"
    UP = "up"
    DOWN = "down"
    BFLY = "bfly"


class StoreShape(enum.Enum):
    """The shape of the matrices that `stmatrix` stores."""

    M8N8 = "m8n8"
    M16N8 = "m16n8"


class TensormapField(enum.Enum):
    """The field of a tensor map that `tensormap_replace` writes."""

    GLOBAL_ADDRESS = "global_address"
    RANK = "rank"
    BOX_DIM = "box_dim"
    GLOBAL_DIM = "global_dim"
    GLOBAL_STRIDE = "global_stride"
    ELEMENT_STRIDE = "element_stride"
    ELEMTYPE = "elemtype"
    INTERLEAVE_LAYOUT = "interleave_layout"
    SWIZZLE_MODE = "swizzle_mode"
    SWIZZLE_ATOMICITY = "swizzle_atomicity"
    FILL_MODE = "fill_mode"


class VoteSync(enum.Enum):
    """How `vote_sync` combines the predicates of a warp."""

    ANY = "any"
    ALL = "all"
    UNI = "uni"
    BALLOT = "ballot"
