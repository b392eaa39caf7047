"""Scale factors of vectors along K (mxfp8, mxfp4, nvfp4), as callers have them: in rows, or in the atoms that tensor cores take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import Float8E4M3FN, Float8E8M0FNU, Uint8
from ...dispatch import arrays
from ...parts.scale_atoms import SCALE_ATOM, atoms_shape
from .problem import SCALE_BLOCK

if TYPE_CHECKING:
    from ...dispatch.arrays import Array

_SIZES = {Float8E8M0FNU: 32, Float8E4M3FN: 16}
"""Elements along K that share a scale factor, by its type."""
_BLOCK_VECTOR = 32
"""Elements with one scale factor where that may be one of a block."""
_ONES = {32: 127, 16: 0x38}
"""The byte of the scale factor 1, by these."""


def packed_bytes(x: Array) -> Array:
    """Return an operand as it is, or of PyTorch's pairs of 4-bit floats as bytes."""
    return arrays.bits(x) if str(getattr(x, "dtype", "")) == "torch.float4_e2m1fn_x2" else x


def scale_vector(function: str, operands: tuple[Array, Array], scales: tuple[Array | None, Array | None]) -> int:
    """Return how many elements along K share a scale factor; 0 if scales are no such, or there are none.

    e4m3 are scale factors of vectors where operands are bytes, each of two floats of 4 bits.
    """
    as_bytes = all(arrays.element_type(x) is Uint8 for x in operands)
    kinds = [None if x is None else arrays.element_type(x) for x in scales]
    sizes = [0 if kind is Float8E4M3FN and not as_bytes else _SIZES.get(kind, 0) for kind in kinds]
    arrays.require(
        sizes[0] == sizes[1],
        f"{function}: scale_{'ab'[sizes[0] < sizes[1]]} has scales of vectors, of {max(sizes)} elements each, and "
        f"scale_{'ba'[sizes[0] < sizes[1]]} has none",
        hint="both, of one type",
    )
    return sizes[0]


def scale_of_one(vector: int) -> int:
    """Return the byte of the scale factor 1, by how many elements share one."""
    return _ONES[vector]


def scale_atoms(
    scales: tuple[Array | None, Array | None], operands: tuple[Array, Array], k: int, vector: int
) -> list[Array]:
    """Return the scale factors of A (L, M, K) and B (L, K, N), of those that there are, in atoms: bytes (L, blocks of
    rows, 512 x blocks of K)."""
    a, b = operands
    arrays.require(k % vector == 0, f"gemm: K is {k}; with scales of vectors it must be a multiple of {vector}")
    vectors = k // vector
    rows = a.shape[1], b.shape[2]
    return [
        _in_atoms(f"scale_{'ab'[i]}", x, operands[i].shape[0], rows[i], vectors, vector, i == 1)
        for i, x in enumerate(scales)
        if x is not None
    ]


def _in_atoms(name: str, x: Array, batches: int, rows: int, vectors: int, vector: int, transposed: bool) -> Array:
    """Return scale factors in atoms, of each of a batch; they are `transposed` if those of a row are a column."""
    blocks, size = atoms_shape(rows, vectors)
    data = arrays.bits(x)
    # in atoms: rows of as many bytes, more than there are rows or vectors
    if x.ndim <= 2 and x.shape[-1] == blocks * size and (x.ndim == 1 or x.shape[0] in (1, batches)):
        data = arrays.reshaped(arrays.contiguous(data), (x.shape[0] if x.ndim == 2 else 1, blocks, size))
    else:
        plain = (vectors, rows) if transposed else (rows, vectors)
        x = of_blocks(x, rows, vectors, vector, transposed)
        data = arrays.bits(x)
        arrays.require(
            x.ndim in (2, 3) and tuple(x.shape[-2:]) == plain and (x.ndim == 2 or x.shape[0] in (1, batches)),
            f"gemm: {name} has the shape {tuple(x.shape)}",
            hint=f"{plain}, one for each {vector} elements along K; or {blocks * size} bytes in atoms of "
            f"{SCALE_ATOM[0]} rows and {SCALE_ATOM[1]} vectors, (L, {blocks * size}) for a batch",
        )
        if transposed:
            data = arrays.transposed(data)
        data = _swizzled(data if x.ndim == 3 else arrays.with_batch(data), blocks, size, _ONES[vector])
    if data.shape[0] == batches:
        return data
    copies = arrays.empty(data, (batches, blocks, size), None)  # a batch has them one behind the other
    arrays.assign(copies, data)
    return copies


def of_blocks(x: Array, rows: int, vectors: int, vector: int, transposed: bool) -> Array:
    """Return scale factors of vectors from those of blocks of 128 elements along K, and with B's 128 columns; others are
    returned as they are.

    They lie in rows, or if they are `transposed`, in columns. All vectors of a block have its scale factor.
    """
    along_k = SCALE_BLOCK // vector
    block_rows = SCALE_BLOCK if transposed else 1
    of_blocks_shape = -(-rows // block_rows), -(-vectors // along_k)
    order = slice(None, None, -1 if transposed else 1)
    own = tuple(x.shape[-2:])[order]
    if vector != _BLOCK_VECTOR or x.ndim not in (2, 3) or own != of_blocks_shape or own == (rows, vectors):
        return x
    data = arrays.bits(x if x.ndim == 3 else arrays.with_batch(x))
    if transposed:
        data = arrays.transposed(data)
    count, blocks, k_blocks = data.shape
    whole = arrays.empty(data, (count, blocks * block_rows, k_blocks * along_k), None)
    parts, each = (arrays.split(arrays.split(y, 1, blocks), 3, k_blocks) for y in (whole, data))
    arrays.assign(parts, arrays.broadcast_to(each, tuple(parts.shape)))  # (L, blocks, rows, blocks, vectors)
    whole = arrays.part(arrays.part(whole, 1, slice(0, rows)), 2, slice(0, vectors))
    whole = arrays.viewed(arrays.contiguous(arrays.transposed(whole) if transposed else whole), x.dtype)
    return whole if x.ndim == 3 else arrays.reshaped(whole, tuple(whole.shape[1:]))


def _swizzled(data: Array, blocks: int, size: int, one: int) -> Array:
    """Return scale factors (L, rows, vectors) in atoms; the rest of these is `one`, so that zeros there stay zeros."""
    atom_rows, atom_vectors = SCALE_ATOM
    count, rows, vectors = data.shape
    depth = size // (atom_rows * atom_vectors)
    whole = arrays.empty(data, (count, blocks * atom_rows, depth * atom_vectors), None)
    arrays.fill(whole, one)
    arrays.assign(arrays.part(arrays.part(whole, 1, slice(0, rows)), 2, slice(0, vectors)), data)
    # row 32 i + j of a block has its vectors at byte 16 j + 4 i of the atom
    parts = arrays.reshaped(whole, (count, blocks, 4, 32, depth, atom_vectors))
    atoms = arrays.empty(data, (count, blocks, depth, 32, 4, atom_vectors), None)
    arrays.assign(atoms, arrays.permuted(parts, [0, 1, 4, 3, 2, 5]))
    return arrays.reshaped(atoms, (count, blocks, size))


def scale_rows(atoms: Array, rows: int, vectors: int) -> Array:
    """Return scale factors in atoms as bytes (L, rows, vectors)."""
    atom_rows, atom_vectors = SCALE_ATOM
    count, blocks, size = atoms.shape
    depth = size // (atom_rows * atom_vectors)
    whole = arrays.empty(atoms, (count, blocks, 4, 32, depth, atom_vectors), None)
    parts = arrays.split(arrays.split(arrays.split(atoms, 2, depth), 3, 32), 4, 4)
    arrays.assign(whole, arrays.permuted(parts, [0, 1, 4, 3, 2, 5]))
    flat = arrays.reshaped(whole, (count, blocks * atom_rows, depth * atom_vectors))
    return arrays.part(arrays.part(flat, 1, slice(0, rows)), 2, slice(0, vectors))
