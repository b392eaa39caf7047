"""Annotations that describe a tensor: `x: cute.Tensor["f16[m,n%8]@16"]`, or `Annotated[cute.Tensor, "f16[m,n%8]@16"]`.

Every argument is checked against the description, and code is compiled for what it says: an array that has more facts
in its favour takes the same code.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any

from ...base_dsl.diagnostics import type_error
from ..layout.leaf import get_divisibility
from ..layout.offset_width import extent_width
from ..tensor.pointer import AddressSpace, Pointer
from ..tensor.tensor import Tensor, TracedTensor
from . import argument_text
from .arrays import Array
from .runtime import DynamicLeaf, FakeTensor, SymInt, make_fake_compact_tensor
from .tensor_forms import TensorSignature, other_rank, signature

_NAME = re.compile(r"[A-Za-z_][\w.]*")


def annotation_of(text: str) -> Any:
    """Return the annotation that `Tensor[text]` is. The name of a type is one that type checkers look up."""
    if _NAME.fullmatch(text) and text not in argument_text.ELEMENTS:
        return Tensor
    TensorPattern(text, {})
    return Annotated[Tensor, text]


def pattern_of(annotation: Any, symbols: dict[str, SymInt] | None = None) -> TensorPattern | None:
    """Return the description in an annotation; None if it is none. `symbols` are the named extents so far."""
    if type(annotation) is TensorPattern:
        return annotation
    if typing.get_origin(annotation) is not Annotated or annotation.__origin__ is not Tensor:
        return None
    text = next((each for each in annotation.__metadata__ if isinstance(each, str)), None)
    return None if text is None else TensorPattern(text, {} if symbols is None else symbols)


def read_annotations(annotations: Mapping[str, object]) -> dict[str, Any]:
    """Return annotations of a function with the descriptions read: a name stands for one extent in all of them."""
    symbols: dict[str, SymInt] = {}
    return {name: _read(annotation, symbols) for name, annotation in annotations.items()}


def _read(annotation: object, symbols: dict[str, SymInt]) -> Any:
    origin = typing.get_origin(annotation)
    inner = typing.get_args(annotation)
    if origin in (list, tuple) and any(pattern_of(each) is not None for each in inner):
        return types.GenericAlias(origin, tuple(_read(each, symbols) for each in inner))
    return pattern_of(annotation, symbols) or annotation


class TensorPattern:
    """What an annotation says about a tensor: its element type, extents, and the alignment of its address."""

    def __init__(self, text: str, symbols: dict[str, SymInt]) -> None:
        try:
            description = argument_text.described(text, symbols)
        except argument_text.WrongText as wrong:
            raise type_error(f'Tensor["{text}"]: {wrong}') from None
        if description is None or description.shape is None:
            raise type_error(
                f'Tensor["{text}"]: this does not describe a tensor',
                'write the element type, the extents, and the alignment if there is one: Tensor["f16[m,n%8]@16"]; '
                f"element types are {', '.join(argument_text.ELEMENTS)}",
            )
        order = tuple(reversed(range(len(description.shape))))
        fake = make_fake_compact_tensor(
            description.dtype, description.shape, stride_order=order, assumed_align=description.alignment
        )
        self._text = "".join(text.split())
        self._expected = fake._signature
        self.symbols: list[tuple[Any, str]] = fake.symbols
        """The symbols of its dynamic leaves."""

    def __repr__(self) -> str:
        return f'Tensor["{self._text}"]'

    def signature(self, array: Array) -> TensorSignature:
        """Return what code for an array knows: the description, the memory, and 64-bit extents of large arrays."""
        expected = self._expected
        width = extent_width(array.shape)
        extents = tuple(DynamicLeaf(width, s.divisibility) if isinstance(s, DynamicLeaf) else s for s in expected.shape)
        space = AddressSpace.gmem if array.device == "cuda" else AddressSpace.generic
        return signature(expected.dtype, space, expected.alignment, extents, expected.stride, array.readonly)

    def check(self, value: object, path: str, owner: str) -> None:
        """Raise an error for a tensor in a trace, or a fake one, that is not known to be as described."""
        if isinstance(value, FakeTensor):
            signature = value._signature
            reason = self._conflict(signature.dtype, signature.alignment, signature.shape, signature.stride)
        elif isinstance(value, TracedTensor):
            pointer = value.iterator
            alignment = pointer.alignment if isinstance(pointer, Pointer) else 0
            reason = self._conflict(value.element_type, alignment, value.shape, value.stride)
        else:
            return
        if reason:
            raise self.refusal(path, reason, owner)

    def refusal(self, path: str, reason: str, owner: str = "") -> Exception:
        """Return the error for an argument that is not as described."""
        where = f" of {owner}" if owner else ""
        return type_error(
            f"argument {path!r}{where} takes {self!r}, and {reason}",
            f"pass a tensor that fits, or change the annotation: {path}: {self!r} is a promise",
        )

    def _conflict(self, dtype: Any, alignment: int, shape: Any, stride: Any) -> str:
        """Return what a tensor of which only this is known may break; empty if nothing."""
        pattern = self._expected
        if dtype is not pattern.dtype:
            return f"its elements are {getattr(dtype, '__name__', dtype)}"
        if not isinstance(shape, tuple) or len(shape) != len(pattern.shape):
            return other_rank(len(shape) if isinstance(shape, tuple) else 1, len(pattern.shape))
        if alignment % pattern.alignment:
            return f"its address is only known to be a multiple of {alignment}, not of {pattern.alignment}"
        for what, expected, got in (("extent", pattern.shape, shape), ("stride", pattern.stride, stride)):
            for mode, (want, have) in enumerate(zip(expected, got, strict=True)):
                if isinstance(want, DynamicLeaf):
                    multiple = have.divisibility if isinstance(have, DynamicLeaf) else have
                    multiple = get_divisibility(multiple) if not isinstance(multiple, tuple) else 1
                    if multiple % want.divisibility:
                        return f"the {what} of mode {mode} is {have}, not known to be a multiple of {want.divisibility}"
                elif not isinstance(have, int) or have != want:
                    return f"the {what} of mode {mode} is {have}, not {want}"
        return ""
