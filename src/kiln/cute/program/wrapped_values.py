"""`cutlass.Pointer` and `cutlass.Vector`: the language's pointers and vectors, made of values of the bindings."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int8, Numeric, NumericMeta
from ..host.addresses import make_ptr
from ..tensor import pointer
from ..tensor.tensor_ssa import TensorSSA


class _Wrapping(type):
    """The type of a name for another class: calling it wraps a value, `isinstance` asks for the other class."""

    _wrapped: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls._wrapped)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._wrapped)


class Pointer(metaclass=_Wrapping):
    """A pointer of a value: `!llvm.ptr`, an address, or a pointer of Kiln, which may get another element type."""

    _wrapped = pointer.Pointer

    def __new__(cls, base: Any, *, dtype: Any = None, space: Any = None, loc: Any = None, ip: Any = None) -> Any:
        if isinstance(base, pointer.Pointer):
            return base if dtype in (None, base.dtype) else pointer.recast_ptr(base, base.swizzle, dtype)
        found = pointer.AddressSpace(space) if isinstance(space, int) else space
        if found is None and hasattr(base, "type"):
            found = pointer.space_of_llvm_pointer(base.type)
        return make_ptr(Int8 if dtype is None else dtype, base, found)


class Vector(metaclass=_Wrapping):
    """Elements in one mode, of a value of a vector type."""

    _wrapped = TensorSSA
    from_elements = staticmethod(TensorSSA.from_elements)

    def __new__(cls, v: Any, *, dtype: Any = None, loc: Any = None, ip: Any = None) -> Any:
        if isinstance(v, TensorSSA):
            return v.to_vector()
        if isinstance(v, Numeric):
            return TensorSSA.from_elements((v,), type(v))
        type_ = getattr(v, "type", None)
        if not hasattr(type_, "shape"):
            raise type_error(f"Vector takes a value of a vector type, not {type(v).__name__}")
        kind = dtype or NumericMeta.from_mlir_type(type_.element_type)  # pyright: ignore[reportOptionalMemberAccess]
        return TensorSSA(v, (type_.shape[0],), kind)  # pyright: ignore[reportOptionalMemberAccess]
