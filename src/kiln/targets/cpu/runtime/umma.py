"""`tcgen05.mma`: its operands in shared and tensor memory, and its arithmetic.

`tensor_memory.py` issues MMAs. `refused` sees one when it is issued, `multiply` carries it out, later under a schedule
seed. Tensor memory of a block is `block.tmem`, and `threads.peer_of(block)` is the other block of a pair.
"""
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

from ....native import Library, Ptr, i64, native
from .records import BlockRecord, Mma, Operation

KINDS = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
"""Kinds of MMAs; `Mma.kind` is a number of one."""
ACCUMULATE, A_IN_TENSOR_MEMORY, WS, SHIFTS_A = (1 << bit for bit in range(4))
"""Bits of `Mma.flags`."""
FIRST_CODE = 64
"""The first code for a refused MMA, of a byte: the bytes above it are numbers for the message (`ops/tcgen05.py`)."""

tcgen05 = Library("tcgen05", prefix="kiln_cpu_")
"""Native code that kernels with tcgen05 operations call."""


@native
def refused(block: Ptr[BlockRecord], mma: Ptr[Mma]) -> i64:
    """Return 0, or a code for why an MMA that a thread of `block` issues cannot be carried out."""
    return 0


@native
def multiply(operation: Ptr[Operation]) -> None:
    """Carry out the MMA `operation.extra`, which a thread of `operation.block` issued."""
