"""Enumerations of matrix instructions: `mma.sync`, WGMMA, tcgen05 and their copies."""

from __future__ import annotations

import enum


class BlockScaleFormat(enum.Enum):
    """The format of scale factors of an `mma.sync` with block scales."""

    UE8M0 = "ue8m0"
    UE4M3 = "ue4m3"


class LdStMatrixEltType(enum.Enum):
    """The elements of `ldmatrix` and `stmatrix`."""

    B16 = "b16"
    B8 = "b8"
    B8X16_B6X16_P32 = "b8x16.b6x16_p32"
    B8X16_B4X16_P64 = "b8x16.b4x16_p64"


class MMAB1Op(enum.Enum):
    """How MMAs of bits combine two bits before they count."""

    NONE = "none"
    XOR_POPC = "xor.popc"
    AND_POPC = "and.popc"


class MMACtaCount(enum.Enum):
    """How many CTAs take part in an MMA."""

    CTA_1 = "cta_1"
    CTA_2 = "cta_2"


class MMAFrag(enum.Enum):
    """An operand of an MMA."""

    A = "a"
    B = "b"
    C = "c"


class MMAIntOverflow(enum.Enum):
    """What MMAs of integers do on overflow."""

    SATFINITE = "satfinite"
    WRAPPED = "wrapped"


class MMAKind(enum.Enum):
    """The kind of a sparse or narrow `mma.sync`."""

    F8F6F4 = "f8f6f4"


class MMAType(enum.Enum):
    """The type of an operand of an MMA."""

    F16 = "f16"
    F32 = "f32"
    TF32 = "tf32"
    BF16 = "bf16"
    S8 = "s8"
    U8 = "u8"
    S32 = "s32"
    S4 = "s4"
    U4 = "u4"
    B1 = "b1"
    F64 = "f64"
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    E3M2 = "e3m2"
    E2M3 = "e2m3"
    E2M1 = "e2m1"


class MxScaleFormat(enum.IntEnum):
    """The format of scale factors of a tcgen05 MMA, as its number in descriptors."""

    UE4M3 = 0
    UE8M0 = 1


class ScaleVecSize(enum.Enum):
    """How many scale factors a row of K has."""

    X1 = "1x"
    X2 = "2x"
    X4 = "4x"


class SparsityFormat(enum.Enum):
    """How metadata of a sparse A are stored."""

    ORDERED_METADATA = "sp::ordered_metadata"
    STANDARD = "sp"


class Tcgen05CpMulticast(enum.Enum):
    """The warps that `tcgen05_cp` writes to."""

    WARPX2_02_13 = "warpx2::02_13"
    WARPX2_01_23 = "warpx2::01_23"
    WARPX4 = "warpx4"


class Tcgen05CpShape(enum.Enum):
    """The rows and bits of each that `tcgen05_cp` copies."""

    SHAPE_128X256B = "shape_128x256b"
    SHAPE_4X256B = "shape_4x256b"
    SHAPE_128X128B = "shape_128x128b"
    SHAPE_64X128B = "shape_64x128b"
    SHAPE_32X128B = "shape_32x128b"


class Tcgen05MMACollectorBBuffer(enum.Enum):
    """The buffer that keeps B of a `tcgen05_mma_ws`."""

    B0 = "b0"
    B1 = "b1"
    B2 = "b2"
    B3 = "b3"


class Tcgen05MMAScaleVecSize(enum.Enum):
    """How many scale factors a row of K has in a tcgen05 MMA with block scales, or how many elements share one."""

    X1 = "x1"
    X2 = "x2"
    X4 = "x4"
    BLOCK16 = "block16"
    BLOCK32 = "block32"


class WGMMAScaleIn(enum.IntEnum):
    """The factor of an operand of a WGMMA."""

    ONE = 1
    NEG = -1


class WGMMAScaleOut(enum.IntEnum):
    """Whether a WGMMA adds to D."""

    ZERO = 0
    ONE = 1


class WgmmaSwizzle(enum.IntEnum):
    """The swizzle of an operand in shared memory, as its number in WGMMA descriptors."""

    NONE = 0
    SWIZZLE_128B = 1
    SWIZZLE_64B = 2
    SWIZZLE_32B = 3


class WGMMAType(enum.Enum):
    """The type of an operand of a WGMMA."""

    F16 = "f16"
    TF32 = "tf32"
    U8 = "u8"
    S8 = "s8"
    B1 = "b1"
    BF16 = "bf16"
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    F32 = "f32"
    S32 = "s32"
