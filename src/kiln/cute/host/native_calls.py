"""Records by which native code reads the tensors, pointers and streams of a call."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from ...interop.arguments.engine import Engine
    from ...interop.arguments.plan import Planner


class CuteCaller(NativeCaller):
    """Takes calls of CuTe's functions by native code."""

    def __init__(self) -> None:
        self._introduced: set[type] = set()

    def record(self, key: Any, annotation: Any, planner: Planner) -> bytes | None:
        if annotation is not None and annotation_kind(annotation) == "shape":
            return None
        if isinstance(key, TensorSignature):
            return _tensor_record(key, planner)
        if isinstance(key, runtime.PointerSignature):
            found, _ = runtime.pointer_signature(*key)
            return plan.record(
                plan.ArrayRecord, plan.ARRAY, planner.slot(PointerNode.formats), signature=planner.reference(found),
                words=1, dlpack=plan.NO_ARRAY, alignment=found.alignment - 1, flags=plan.EXACT, numpy=-1, leading=-1,
            )  # fmt: skip
        if key == StreamNode.key:
            return plan.record(plan.Record, plan.STREAM, planner.slot(StreamNode.formats))
        return super().record(key, annotation, planner)

    def is_array_key(self, key: Any) -> bool:
        return isinstance(key, TensorSignature)

    def note_write(self, value: Any) -> None:
        note_write(value._keep if type(value) is RuntimeTensor else value)

    def introduce(self, engine: Engine, value: Any) -> None:
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


def _tensor_record(found: TensorSignature, planner: Planner) -> bytes | None:
    if len(found.shape) > plan.MAX_RANK:
        return None
    leaves = b"".join(bytes(_leaf(leaf)) for leaf in (*found.shape, *found.stride))
    stored = Float32 if found.dtype is TFloat32 else found.dtype
    dlpack, numpy, leading = dlpack_type(stored), numpy_type(stored), -1
    limit = INT32_MAX if found.promised and len(found.formats) > 1 else (1 << 63) - 1
    if planner.exact:
        limit = ROOM
        stored = found.dtype
        leading = _leading_of_array_signature(found)
        if leading is None:  # no array has this signature by itself
            dlpack = numpy = leading = -1
    flags = (plan.EXACT if planner.exact else 0) | (plan.READONLY if found.readonly else 0)
    flags |= 0 if planner.has_array or planner.target == "cpu" else plan.LAUNCHES
    flags |= 0 if found.counted or planner.exact else plan.UNCOUNTED
    planner.has_array = True
    slot = planner.slot(found.formats)
    flags |= plan.WRITTEN if slot in planner.written else 0
    return plan.record(
        plan.ArrayRecord, plan.ARRAY, slot, leaves, signature=planner.reference(found),
        words=struct.calcsize("<" + found.formats) // 8, rank=len(found.shape), dlpack=dlpack,
        element=planner.reference(found.dtype), other_element=planner.reference(stored),
        devices=_devices(found, planner), alignment=found.alignment - 1, flags=flags, numpy=numpy,
        shift=(element_bits(stored) // 8).bit_length() - 1, leading=leading, limit=limit,
    )  # fmt: skip


def _leaf(leaf: Any) -> plan.Leaf:
    if isinstance(leaf, DynamicLeaf):
        return plan.Leaf(plan.DYNAMIC64 if leaf.width == 64 else plan.DYNAMIC32, leaf.divisibility)
    return plan.Leaf(plan.STATIC, leaf)


def _leading_of_array_signature(found: TensorSignature) -> int | None:
    """Return the leading mode (-1: none) of the signature of a plain array (`_array_argument`); None for others."""
    ones = [mode for mode, d in enumerate(found.stride) if d == 1 and not isinstance(d, DynamicLeaf)]
    leading = ones[0] if len(ones) == 1 else -1
    steps = (d for mode, d in enumerate(found.stride) if mode != leading and (isinstance(d, DynamicLeaf) or d != 0))
    plain = (
        len(ones) < 2
        and found.alignment == natural_alignment(found.dtype)
        and all(extent == DynamicLeaf(32, 1) for extent in found.shape)
        and all(step == DynamicLeaf(64, 1) for step in steps)
    )
    return leading if plain else None


def _devices(found: TensorSignature, planner: Planner) -> int:
    """Return where arrays may be: as `TensorSignature.misfit` and `_check_device` say, bits by DLPack's numbers."""
    on_host = 1 << plan.CPU | 1 << plan.CUDA_HOST
    on_device = 1 << plan.CUDA | 1 << plan.CUDA_MANAGED
    if found.memspace is not AddressSpace.gmem:
        return on_host
    if planner.target != "cpu":
        return on_device
    return 0 if planner.exact else on_host
