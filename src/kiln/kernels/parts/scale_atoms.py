"""Atoms of scale factors, in which tensor cores take those of vectors along K: 512 bytes, of 128 rows and four vectors."""

from __future__ import annotations

SCALE_ATOM = 128, 4
"""Rows and vectors whose scale factors lie together, in 512 bytes."""


def atoms_shape(rows: int, vectors: int) -> tuple[int, int]:
    """Return the shape of the atoms of the scale factors of rows with some vectors: blocks of rows, bytes of each."""
    atom_rows, atom_vectors = SCALE_ATOM
    return -(-rows // atom_rows), -(-vectors // atom_vectors) * atom_rows * atom_vectors
