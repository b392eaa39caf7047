"""Kinds of arguments that attention kernels are compiled for (`launch.kind_of`), without arrays."""

from __future__ import annotations

from typing import Any

from kiln import BFloat16, Float32, Int32
from kiln.kernels.impl.attention.args import AttentionTensors, BackwardScalars
from kiln.kernels.impl.attention.bwd.implementations import BackwardArrays
from kiln.kernels.impl.attention.bwd.sm90_config import BackwardSchedule

_TENSORS = AttentionTensors(
    cu_seqlens_q=(Int32, 1), cu_seqlens_k=(Int32, 1), seqused_k=(Int32, 1), page_table=(Int32, 2),
    alibi_slopes=(Float32, 2), sinks=(Float32, 1), tile_counter=(Int32, 1), q_descale=(Float32, 2),
    k_descale=(Float32, 2), v_descale=(Float32, 2),
)  # fmt: skip


def tensor_kinds(names: Any) -> AttentionTensors:
    """Optional arrays with some names."""
    return AttentionTensors(**{name: getattr(_TENSORS, name) for name in names})


def backward_kinds(names: Any, **workspace: Any) -> tuple[Any, ...]:
    """Arguments of the backward kernels for Hopper, in bf16, with optional arrays of some names."""
    rows = (BFloat16, 4)
    x = BackwardArrays(
        rows, rows, rows, rows, rows, (Float32, 3), rows, rows, rows, lse_delta=(Float32, 4), **workspace
    )
    scalars = BackwardScalars(Float32, Float32, Float32, Int32, Int32, Float32)
    return x, tensor_kinds(names), Int32, Int32, scalars, BackwardSchedule(*[Int32] * 5)
