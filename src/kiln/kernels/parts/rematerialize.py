"""Values that are computed again where they are used, instead of held in registers across a main loop."""

from __future__ import annotations

from typing import Any

from ... import Int32, cute
from ...cute import arch


def rematerialized(value: Any) -> Int32:
    """Return `value` as one that LLVM cannot trace back.

    What is computed from it lives from here on only; computed from `value` itself, it would be hoisted and hold
    registers that the main loop needs."""
    return arch.shuffle_sync_bfly(value, offset=0)


def rematerialized_operand(operand: cute.Tensor) -> cute.Tensor:
    """Return an A operand in smem whose descriptors are computed here instead of before the loop.

    LLVM would hoist them: for 16 of them ptxas takes 32 of 63 uniform registers, has no room there for B's descriptors,
    and copies those from vector registers in every iteration."""
    zero = arch.make_warp_uniform(rematerialized(Int32(0)))
    return cute.make_tensor(operand.iterator + zero, operand.layout)
