"""What a typed scalar is as an object: stages, errors, protocols, packing, attributes of types."""

from __future__ import annotations

import copy
import ctypes
import enum
import math
import pickle
import struct
import subprocess
import sys
from typing import Any, Optional, get_type_hints

import numpy as np
import pytest
from numeric_testing import argument

from kiln.base_dsl.diagnostics import DSLRuntimeError, DSLUserCodeRuntimeError, DSLUserCodeTypeError
from kiln.base_dsl.typing import (
    BFloat16,
    Boolean,
    Constexpr,
    DynamicExpression,
    Float,
    Float4E2M1FN,
    Float4E2M1FNx2,
    Float6E3M2FNx4,
    Float8E4M3FN,
    Float16,
    Float32,
    Float64,
    Int4,
    Int8,
    Int32,
    Int64,
    Int128,
    Integer,
    JitArgument,
    Numeric,
    TFloat32,
    Uint8,
    Uint32,
    Uint64,
    as_numeric,
    cast,
    is_constexpr,
    logical_not,
    minimum,
    select,
    zero_of,
)

# -- types ---------------------------------------------------------------------------------------------------------


def test_attributes() -> None:
    assert (Int32.width, Int32.bytes, Int32.signed, Int32.is_integer, Int32.is_float) == (32, 4, True, True, False)
    assert (Boolean.width, Boolean.bytes) == (1, 1)
    assert (Float4E2M1FN.width, Float4E2M1FN.bytes, Float4E2M1FN.n_bytes(7)) == (4, 1, 4)
    assert (Float6E3M2FNx4.width, Float6E3M2FNx4.bytes, Float4E2M1FNx2.width) == (24, 3, 8)
    assert (TFloat32.width, Uint8.signed, Float16.signed) == (32, False, True)
    assert (Float32.inf, -Float32.inf, Float32.zero, Int32.zero, Int32.one) == (math.inf, -math.inf, 0.0, 0, 1)
    assert math.isnan(Float16.nan)
    assert (Float16.max, Float8E4M3FN.max, Int8.min, Uint8.max) == (65504.0, 448.0, -128, 255)
    assert Float16.is_same_kind(Float8E4M3FN)
    assert not Float16.is_same_kind(Int8)
    assert str(Float16) == "Float16" == f"{Float16}"
    assert issubclass(Int32, Integer)
    assert issubclass(Float32, Float)
    assert Numeric.is_abstract
    assert not Int32.is_abstract
    assert (Int32.numpy_dtype, Boolean.numpy_dtype, Int128.numpy_dtype) == (np.int32, np.bool_, None)


def test_ir_types_round_trip() -> None:
    names = {Int32: "i32", Uint8: "i8", Boolean: "i1", BFloat16: "bf16", TFloat32: "tf32", Float8E4M3FN: "f8E4M3FN"}
    for t, name in names.items():
        assert str(t.mlir_type) == name
    for t in (Int8, Int32, Int64, Boolean, Float16, BFloat16, Float32, TFloat32, Float8E4M3FN, Int4):
        assert Numeric.from_mlir_type(t.mlir_type) is t
    assert str(Float16.vector_type(8)) == "vector<8xf16>"
    with pytest.raises(TypeError, match="family"):
        _ = Numeric.mlir_type


def test_importing_is_cheap() -> None:
    code = (
        "import sys, kiln.base_dsl.typing; print([m for m in ('torch_mlir', 'numpy', 'ml_dtypes') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.strip() == "[]"


def _environment() -> dict[str, str]:
    import os
    from pathlib import Path

    import kiln

    return {**os.environ, "PYTHONPATH": str(Path(kiln.__file__ or "").parent.parent)}


# -- stages --------------------------------------------------------------------------------------------------------


def test_outside_a_trace_it_is_a_plain_value() -> None:
    x = Int32(5)
    assert (str(x), repr(x), f"{x:>3}", f"{x}") == ("5", "5", "  5", "5")
    assert x.value == 5
    assert x.dtype is Int32
    assert bool(x)
    assert not Int32(0)
    assert [10, 20, 30][Int32(1)] == 20
    assert list(range(Int32(3))) == [0, 1, 2]
    assert (int(Float32(2.5)), float(Int32(2)), complex(Float32(1))) == (2, 2.0, 1 + 0j)
    assert {Int32(4): "four"}[Int32(4)] == "four"
    assert x.to(int) == 5
    assert copy.deepcopy(x) is x
    assert pickle.loads(pickle.dumps(Float16(1.5))).value == 1.5
    assert divmod(Int32(-7), 2) == (Int32(-4), Int32(1))
    assert divmod(7, Int32(-2)) == (Int32(-4), Int32(-1))


def plain_text(text: str) -> str:
    """A text that may be compared, also where it shows a dynamic value."""
    return "".join(["", text])


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t == "5", lambda t: "5" == t, lambda t: t != "5", lambda t: t < "5", hash, len, lambda t: {"5": 1}[t], lambda t: "5" in t,
        lambda t: t[0], list, lambda t: t.startswith("5"), lambda t: t.isdigit(), lambda t: ("n = " + t) == "n = 5", lambda t: (t + "!") == "",
        lambda t: f"{t}" == "5", lambda t: (t * 2) == "55",
    ],
)  # fmt: skip
def test_a_text_of_a_dynamic_value_is_not_looked_into(tracing: Any, ask: Any) -> None:
    for text in (str(Int32(5)), repr(Int32(5)), f"{Int32(5)}", format(Int32(5), ">3")):
        with pytest.raises(DSLRuntimeError, match="only known when the program runs"):
            ask(text)
        assert text


def test_inside_a_trace_it_is_an_object_stage_value(tracing: Any) -> None:
    x = Int32(5)
    assert [plain_text(t) for t in (str(x), repr(x), f"{x:>4}", str((x, x)))] == ["?", "?", "   ?", "(?, ?)"]
    assert plain_text(str(Float32(3.14))) == "?"
    assert not x.is_static
    assert x.ir_value().type == Int32.mlir_type


def test_values_made_outside_stay_plain_until_they_meet_a_dynamic_one(request: pytest.FixtureRequest) -> None:
    outside = Int32(3)
    request.getfixturevalue("tracing")
    assert str(outside) == "3"
    assert str(outside + 1) == "4"
    assert plain_text(str(outside + argument(Int32))) == "?"
    assert plain_text(str(Int32(outside))) == "?"
    assert outside.ir_value().type == Int32.mlir_type


def test_immutable() -> None:
    with pytest.raises(AttributeError):
        Int32(1).value = 2  # type: ignore[misc]


def test_constructor_takes_numbers_of_any_library() -> None:
    class Colour(enum.IntEnum):
        RED = 3

    assert Int32(np.int64(7)).value == 7
    assert Float32(np.float16(1.5)).value == 1.5
    assert (Int32(4) + np.int32(3)).value == 7
    assert Int32(Colour.RED).value == 3
    assert type(Int32(1) + Colour.RED) is Int32
    assert type(as_numeric(Colour.RED)) is Int32
    assert type(Numeric(5)) is Int32
    assert type(Float(5)) is Float32
    assert type(Integer(Uint8(5))) is Uint8


def test_ir_values_are_taken(tracing: Any) -> None:
    value = argument(Int32).ir_value()
    assert Int32(value).ir_value() == value
    assert type(Float32(value)) is Float32
    assert type(as_numeric(value)) is Int32
    assert Uint32(value).ir_value() == value
    assert argument(Float32).to(type(value)).type == Float32.mlir_type


def test_bad_arguments() -> None:
    with pytest.raises(DSLUserCodeTypeError, match="Int32 takes a Python number.*got str"):
        Int32("5")
    with pytest.raises(DSLUserCodeTypeError, match="got list"):
        Float32([1.0])
    with pytest.raises(TypeError, match="numeric type"):
        Int32(5).to("Float32")
    with pytest.raises(TypeError, match="family"):
        Int32(5).to(Numeric)
    with pytest.raises(TypeError, match="Int32 has 32, Float16 has 16"):
        Int32(5).bitcast(Float16)
    with pytest.raises(TypeError):
        as_numeric("5")
    with pytest.raises(ValueError, match="negative shift"):
        Int32(1) << -1


# -- errors where Python needs a concrete value ---------------------------------------------------------------------


def test_bool_of_a_dynamic_value(tracing: Any) -> None:
    x = argument(Int32)
    with pytest.raises(DSLRuntimeError) as caught:
        if x > 3:
            pass
    text = str(caught.value)
    assert "dynamic Boolean was used where Python needs a concrete bool" in text
    assert "help: decorate the enclosing function with @cute.jit" in text
    assert "const_expr" in text
    assert "if x > 3:" in text
    assert "test_scalars.py" in text


@pytest.mark.parametrize(
    ("use", "needs", "hint"),
    [
        (lambda x: [1, 2][x], "a concrete int", "Constexpr"),
        (lambda x: range(x), "a concrete int", "`for` statement"),
        (lambda x: int(x), "a concrete int", ".to(Int32)"),
        (lambda x: float(x), "a concrete float", ".to(Float32)"),
        (lambda x: {x: 1}, "a hashable value", "dict key"),
        (lambda x: {1: 2}.get(x), "a hashable value", "dict key"),
        (lambda x: x and 1, "a concrete bool", "@cute.jit"),
        (lambda x: not x, "a concrete bool", "@cute.jit"),
        (lambda x: pickle.dumps(x), "pickle", ""),
    ],
)
def test_dynamic_values_are_refused_where_python_needs_one(tracing: Any, use: Any, needs: str, hint: str) -> None:
    with pytest.raises(DSLRuntimeError) as caught:
        use(argument(Int32))
    assert needs in caught.value.message
    assert "Int32" in caught.value.message
    assert hint in caught.value.hint


def test_iterating_is_python_s_own_error(tracing: Any) -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(argument(Int32))


def test_dynamic_signed_exponent_is_refused(tracing: Any) -> None:
    with pytest.raises(DSLUserCodeTypeError) as caught:
        argument(Int32) ** argument(Int32)
    assert "power of a dynamic Int32" in caught.value.message
    assert "Uint32(n)" in caught.value.hint


def test_known_zero_divisor_is_refused(tracing: Any) -> None:
    with pytest.raises(DSLUserCodeRuntimeError, match="integer modulo by zero"):
        argument(Int32) % 0


def test_packed_types_do_not_compute() -> None:
    assert Float4E2M1FNx2(0x72).bitcast(Uint8).value == 0x72
    with pytest.raises(TypeError, match="packed storage"):
        Float4E2M1FNx2(1) + Float4E2M1FNx2(1)
    with pytest.raises(TypeError, match="packed storage"):
        Float4E2M1FNx2(1) + Float32(1)


def test_rounding_to_digits_of_a_dynamic_value(tracing: Any) -> None:
    with pytest.raises(TypeError, match="0 digits"):
        round(argument(Float32), 2)
    assert round(1.25, 1) == 1.2


# -- functions -----------------------------------------------------------------------------------------------------


def test_functions() -> None:
    assert select(True, Int32(1), 2).value == 1
    assert type(select(False, Int32(1), Float32(2))) is Float32
    assert select(False, 1, 2) == 2
    assert logical_not(Int32(0)).value is True
    assert logical_not([]) is True
    assert zero_of(Float16).value == 0.0
    assert cast(2.7, Int32).value == 2
    assert type(Int32(1)._leaf_min(5)) is Int32
    assert (Int32(7)._leaf_max(5).value, Boolean(True)._leaf_select(3, 4)) == (7, 3)


def test_extrema_of_what_is_not_a_number() -> None:
    with pytest.raises(TypeError, match="min of Int32 and str"):
        minimum(Int32(1), "a")


def test_functions_inside_a_trace(tracing: Any) -> None:
    x, c = argument(Int32, nonneg=True, divisibility=4), argument(Boolean)
    chosen = select(c, x, 8)
    assert (type(chosen), chosen.nonneg, chosen.divisibility) == (Int32, True, 4)
    assert type(select(c, 1, 2.5)) is Float32
    assert type(c._leaf_select(x, 3)) is Int32
    assert type(logical_not(x)) is Boolean
    with pytest.raises(TypeError, match="cannot choose"):
        select(c, x, "a")


# -- protocols and packing -----------------------------------------------------------------------------------------


def test_protocols(tracing: Any) -> None:
    x = argument(Float32)
    assert isinstance(x, JitArgument)
    assert isinstance(x, DynamicExpression)
    assert not isinstance(5, DynamicExpression)
    (value,) = x.__extract_mlir_values__()
    again = x.__new_from_mlir_values__([value])
    assert type(again) is Float32
    assert again.ir_value() == value
    assert x.__get_mlir_types__() == [Float32.mlir_type]


def test_c_pointers_point_at_the_value() -> None:
    x = Int32(-5)
    (address,) = x.__c_pointers__()
    assert ctypes.c_int32.from_address(address).value == -5
    assert x.__c_pointers__() == [address]
    assert ctypes.c_float.from_address(Float32(1.5).__c_pointers__()[0]).value is not None


@pytest.mark.parametrize(
    ("t", "value", "expected"),
    [
        (Int32, -1, struct.pack("<i4x", -1)),
        (Int32, Int32(-1), struct.pack("<i4x", -1)),
        (Int32, 0xFFFFFFFF, struct.pack("<I4x", 0xFFFFFFFF)),
        (Uint8, 200, struct.pack("<B7x", 200)),
        (Int64, -(2**63), struct.pack("<q", -(2**63))),
        (Uint64, 2**64 - 1, struct.pack("<Q", 2**64 - 1)),
        (Boolean, True, b"\x01" + bytes(7)),
        (Float32, 1.5, struct.pack("<f4x", 1.5)),
        (Float32, 1e300, struct.pack("<f4x", math.inf)),
        (Float64, 2, struct.pack("<d", 2.0)),
        (Float16, 1.5, struct.pack("<e6x", 1.5)),
        (BFloat16, 1.0, struct.pack("<H6x", 0x3F80)),
        (Float8E4M3FN, 448.0, bytes([0x7E]) + bytes(7)),
        (Float4E2M1FN, -6.0, bytes([0xF]) + bytes(7)),
        (TFloat32, 1.0, struct.pack("<f4x", 1.0)),
        (Int4, -1, bytes([0xF]) + bytes(7)),
        (Int128, -1, b"\xff" * 16),
        (Int128, 2**100, (2**100).to_bytes(16, "little")),
    ],
    ids=str,
)
def test_packing(t: Any, value: Any, expected: bytes) -> None:
    assert t._pack(value) == expected


# -- Constexpr -----------------------------------------------------------------------------------------------------


def test_constexpr_annotations() -> None:
    def function(
        a: Constexpr, b: Constexpr[int], c: "Constexpr[str]", d: Optional[Constexpr[int]], e: Int32
    ) -> None: ...

    hints = get_type_hints(function, localns={"Constexpr": Constexpr})
    assert [is_constexpr(hints[name]) for name in "abcde"] == [True, True, True, True, False]
    assert is_constexpr(Constexpr[int] | None)
    assert not is_constexpr(int | None)
    assert not is_constexpr(inspect_empty())


def inspect_empty() -> Any:
    import inspect

    return inspect.Parameter.empty
