"""`cutlass.Pointer` and `cutlass.Vector`: the language's pointers and vectors, made of values of the bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from ...base_dsl import trace as tracing
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int8, Numeric, NumericMeta
from ..host.addresses import make_ptr
from ..tensor import pointer
from ..tensor.printing import printf
from ..tensor.raw_pointer import as_raw_pointer
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

    def __new__(cls, base: Any, *, dtype: Any = None, space: Any = None, loc: object = None, ip: object = None) -> Any:
        if tracing.current() is None:
            return make_ptr(Int8 if dtype is None else dtype, base, space)
        return as_raw_pointer(base, dtype, space)


class Vector(metaclass=_Wrapping):
    """Elements in one mode, of a value of a vector type."""

    _wrapped = TensorSSA
    from_elements = staticmethod(TensorSSA.from_elements)

    def __new__(cls, v: object, *, dtype: object = None, loc: object = None, ip: object = None) -> Any:
        if isinstance(v, TensorSSA):
            return v.to_vector()
        if isinstance(v, Numeric):
            return TensorSSA.from_elements((v,), type(v))
        type_ = getattr(v, "type", None)
        if not hasattr(type_, "shape"):
            raise type_error(f"Vector takes a value of a vector type, not {type(v).__name__}")
        kind = dtype or NumericMeta.from_mlir_type(type_.element_type)  # pyright: ignore[reportOptionalMemberAccess]
        return TensorSSA(v, (type_.shape[0],), kind)  # pyright: ignore[reportOptionalMemberAccess]


if TYPE_CHECKING:
    T = TypeVar("T")
    GridConstant = Annotated[T, "passed by value in constant memory"]
    """The annotation of a kernel parameter that is passed by value in constant memory: `GridConstant[TensorMap]`."""
else:

    class GridConstant:
        """The annotation of a kernel parameter that is passed by value in constant memory: `GridConstant[TensorMap]`."""

        def __class_getitem__(cls, kind: object) -> Any:
            return kind


def print_nd_vector(src: TensorSSA, *, loc: object = None, ip: object = None) -> None:
    """Print the elements of a vector when the program runs."""
    printf("{}", src)
