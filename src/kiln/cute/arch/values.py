"""Arguments of `cute.arch` functions as values of the program."""

from __future__ import annotations

from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import runtime_error, type_error
from ...base_dsl.typing import Boolean, Float32, Int8, Int32, Numeric
from ..deferred_dialects import cute
from ..tensor.pointer import pointer_to, space_of_llvm_pointer

__all__ = ["FULL_MASK", "WARP_SIZE"]

WARP_SIZE = 32
FULL_MASK = 0xFFFFFFFF


def kernel_only(what: str) -> None:
    """Raise an error for a call outside a kernel."""
    active = tracing.require(f"{what}()")
    if active.function.kind != "kernel":
        raise runtime_error(
            f"{what}() was called outside a kernel", "call it in a function decorated with @kernel, or inlined into one"
        )


def i32(value: object) -> ir.Value:
    """Return a Python or dynamic integer as an i32; unsigned words keep their bits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return tracing.constant(Int32.mlir_type, value)
    return Int32(value).ir_value()


def i1(value: object) -> ir.Value:
    """Return a truth value."""
    return Boolean(value).ir_value()


def f32(value: object) -> ir.Value:
    """Return a Float32."""
    return Float32(value).ir_value()


def pointer(value: Any, what: str, space: str = "") -> ir.Value:
    """Return an argument as a pointer; raise an error if it is none, or not in the address space `space`."""
    pointer_value = value.ir_value() if hasattr(value, "ir_value") else value
    type_ = getattr(pointer_value, "type", None)
    if type_ is not None and not cute.is_ptr(type_) and str(type_).startswith("!llvm.ptr"):
        pointer_value = pointer_to(Int8, pointer_value, space_of_llvm_pointer(type_)).ir_value()
        type_ = pointer_value.type
    if type_ is None or not cute.is_ptr(type_):
        raise type_error(f"{what} takes a pointer, not {type(value).__name__}", "pass tensor.iterator + offset")
    if space and cute.info(type_).space not in (space, "generic", *(["dsmem"] if space == "smem" else [])):
        raise type_error(f"{what} takes a pointer to {space}, not to {cute.info(type_).space}")
    return pointer_value


def number(value: Any, like: Any = None) -> Numeric:
    """Return a typed number; a Python number takes the type `like`, or Int32 or Float32."""
    if isinstance(value, Numeric):
        return value
    kind = like or (Float32 if isinstance(value, float) else Int32)
    return kind(value)


def choice(what: str, value: object, choices: tuple[str, ...]) -> str:
    """Return one of the `choices`; members of enumerations count by their value, their name or their text."""
    texts = (
        (value,)
        if isinstance(value, str)
        else (getattr(value, "value", None), getattr(value, "name", None), str(value))
    )
    names = (text.lower() for text in texts if isinstance(text, str) and text.lower() in choices)
    name = next(names, None)
    if name is None:
        raise type_error(f"{what} is {value!r}", f"one of {', '.join(choices)}")
    return name
