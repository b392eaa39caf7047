"""Kinds of operations, by which pipelines and copies of `cute.experimental` are chosen."""

from __future__ import annotations

import enum
from typing import Any

__all__ = ["OperationTypeEnum"]

_MMA = [
    f"MMA{kind}_{sms}SM_{source}"
    for kind in ("", "_SCALED", "_SCALED_SPARSE", "_SPARSE")
    for sms in (1, 2)
    for source in ("SS", "TS")
]

OperationTypeEnum: Any = enum.Enum(
    "OperationTypeEnum",
    [
        "UNDEF",
        "UNARY_SIMT",
        "BINARY_SIMT",
        "TERNARY_SIMT",
        "LD_CONST",
        "LD_GLOBAL",
        "ST_GLOBAL",
        "LD_SHARED",
        "ST_SHARED",
        "CP_ASYNC_G2S",
        "LD_SHARED_MATRIX",
        "ST_SHARED_MATRIX",
        "SIMT_MAC",
        "SM80_MMA",
        "SM90_MMA_SS",
        "SM90_MMA_RS",
        "SM90_TMA_LOAD",
        "SM90_TMA_STORE",
        *(f"SM100_{name}" for name in _MMA),
        "SM100_COPY_T2R",
        "SM100_COPY_R2T",
        "SM100_COPY_S2T",
        "SM100_COPY_S2T_2SM",
        "SM100_TMA_LOAD_2SM",
        "SM100_LAUNCH_CONTROL",
        "REDUCE_ATOMIC_GLOBAL",
        "SM90_TMA_LOAD_MULTICAST",
        "SM100_TMA_LOAD_2SM_MULTICAST",
        "SM120_MMA_SCALED",
        "SM90_TMA_LOAD_IM2COL",
        "SM90_TMA_LOAD_IM2COL_MULTICAST",
        "SM100_TMA_LOAD_2SM_IM2COL",
        "SM100_TMA_LOAD_2SM_IM2COL_MULTICAST",
        "SM90_TMA_STORE_IM2COL",
        "SM90_TMA_REDUCE",
        "REDUCE_DOWN_SHUFFLE",
        "REDUCE_SWAP_SHUFFLE",
        "REDUCE_SMEM_SYNC",
        "SM89_MMA",
        "IRE_SM100_CVT_BLOCK_SCALED_ROW",
        "IRE_SM100_CVT_BLOCK_SCALED_COL",
        "IRE_SM100_CVT_BLOCK_SCALED_2D",
        "SREG_CTAID",
        "ST_ASYNC_S",
        *(f"SM107_{name}" for name in (*_MMA[4:], *_MMA[:4])),
    ],
)
OperationTypeEnum.__doc__ = "The kinds of operations by which copies and MMAs are chosen."

TMA_LOADS = {
    OperationTypeEnum.SM90_TMA_LOAD: (False, False),
    OperationTypeEnum.SM90_TMA_LOAD_MULTICAST: (False, True),
    OperationTypeEnum.SM100_TMA_LOAD_2SM: (True, False),
    OperationTypeEnum.SM100_TMA_LOAD_2SM_MULTICAST: (True, True),
}
"""Loads of tiles: whether they are of a pair of CTAs, and whether they are multicast."""
