"""The metaclasses of the numeric types: what a type knows about itself.

A type is cheap: it touches neither numpy nor MLIR until its `numpy_dtype` or `mlir_type` is asked for.
"""

from __future__ import annotations

import builtins
import math
from typing import Any, cast

from ..bindings import context, ir

TYPES: dict[str, NumericMeta] = {}
"""Every concrete type, by name."""

INTEGERS: dict[tuple[int, bool], IntegerMeta] = {}
"""Every integer type but Boolean, by width and signedness."""

_by_mlir_name: dict[str, NumericMeta] = {}


def _as_declared(name: str, bases: tuple[type, ...], declared: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords of a class statement as those of Kiln's own types, which name their IR type with `mlir`.

    A program's own type is made with `width`, `np_dtype_name`, `mlir_type` (a function) and `is_abstract`, or with
    none of them. What it leaves out it has from the type that has the same values in the IR, else from its base.
    """
    declared = dict(declared)
    for theirs, ours in (("np_dtype_name", "numpy"), ("is_abstract", "abstract")):
        if theirs in declared:
            declared[ours] = declared.pop(theirs)
    make_type = declared.pop("mlir_type", None)
    if "mlir" in declared or declared.get("abstract"):
        return declared
    model = next((base._model or base for base in bases if isinstance(base, NumericMeta) and not base._abstract), None)
    signed = declared.get("signed", getattr(model, "signed", True))
    if make_type is not None:
        with context(), ir.Location.unknown():
            model = NumericMeta.from_mlir_type(make_type())
    if isinstance(model, IntegerMeta):
        model = INTEGERS.get((model.width, signed), model)
    if model is None:
        raise TypeError(f"{name}: a numeric type has a numeric type as its base, or says its mlir_type")
    if declared.get("width", model.width) != model.width:
        raise TypeError(
            f"{name}: its values have {model.width} bits in the IR ({model._mlir_name}), not {declared['width']}"
        )
    of_model = {
        "width": model.width,
        "mlir": model._mlir_name,
        "numpy": model._numpy_name,
        "slot": model._struct_format,
    }
    if isinstance(model, FloatMeta):
        of_model["format"] = model._format
    else:
        of_model["signed"] = cast("IntegerMeta", model).signed
    return {**of_model, **declared, "model": model}


class NumericMeta(type):
    """Type of a numeric type. `width` is in bits; `bytes` is what one value takes in memory by itself."""

    width: int
    bytes: int
    _abstract: bool
    _model: NumericMeta | None
    """Of a program's own type: the type of Kiln's that has the same values."""
    _initializes: bool
    """Of a program's own type: whether its `__init__` makes the value of what `T(x)` is given."""
    _mlir_name: str
    _ir_type: Any
    _vector_types: dict[int, Any]
    _numpy_name: str | None
    _struct_format: str
    _make: Any  # class methods of Numeric, declared for code that knows the metaclass only
    _lift: Any

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        width: int = 8,
        mlir: str = "",
        numpy: str | None = None,
        slot: str = "",
        abstract: bool = False,
        model: NumericMeta | None = None,
        **kwargs: Any,
    ) -> Any:
        namespace.setdefault("__slots__", ())
        initializes = model is not None and (
            "__init__" in namespace or any(getattr(base, "_initializes", False) for base in bases)
        )
        if initializes:
            namespace.setdefault("__new__", lambda cls, *args, **kwargs: object.__new__(cls))
        namespace |= {
            "width": width,
            "bytes": (width + 7) // 8,
            "_abstract": abstract,
            "_model": model,
            "_initializes": initializes,
            "_mlir_name": mlir,
            "_ir_type": None,
            "_vector_types": {},
            "_numpy_name": numpy,
            "_struct_format": slot,
        }
        return super().__new__(mcs, name, bases, namespace, **kwargs)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(name, bases, namespace)
        if not cls._abstract and cls._model is None:
            TYPES[name] = cls
            _by_mlir_name.setdefault(cls._mlir_name, cls)

    def __repr__(cls) -> str:
        return cls.__name__

    @property
    def is_abstract(cls) -> bool:
        """Whether this is a family (Numeric, Integer, Float) rather than a type."""
        return cls._abstract

    @property
    def is_integer(cls) -> bool:
        """Whether it is an integer type; Boolean is one."""
        return isinstance(cls, IntegerMeta)

    @property
    def is_float(cls) -> bool:
        """Whether it is a float type."""
        return isinstance(cls, FloatMeta)

    def is_same_kind(cls, other: object) -> bool:
        """Return whether both are integer types or both are float types."""
        return isinstance(other, NumericMeta) and cls.is_integer == other.is_integer and cls.is_float == other.is_float

    def isinstance(cls, value: object) -> bool:
        """Return whether `value` is of this type, or a Python scalar that would become it."""
        if builtins.isinstance(value, cls):
            return True
        return type(value) in (bool, int, float) and issubclass(cls.from_python(value), cls)

    def n_bytes(cls, n_elements: int) -> int:
        """Return the bytes of `n_elements` packed values."""
        return (n_elements * cls.width + 7) // 8

    @property
    def mlir_type(cls) -> ir.Type:
        """The type of a value in the IR. Integers are signless there."""
        type_ = cls._ir_type
        if type_ is None:
            if not cls._mlir_name:
                raise TypeError(f"{cls.__name__} is a family of types: it has no IR type")
            type_ = cls._ir_type = ir.Type.parse(cls._mlir_name, context())
        return type_

    def vector_type(cls, length: int) -> ir.Type:
        """Return `vector<length x T>`."""
        type_ = cls._vector_types.get(length)
        if type_ is None:
            type_ = cls._vector_types[length] = ir.Type.parse(f"vector<{length}x{cls.mlir_type}>", context())
        return type_

    @property
    def numpy_dtype(cls) -> Any:
        """The numpy (or ml_dtypes) scalar type, None where there is none."""
        if cls._numpy_name is None:
            return None
        import numpy

        dtype = getattr(numpy, cls._numpy_name, None)
        if dtype is None:
            import ml_dtypes

            dtype = getattr(ml_dtypes, cls._numpy_name)
        return dtype

    @property
    def zero(cls) -> int | float:
        """Zero as a Python scalar: it takes the type of what it meets."""
        return 0.0 if cls.is_float else 0

    @property
    def one(cls) -> int | float:
        """One as a Python scalar."""
        return 1.0 if cls.is_float else 1

    @staticmethod
    def from_python(value: object) -> Any:
        """Return the type a Python scalar becomes: Boolean, Int32 (Int64, Int128 where it does not fit) or Float32."""
        return type_of_python(value)

    @staticmethod
    def from_mlir_type(mlir_type: ir.Type) -> Any:
        """Return the numeric type of values of an IR type. A signless integer is taken as signed."""
        name = str(mlir_type)
        kind = _by_mlir_name.get(name)
        if kind is None and name[:2] in ("si", "ui"):
            kind = INTEGERS.get((int(name[2:]), name[0] == "s"))
        if kind is None and name == "index":
            kind = INTEGERS[64, True]
        if kind is None:
            raise TypeError(f"no numeric type has values of type {name} in the IR")
        return kind


class IntegerMeta(NumericMeta):
    """Type of an integer type. `min` and `max` bound its values."""

    signed: bool
    is_boolean: bool
    _zero_extends: bool
    _min: int
    _max: int

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kw: Any) -> Any:
        kw = _as_declared(name, bases, kw)
        signed: bool = kw.pop("signed", True)
        width: int = kw.get("width", 32)
        boolean = width == 1
        namespace["signed"] = signed
        namespace["is_boolean"] = boolean
        # True is 1, whatever the declared signedness of Boolean
        namespace["_zero_extends"] = boolean or not signed
        namespace["_min"] = -(1 << (width - 1)) if signed and not boolean else 0
        namespace["_max"] = (1 << (width - 1)) - 1 if signed and not boolean else (1 << width) - 1
        cls = super().__new__(mcs, name, bases, namespace, **kw)
        if not kw.get("abstract") and not boolean and cls._model is None:
            INTEGERS[width, signed] = cls
        return cls

    @property
    def min(cls) -> int:
        """The smallest value."""
        return cls._min

    @property
    def max(cls) -> int:
        """The largest value."""
        return cls._max


class FloatMeta(NumericMeta):
    """Type of a float type. Its limits are Python floats: they take the type of what they meet."""

    _format: Any  # FloatFormat; None for packed storage types
    _compute: Any

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kw: Any) -> Any:
        kw = _as_declared(name, bases, kw)
        namespace["_format"] = format = kw.pop("format", None)
        cls = super().__new__(mcs, name, bases, namespace, **kw)
        # The type that arithmetic is done in: hardware has none below 16 bits, nor for tf32.
        native = format is None or (cls._model or cls).__name__ in _NATIVE
        cls._compute = cls if native else TYPES.get("Float32", cls)
        return cls

    @property
    def signed(cls) -> bool:
        """Whether it has negative values."""
        return cls._format.signed

    @property
    def exponent_width(cls) -> int:
        """Bits of the exponent field."""
        return cls._format.exponent_bits

    @property
    def mantissa_width(cls) -> int:
        """Bits of the mantissa field."""
        return cls._format.mantissa_bits

    @property
    def inf(cls) -> float:
        """Infinity (types without one saturate when it is converted to them)."""
        return math.inf

    @property
    def neg_inf(cls) -> float:
        """Minus infinity (types without one saturate when it is converted to them)."""
        return -math.inf

    @property
    def nan(cls) -> float:
        """Not a number."""
        return math.nan

    @property
    def max(cls) -> float:
        """The largest finite value."""
        return cls._format.max

    @property
    def min(cls) -> float:
        """The smallest (most negative) finite value."""
        return -cls._format.max if cls._format.signed else cls._format.decode(0)


_NATIVE = ("Float64", "Float32", "Float16", "BFloat16")


def dtype(dtype_: str) -> Any:
    """Return the numeric type with the name `dtype_`: `dtype("Float16")` is `Float16`."""
    kind = TYPES.get(dtype_)
    if kind is None:
        raise TypeError(f"no numeric type is called {dtype_!r}; there are {', '.join(TYPES)}")
    return cast("Any", kind)


def type_of_python(value: object) -> Any:
    """Return the type a Python scalar becomes by itself."""
    if isinstance(value, bool):
        return TYPES["Boolean"]
    if isinstance(value, float):
        return TYPES["Float32"]
    if isinstance(value, int):
        for width in (32, 64, 128):
            if INTEGERS[width, True].min <= value <= INTEGERS[width, True].max:
                return INTEGERS[width, True]
        raise OverflowError(f"the int {value} does not fit in 128 bits")
    raise TypeError(f"expected a Python bool, int or float, got {type(value).__name__}")
