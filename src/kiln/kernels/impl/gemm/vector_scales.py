"""Scale factors of vectors along K (mxfp8), as callers have them: in rows, or in the atoms that tensor cores take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import Float8E8M0FNU
from ...dispatch import arrays
from .problem import SCALE_ATOM, SCALE_VECTOR, atoms_shape

if TYPE_CHECKING:
    from ...dispatch.arrays import Array

_ONE = 127
"""The byte of the scale factor 1."""


def are_vector_scales(function: str, scales: tuple[Array | None, Array | None]) -> bool:
    """Return whether both operands have scale factors that are powers of two; refuse one that alone has them."""
    own = [x is not None and arrays.element_type(x) is Float8E8M0FNU for x in scales]
    arrays.require(
        own[0] == own[1],
        f"{function}: scale_{'ab'[own[1]]} has scales of vectors (e8m0), and scale_{'ba'[own[1]]} has none",
        hint="both, of 32 elements along K each",
    )
    return all(own)


def scale_atoms(scale_a: Array, scale_b: Array, operands: tuple[Array, Array]) -> list[Array]:
    """Return the scale factors of A (L, M, K) and B (L, K, N) in atoms: bytes (L, blocks of rows, 512 x blocks of K)."""
    a, b = operands
    batches, rows, k = a.shape
    arrays.require(
        k % SCALE_VECTOR == 0, f"gemm: K is {k}; with scales of vectors it must be a multiple of {SCALE_VECTOR}"
    )
    columns = b.shape[2]
    return [
        _in_atoms("scale_a", scale_a, batches, rows, k, transposed=False),
        _in_atoms("scale_b", scale_b, batches, columns, k, transposed=True),
    ]


def _is_flat(x: Array, rows: int, k: int) -> bool:
    """Return whether scale factors are in atoms: rows of as many bytes, more than there are rows or vectors."""
    blocks, size = atoms_shape(rows, k)
    return x.ndim <= 2 and x.shape[-1] == blocks * size


def _in_atoms(name: str, x: Array, batches: int, rows: int, k: int, transposed: bool) -> Array:
    """Return scale factors in atoms, of each of a batch; they are `transposed` if those of a row are a column."""
    blocks, size = atoms_shape(rows, k)
    data = arrays.bits(x)
    if _is_flat(x, rows, k) and (x.ndim == 1 or x.shape[0] in (1, batches)):
        data = arrays.reshaped(arrays.contiguous(data), (x.shape[0] if x.ndim == 2 else 1, blocks, size))
    else:
        vectors = k // SCALE_VECTOR
        plain = (vectors, rows) if transposed else (rows, vectors)
        arrays.require(
            x.ndim in (2, 3) and tuple(x.shape[-2:]) == plain and (x.ndim == 2 or x.shape[0] in (1, batches)),
            f"gemm: {name} has the shape {tuple(x.shape)}",
            hint=f"{plain}, one for each {SCALE_VECTOR} elements along K; or {blocks * size} bytes in atoms of "
            f"{SCALE_ATOM[0]} rows and {SCALE_ATOM[1]} vectors, (L, {blocks * size}) for a batch",
        )
        if transposed:
            data = arrays.transposed(data)
        data = _swizzled(data if x.ndim == 3 else arrays.with_batch(data), blocks, size)
    if data.shape[0] == batches:
        return data
    copies = arrays.empty(data, (batches, blocks, size), None)  # a batch has them one behind the other
    arrays.assign(copies, data)
    return copies


def _swizzled(data: Array, blocks: int, size: int) -> Array:
    """Return scale factors (L, rows, vectors) in atoms; the rest of these is 1, so that zeros there stay zeros."""
    atom_rows, atom_vectors = SCALE_ATOM
    count, rows, vectors = data.shape
    depth = size // (atom_rows * atom_vectors)
    whole = arrays.empty(data, (count, blocks * atom_rows, depth * atom_vectors), None)
    arrays.fill(whole, _ONE)
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
