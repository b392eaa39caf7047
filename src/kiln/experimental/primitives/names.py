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


class BarrierRedux(enum.Enum):
    """How `barrier_cta_red` combines the predicates of its threads."""

    AND = "and"
    OR = "or"
    POPC = "popc"


class CacheLevel(enum.Enum):
    """The cache that a prefetch fills."""

    L1 = "l1"
    L2 = "l2"


class ClusterLaunchControlQueryType(enum.Enum):
    """What `clusterlaunchcontrol_query_cancel` reads of a response."""

    IS_CANCELED = "is_canceled"
    GET_FIRST_CTA_ID_X = "get_first_cta_id_x"
    GET_FIRST_CTA_ID_Y = "get_first_cta_id_y"
    GET_FIRST_CTA_ID_Z = "get_first_cta_id_z"


class CmpOp(enum.Enum):
    """A comparison; those with U hold for NaN, too."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    LO = "lo"
    LS = "ls"
    HI = "hi"
    HS = "hs"
    EQU = "equ"
    NEU = "neu"
    LTU = "ltu"
    LEU = "leu"
    GTU = "gtu"
    GEU = "geu"
    NUM = "num"
    NAN = "nan"


class ConvertFP4Type(enum.Enum):
    """The fp4 format of a conversion."""

    E2M1 = "e2m1"


class ConvertScale(enum.Enum):
    """The scale factors of a conversion."""

    NONE = "none"
    N2_UE8M0 = "scaled::n2::ue8m0"


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


class CvtaSize(enum.Enum):
    """The bits of an address that `cvta_to` converts."""

    U32 = "u32"
    U64 = "u64"


class CvtaSpace(enum.Enum):
    """The state space that `cvta_to` converts to."""

    GLOBAL = "global"
    SHARED = "shared"
    SHARED_CLUSTER = "shared::cluster"
    LOCAL = "local"
    CONST = "const"
    PARAM = "param"


class CVTPackFloat(enum.Enum):
    """Two narrow floats in one word."""

    F16X2 = "f16x2"
    BF16X2 = "bf16x2"
    E4M3X2 = "e4m3x2"
    E5M2X2 = "e5m2x2"
    E2M3X2 = "e2m3x2"
    E3M2X2 = "e3m2x2"
    E2M1X2 = "e2m1x2"
    UE8M0X2 = "ue8m0x2"


class DotAccumulateType(enum.Enum):
    """Whether the numbers of a dot product are signed."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"


class EvictPriority(enum.Enum):
    """How long a line of an access stays in a cache."""

    EVICT_NORMAL = "evict_normal"
    EVICT_FIRST = "evict_first"
    EVICT_LAST = "evict_last"
    EVICT_UNCHANGED = "evict_unchanged"
    EVICT_NO_ALLOCATE = "evict_no_allocate"


class FPRoundingMode(enum.Enum):
    """How floats are rounded: RN to nearest even, RNA ties away from zero, RZ to zero, RM down, RP up, RS by random bits."""

    NONE = "none"
    RN = "rn"
    RM = "rm"
    RP = "rp"
    RZ = "rz"
    RNA = "rna"
    RS = "rs"


class GridDepAction(enum.Enum):
    """What `griddepcontrol` does: wait for earlier grids, or let the next one launch."""

    WAIT = "wait"
    LAUNCH_DEPENDENTS = "launch_dependents"


class IntRoundingMode(enum.Enum):
    """How floats are rounded to integers: RNI to nearest even, RZI to zero, RMI down, RPI up."""

    RNI = "rni"
    RZI = "rzi"
    RMI = "rmi"
    RPI = "rpi"


class L1EvictKind(enum.Enum):
    """How long a line of an access stays in the L1 cache."""

    EVICT_NORMAL = "evict_normal"
    EVICT_FIRST = "evict_first"
    EVICT_LAST = "evict_last"
    EVICT_UNCHANGED = "evict_unchanged"
    NO_ALLOCATE = "evict_no_allocate"


class L2PrefetchSize(enum.Enum):
    """The bytes that a load prefetches into the L2 cache."""

    SIZE_64B = "size_64b"
    SIZE_128B = "size_128b"
    SIZE_256B = "size_256b"


class LoadCacheModifier(enum.Enum):
    """The cache operator of a load; a `cp.async` has CA (all caches) and CG (the L2 cache alone)."""

    CA = "ca"
    CG = "cg"
    CS = "cs"
    LU = "lu"
    CV = "cv"


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


class MatchSync(enum.Enum):
    """Whether `match_sync` looks for equal values or for all being equal."""

    ANY = "any"
    ALL = "all"


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


class MulMode(enum.Enum):
    """Which half of its result `mul` returns, or all of it."""

    LO = "lo"
    HI = "hi"
    WIDE = "wide"


class NVVMMemorySpace(enum.IntEnum):
    """The number of a memory space in NVVM."""

    GENERIC = 0
    GLOBAL = 1
    SHARED = 3
    CONSTANT = 4
    LOCAL = 5
    TENSOR = 6
    SHARED_CLUSTER = 7


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


class SaturationMode(enum.Enum):
    """Whether a conversion clamps: SATFINITE to finite numbers, SAT to 0 and 1."""

    NONE = "none"
    SATFINITE = "satfinite"
    SAT = "sat"


class SetMaxRegisterAction(enum.Enum):
    """Whether `setmaxregister` releases registers or asks for more."""

    DECREASE = "decrease"
    INCREASE = "increase"


class SetpType(enum.Enum):
    """The type that a comparison takes its operands as."""

    B16 = "b16"
    B32 = "b32"
    B64 = "b64"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    S16 = "s16"
    S32 = "s32"
    S64 = "s64"
    F16 = "f16"
    F16X2 = "f16x2"
    BF16 = "bf16"
    BF16X2 = "bf16x2"
    F32 = "f32"
    F64 = "f64"


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


class StateSpace(enum.Enum):
    """A state space of PTX."""

    CONST = "const"
    GLOBAL = "global"
    LOCAL = "local"
    PARAM = "param"
    SHARED = "shared"
    SHARED_CTA = "shared::cta"
    SHARED_CLUSTER = "shared::cluster"


class StoreCacheModifier(enum.Enum):
    """The cache operator of a store."""

    WB = "wb"
    CG = "cg"
    CS = "cs"
    WT = "wt"


class StoreShape(enum.Enum):
    """The shape of the matrices that `stmatrix` stores."""

    M8N8 = "m8n8"
    M16N8 = "m16n8"


class TensormapElemtype(enum.IntEnum):
    """The element type of a tensor map, as `tensormap_replace` writes it."""

    U8 = 0
    U16 = 1
    U32 = 2
    S32 = 3
    U64 = 4
    S64 = 5
    F16 = 6
    F32 = 7
    F32_FTZ = 8
    F64 = 9
    BF16 = 10
    TF32 = 11
    TF32_FTZ = 12
    B4X16 = 13
    B4X16_P64 = 14
    B6X16_P32 = 15


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


class TensormapFillMode(enum.IntEnum):
    """What a tensor map fills boxes with outside the tensor."""

    ZERO = 0
    OOB_NAN = 1


class TensormapInterleaveLayout(enum.IntEnum):
    """How a tensor map interleaves channels."""

    NO_INTERLEAVE = 0
    B16 = 1
    B32 = 2


class TensormapSpace(enum.Enum):
    """The state space of a tensor map."""

    CONST = "const"
    PARAM = "param"
    GENERIC = "generic"


class TensormapSwizzleAtomicity(enum.IntEnum):
    """The units that a tensor map's swizzle keeps together."""

    B16 = 0
    B32 = 1
    B32_FLIP_8B = 2
    B64 = 3


class TensormapSwizzleMode(enum.IntEnum):
    """The swizzle of a tensor map."""

    NO_SWIZZLE = 0
    B32 = 1
    B64 = 2
    B128 = 3
    B96 = 4


class TMALoadMode(enum.Enum):
    """How a TMA load goes through the tensor."""

    TILE = "tile"
    IM2COL = "im2col"
    IM2COL_W = "im2col_w"
    IM2COL_W_128 = "im2col_w_128"
    TILE_GATHER4 = "tile_gather4"


class TMARedux(enum.Enum):
    """What a TMA store that reduces computes."""

    ADD = "add"
    MIN = "min"
    MAX = "max"
    INC = "inc"
    DEC = "dec"
    AND = "and"
    OR = "or"
    XOR = "xor"


class TMAStoreMode(enum.Enum):
    """How a TMA store goes through the tensor."""

    TILE = "tile"
    IM2COL = "im2col"
    TILE_SCATTER4 = "tile_scatter4"


class VoteSync(enum.Enum):
    """How `vote_sync` combines the predicates of a warp."""

    ANY = "any"
    ALL = "all"
    UNI = "uni"
    BALLOT = "ballot"


CpAsyncModifier = LoadCacheModifier
BarrierReduction = BarrierRedux
SaturationModeKind = SaturationMode
