"""Records by which native code reads the tensors, pointers and streams of a call."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ...base_dsl.typing import Float32, TFloat32
from ...interop.arguments import plan
from ...interop.arguments.native_caller import NativeCaller
from ..layout.offset_width import INT32_MAX, ROOM
from ..tensor.pointer import AddressSpace, element_bits, natural_alignment
from . import runtime
from .arguments import PointerNode, StreamNode, annotation_kind
from .arrays import dlpack_type, introduce_array, note_write, numpy_type
from .runtime import DynamicLeaf, RuntimePointer, RuntimeTensor, TensorSignature
from .stream import handle_attribute
from .tensor_forms import WHOLE_VECTORS, array_variants, signature

if TYPE_CHECKING:
    from ...interop.arguments.engine import Engine
    from ...interop.arguments.plan import Planner


class CuteCaller(NativeCaller):
    """Takes calls of CuTe's functions by native code."""

    def __init__(self) -> None:
        self._introduced: set[type] = set()

    def record(self, key: object, annotation: object, planner: Planner) -> bytes | None:
        kind = "" if annotation is None else annotation_kind(annotation)
        if kind == "shape":
            return None
        if isinstance(key, TensorSignature):
            return _tensor_record(key, planner, planner.exact and kind != "described")
        if isinstance(key, runtime.PointerSignature):
            signature, _ = runtime.pointer_signature(*key)
            return plan.record(
                plan.ArrayRecord,
                plan.ARRAY,
                planner.slot(PointerNode.formats),
                signature=planner.reference(signature),
                words=1,
                dlpack=plan.NO_ARRAY,
                alignment=signature.alignment - 1,
                flags=plan.EXACT,
                numpy=-1,
                leading=-1,
            )
        if key == StreamNode.key:
            return plan.record(plan.Record, plan.STREAM, planner.slot(StreamNode.formats))
        return super().record(key, annotation, planner)

    def is_array_key(self, key: object) -> bool:
        return isinstance(key, TensorSignature)

    def note_write(self, value: object) -> None:
        note_write(value._keep if type(value) is RuntimeTensor else value)

    def introduce(self, engine: Engine, value: object) -> None:
        kind = type(value)
        if isinstance(value, (tuple, list)):
            for element in value:
                self.introduce(engine, element)
        elif kind not in self._introduced:
            self._introduced.add(kind)
            if kind is RuntimeTensor or kind is RuntimePointer:
                engine.add_prepared(kind, "_argument_record", "_keep")
            elif not introduce_array(engine, kind):
                attribute = handle_attribute(value)
                if attribute is not None:
                    engine.add_stream(kind, attribute)


def _tensor_record(signature: TensorSignature, planner: Planner, exact: bool) -> bytes | None:
    """Return the record of a tensor. Without `exact`, arrays match that fit the signature, whatever theirs is."""
    if len(signature.shape) > plan.MAX_RANK:
        return None
    leaves = b"".join(bytes(_leaf(leaf)) for leaf in (*signature.shape, *signature.stride))
    stored = Float32 if signature.dtype is TFloat32 else signature.dtype
    dlpack = dlpack_type(stored)
    numpy = numpy_type(stored)
    leading = -1
    limit = INT32_MAX if signature.promised and len(signature.formats) > 1 else (1 << 63) - 1
    more = 0
    limit = ROOM if planner.exact else limit
    if exact:
        stored = signature.dtype
        leading, level = _level_of_array_signature(signature)
        if level is None:  # no array has this signature by itself
            dlpack = numpy = -1
        elif not planner.weaker:
            more = _STRONGER[level]
    flags = more | (plan.EXACT if exact else 0) | (plan.READONLY if signature.readonly else 0)
    flags |= 0 if planner.has_array or planner.target == "cpu" else plan.LAUNCHES
    flags |= 0 if signature.counted or planner.exact else plan.UNCOUNTED
    planner.has_array = True
    slot = planner.slot(signature.formats)
    flags |= plan.WRITTEN if slot in planner.written else 0
    return plan.record(
        plan.ArrayRecord,
        plan.ARRAY,
        slot,
        leaves,
        signature=planner.reference(signature),
        words=struct.calcsize("<" + signature.formats) // 8,
        rank=len(signature.shape),
        dlpack=dlpack,
        element=planner.reference(signature.dtype),
        other_element=planner.reference(stored),
        devices=_devices(signature, planner),
        alignment=signature.alignment - 1,
        flags=flags,
        numpy=numpy,
        shift=(element_bits(stored) // 8).bit_length() - 1,
        leading=leading,
        limit=limit,
    )


def _leaf(leaf: object) -> plan.Leaf:
    if isinstance(leaf, DynamicLeaf):
        return plan.Leaf(plan.DYNAMIC64 if leaf.width == 64 else plan.DYNAMIC32, leaf.divisibility)
    return plan.Leaf(plan.STATIC, leaf)


_STRONGER = (plan.NOT_ALIGNED, plan.NOT_ALIGNED_ROWS, plan.NOT_WHOLE_VECTORS, 0)
"""By level of a bare array's signature: the flag by which arrays of the next level do not match."""


def _level_of_array_signature(form_signature: TensorSignature) -> tuple[int, int | None]:
    """Return the leading mode (-1: none) of a bare array's signature (`_array_argument`) and what it knows (`PLAIN`,
    ...); None for signatures of no bare array."""
    extents = tuple(DynamicLeaf(32, 1) for _ in form_signature.shape)
    steps = tuple(DynamicLeaf(64, 1) if isinstance(d, DynamicLeaf) else d for d in form_signature.stride)
    ones = [mode for mode, d in enumerate(steps) if d == 1]
    if len(ones) > 1 or any(isinstance(d, int) and d > 1 for d in steps):
        return -1, None
    plain = signature(
        form_signature.dtype,
        form_signature.memspace,
        natural_alignment(form_signature.dtype),
        extents,
        steps,
        form_signature.readonly,
    )
    variants = array_variants(plain)
    levels = [level for level, each in enumerate(variants.levels) if each is form_signature]
    if not levels:
        return -1, None
    return variants.leading, levels[-1] if variants.divisor else WHOLE_VECTORS


def _devices(signature: TensorSignature, planner: Planner) -> int:
    """Return where arrays may be: as `TensorSignature.misfit` and `_check_device` say, bits by DLPack's numbers."""
    on_host = 1 << plan.CPU | 1 << plan.CUDA_HOST
    on_device = 1 << plan.CUDA | 1 << plan.CUDA_MANAGED
    if signature.memspace is not AddressSpace.gmem:
        return on_host
    if planner.target != "cpu":
        return on_device
    return 0 if planner.exact else on_host
