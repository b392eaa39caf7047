"""What programs of the corpus share that use the copy engine and the products of warpgroups: atoms, partitions, matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from kiln import Float16, Float32, cute
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.utils import LayoutEnum, sm90

ROWS = LayoutEnum.ROW_MAJOR
GROUP = 128
"""The threads of a warpgroup."""


def layouts(tile: tuple[int, int, int], stages: int) -> tuple[Any, Any]:
    """How tiles of A (m, k) and B (n, k) of f16 lie in shared memory."""
    of_a, of_b = (make(ROWS, tile, Float16, stages) for make in (sm90.make_smem_layout_a, sm90.make_smem_layout_b))
    return of_a, of_b


def loads(tensor: Any, layout: Any, tile: tuple[int, int], blocks: int = 1) -> Any:
    """The copy of a tile to shared memory, for one block or for several of a cluster; and the tensor's coordinates."""
    kind = cpasync.CopyBulkTensorTileG2SMulticastOp if blocks > 1 else cpasync.CopyBulkTensorTileG2SOp
    return cpasync.make_tiled_tma_atom(kind(), tensor, cute.slice_(layout, (None, None, 0)), tile, blocks)


def stores(tensor: Any, layout: Any, tile: tuple[int, int], operation: Any = None) -> Any:
    """The copy of a tile from shared memory, or its sum to what is there; and the tensor's coordinates."""
    operation = operation or cpasync.CopyBulkTensorTileS2GOp()
    return cpasync.make_tiled_tma_atom(operation, tensor, cute.slice_(layout, (None, None, 0)), tile)


def parts(atom: Any, shared: Any, tensor: Any, rank: Any = 0, blocks: int = 1) -> tuple[Any, Any]:
    """What a copy moves: of shared memory, and of a tensor."""
    where = cute.group_modes(shared, 0, 2), cute.group_modes(tensor, 0, 2)
    return cpasync.tma_partition(atom, rank, cute.make_layout(blocks), *where)


def multiplies(n: int, groups: int = 1) -> Any:
    """The products of `groups` warpgroups: 64 rows each, n columns."""
    rows = warpgroup.OperandMajorMode.K
    return sm90.make_trivial_tiled_mma(Float16, Float16, rows, rows, Float32, (groups, 1, 1), (64, n))


def matrices(*shapes: tuple[int, int]) -> list[np.ndarray]:
    """Matrices of small integers in f16, whose products are exact."""
    random = np.random.default_rng(9)
    return [random.integers(-3, 4, shape).astype(np.float16) for shape in shapes]


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A (m, k) B (n, k)^T in f32."""
    return a.astype(np.float32) @ b.astype(np.float32).T
