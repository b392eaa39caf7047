"""`torch._scaled_mm` and `scaled_grouped_mm` with block scale factors (mxfp8, mxfp4, nvfp4), which torch computes on
GPUs only."""

from __future__ import annotations

import torch

NAME = "_scaled_mm"
GROUPED = "_scaled_grouped_mm_v2"
_ROWS = 128
_COLUMNS = 4
"""Rows and scale factors of a block in the layout that cuBLAS and tcgen05 take."""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def block_scaled(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: object = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    **_: object,
) -> torch.Tensor | None:
    """Return A B with both scaled by blocks of 32 (ue8m0) or 16 (e4m3) elements along K; None for other scales."""
    size = {torch.float8_e8m0fnu: 32, torch.float8_e4m3fn: 16}.get(scale_a.dtype)
    if size is None or scale_a.dtype != scale_b.dtype or scale_a.numel() == 1 or scale_result is not None:
        return None
    left = _values(a)
    right = _values(b.t())
    k = left.shape[1]
    left = left * _scales(scale_a, left.shape[0], k // size).repeat_interleave(size, 1)
    right = right * _scales(scale_b, right.shape[0], k // size).repeat_interleave(size, 1)
    result = left @ right.t()
    return (result if bias is None else result + bias.float()).to(out_dtype or torch.bfloat16)


def grouped(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: list[torch.Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[torch.Tensor],
    recipe_b: list[int],
    swizzle_b: list[int],
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *_: object,
    **__: object,
) -> torch.Tensor | None:
    """Return a grouped GEMM with block scale factors; None for other scales.

    `offs` are the ends of groups: of rows of A (m, k), each with a matrix of B (groups, k, n), or along K of A (m, k) and B
    (k, n). Scale factors of a group are whole blocks, one group after the other. A second scale factor, of nvfp4, is one for
    each group.
    """
    size = {torch.float8_e8m0fnu: 32, torch.float8_e4m3fn: 16}.get(scale_a[0].dtype)
    if size is None or offs is None or bias is not None or a.dim() != 2 or swizzle_a[:1] != [1] or swizzle_b[:1] != [1]:
        return None
    ends = [int(end) for end in offs]
    parts = list(zip([0, *ends], ends, strict=False))
    left = _values(a)
    along_rows = b.dim() == 3
    right = [_values(each.t()) for each in b] if along_rows else [_values(b.t())] * len(parts)
    of_a = scale_a[0].flatten()
    of_b = scale_b[0].flatten()
    result = left.new_zeros((*(() if along_rows else (len(parts),)), left.shape[0], right[0].shape[0]))
    for number, (start, end) in enumerate(parts):
        if along_rows:
            here = left[start:end]
            there = right[number]
            where = result[start:end]
        else:
            here = left[:, start:end]
            there = right[number][:, start:end]
            where = result[number]
        here, of_a = _scaled(here, of_a, size)
        there, of_b = _scaled(there, of_b, size)
        product = here @ there.t()
        for further in (*scale_a[1:], *scale_b[1:]):
            product = product * further.float()[number]
        where.copy_(product)
    return result.to(out_dtype or torch.bfloat16)


def _scaled(matrix: torch.Tensor, scales: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a K-major matrix times its scale factors, the first of some, and those that are left."""
    rows = matrix.shape[0]
    columns = -(-matrix.shape[1] // size)
    count = -(-rows // _ROWS) * _ROWS * -(-columns // _COLUMNS) * _COLUMNS
    own = _scales(scales[:count], rows, columns).repeat_interleave(size, 1)[:, : matrix.shape[1]]
    return matrix * own, scales[count:]


def _values(matrix: torch.Tensor) -> torch.Tensor:
    """Return a K-major matrix in f32; two elements of 4 bits lie in a byte, the first in the lower half."""
    if matrix.dtype != torch.float4_e2m1fn_x2:
        return matrix.float()
    codes = matrix.contiguous().view(torch.uint8).int()
    codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    return torch.tensor((*_E2M1, *(-value for value in _E2M1)))[codes]


def _scales(blocked: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return scale factors (rows, columns) in f32 from blocks of 128 x 4, whose rows r, r + 32, ... lie together."""
    row_blocks = -(-rows // _ROWS)
    column_blocks = -(-columns // _COLUMNS)
    if blocked.numel() != row_blocks * column_blocks * _ROWS * _COLUMNS:
        raise ValueError(
            f"{blocked.numel()} scale factors for {rows} x {columns}: blocks of {_ROWS} x {_COLUMNS} have "
            f"{row_blocks * column_blocks * _ROWS * _COLUMNS}"
        )
    blocks = blocked.float().view(row_blocks, column_blocks, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return blocks.reshape(row_blocks * _ROWS, column_blocks * _COLUMNS)[:rows, :columns]
