"""Operands of GEMMs in torch tensors of bytes: packed Float4E2M1FN, and scale factors in chunks."""

from __future__ import annotations

from typing import Any

from ..._support.deferred import Used
from ...base_dsl.diagnostics import type_error
from ...base_dsl.numeric.formats import FLOAT4_E2M1FN

torch: Any = Used("torch")

__all__ = ["decode_float4e2m1fn", "unpack_scale_factors"]

_ROWS = 128
_SCALES = 4


def decode_float4e2m1fn(tensor: Any) -> Any:
    """Return numbers of Float4E2M1FN as float32.

    Args:
        tensor: a dense torch tensor of uint8 with an element for each number, in whose memory the numbers lie packed:
            two to a byte, the first in the low bits, in the first half of the bytes.
    """
    if tensor.dtype != torch.uint8 or tensor.numel() % 2:
        raise type_error(
            f"decode_float4e2m1fn takes bytes, got {tensor.dtype} with {tensor.numel()} elements",
            "a uint8 tensor with an element for each of an even number of numbers",
        )
    packed = tensor.as_strided((tensor.numel() // 2,), (1,))
    codes = torch.stack([packed & 15, packed >> 4], -1).reshape(-1).long()
    values = torch.tensor([FLOAT4_E2M1FN.decode(code) for code in range(16)], device=tensor.device)
    return values[codes].as_strided(tensor.shape, tensor.stride())


def unpack_scale_factors(scales: Any, sf_vec_size: int, mn: int, k: int, l: int = 1) -> Any:
    """Return the scale factor of each element of an operand (mn, k, l).

    Args:
        scales: scale factors as `tile_atom_to_shape_SF` lays them out: whole chunks of 128 rows and four each.
        sf_vec_size: the elements along K that share a scale factor, 16 or 32.
        mn: rows of A, or columns of B.
        k: elements along K.
        l: batches.
    """
    rows = -(-mn // _ROWS)
    words = -(-k // (sf_vec_size * _SCALES))
    count = l * rows * words * _ROWS * _SCALES
    if scales.numel() != count:
        raise type_error(
            f"{scales.numel()} scale factors for an operand of ({mn}, {k}, {l}), {sf_vec_size} elements each",
            f"{count}: whole chunks of {_ROWS} rows and {_SCALES} scale factors of each",
        )
    # (l, rows, words, row % 32, row // 32, scale) -> (row, scale, l)
    chunks = scales.reshape(l, rows, words, 32, _ROWS // 32, _SCALES).permute(1, 4, 3, 2, 5, 0)
    each = chunks.reshape(rows * _ROWS, words * _SCALES, l)
    return each.repeat_interleave(sf_vec_size, 1)[:mn, :k]
