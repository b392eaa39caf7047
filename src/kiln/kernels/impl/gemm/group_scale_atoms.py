"""A kernel that lays out the scale factors of groups of rows in atoms: each group begins with an atom.

Group g of rows from `start` on begins with atom start // 128 + g. So the atoms of groups do not overlap, and nobody has
to add up how many the groups before have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import Int32, Int64, Uint8, cute, range_constexpr
from ....cute import arch
from ....utils.schedulers import clamp_offset
from ...dispatch import arrays, launches
from ...parts.scale_atoms import SCALE_ATOM, atoms_shape

if TYPE_CHECKING:
    from ...dispatch.arrays import Array

_THREADS = 256
_ATOM_ROWS, _ATOM_VECTORS = SCALE_ATOM
_ATOM_BYTES = _ATOM_ROWS * _ATOM_VECTORS


def group_scale_atoms(scales: Array, ends: Array, one: int) -> Array:
    """Return the scale factors (T, vectors) of groups of rows in atoms, (1, blocks of rows, bytes).

    `ends`: where the rows of each group end. `one`: the byte of the scale factor 1, of which there are some behind the
    last vector. Those behind the last row of a group are any.
    """
    rows, vectors = scales.shape
    groups = ends.shape[0]
    _, size = atoms_shape(rows, vectors)
    data = arrays.contiguous(arrays.bits(scales))
    out = arrays.empty(data, (1, rows // _ATOM_ROWS + groups, size), None)
    kernel = launches.cached_kernel(GroupScaleAtoms, arrays.power_of_two(groups + 1), one)
    tensors = [arrays.dynamic(data, 1, 1), arrays.dynamic(ends, 0, 1), arrays.dynamic(out, 2, _ATOM_VECTORS)]
    launches.run_tensors(kernel, [data, ends, out], tensors, 3)
    return out


class GroupScaleAtoms:
    """Each thread writes four vectors of a row. There are fewer than `max_groups` groups, a power of two."""

    def __init__(self, max_groups: int, one: int) -> None:
        self.max_groups = max_groups
        self.one = one

    @cute.jit
    def __call__(
        self, scales: cute.Tensor, ends: cute.Tensor, out: cute.Tensor, rest: list[cute.Tensor], stream: Int64
    ):
        """Launch the kernel for bytes (T, vectors), and atoms (1, blocks, bytes)."""
        count = scales.shape[0] * (out.shape[2] // _ATOM_BYTES)
        self.kernel(scales, ends, out).launch(
            grid=(cute.ceil_div(count, _THREADS), 1, 1), block=(_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, scales: cute.Tensor, ends: cute.Tensor, out: cute.Tensor):
        number = arch.block_idx()[0] * _THREADS + arch.thread_idx()[0]
        depth = out.shape[2] // _ATOM_BYTES
        row = number // depth
        atom = number % depth
        rows = Int32(scales.shape[0])
        group = Int32(0)
        if row < rows:
            step = self.max_groups
            for _ in range_constexpr(self.max_groups.bit_length() - 1):  # how many groups end before the row
                step = step // 2
                if group + step <= ends.shape[0]:
                    if clamp_offset(ends[group + step - 1], rows) <= row:
                        group = group + step
            if group < ends.shape[0]:
                self._write(scales, ends, out, row, atom, group)

    @cute.jit
    def _write(self, scales: cute.Tensor, ends: cute.Tensor, out: cute.Tensor, row: Int32, atom: Int32, group: Int32):
        start = Int32(0)
        if group > 0:
            start = Int32(clamp_offset(ends[group - 1], Int32(scales.shape[0])))
        within = max(row - start, 0)
        block = start // _ATOM_ROWS + group + within // _ATOM_ROWS
        within = within % _ATOM_ROWS
        four = cute.make_rmem_tensor((_ATOM_VECTORS,), Uint8)
        for i in range_constexpr(_ATOM_VECTORS):
            four[i] = Uint8(self.one)
            if atom * _ATOM_VECTORS + i < scales.shape[1]:
                four[i] = scales[row, atom * _ATOM_VECTORS + i]
        # row 32 i + j of a block has its vectors at byte 16 j + 4 i of the atom
        byte = atom * _ATOM_BYTES + within % 32 * 16 + within // 32 * _ATOM_VECTORS
        offset = cute.assume(cute.crd2idx((0, block, byte), out.layout), divby=_ATOM_VECTORS)
        cute.autovec_copy(four, cute.make_tensor(out.iterator + offset, cute.make_layout(_ATOM_VECTORS)))
