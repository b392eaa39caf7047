"""How the operands of a matrix product come from shared memory into the registers of the tensor cores.

Where K is contiguous, and for 16-bit elements, `ldmatrix` gives fragments as they are. 8-bit elements whose K is not
contiguous are read as pairs, 16-bit elements of transposed matrices: a lane gets two neighbours in M or N at each of its k, and
a permutation of bytes makes two registers of them. So neighbours belong to the rows g and g + 8 of an instruction, or to the
columns g of two instructions: `order` says so to the tiled MMA. 32-bit elements are read one by one, and rounded. 8-bit floats may
become f16: a register of four neighbours in K, two registers of an instruction of half the K, for A and B alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float16, Float32, Int32, TFloat32, Uint16, cute
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, warp
from ...parts.fp8 import widened
from ...parts.smem_layouts import swizzled
from .sm80_config import k_step

if TYPE_CHECKING:
    from .problem import Operand
    from .sm80_config import Sm80GemmConfig

_EVEN, _ODD = 0x6420, 0x7531
"""The first, and the second, bytes of the four pairs in two words."""


class OperandFragments:
    """One operand (`side` 0: A; 1: B) of the tiles of a thread."""

    __kiln_immutable__ = True  # a loop need not carry what `start` sets

    def __init__(self, operand: Operand, side: int, config: Sm80GemmConfig) -> None:
        self.operand = operand
        self.side = side
        self.warp_layout_mn = config.warp_layout_mn
        self.shape = (config.tile_shape_mnk[side], config.tile_shape_mnk[2], config.stages)
        self.in_pairs = operand.dtype.width == 8 and not operand.k_major

    def order(self) -> Any:
        """How rows of A, or columns of B, are dealt to the warps: 16 to each at a time."""
        warps = self.warp_layout_mn[self.side]
        if not self.in_pairs:
            return 16 * warps  # four matrices of B are loaded at a time
        return (
            cute.make_layout((8, warps, 2), stride=(2, 16, 1))
            if self.side
            else cute.make_layout((8, 2, warps), stride=(2, 1, 16))
        )

    def ring_layout(self, dtype: Any = None) -> Any:
        """The ring of tiles (rows, K, stages)."""
        dtype = dtype or self.operand.dtype
        rows, *others = self.shape
        rows = rows * self.operand.dtype.width // dtype.width
        return swizzled(dtype, (rows, *others), int(self.operand.k_major), self.in_pairs)

    def ring_bytes(self) -> int:
        """Shared memory of the ring."""
        return cute.cosize(self.ring_layout()) * self.operand.dtype.width // 8

    def start(self, mma: Any, ring: Any, thread: Any) -> int:
        """Make room for the fragments of a whole tile; how many steps in K it has."""
        part = mma.get_slice(thread)
        if self.side:
            self.held = mma.make_fragment_B(part.partition_B(ring[None, None, 0]))
        else:
            self.held = mma.make_fragment_A(part.partition_A(ring[None, None, 0]))
        steps = cute.size(self.held, mode=[2])
        if self.in_pairs:
            self.copy = self._pair_copy().get_slice(thread)
            pairs = cute.make_tensor(cute.recast_ptr(ring.iterator, dtype=Uint16), self.ring_layout(Uint16))
            self.matrices = self.copy.partition_S(pairs)
            self.registers = cute.make_rmem_tensor((8, cute.size(self.matrices, mode=[1]), steps), Uint16)
            return steps
        make = cute.make_tiled_copy_B if self.side else cute.make_tiled_copy_A
        self.copy = make(self._atom(), mma).get_slice(thread)
        self.matrices, self.registers = self.copy.partition_S(ring), self.copy.retile(self.held)
        return steps

    def load(self, step: int, stage: Any) -> None:
        """Load what a step in K takes of a buffer."""
        cute.copy(self.copy, self.matrices[None, None, step, stage], self.registers[None, None, step])

    def taken(self, step: int) -> list[Any]:
        """What the tensor cores take in a step, one instruction in K after the other."""
        fragment = self.held[None, None, step]
        if self.in_pairs:
            fragment = self._unpaired(fragment, step)
        if self.operand.half:
            return [self._half(fragment, number) for number in range(2)]
        if fragment.element_type is not Float32:
            return [fragment]
        near = cute.make_rmem_tensor(fragment.shape, TFloat32)  # the nearest, where they would cut it off
        near.store(fragment.load().to(TFloat32))
        return [near]

    def _atom(self) -> Any:
        dtype, bits = self.operand.dtype, self.operand.dtype.width
        if self.operand.k_major:
            op = warp.LdMatrix8x16x8bOp(False, 4) if bits == 8 else warp.LdMatrix8x8x16bOp(False, 4)
            return cute.make_copy_atom(op, dtype)
        if bits == 16:
            return cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), dtype)
        return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=bits)

    def _pair_copy(self) -> Any:
        """Lane (t, g) gets pair g at k = 4 t, 4 t + 1, then 4 t + 2, 4 t + 3, then the same 16 further on."""
        row = 8 * self.warp_layout_mn[self.side]  # from a k to the next
        warps = (0, 8) if self.side else (8, 0)
        layout = cute.make_layout(
            ((4, 8, *self.warp_layout_mn), (2, 2, 2)), stride=((4 * row, 1, *warps), (row, 2 * row, 16 * row))
        )
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), Uint16)
        return cute.make_tiled_copy(atom, layout, (row, k_step(self.operand.dtype)))

    def _unpaired(self, fragment: Any, step: int) -> Any:
        made = cute.make_rmem_tensor(fragment.shape, self.operand.dtype)
        words = cute.recast_tensor(made, Int32)  # of A: (2 rows, 2 K), blocks; of B: 2 K, (2 columns, blocks)
        pairs = cute.recast_tensor(self.registers[None, None, step], Int32)  # (2, 2 K), blocks
        for block in range(cute.size(pairs, mode=[1])):
            for half in range(2):
                low, high = pairs[2 * half, block], pairs[2 * half + 1, block]
                for odd, chosen in enumerate((_EVEN, _ODD)):
                    number = half + 2 * (odd + 2 * block) if self.side else odd + 2 * half + 4 * block
                    words[number] = arch.prmt(low, high, chosen)
        return made

    def _half(self, fragment: Any, number: int) -> Any:
        """One half of K of a fragment of 8-bit floats, as f16."""
        rows = 1 if self.side else 2  # registers for as many rows 8 apart
        made = cute.make_rmem_tensor(((2,) * (rows + 1), fragment.shape[1]), Float16)
        words, bytes_ = cute.recast_tensor(made, Int32), cute.recast_tensor(fragment, Int32)
        for block in range(cute.size(fragment, mode=[1])):
            for row in range(rows):
                both = widened(bytes_[row + rows * number + 2 * rows * block], self.operand.dtype)
                for half in range(2):
                    words[row + rows * half + 2 * rows * block] = both[half]
        return made
