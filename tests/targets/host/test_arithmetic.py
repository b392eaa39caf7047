"""Scalar and vector arithmetic on the CPU target, against numpy and Python."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from cpu_testing import Compiled, binary, run, unary

from kiln.targets.host.faults import ZeroDivisionFault

pytestmark = pytest.mark.isa

INTS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128}


def signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def edges(width: int) -> list[int]:
    low, high = -(1 << (width - 1)), (1 << (width - 1)) - 1
    return [low, low + 1, -7, -2, -1, 0, 1, 2, 3, 7, 100, high - 1, high]


def trunc_div(a: int, b: int) -> int:
    return -(-a // b) if (a < 0) != (b < 0) else a // b


SIGNED_DIVISIONS = {
    "arith.divsi": trunc_div,
    "arith.remsi": lambda a, b: a - b * trunc_div(a, b),
    "arith.floordivsi": lambda a, b: a // b,
    "arith.ceildivsi": lambda a, b: -(-a // b),
}
UNSIGNED_DIVISIONS = {
    "arith.divui": lambda a, b: a // b,
    "arith.remui": lambda a, b: a % b,
    "arith.ceildivui": lambda a, b: -(-a // b),
}


@pytest.mark.parametrize("type_", INTS)
@pytest.mark.parametrize("name", [*SIGNED_DIVISIONS, *UNSIGNED_DIVISIONS])
def test_division(name: str, type_: str) -> None:
    width = INTS[type_]
    function = binary(name, type_)
    for a in edges(width):
        for b in edges(width):
            if b == 0:
                with pytest.raises(ZeroDivisionError):
                    function(a, b)
            elif name in SIGNED_DIVISIONS:
                assert int(function(a, b)) == signed(SIGNED_DIVISIONS[name](a, b), width), (a, b)
            else:
                mask = (1 << width) - 1
                assert int(function(a, b)) == signed(UNSIGNED_DIVISIONS[name](a & mask, b & mask), width), (a, b)


def test_division_by_zero_names_the_line_and_yields_zero() -> None:
    source = """
    func.func @f(%x: i32, %y: i32, %p: P<i32>) {
      %r = arith.divsi %x, %y : i32 loc("user.py":12:9)
      %z = arith.constant 0 : i32
      "cute.store"(%r, %p, %z) : (i32, P<i32>, i32) -> ()
      func.return
    }"""
    out = np.full(1, 9, np.int32)
    with pytest.raises(ZeroDivisionFault, match=r"user\.py:12: error: integer division or modulo by zero") as caught:
        run(source, 5, 0, out)
    assert caught.value.span is not None
    assert (caught.value.span.line, caught.value.span.column) == (12, 8)
    assert out[0] == 0


def test_vector_division_checks_every_element() -> None:
    function = binary("arith.divsi", "vector<4xi32>")
    np.testing.assert_array_equal(function([7, -7, 9, 1 << 30], [2, 2, -3, 3]), [3, -3, -3, (1 << 30) // 3])
    with pytest.raises(ZeroDivisionError):
        function([1, 2, 3, 4], [1, 1, 0, 1])


def test_division_by_a_constant_is_not_guarded() -> None:
    compiled = Compiled(
        "func.func @f(%x: i32) -> i32 { %c = arith.constant 12 : i32\n"
        "%r = arith.floordivsi %x, %c : i32\n func.return %r : i32 }"
    )
    assert compiled(-13) == -2
    assert "kiln_cpu_fault" not in compiled.executable.artifacts["llvm"]


@pytest.mark.parametrize("type_", ["i8", "i32", "i64"])
def test_shifts_past_the_width_are_defined(type_: str) -> None:
    width = INTS[type_]
    left, logical, arithmetic = (binary(f"arith.{n}", type_) for n in ("shli", "shrui", "shrsi"))
    for value in edges(width):
        for amount in (0, 1, width - 1, width, width + 1, (1 << (width - 1)) - 1, -1):
            count = amount & ((1 << width) - 1)
            assert int(left(value, amount)) == signed(value << min(count, 256), width)
            assert int(logical(value, amount)) == signed((value & ((1 << width) - 1)) >> min(count, 256), width)
            assert int(arithmetic(value, amount)) == value >> min(count, 256)


@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize(
    ("name", "type_"), [(n, t) for n in ("fptosi", "fptoui") for t in ("i1", "i4", "i8", "i32", "i64", "i128")]
)
def test_float_to_int_saturates(name: str, type_: str, source: str) -> None:
    width = int(type_[1:])
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if name == "fptosi" else (0, (1 << width) - 1)
    function = unary(f"arith.{name} %x : {source} to {type_}", source, type_)
    for value in (0.0, -0.5, 0.9, 1.0, -1.0, 2.7, -2.7, 300.0, -300.0, 6e4, 1e30, -1e30, math.inf, -math.inf, math.nan):
        exact = float(
            np.asarray(value).astype(
                ml_dtypes.bfloat16 if source == "bf16" else {"f16": "f2", "f32": "f4", "f64": "f8"}[source]
            )
        )
        want = 0 if math.isnan(exact) else low if exact <= low else high if exact >= high else int(exact)
        assert int(function(value)) & ((1 << width) - 1) == want & ((1 << width) - 1), value


def test_vector_float_to_int() -> None:
    function = unary("arith.fptosi %x : vector<4xf32> to vector<4xi32>", "vector<4xf32>", "vector<4xi32>")
    np.testing.assert_array_equal(function([1.5, -2.5, 1e20, math.nan]), [1, -2, 2**31 - 1, 0])


FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}


def some_floats(kind: type, count: int = 400) -> np.ndarray:
    width = np.dtype(kind).itemsize * 8
    random = np.random.default_rng(1)
    patterns = random.integers(0, 1 << width, count, dtype=np.uint64).astype(f"u{width // 8}")
    ordinary = random.standard_normal(count).astype(kind)
    special = np.array([0.0, -0.0, 1.0, -1.0, 0.1, math.inf, -math.inf, math.nan, 3.0, 1e-3]).astype(kind)
    return np.concatenate([patterns.view(kind), ordinary, special])


def same(a: np.ndarray, b: np.ndarray) -> None:
    a, b = np.asarray(a), np.asarray(b)
    unsigned = f"u{a.dtype.itemsize}"
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    np.testing.assert_array_equal(np.where(nan, 0, a.view(unsigned)), np.where(nan, 0, b.view(unsigned)))


def apply_over_array(body: str, source: str, result: str, values: list[np.ndarray], out: np.ndarray) -> np.ndarray:
    """Run `body`, which makes %r from %x (and %y), over whole arrays: the loop is in the compiled code."""
    loads = "".join(f'%{n} = "cute.load"(%p{n}, %k) : (P<{source}>, i32) -> {source}\n' for n in "xy"[: len(values)])
    params = ", ".join(f"%p{n}: P<{source}>" for n in "xy"[: len(values)])
    text = f"""
    func.func @f({params}, %o: P<{result}>, %n: i32) {{
      %z = arith.constant 0 : i32
      %1 = arith.constant 1 : i32
      scf.for %k = %z to %n step %1 : i32 {{
        {loads}
        {body}
        "cute.store"(%r, %o, %k) : ({result}, P<{result}>, i32) -> ()
      }}
      func.return
    }}"""
    run(text, *values, out, len(out))
    return out


@pytest.mark.parametrize("type_", FLOATS)
@pytest.mark.parametrize("name", ["addf", "subf", "mulf", "divf"])
def test_float_arithmetic_is_exactly_rounded(name: str, type_: str) -> None:
    kind = FLOATS[type_]
    x = some_floats(kind)
    y = np.random.default_rng(2).permutation(x)
    got = apply_over_array(f"%r = arith.{name} %x, %y : {type_}", type_, type_, [x, y], np.zeros_like(x))
    operation = {"addf": np.add, "subf": np.subtract, "mulf": np.multiply, "divf": np.divide}[name]
    with np.errstate(all="ignore"):
        if type_ == "bf16":
            want = operation(x.astype(np.float32), y.astype(np.float32)).astype(kind)
        else:
            want = operation(x, y)
    same(got, want)


@pytest.mark.quick(8)
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_float_conversions_round_once(source: str, target: str) -> None:
    if source == target or {source, target} == {"f16", "bf16"}:
        pytest.skip("no such conversion")
    x = some_floats(FLOATS[source], 4000)
    if source == "f64":  # close to halves of the narrow types, where rounding twice shows
        near = np.random.default_rng(3).standard_normal(4000).astype(FLOATS[target]).astype(np.float64)
        step = np.abs(near) * 2.0 ** -(9 if target == "bf16" else 12 if target == "f16" else 25)
        x = np.concatenate(
            [x, near + step, near + step * (1 + 2**-40), near + step * (1 - 2**-40), near * 1e-6, near * 3e-39]
        )
    wider = np.dtype(FLOATS[source]).itemsize < np.dtype(FLOATS[target]).itemsize
    op = "extf" if wider else "truncf"
    out = np.zeros(len(x), FLOATS[target])
    got = apply_over_array(f"%r = arith.{op} %x : {source} to {target}", source, target, [x], out)
    with np.errstate(all="ignore"):
        want = x.astype(FLOATS[target])
        if source == "f64" and target == "bf16":
            want = _round_once(x)
    same(got, want)


def _round_once(x: np.ndarray) -> np.ndarray:
    """f64 to bf16, rounding once (ml_dtypes goes through f32)."""
    from fractions import Fraction

    out = x.astype(ml_dtypes.bfloat16)
    bits = out.view(np.uint16)
    for index, value in enumerate(x):
        if not math.isfinite(value) or not math.isfinite(float(out[index])):
            continue
        best = min(
            (int(bits[index]) + d for d in (-1, 0, 1) if 0 <= (int(bits[index]) & 0x7FFF) + d < 0x7F80),
            key=lambda b: (
                abs(Fraction(float(np.array(b, np.uint16).view(ml_dtypes.bfloat16))) - Fraction(float(value))),
                b & 1,
            ),
        )
        bits[index] = best
    return out


@pytest.mark.parametrize("type_", ["f16", "bf16"])
def test_narrow_comparisons_and_minima(type_: str) -> None:
    kind = FLOATS[type_]
    x = some_floats(kind)
    y = np.random.default_rng(4).permutation(x)
    less = apply_over_array(
        f"%c = arith.cmpf olt, %x, %y : {type_}\n%r = arith.extui %c : i1 to i8",
        type_,
        "i8",
        [x, y],
        np.zeros(len(x), np.int8),
    )
    np.testing.assert_array_equal(less, (x.astype(np.float32) < y.astype(np.float32)).astype(np.int8))
    biggest = apply_over_array(f"%r = arith.maximumf %x, %y : {type_}", type_, type_, [x, y], np.zeros_like(x))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            biggest.astype(np.float32), np.maximum(x.astype(np.float32), y.astype(np.float32))
        )
    negated = apply_over_array(f"%r = arith.negf %x : {type_}", type_, type_, [x], np.zeros_like(x))
    same(negated, -x)


MATH = {
    "exp": math.exp, "exp2": lambda v: 2.0**v, "expm1": math.expm1, "log": math.log, "log2": math.log2,
    "log10": math.log10, "log1p": math.log1p, "sin": math.sin, "cos": math.cos, "tan": math.tan, "asin": math.asin,
    "acos": math.acos, "atan": math.atan, "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh, "asinh": math.asinh,
    "acosh": math.acosh, "atanh": math.atanh, "erf": math.erf, "erfc": math.erfc, "sqrt": math.sqrt,
    "rsqrt": lambda v: 1 / math.sqrt(v), "cbrt": lambda v: math.copysign(abs(v) ** (1 / 3), v), "floor": math.floor,
    "ceil": math.ceil, "trunc": math.trunc, "roundeven": round, "absf": abs,
    "round": lambda v: math.copysign(math.floor(abs(v) + 0.5), v),
}  # fmt: skip
DOMAIN = {"acosh": [1.0, 1.5, 9.0, 2.25], "asin": [0.0, -0.5, 0.99, 1.0], "acos": [0.0, -0.5, 0.99, 1.0],
          "atanh": [0.0, -0.5, 0.9, 0.25], "sqrt": [0.25, 2.0, 9.0, 0.0], "rsqrt": [0.25, 2.0, 9.0, 3.0],
          "log": [0.25, 2.0, 9.0, 1e-3], "log2": [0.25, 2.0, 9.0, 3.0], "log10": [0.25, 2.0, 9.0, 3.0],
          "log1p": [1e-7, 0.5, -0.25, 9.0]}  # fmt: skip


@pytest.mark.quick(40)
@pytest.mark.parametrize("type_", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", MATH)
def test_math(name: str, type_: str) -> None:
    kind = FLOATS[type_]
    values = np.array(DOMAIN.get(name, [0.5, -0.75, 2.5, 1e-3]), kind)
    want = np.array([MATH[name](float(v)) for v in values]).astype(kind)
    tolerance = {"f16": 1e-3, "bf16": 8e-3, "f32": 3e-7, "f64": 5e-16}[type_]
    scalar = unary(f"math.{name} %x : {type_}", type_, type_)
    got = np.array([scalar(v) for v in values])
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=0)
    vector = f"vector<4x{type_}>"
    got = unary(f"math.{name} %x : {vector}", vector, vector)(values)
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=0)


def test_binary_math() -> None:
    for type_ in ("f32", "bf16", "vector<4xf32>"):
        x, y = (2.5, 3.0) if not type_.startswith("v") else ([2.5, 1.0, 0.5, 4.0], [3.0, 2.0, 2.0, 0.5])
        np.testing.assert_allclose(np.float64(binary("math.powf", type_)(x, y)), np.power(x, y), rtol=1e-2)
        np.testing.assert_allclose(np.float64(binary("math.atan2", type_)(x, y)), np.arctan2(x, y), rtol=1e-2)
        np.testing.assert_allclose(np.float64(binary("math.copysign", type_)(x, y)), np.copysign(x, y))
        np.testing.assert_allclose(np.float64(binary("arith.remf", type_)(x, y)), np.fmod(x, y))
    assert binary("math.ipowi", "i32")(3, 4) == 81
    assert unary("math.absi %x : i32", "i32", "i32")(-5) == 5
    assert unary("math.ctpop %x : i32", "i32", "i32")(255) == 8
    assert unary("math.ctlz %x : i32", "i32", "i32")(255) == 24
    assert unary("math.isnan %x : f32", "f32", "i1")(math.nan)
    assert unary("math.isinf %x : f32", "f32", "i1")(math.inf)
    assert unary("math.isfinite %x : f32", "f32", "i1")(1.0)


def test_fma_rounds_once() -> None:
    compiled = Compiled(
        "func.func @f(%a: f32, %b: f32, %c: f32) -> f32 { %r = math.fma %a, %b, %c : f32\n func.return %r : f32 }"
    )
    a = np.float32(1 + 2**-12)
    assert compiled(a, a, -1.0) == np.float32(float(a) * float(a) - 1.0)


def test_multiply_and_add_are_not_contracted() -> None:
    compiled = Compiled(
        "func.func @f(%a: f32, %b: f32, %c: f32) -> f32 { %m = arith.mulf %a, %b : f32\n"
        "%r = arith.addf %m, %c : f32\n func.return %r : f32 }"
    )
    a = np.float32(1 + 2**-12)
    assert compiled(a, a, -1.0) == a * a - np.float32(1.0)


def test_bf16_reduction_rounds_each_step() -> None:
    values = np.array([256, 1, 1, 1], ml_dtypes.bfloat16)
    compiled = unary("vector.reduction <add>, %x : vector<4xbf16> into bf16", "vector<4xbf16>", "bf16")
    assert float(compiled(values)) == 256.0


@pytest.mark.parametrize("type_", ["i1", "i4", "i8", "i16", "i32", "i64", "i128", "f16", "bf16", "f32", "f64",
                                   "f8E4M3FN", "f8E5M2", "f4E2M1FN", "f6E2M3FN", "tf32", "index"])  # fmt: skip
def test_values_cross_the_calling_convention(type_: str) -> None:
    text = f"func.func @f(%a: {type_}, %b: i8, %c: {type_}) -> ({type_}, i8, {type_}) {{ func.return %c, %b, %a : {type_}, i8, {type_} }}"
    first, middle, last = run(text, 1, 7, 0)
    assert (float(first), int(middle), abs(float(last))) == (0.0, 7, 1.0)


def test_i128_extremes() -> None:
    assert run("func.func @f(%a: i128) -> i128 { func.return %a : i128 }", -(1 << 127)) == -(1 << 127)


def _to_8_bits(number: int) -> int:
    """The nearest number of 8 significant bits, ties to even."""
    dropped = max(number.bit_length() - 8, 0)
    kept, rest = divmod(abs(number), 1 << dropped)
    kept += 2 * rest > 1 << dropped or (2 * rest == 1 << dropped and kept % 2)
    return (kept << dropped) * (-1 if number < 0 else 1)


@pytest.mark.parametrize("kind", ["sitofp", "uitofp"])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_integers_become_bf16_with_one_rounding(width: int, kind: str) -> None:
    convert = Compiled(f"""
    func.func @f(%a: i{width}) -> bf16 {{ %r = arith.{kind} %a : i{width} to bf16\n func.return %r : bf16 }}""")
    ties = [(1 << k) + (odd << (k - 8)) + d for k in range(8, width) for odd in (1, 3, 255) for d in (-1, 0, 1)]
    numbers = [*range(300), *ties, (1 << width) - 1]
    if kind == "sitofp":
        numbers = [signed(n, width) for n in numbers] + [signed(-n, width) for n in numbers]
    else:
        numbers = [n & (1 << width) - 1 for n in numbers]
    for n in numbers:
        want = _to_8_bits(n)
        assert float(convert(n)) == (want if want < 1 << 128 else math.inf), n


def test_wide_integers_become_f16() -> None:
    convert = Compiled("""
    func.func @f(%a: i128) -> f16 { %r = arith.sitofp %a : i128 to f16\n func.return %r : f16 }""")
    for n in (0, 1, -2049, 2051, 65503, 65519, 65520, -65520, 1 << 100, -(1 << 127)):
        with np.errstate(over="ignore"):
            assert float(convert(n)) == float(np.float64(n).astype(np.float16))
