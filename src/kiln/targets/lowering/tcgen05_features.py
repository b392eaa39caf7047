"""What tcgen05 operations need beyond tcgen05 itself: features that only some chips with tensor memory have."""

from __future__ import annotations

from collections.abc import Iterator

from ...dialects.definition import constant
from ...dialects.nvgpu import tcgen05
from ...dialects.nvgpu.tcgen05_descriptors import decode
from ...hardware import features
from ...hardware.features import Feature
from .expansion import AnyOp

KINDS = (
    tcgen05.Tcgen05Mma,
    tcgen05.Tcgen05MmaWs,
    tcgen05.Tcgen05MmaBlockScale,
    tcgen05.Tcgen05MatrixDescriptor,
    tcgen05.Tcgen05Shift,
    tcgen05.Tcgen05LdRed,
)
"""The operations that may need such features."""


def needed(op: AnyOp) -> Iterator[tuple[Feature, str]]:
    """Yield the features that an operation needs, each with a name of what needs it, or nothing for the feature's own."""
    if isinstance(op, tcgen05.Tcgen05Mma | tcgen05.Tcgen05MmaWs) and op.kind == "i8":
        yield features.TCGEN05_I8, ""
    elif isinstance(op, tcgen05.Tcgen05Mma) and op.scale_input_d is not None:
        yield features.TCGEN05_SCALE_D, ""
    elif isinstance(op, tcgen05.Tcgen05MmaBlockScale):
        yield features.TCGEN05_BLOCK_SIZES, ""
        known = constant(op.idesc)
        if known is not None and decode(op.kind, known & 0xFFFFFFFF).k96:
            yield features.TCGEN05_K96, ""
    elif isinstance(op, tcgen05.Tcgen05MatrixDescriptor) and op.next_chunk:
        yield features.TCGEN05_K96, "a descriptor with a next chunk"
    elif isinstance(op, tcgen05.Tcgen05Shift):
        yield features.TCGEN05_SHIFT, ""
    elif isinstance(op, tcgen05.Tcgen05LdRed):
        yield features.TCGEN05_LOAD_REDUCE, ""
