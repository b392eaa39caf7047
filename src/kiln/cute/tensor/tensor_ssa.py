"""`TensorSSA`: the value of a tensor, held in registers. Element-wise arithmetic on it keeps the shape.

Its elements are one MLIR vector, ordered by index: the first mode of the shape runs fastest.
"""

from __future__ import annotations

import enum
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import context, ir
from ...base_dsl.diagnostics import DSLUserCodeTypeError, error, type_error
from ...base_dsl.numeric import emit, host, operators
from ...base_dsl.numeric.array_rules import active_rules
from ...base_dsl.numeric.dunders import both_ways, one_way
from ...base_dsl.numeric.meta import INTEGERS
from ...base_dsl.numeric.operands import refuse_complex
from ...base_dsl.numeric.operators import arithmetic_type, check_chosen, power_by_squaring
from ...base_dsl.numeric.promotion import common_type, float_of, holding_both, operand_type, weak_type
from ...base_dsl.typing import Boolean, Numeric, NumericMeta, as_numeric, plain_scalar
from ..layout.int_tuple import Shape, flatten_to_tuple, has_underscore, pretty_str, product, unflatten
from ..layout.layout import crd2idx, make_layout
from ..layout.modes import slice_
from . import vector_access

if TYPE_CHECKING:
    from ...base_dsl.numeric.operator_types import Number
    from .vector_types import ElementCoord, VectorOperand, elementwise

__all__ = [
    "ReductionOp",
    "TensorSSA",
    "all_",
    "any_",
    "empty_like",
    "full",
    "full_like",
    "ones_like",
    "where",
    "zeros_like",
]


class ReductionOp(enum.Enum):
    """The operation by which `TensorSSA.reduce` combines elements."""

    ADD = enum.auto()
    MUL = enum.auto()
    MAX = enum.auto()
    MIN = enum.auto()

    def __str__(self) -> str:
        return self.name.lower()


class VectorTruthError(DSLUserCodeTypeError):
    """A branch or a logical operator asks whether a vector is true; `function` is the one called with vectors."""

    function: Any = None


def _binary(name: str, x: TensorSSA, other: object, flip: bool = False) -> Any:
    t = _meet(x, other)
    if t is None:
        return NotImplemented
    if t.is_integer:
        of_arrays = active_rules() is not None
        if of_arrays and name == "truediv":
            t = float_of(t)
        elif of_arrays and t.is_boolean and name in _OF_BOOLEANS:
            name = _OF_BOOLEANS[name]
        elif name not in ("and", "or", "xor"):
            t = arithmetic_type(t)
    elif name in ("and", "or", "xor"):
        return NotImplemented
    scalar = plain_scalar(other) if not isinstance(other, (TensorSSA, Numeric)) else None
    a, b, shape = _operands(x, other, t)
    if flip:
        a, b, scalar = b, a, None
    count = product(shape)
    if not t.is_integer:
        return TensorSSA(emit.floating(name, t, a, b, count), shape, t)
    if name in _DIVISIONS:
        divisor = int(host.cast(t, scalar)) if scalar is not None else None
        if divisor == 0:
            raise type_error("an integer vector is divided by the constant 0")
        result = _DIVISIONS[name](t, a, b, count, divisor=divisor)
    else:
        result = emit.integer(name, t, a, b, count)
    return TensorSSA(result, shape, t)


def _compare(name: str, x: TensorSSA, other: object) -> Any:
    t = _meet(x, other, operand_type if x._dtype.is_float else weak_type)
    if t is None:
        refuse_complex(other)
        return NotImplemented
    if t.is_integer and isinstance(other, (TensorSSA, Numeric)):
        s: Any = other.dtype
        if not s.is_boolean and not x._dtype.is_boolean:
            t = holding_both(x._dtype, s)
    a, b, shape = _operands(x, other, t)
    return TensorSSA(emit.compare(name, t, a, b, product(shape)), shape, Boolean)


def _shift(name: str, x: TensorSSA, other: object, flip: bool = False) -> Any:
    t = _meet(x, other)
    if t is None or not t.is_integer:
        return NotImplemented
    t = arithmetic_type(t)
    a, b, shape = _operands(x, other, t)
    if flip:
        a, b = b, a
    shift = emit.shift_left if name == "lshift" else emit.shift_right
    result = shift(t, a, b, product(shape), may_be_negative=t.signed)
    return TensorSSA(result, shape, t)


class TensorSSA:
    """The elements of a tensor as a value. Immutable.

    Operators work element by element; shapes broadcast, mode by mode from the first on. Python numbers take the element
    type by their kind (an fp16 value times 2 stays fp16). `v[i]` is an element, `v[None, 0]` a part.
    """

    __kiln_immutable__ = True
    __slots__ = ("_count", "_dtype", "_shape", "_value")

    def __init__(
        self, value: ir.Value, shape: object, dtype: Any = None, *, loc: object = None, ip: object = None
    ) -> None:
        if isinstance(value, TensorSSA):
            value = value._value
        self._value = value
        self._shape = _tuple_shape(shape)
        self._count: int = product(shape)
        if self._count > vector_access.MOST_ELEMENTS:
            vector_access.check_length(self._count, "a value")
        if dtype is None:
            dtype = NumericMeta.from_mlir_type(value.type.element_type)  # pyright: ignore[reportAttributeAccessIssue]
        self._dtype = dtype
        tracing.hold(self)

    @property
    def value(self) -> ir.Value:
        """The elements as one value of an MLIR vector type."""
        return self._value

    def ir_value(self, *, loc: object = None, ip: object = None) -> ir.Value:
        """Return the vector."""
        return self._value

    def to_vector(self, *, force_flatten: bool = False, loc: object = None, ip: object = None) -> TensorSSA:
        """Return the same elements in one mode."""
        return self.reshape((self._count,))

    def maybe_downcast(self) -> ir.Value:
        """Return the vector."""
        return self._value

    def __kiln_select__(self, condition: object, other: object) -> TensorSSA:
        """Return this vector where a truth value holds, else another of its shape: `cutlass.select_`."""
        if not isinstance(other, TensorSSA) or other.shape != self.shape:
            got = pretty_str(other.shape) if isinstance(other, TensorSSA) else type(other).__name__
            raise type_error(f"select_() between a vector of shape {pretty_str(self.shape)} and {got}: of one shape")
        t = common_type(self.dtype, other.dtype)
        values = Boolean(condition).ir_value(), self.to(t).value, other.to(t).value
        return TensorSSA(tracing.emit_value("arith.select", values[1].type, values), self.shape, t)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape: extents known when compiling, nested as those of the tensor it was loaded from."""
        return self._shape

    @property
    def element_type(self) -> type[Number]:
        """The numeric type of the elements."""
        return self._dtype

    dtype = element_type

    @property
    def type(self) -> ir.Type:
        """The IR type."""
        return self._dtype.vector_type(self._count)

    def numel(self) -> int:
        """Return the number of elements."""
        return self._count

    def __len__(self) -> int:
        return self._count

    def __str__(self) -> str:
        return f"vector<{self._count}x{self._dtype._mlir_name}> o {self._shape}"

    __repr__ = __str__

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __bool__(self) -> bool:
        raise error(
            VectorTruthError,
            "the truth of a vector is not one value",
            hint="cute.where(v, a, b) chooses element by element; cute.any_(v) and cute.all_(v) are one value",
        )

    __array_ufunc__ = None
    """The priority over numpy: its numbers leave arithmetic with a vector to the vector; its functions refuse one."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise type_error(
            "the elements of a vector are not known until the program runs: it is no array of numpy",
            "functions of vectors are in cute.math",
        )

    def _with(self, value: ir.Value, dtype: object = None) -> TensorSSA:
        return TensorSSA(value, self._shape, dtype or self._dtype)

    @overload
    def __getitem__(self, coord: ElementCoord, *, loc: object = None, ip: object = None) -> Number: ...
    @overload
    def __getitem__(
        self, coord: slice | tuple[Any, ...] | list[Any] | None, *, loc: object = None, ip: object = None
    ) -> TensorSSA: ...
    def __getitem__(self, coord: object, *, loc: object = None, ip: object = None) -> Any:
        """Return an element; for a coordinate with None or a slice in it, a part."""
        if isinstance(coord, list):
            coord = tuple(coord)
        if isinstance(coord, slice) or (isinstance(coord, tuple) and any(isinstance(c, slice) for c in coord)):
            return self._range(coord if isinstance(coord, tuple) else (coord,))
        if isinstance(coord, (float, bool, Boolean)) or coord is Ellipsis:
            raise type_error(f"a vector is indexed by {type(coord).__name__}", "write None for a whole mode")
        layout = make_layout(self._shape)
        if has_underscore(coord):
            return self._part(coord, layout)
        index = crd2idx(coord, layout)
        if isinstance(index, int):
            if not 0 <= index < self._count:
                raise IndexError(f"index {coord} is out of range for a value of shape {pretty_str(self._shape)}")
            return self._dtype._make(vector_access.extract(self._value, index, self._dtype))
        return self._dtype._make(_extract_dynamic(self._value, index, self._dtype))

    def _part(self, coord: Any, layout: Any) -> TensorSSA:
        part = slice_(layout, coord)
        offset = crd2idx(coord, layout)
        if not isinstance(offset, int):
            raise type_error(
                "a part of a vector is taken at a dynamic index",
                "indices of registers must be known when compiling (range_constexpr)",
            )
        positions = [offset + crd2idx(i, part) for i in range(product(part.shape))]
        if any(not 0 <= p < self._count for p in positions):
            raise IndexError(f"index {coord} is out of range for a value of shape {pretty_str(self._shape)}")
        return TensorSSA(self._pick(positions), part.shape, self._dtype)

    def _range(self, coord: tuple[Any, ...]) -> TensorSSA:
        """Return the part whose coordinates Python slices name: `v[1:3]`, `m[:, 1:3]`; an integer drops its mode."""
        if len(coord) != len(self._shape) or not all(isinstance(s, int) for s in self._shape):
            raise type_error(
                f"a value of shape {pretty_str(self._shape)} is sliced with {len(coord)} indices", "one for each mode"
            )
        try:
            ranges = [
                range(*c.indices(s)) if isinstance(c, slice) else range(s)[operator.index(c)]
                for c, s in zip(coord, self._shape, strict=True)
            ]
        except TypeError:
            raise type_error(
                "a part of a vector is taken at a dynamic index", "indices of registers must be known when compiling"
            ) from None
        layout = make_layout(self._shape)
        chosen = [(r,) if isinstance(r, int) else r for r in ranges]
        positions = [crd2idx(tuple(reversed(c)), layout) for c in itertools.product(*reversed(chosen))]
        shape = tuple(len(r) for r in ranges if not isinstance(r, int))
        if not positions:
            raise type_error(f"the slice {coord} of a value of shape {pretty_str(self._shape)} is empty")
        return TensorSSA(self._pick(positions), shape, self._dtype)

    def _pick(self, positions: Sequence[int]) -> ir.Value:
        if len(positions) == 1:
            element = vector_access.extract(self._value, positions[0], self._dtype)
            return tracing.emit_value("vector.from_elements", self._dtype.vector_type(1), (element,))
        return vector_access.pick(self._value, self._count, positions, self._dtype)

    def __setitem__(self, coord: Any, value: Any, *, loc: object = None, ip: object = None) -> None:
        raise type_error(
            "an element of a vector cannot be assigned",
            "store it in a register tensor: r = cute.make_rmem_tensor_like(v); r.store(v); r[i] = x",
        )

    def to_elements(self, *, loc: object = None, ip: object = None) -> tuple[Any, ...]:
        """Return all elements, as scalars."""
        return tuple(self._dtype._make(vector_access.extract(self._value, i, self._dtype)) for i in range(self._count))

    @staticmethod
    def from_elements(scalars: Sequence[Any], dtype: Any, *, loc: object = None, ip: object = None) -> TensorSSA:
        """Return a vector of scalars."""
        values = [dtype(x).ir_value() for x in scalars]
        vector = tracing.emit_value("vector.from_elements", dtype.vector_type(len(values)), values)
        return TensorSSA(vector, (len(values),), dtype)

    @staticmethod
    def from_vector(
        value: Any, *, dtype: object = None, shape: object = None, loc: object = None, ip: object = None
    ) -> TensorSSA:
        """Return an MLIR vector, with a shape (default: one mode)."""
        if isinstance(value, TensorSSA):
            dtype = dtype or value.dtype
            value = value.value
        count = value.type.shape[0]
        return TensorSSA(value, (count,) if shape is None else shape, dtype)

    def reshape(self, shape: object, *, loc: object = None, ip: object = None) -> TensorSSA:
        """Return the same elements in the same order under another shape."""
        if product(shape) != self._count:
            raise type_error(
                f"a value of shape {pretty_str(self._shape)} cannot be reshaped to {pretty_str(shape)}",
                "the number of elements stays the same",
            )
        return TensorSSA(self._value, shape, self._dtype)

    def broadcast_to(self, target_shape: object, *, loc: object = None, ip: object = None) -> TensorSSA:
        """Return the value repeated along modes of extent 1 until it has the target shape.

        Modes that are missing count as 1 and are added at the end, as `cute.append` does.
        """
        target = _tuple_shape(target_shape)
        if target == self._shape:
            return self
        own = _aligned(self._shape, target)
        if own is None:
            raise type_error(
                f"a value of shape {pretty_str(self._shape)} does not broadcast to {pretty_str(target)}",
                "each extent must be equal or 1",
            )
        if self._count == 1:
            element = vector_access.extract(self._value, 0, self._dtype)
            vector = tracing.emit_value("vector.broadcast", self._dtype.vector_type(product(target)), (element,))
            return TensorSSA(vector, target, self._dtype)
        strides: list[int] = []
        step = 1
        for s in own:
            strides.append(0 if s == 1 else step)
            step *= s
        flat = flatten_to_tuple(target)
        positions = [
            sum(c * d for c, d in zip(reversed(coord), strides, strict=True))
            for coord in itertools.product(*(range(s) for s in reversed(flat)))
        ]
        vector = tracing.emit_value(
            "vector.shuffle",
            self._dtype.vector_type(len(positions)),
            (self._value, self._value),
            vector_access._mask(tuple(positions)),
        )
        return TensorSSA(vector, target, self._dtype)

    def to(self, dtype: object, *, loc: object = None, ip: object = None) -> TensorSSA:
        """Return the elements converted. Floats round to nearest even; to an integer they truncate and saturate."""
        if not isinstance(dtype, NumericMeta) or dtype.is_abstract:
            raise type_error(f".to() takes a numeric type such as Float32, got {dtype!r}")
        if dtype is self._dtype:
            return self
        return self._with(emit.convert(self._value, self._dtype, dtype, self._count), dtype)

    def bitcast(self, dtype: Any, *, loc: object = None, ip: object = None) -> TensorSSA:
        """Return the same bits as elements of another type; mode 0 gets longer or shorter if the width differs."""
        old = self._dtype.width
        new = dtype.width
        if old == new:
            return self._with(emit.bitcast(self._value, self._dtype, dtype, self._count), dtype)
        if (self._count * old) % new:
            raise type_error(f"{self._count} elements of {old} bits are no whole number of {new} bits")
        count = self._count * old // new
        vector = tracing.emit_value("vector.bitcast", dtype.vector_type(count), (self._value,))
        flat = flatten_to_tuple(self._shape)
        first = flat[0] * old
        shape: Any = (first // new, *flat[1:]) if first % new == 0 else (count,)
        return TensorSSA(vector, shape, dtype)

    def with_signedness(self, signed: bool | None) -> TensorSSA:
        """Return the same bits as signed or unsigned integers."""
        if signed is None or not self._dtype.is_integer or self._dtype.signed == signed:
            return self
        return self._with(self._value, INTEGERS[self._dtype.width, signed])

    def apply_op(
        self, op: Callable[..., object], other: object, flip: bool = False, *, loc: object = None, ip: object = None
    ) -> Any:
        """Return `op(self, other)`, or `op(other, self)` with `flip`, for an operator of the module `operator`."""
        return op(other, self) if flip else op(self, other)

    if TYPE_CHECKING:
        __add__ = elementwise
        __radd__ = elementwise
        __sub__ = elementwise
        __rsub__ = elementwise
        __mul__ = elementwise
        __rmul__ = elementwise
        __truediv__ = elementwise
        __rtruediv__ = elementwise
        __floordiv__ = elementwise
        __rfloordiv__ = elementwise
        __mod__ = elementwise
        __rmod__ = elementwise
        __and__ = elementwise
        __rand__ = elementwise
        __or__ = elementwise
        __ror__ = elementwise
        __xor__ = elementwise
        __rxor__ = elementwise
        __lshift__ = elementwise
        __rlshift__ = elementwise
        __rshift__ = elementwise
        __rrshift__ = elementwise
        __lt__ = elementwise
        __le__ = elementwise
        __gt__ = elementwise
        __ge__ = elementwise

        def __eq__(self, other: object) -> TensorSSA: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __ne__(self, other: object) -> TensorSSA: ...  # pyright: ignore[reportIncompatibleMethodOverride]
    else:
        __add__, __radd__ = both_ways(_binary, "add")
        __sub__, __rsub__ = both_ways(_binary, "sub")
        __mul__, __rmul__ = both_ways(_binary, "mul")
        __truediv__, __rtruediv__ = both_ways(_binary, "truediv")
        __floordiv__, __rfloordiv__ = both_ways(_binary, "floordiv")
        __mod__, __rmod__ = both_ways(_binary, "mod")
        __and__, __rand__ = both_ways(_binary, "and")
        __or__, __ror__ = both_ways(_binary, "or")
        __xor__, __rxor__ = both_ways(_binary, "xor")
        __lshift__, __rlshift__ = both_ways(_shift, "lshift")
        __rshift__, __rrshift__ = both_ways(_shift, "rshift")
        __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = one_way(_compare, "lt", "le", "gt", "ge", "eq", "ne")

    def __pow__(self, other: VectorOperand) -> TensorSSA:
        t = _meet(self, other)
        if t is None:
            return NotImplemented
        if type(other) is int and 0 <= other <= 64:
            x = self.to(arithmetic_type(t))
            return power_by_squaring(x, other) if other else full_like(x, 1)
        t = float_of(t)
        a, b, shape = _operands(self, other, t)
        return TensorSSA(emit.floating("pow", t, a, b, product(shape)), shape, t)

    def __rpow__(self, other: VectorOperand) -> TensorSSA:
        t = _meet(self, other)
        if t is None:
            return NotImplemented
        t = float_of(t)
        b, a, shape = _operands(self, other, t)
        return TensorSSA(emit.floating("pow", t, a, b, product(shape)), shape, t)

    def __pos__(self) -> TensorSSA:
        return self

    def __neg__(self) -> TensorSSA:
        t = arithmetic_type(self._dtype)
        x = self.to(t)
        return self._with(emit.negate(t, x._value, self._count), t)

    def __invert__(self) -> TensorSSA:
        if not self._dtype.is_integer:
            raise type_error(f"~ needs integers, and the elements are {self._dtype.__name__}")
        return self._with(emit.invert(self._dtype, self._value, self._count))

    def __abs__(self) -> TensorSSA:
        t = arithmetic_type(self._dtype)
        x = self.to(t)
        if t.is_integer:
            return self._with(emit.integer_abs(t, x._value, self._count), t)
        return self._with(emit.float_unary("math.absf", t, x._value, self._count), t)

    @overload
    def reduce(
        self,
        op: ReductionOp | str = "add",
        init_val: Numeric | float | None = None,
        reduction_profile: int = 0,
        *,
        dim: None = None,
        acc: Numeric | float | None = None,
        loc: object = None,
        ip: object = None,
    ) -> Number: ...
    @overload
    def reduce(
        self,
        op: ReductionOp,
        init_val: Numeric | float,
        reduction_profile: tuple[Any, ...],
        *,
        loc: object = None,
        ip: object = None,
    ) -> Any: ...
    @overload
    def reduce(
        self,
        op: ReductionOp | str = "add",
        *,
        dim: int | list[int] | tuple[int, ...],
        acc: Any = None,
        loc: object = None,
        ip: object = None,
    ) -> Any: ...
    def reduce(
        self,
        op: ReductionOp | str = "add",
        init_val: Any = None,
        reduction_profile: Any = 0,
        *,
        dim: Any = None,
        acc: Any = None,
        loc: object = None,
        ip: object = None,
    ) -> Any:
        """Combine elements, beginning with `init_val`; without it all elements, beginning with the first.

        `reduction_profile` has None for each mode that is kept and an integer for each that is reduced; an integer
        alone reduces everything, to one number. Elements are combined in order of their index. Vectors have other
        words for it: `dim`, the mode or modes that are reduced, and `acc`, a number or the vector of numbers to begin with.
        """
        if dim is not None or acc is not None:
            return self._reduce_modes(op, dim, acc)
        if isinstance(op, str) and init_val is not None:
            raise type_error(f"reduce() with an init_val takes a ReductionOp, got {op!r}")
        op = _reduction_op(op)
        t = self._dtype
        if init_val is None:
            if reduction_profile != 0:
                raise type_error("reduce() with a reduction profile needs an init_val")
            first = vector_access.extract(self._value, 0, t)
            return t._make(self._combine(op, first, range(1, self._count)))
        start = init_val if type(init_val) is t else t(init_val)
        if not isinstance(reduction_profile, tuple) or not has_underscore(reduction_profile):
            if isinstance(reduction_profile, tuple) and len(reduction_profile) != len(_tuple_shape(self._shape)):
                raise self._bad_profile(reduction_profile)
            return t._make(self._combine(op, start.ir_value(), range(self._count)))
        if len(reduction_profile) != len(self._shape):
            raise self._bad_profile(reduction_profile)
        layout = make_layout(self._shape)
        kept = slice_(layout, reduction_profile)
        reduced = slice_(layout, _opposite(reduction_profile))
        inner = [crd2idx(i, reduced) for i in range(product(reduced.shape))]
        elements: list[ir.Value] = []
        for i in range(product(kept.shape)):
            base = crd2idx(i, kept)
            elements.append(self._combine(op, start.ir_value(), [base + offset for offset in inner]))
        vector = tracing.emit_value("vector.from_elements", t.vector_type(len(elements)), elements)
        return TensorSSA(vector, kept.shape, t)

    def _reduce_modes(self, op: Any, dim: Any, acc: Any) -> Any:
        """Combine the elements along some modes, or all of them, beginning with `acc`."""
        modes = len(_tuple_shape(self._shape))
        dims = range(modes) if dim is None else dim if isinstance(dim, (list, tuple)) else (dim,)
        if any(not -modes <= d < modes for d in dims):
            raise type_error(f"dim of reduce() is {dim!r}", f"modes from 0 to {modes - 1}")
        reduced = {d % modes for d in dims}
        op = _reduction_op(op)
        if len(reduced) == modes:
            return self.reduce(op, acc)
        layout = make_layout(self._shape)
        inner, kept = (
            slice_(layout, tuple(None if (m in reduced) == inside else 0 for m in range(modes)))
            for inside in (True, False)
        )
        count = product(kept.shape)
        starts = None if acc is None else full(kept.shape, acc, self._dtype).to_elements()
        results: list[Any] = []
        for i in range(count):
            places = [crd2idx(i, kept) + crd2idx(j, inner) for j in range(product(inner.shape))]
            first = (
                vector_access.extract(self._value, places.pop(0), self._dtype)
                if starts is None
                else starts[i].ir_value()
            )
            results.append(self._dtype._make(self._combine(op, first, places)))
        return TensorSSA.from_elements(results, self._dtype).reshape(kept.shape)

    def _bad_profile(self, profile: object) -> Exception:
        return type_error(
            f"the reduction profile {profile} does not fit the shape {pretty_str(self._shape)}",
            "one entry for each mode: None keeps it, an integer reduces it; 0 alone reduces everything",
        )

    def _combine(self, op: ReductionOp, start: ir.Value, positions: Sequence[int]) -> ir.Value:
        t = self._dtype
        if len(positions) == self._count and not t.is_float and not t.is_boolean:
            kind = _REDUCTIONS[op][0 if t._zero_extends else 1]
            return tracing.emit_value("vector.reduction", t.mlir_type, (self._value, start), _reduction(kind))
        result = start
        for position in positions:
            result = _combine_two(op, t, result, vector_access.extract(self._value, position, t))
        return result

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [self._value]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> TensorSSA:
        return self._with(values[0])

    def __kiln_static_key__(self) -> Any:
        return (self._dtype, self._shape)

    def __kiln_print__(self) -> list[Any]:
        parts: list[Any] = ["["]
        for i, x in enumerate(self.to_elements()):
            parts += [", "] if i else []
            parts.append(x)
        return [*parts, "]"]


def _reduction_op(op: object) -> ReductionOp:
    """Return an operation, given by itself or by its name."""
    if isinstance(op, str) and op.upper() in ReductionOp.__members__:
        return ReductionOp[op.upper()]
    if not isinstance(op, ReductionOp):
        raise type_error(f"reduce() takes a ReductionOp or its name, got {op!r}")
    return op


def _opposite(profile: object) -> Any:
    """Return a coordinate with None where `profile` has a number, and the other way round."""
    if isinstance(profile, tuple):
        return tuple(_opposite(p) for p in profile)
    return 0 if profile is None else None


_DIVISIONS = {"floordiv": emit.integer_floordiv, "mod": emit.integer_mod, "truediv": emit.integer_division}
"""The divisions of integer vectors: `/` is C's, as CuTe has it, and not Python's."""

_OF_BOOLEANS = {"add": "or", "mul": "and"}
"""What arithmetic of arrays of Booleans is."""

_REDUCTIONS = {
    ReductionOp.ADD: ("add", "add"),
    ReductionOp.MUL: ("mul", "mul"),
    ReductionOp.MAX: ("maxui", "maxsi"),
    ReductionOp.MIN: ("minui", "minsi"),
}


def _reduction(kind: str) -> dict[str, ir.Attribute]:
    return {"kind": ir.Attribute.parse(f"#vector.kind<{kind}>", context())}


def _combine_two(op: ReductionOp, t: Any, a: ir.Value, b: ir.Value) -> ir.Value:
    if t.is_float:
        return emit.floating(str(op), t, a, b)
    if op is ReductionOp.MAX:
        return emit.integer_max(t, a, b)
    if op is ReductionOp.MIN:
        return emit.integer_min(t, a, b)
    return emit.integer(str(op), t, a, b)


def _tuple_shape(shape: object) -> Any:
    return shape if isinstance(shape, tuple) else (shape,)


def _meet(a: TensorSSA, b: object, of_python: Callable[[Any, Any], Any] = operand_type) -> Any:
    """Return the type in which a value meets another value, a scalar or a Python number; None for anything else.

    `of_python` says what it is beside a Python number: `operand_type` in arithmetic, `weak_type` where one of the two
    is chosen.
    """
    if isinstance(b, (TensorSSA, Numeric)):
        return common_type(a._dtype, b.dtype)
    plain = plain_scalar(b)
    return None if plain is None else of_python(a._dtype, plain)


def _operands(a: TensorSSA, b: object, t: object) -> tuple[ir.Value, ir.Value, Any]:
    """Return both sides as vectors of `t` of one shape, and that shape."""
    if not isinstance(b, TensorSSA):
        return a.to(t)._value, splat(b, t, a._count), a._shape
    if a._shape != b._shape:
        shape = _broadcast_shape(a._shape, b._shape)
        if shape is None:
            raise type_error(
                f"values of shapes {pretty_str(a._shape)} and {pretty_str(b._shape)} do not go together",
                "shapes must be equal, or broadcast: each extent equal or 1, and missing modes are added at the end",
            )
        a = a.broadcast_to(shape)
        b = b.broadcast_to(shape)
    return a.to(t)._value, b.to(t)._value, a._shape


def splat(x: Any, t: Any, count: int) -> ir.Value:
    """Return a number in every element of a vector."""
    plain = plain_scalar(x) if not isinstance(x, Numeric) else (x.value if x.is_static else None)
    if plain is not None:
        return emit.constant(t, host.cast(t, plain), count)
    return tracing.emit_value("vector.broadcast", t.vector_type(count), (t(x).ir_value(),))


def _aligned(shape: object, target: object) -> tuple[int, ...] | None:
    """Return the flat extents of `shape` beside those of `target`, 1 for missing modes; None if they do not fit."""
    own = flatten_to_tuple(shape)
    extents = flatten_to_tuple(target)
    own += (1,) * (len(extents) - len(own))
    if len(own) != len(extents) or any(s not in (1, w) for s, w in zip(own, extents, strict=True)):
        return None
    return own


def _broadcast_shape(a: object, b: object) -> Any:
    x = flatten_to_tuple(a)
    y = flatten_to_tuple(b)
    longer = a if len(x) >= len(y) else b
    n = max(len(x), len(y))
    x += (1,) * (n - len(x))
    y += (1,) * (n - len(y))
    if any(s != d and 1 not in (s, d) for s, d in zip(x, y, strict=True)):
        return None
    return unflatten(tuple(d if s == 1 else s for s, d in zip(x, y, strict=True)), longer)


def _extract_dynamic(value: ir.Value, index: Any, dtype: Any) -> ir.Value:
    at = tracing.emit_value("arith.index_cast", ir.IndexType.get(), (index.ir_value(),))
    attributes = {"static_position": ir.DenseI64ArrayAttr.get([-(1 << 63)])}
    return tracing.emit_value("vector.extract", dtype.mlir_type, (value, at), attributes)


def full(
    shape: Shape,
    fill_value: VectorOperand,
    dtype: type[Numeric] | None = None,
    *,
    loc: object = None,
    ip: object = None,
) -> TensorSSA:
    """Return a vector with the same number in every element.

    Args:
        shape: its shape, static.
        fill_value: a number, or a `TensorSSA` whose shape broadcasts to `shape`.
        dtype: the element type; by default that of `fill_value`.
    """
    if dtype is None:
        dtype = fill_value.dtype if isinstance(fill_value, TensorSSA) else type(as_numeric(fill_value))
    shape = tuple(shape) if isinstance(shape, list) else shape
    count = product(shape)
    if isinstance(fill_value, TensorSSA):
        return fill_value.to(dtype).broadcast_to(shape)
    return TensorSSA(splat(fill_value, dtype, count), shape, dtype)


def full_like(a: Any, fill_value: Any, dtype: Any = None, *, loc: object = None, ip: object = None) -> TensorSSA:
    """Return a vector with the same number in every element, in the shape of another.

    Args:
        a: a `TensorSSA` or a tensor.
        fill_value: a number, or a `TensorSSA` whose shape broadcasts to that of `a`.
        dtype: the element type; by default that of `a`.
    """
    return full(a.shape, fill_value, a.element_type if dtype is None else dtype)


def zeros_like(a: object, dtype: object = None, *, loc: object = None, ip: object = None) -> TensorSSA:
    """Return zeros in the shape of `a`, a `TensorSSA` or tensor, of the element type `dtype` (by default that of `a`)."""
    return full_like(a, 0, dtype)


def ones_like(a: object, dtype: object = None, *, loc: object = None, ip: object = None) -> TensorSSA:
    """Return ones in the shape of `a`, a `TensorSSA` or tensor, of the element type `dtype` (by default that of `a`)."""
    return full_like(a, 1, dtype)


def empty_like(a: object, dtype: object = None, *, loc: object = None, ip: object = None) -> TensorSSA:
    """Return a vector in the shape of `a`, of the element type `dtype` (by default that of `a`), to be overwritten.

    Its elements are zero, but a program must not rely on that.
    """
    return full_like(a, 0, dtype)


@overload
def where(
    cond: TensorSSA, x: VectorOperand, y: VectorOperand, *, loc: object = None, ip: object = None
) -> TensorSSA: ...
@overload
def where(
    cond: bool | Numeric, x: float | Numeric, y: float | Numeric, *, loc: object = None, ip: object = None
) -> Number: ...
def where(cond: object, x: object, y: object, *, loc: object = None, ip: object = None) -> object:
    """Return the elements of `x` where a condition holds, and those of `y` elsewhere; of numbers one of the two.

    Args:
        cond: a `TensorSSA` of Booleans, or a number that is tested: then `x` and `y` are numbers, and both are computed.
        x: a `TensorSSA`, or a number for all elements.
        y: a `TensorSSA`, or a number for all elements. Shapes broadcast.
    """
    if not isinstance(cond, TensorSSA):
        if any(isinstance(each, TensorSSA) for each in (x, y)):
            raise type_error(
                f"where() takes a vector of Booleans as its condition, got {type(cond).__name__}",
                "for one condition write x if c else y",
            )
        if not all(isinstance(each, (bool, int, float, Numeric)) for each in (cond, x, y)):
            kinds = ", ".join(type(each).__name__ for each in (cond, x, y))
            raise type_error(f"where() got {kinds}", "it takes three numbers, or a vector of Booleans and its choices")
        return operators.select(cond, x, y)
    if cond.dtype is not Boolean:
        raise type_error(f"where() takes Booleans, and the condition has {cond.dtype.__name__} elements")
    if isinstance(x, TensorSSA):
        t = _meet(x, y, weak_type)
    elif isinstance(y, TensorSSA):
        t = _meet(y, x, weak_type)
    else:
        first = as_numeric(x)
        second = as_numeric(y)
        t = common_type(first.dtype, second.dtype)
    if t is None:
        raise type_error(f"where() cannot choose between {type(x).__name__} and {type(y).__name__}")
    check_chosen("where()", t, x, y)
    shape = cond.shape
    for side in (x, y):
        if isinstance(side, TensorSSA):
            broadcast = _broadcast_shape(shape, side.shape)
            if broadcast is None:
                raise type_error(f"where(): shapes {pretty_str(shape)} and {pretty_str(side.shape)} do not go together")
            shape = broadcast
    count = product(shape)
    a, b = (
        side.to(t).broadcast_to(shape).value if isinstance(side, TensorSSA) else splat(side, t, count)
        for side in (x, y)
    )
    return TensorSSA(emit.select(t, cond.broadcast_to(shape).value, a, b, count), shape, t)


def _truth(x: object, kind: str) -> Any:
    if not isinstance(x, TensorSSA):
        raise type_error(f"expected a vector of Booleans, got {type(x).__name__}")
    truth = x.to(Boolean)
    return Boolean._make(tracing.emit_value("vector.reduction", Boolean.mlir_type, (truth.value,), _reduction(kind)))


def any_(x: TensorSSA, *, loc: object = None, ip: object = None) -> Boolean:
    """Return whether any element of `x`, a `TensorSSA`, is not zero."""
    return _truth(x, "or")


def all_(x: TensorSSA, *, loc: object = None, ip: object = None) -> Boolean:
    """Return whether all elements of `x`, a `TensorSSA`, are not zero."""
    return _truth(x, "and")
