"""Functions of `math` that NVPTX has no instruction for, without a library.

f32, with the largest error found over a sweep of arguments (`tests/gpu`), in units of the last place: exp 1; exp2 2.1,
rsqrt 2; log, log2, log10, log1p, expm1, sin, cos, erf, tanh 2; atan, asin 3; tan, acos, atan2, sinh, cosh 4; pow 1.
Subnormal arguments and results are kept. f16 and bf16 are computed in f32. f64, and acosh, asinh, atanh, cbrt and erfc
of every type: `f64.py`.

Under `fastmath<afn>` (or `fast`) exp, exp2, log, log2, sin, cos, tanh, rsqrt are the hardware's approximations.

Polynomials: sin, cos, tan, tanh, sinh, atan, asin and log from Cephes (S. Moshier); erf after N. Juffa.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import DSLNotImplemented
from ....mlir import context, ir
from ...lowering.arithmetic import element_of
from ...lowering.builder import flat_type, int_type, reshape
from ...lowering.builder import function as new_function
from ...lowering.expansion import KEEP, Handlers
from ..device_builder import DeviceBuilder
from ..ops.math import approx
from .expressions import Float, clamp, poly

if TYPE_CHECKING:
    from ..expand import Expander

OUTLINED = "kiln_f64_"
"""The prefix of functions that LLVM may inline or call; others are inlined."""


def _f32() -> ir.Type:
    return ir.F32Type.get(context())


def _f64() -> ir.Type:
    return ir.F64Type.get(context())


# --- f32 -------------------------------------------------------------------------------------------------------------


def _scale(x: Float, exponent: ir.Value) -> Float:
    """Return x * 2^exponent for |exponent| < 250, by two normal factors."""
    b = x.b
    half = b.binary("shrsi", exponent, 1)
    for part in (half, b.binary("subi", exponent, half)):
        x = x * x.of_bits(b.binary("shli", b.binary("addi", part, 127), 23))
    return x


_LOG2E = 1.44269504088896341
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.42860682030941723212e-6
_INF = float("inf")
_NAN = float("nan")


def _exp2(x: Float) -> Float:
    return Float(x.b, approx(x.b, "ex2", x.v, ftz=False))


def _exp(x: Float, exponent: int = 0) -> Float:
    """Return e^x * 2^exponent."""
    bounded = clamp(x, -110.0, 100.0)
    whole = (bounded * _LOG2E).call("roundeven")
    rest = whole.fma(-_LN2_HIGH, bounded)
    rest = whole.fma(-_LN2_LOW, rest)
    # e^rest within |rest| <= ln2/2 by a polynomial: 1 ulp, where ex2.approx would give 2
    p = poly(rest, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
    result = p.fma(rest * rest, rest) + 1.0
    step = whole.to_int()
    result = _scale(result, x.b.binary("addi", step, exponent) if exponent else step)
    return x.where(x.compare("uno", x), result)


def _expm1(x: Float) -> Float:
    p = poly(x, 1 / 40320, 1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5)
    small = p.fma(x * x, x)
    return _keep_zero(x, small.where(abs(x).compare("olt", 0.5), _exp(x) - 1.0))


def _keep_zero(x: Float, result: Float) -> Float:
    """Return -0 for -0, to which adding the terms of a series gives 0."""
    return x.where(x.compare("oeq", 0.0), result)


def _log_parts(x: Float) -> tuple[Float, Float, Float]:
    """Return (exponent, f, y) with x = 2^exponent * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), and log(1 + f) = f + y."""
    b = x.b
    tiny = x.compare("olt", 1.17549435e-38)
    scaled = (x * 8388608.0).where(tiny, x)
    bits = scaled.bits()
    # subtracting the bits of sqrt(1/2) puts the fraction into the wanted interval
    shifted = b.binary("subi", bits, 0x3F3504F3)
    exponent = b.binary("shrsi", shifted, 23)
    fraction = x.of_bits(b.binary("subi", bits, b.binary("shli", exponent, 23)))
    whole = x.of_int(exponent)
    whole = (whole - 23.0).where(tiny, whole)
    f = fraction - 1.0
    z = f * f
    p = poly(
        f,
        7.0376836292e-2,
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    )
    return whole, f, (p * f).fma(z, z * -0.5)


def _log_edges(x: Float, result: Float) -> Float:
    result = result.where(x.compare("olt", _INF), x)  # infinity and NaN are themselves
    result = x.const(-_INF).where(x.compare("oeq", 0.0), result)
    return x.const(_NAN).where(x.compare("olt", 0.0), result)


def _log(x: Float) -> Float:
    e, f, y = _log_parts(x)
    return _log_edges(x, e.fma(0.693359375, f + e.fma(-2.12194440e-4, y)))


def _log2(x: Float) -> Float:
    e, f, y = _log_parts(x)
    rest = f.fma(0.44269504088896340736, y * 0.44269504088896340736)
    return _log_edges(x, ((rest + y) + f) + e)


def _log10(x: Float) -> Float:
    e, f, y = _log_parts(x)
    rest = (f + y) * 7.00731903251827651129e-4
    rest = y.fma(4.3359375e-1, rest)
    rest = f.fma(4.3359375e-1, rest)
    rest = e.fma(2.48745663981195213739e-4, rest)
    return _log_edges(x, e.fma(3.0078125e-1, rest))


def _log1p(x: Float) -> Float:
    u = x + 1.0
    # what rounding 1 + x lost, put back
    logarithm = _log(u)
    corrected = logarithm + (x - (u - 1.0)) / u
    result = corrected.where(abs(u).compare("olt", _INF), logarithm)
    result = x.where(u.compare("oeq", 1.0), result)
    return x.const(-_INF).where(x.compare("oeq", -1.0), result)


_SWITCH = 48039.0
"""Larger arguments have too few exact bits in the quotient by pi/2 for the quick reduction."""


def _reduce_angle(x: Float) -> tuple[Float, ir.Value]:
    """Return (r, q) with x = r + q * pi/2 (q modulo 4) and |r| <= pi/4."""
    b = x.b
    whole = (x * 0.63661977236758134308).call("roundeven")
    r = whole.fma(-1.5707962512969971, x)
    r = whole.fma(-7.5497894158615964e-08, r)
    r = whole.fma(-5.3903029534742384e-15, r)
    branch = b.op("scf.if", [x.v.type, int_type(32)], (abs(x).compare("ogt", _SWITCH),), None, 2)
    for region, far in zip(branch.regions, (True, False), strict=True):
        inner = DeviceBuilder(ir.InsertionPoint(region.blocks.append()), b.location)
        angle, quarter = _reduce_far(Float(inner, x.v)) if far else (r, Float(inner, whole.v).to_int())
        inner.op("scf.yield", (), (angle.v, quarter))
    return Float(b, branch.results[0]), branch.results[1]


_TURNS = (0, 0x28BE60DB, 0x9391054A, 0x7F09D5F4, 0x7D4D3770, 0x36D8A566, 0x4F10E410, 0x7F9458EA)
"""1 / (2 pi) in words of 32 bits; the first word is left of the binary point."""


def _reduce_far(x: Float) -> tuple[Float, ir.Value]:
    """Reduce a large angle (Payne and Hanek): multiply its fraction by the bits of 1 / (2 pi) at its exponent."""
    b = x.b
    i32 = int_type(32)
    i64 = int_type(64)

    def wide(value: ir.Value) -> ir.Value:
        return b.value("arith.extui", i64, (value,))

    bits = x.bits()
    fraction = b.binary("ori", b.binary("shli", b.binary("andi", bits, 0x7FFFFF), 8), 0x80000000)
    exponent = b.binary("subi", b.binary("andi", b.binary("shrui", bits, 23), 255), 126)
    word = b.binary("shrui", exponent, 5)
    shift = b.binary("andi", exponent, 31)

    def chosen(offset: int) -> ir.Value:
        """Word `word + offset` of the constant, by selection: a table would lie in memory."""
        turns = b.i32(0)
        for number in range(5):  # exponents of f32 need words 0 to 4
            turns = b.select(b.compare("eq", word, number), b.i32(_TURNS[number + offset]), turns)
        return turns

    w = [wide(chosen(n)) for n in range(4)]
    by = wide(shift)

    def joined(high: ir.Value, low: ir.Value) -> ir.Value:
        both = b.binary("ori", b.binary("shli", high, 32), low)
        return b.binary("andi", b.binary("shrui", b.value("llvm.shl", i64, (both, by)), 32), 0xFFFFFFFF)

    high, middle, low = (joined(w[n], w[n + 1]) for n in range(3))
    factor = wide(fraction)
    product = b.binary("shrui", b.binary("muli", factor, low), 32)
    product = b.binary("addi", b.binary("muli", factor, middle), product)
    product = b.binary("addi", b.binary("shli", b.binary("muli", factor, high), 32), product)
    quarter = b.value("arith.trunci", i32, (b.binary("shrui", product, 62),))
    rest = b.binary("andi", product, (1 << 62) - 1)
    above = b.compare("ne", b.binary("andi", rest, 1 << 61), 0)
    rest = b.select(above, b.binary("subi", rest, 1 << 62), rest)
    quarter = b.select(above, b.binary("addi", quarter, 1), quarter)
    exact = Float(b, b.value("arith.sitofp", _f64(), (rest,)))
    r = (exact * 3.4061215800304344e-19).as_type(x.v.type)  # pi/2 * 2^-62
    negative = x.compare("olt", 0.0)
    return (-r).where(negative, r), b.select(negative, b.binary("subi", b.i32(0), quarter), quarter)


def _sin_cos(x: Float, shift: int) -> Float:
    """Return sin(x + shift * pi/2)."""
    b = x.b
    r, quarter = _reduce_angle(x)
    if shift:
        quarter = b.binary("addi", quarter, shift)
    z = r * r
    sine = (poly(z, -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1) * z).fma(r, r)
    cosine = (poly(z, 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2) * z).fma(z, z.fma(-0.5, 1.0))
    odd = b.compare("ne", b.binary("andi", quarter, 1), 0)
    result = cosine.where(odd, sine)
    flipped = b.compare("ne", b.binary("andi", quarter, 2), 0)
    result = (-result).where(flipped, result)
    result = result if shift else _keep_zero(x, result)
    return result.where(abs(x).compare("olt", _INF), _NAN)


def _tan(x: Float) -> Float:
    b = x.b
    r, quarter = _reduce_angle(x)
    z = r * r
    p = poly(
        z, 9.38540185543e-3, 3.11992232697e-3, 2.44301354525e-2, 5.34112807005e-2, 1.33387994085e-1, 3.33331568548e-1
    )
    tangent = (p * z).fma(r, r)
    odd = b.compare("ne", b.binary("andi", quarter, 1), 0)
    result = _keep_zero(x, (-1.0 / tangent).where(odd, tangent))
    return result.where(abs(x).compare("olt", _INF), _NAN)


def _tanh(x: Float) -> Float:
    z = x * x
    p = poly(z, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
    small = (p * z).fma(x, x)
    large = (1.0 - 2.0 / (_exp(abs(x) * 2.0) + 1.0)).sign_of(x)
    return _keep_zero(x, small.where(abs(x).compare("olt", 0.625), large))


def _sinh(x: Float) -> Float:
    z = x * x
    small = (poly(z, 2.03721912945e-4, 8.33028376239e-3, 1.66667160211e-1) * z).fma(x, x)
    e = _exp(abs(x), -1)  # half of e^|x|, which itself overflows earlier than the result
    return small.where(abs(x).compare("olt", 1.0), (e - 0.25 / e).sign_of(x))


def _cosh(x: Float) -> Float:
    e = _exp(abs(x), -1)
    return e + 0.25 / e


def _atan(x: Float) -> Float:
    a = abs(x)
    far = a.compare("ogt", 2.414213562373095)
    middle = a.compare("ogt", 0.4142135623730950)
    t = (-1.0 / a).where(far, ((a - 1.0) / (a + 1.0)).where(middle, a))
    base = x.const(1.5707963267948966).where(far, x.const(0.7853981633974483).where(middle, 0.0))
    z = t * t
    p = poly(z, 8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
    return (base + (p * z).fma(t, t)).sign_of(x)


def _atan2(y: Float, x: Float) -> Float:
    b = x.b
    ax = abs(x)
    ay = abs(y)
    swapped = ay.compare("ogt", ax)
    high = ay.where(swapped, ax)
    low = ax.where(swapped, ay)
    both_infinite = b.binary("andi", ax.compare("oeq", _INF), ay.compare("oeq", _INF))
    ratio = low / high
    ratio = x.const(1.0).where(both_infinite, ratio)
    ratio = x.const(0.0).where(high.compare("oeq", 0.0), ratio)
    angle = _atan(ratio)
    angle = (1.5707963267948966 - angle).where(swapped, angle)
    negative = b.compare("slt", x.bits(), 0)
    angle = (3.14159265358979323846 - angle).where(negative, angle).sign_of(y)
    nan = b.binary("ori", x.compare("uno", x), y.compare("uno", y))
    return (x + y).where(nan, angle)


def _asin_poly(z: Float, x: Float) -> Float:
    p = poly(z, 4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
    return (p * z).fma(x, x)


def _asin(x: Float) -> Float:
    a = abs(x)
    far = a.compare("ogt", 0.5)
    z = ((1.0 - a) * 0.5).where(far, a * a)
    root = z.call("sqrt")
    value = _asin_poly(z, root.where(far, a))
    return (1.57079632679489661923 - (value + value)).where(far, value).sign_of(x)


def _acos(x: Float) -> Float:
    a = abs(x)
    far = a.compare("ogt", 0.5)
    z = ((1.0 - a) * 0.5).where(far, a * a)
    value = _asin_poly(z, z.call("sqrt").where(far, x))
    twice = value + value
    edge = (3.14159265358979323846 - twice).where(x.compare("olt", 0.0), twice)
    return edge.where(far, 1.57079632679489661923 - value)


def _erf(x: Float) -> Float:
    t = abs(x)
    s = x * x
    r = t.fma(-1.72853470e-5, 3.83197126e-4)
    u = t.fma(-3.88396438e-3, 2.42546219e-2)
    r = r.fma(s, u)
    for c in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = r.fma(t, c)
    far = (1.0 - _exp(r.fma(t, -t))).sign_of(x)
    p = poly(s, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
    near = p.fma(x, x)
    result = far.where(t.compare("ogt", 0.927734375), near)
    return x.where(x.compare("uno", x), result)


def _rsqrt(x: Float) -> Float:
    return Float(x.b, approx(x.b, "rsqrt", x.v, ftz=False))


def _pow(x: Float, y: Float) -> Float:
    """Return 2^(y log2 |x|), computed in f64, with the special cases of C's pow."""
    b = x.b
    i64 = int_type(64)
    magnitude = abs(x).as_type(_f64())
    bits = magnitude.bits()
    shifted = b.binary("subi", bits, 0x3FE6A09E667F3BCD)
    exponent = b.binary("shrsi", shifted, 52)
    fraction = magnitude.of_bits(b.binary("subi", bits, b.binary("shli", exponent, 52)))
    s = (fraction - 1.0) / (fraction + 1.0)
    z = s * s
    series = poly(z, *(2.8853900817779268 / n for n in (17, 15, 13, 11, 9, 7, 5, 3, 1)))
    logarithm = Float(b, b.value("arith.sitofp", _f64(), (exponent,))) + series * s
    power = clamp(y.as_type(_f64()) * logarithm, -1000.0, 1000.0)
    whole = power.call("roundeven")
    rest = (power - whole) * 0.69314718055994530942
    factorials = [1.0]
    for n in range(1, 12):
        factorials.append(factorials[-1] * n)
    value = poly(rest, *(1 / factorials[n] for n in range(11, -1, -1)))
    step = b.value("arith.extsi", i64, (whole.to_int(),))
    scale = value.of_bits(b.binary("shli", b.binary("addi", step, 1023), 52))
    result = (value * scale).as_type(x.v.type)

    ay = abs(y)
    ax = abs(x)
    integer = b.binary("andi", y.call("trunc").compare("oeq", y), ay.compare("olt", _INF))
    half = y * 0.5
    odd = b.binary("andi", integer, half.call("trunc").compare("one", half))
    odd = b.binary("andi", odd, ay.compare("olt", 16777216.0))
    negative = b.compare("slt", x.bits(), 0)
    zero_or_infinite = b.binary("ori", ax.compare("oeq", 0.0), ax.compare("oeq", _INF))
    # for a base of 0 or infinity the result is one or the other, by the sign of the exponent
    grows = b.value("arith.xori", int_type(1), (ax.compare("oeq", 0.0), y.compare("ogt", 0.0)))
    edge = x.const(_INF).where(grows, 0.0)
    result = edge.where(zero_or_infinite, result)
    up = b.value("arith.xori", int_type(1), (ax.compare("olt", 1.0), y.compare("ogt", 0.0)))
    at_infinity = x.const(_INF).where(up, 0.0)
    at_infinity = x.const(1.0).where(ax.compare("oeq", 1.0), at_infinity)
    result = at_infinity.where(ay.compare("oeq", _INF), result)
    result = (-result).where(b.binary("andi", negative, odd), result)
    finite_base = b.binary("andi", ax.compare("olt", _INF), ax.compare("ogt", 0.0))
    no_root = b.binary(
        "andi", b.binary("andi", negative, finite_base), b.binary("xori", integer, b.const(int_type(1), 1))
    )
    no_root = b.binary("andi", no_root, ay.compare("olt", _INF))
    result = x.const(_NAN).where(no_root, result)
    nan = b.binary("ori", x.compare("uno", x), y.compare("uno", y))
    result = (x + y).where(nan, result)
    one = b.binary("ori", x.compare("oeq", 1.0), y.compare("oeq", 0.0))
    return x.const(1.0).where(one, result)


# --- registering -----------------------------------------------------------------------------------------------------

_FUNCTIONS: dict[str, Callable[..., Float]] = {
    "exp2": _exp2,
    "exp": _exp,
    "expm1": _expm1,
    "log": _log,
    "log2": _log2,
    "log10": _log10,
    "log1p": _log1p,
    "sin": lambda x: _sin_cos(x, 0),
    "cos": lambda x: _sin_cos(x, 1),
    "tan": _tan,
    "tanh": _tanh,
    "sinh": _sinh,
    "cosh": _cosh,
    "atan": _atan,
    "atan2": _atan2,
    "asin": _asin,
    "acos": _acos,
    "erf": _erf,
    "rsqrt": _rsqrt,
    "powf": _pow,
}
_ONLY_WIDE = ("acosh", "asinh", "atanh", "cbrt", "erfc")
"""Computed in f64 for every type."""


def _fast(kind: str, factor: float = 1.0, then: float = 1.0) -> Callable[[Float], Float]:
    def compute(x: Float) -> Float:
        x = x * factor if factor != 1.0 else x
        result = Float(x.b, approx(x.b, kind, x.v))
        return result * then if then != 1.0 else result

    return compute


_FAST: dict[str, Callable[[Float], Float]] = {
    "exp2": _fast("ex2"),
    "exp": _fast("ex2", _LOG2E),
    "log2": _fast("lg2"),
    "log": _fast("lg2", 1.0, 0.69314718055994531),
    "log10": _fast("lg2", 1.0, 0.30102999566398120),
    "sin": _fast("sin"),
    "cos": _fast("cos"),
    "tanh": _fast("tanh"),
    "rsqrt": _fast("rsqrt"),
    "sqrt": _fast("sqrt"),
}


def _is_fast(op: ir.Operation) -> bool:
    flags = str(op.attributes["fastmath"]) if "fastmath" in op.attributes else ""
    return "afn" in flags or "fast>" in flags


def _expand(x: Expander, op: ir.Operation, b: DeviceBuilder) -> Any:
    name = op.name.removeprefix("math.")
    result = op.results[0].type
    element = element_of(result)
    fast = _is_fast(op) and name in _FAST
    if name == "sqrt" and not fast:
        return KEEP  # correctly rounded by the hardware
    if isinstance(element, ir.F64Type) or name in _ONLY_WIDE:
        function = _in_f64(x, b, name, len(op.operands), element)
    elif isinstance(element, (ir.F32Type, ir.F16Type, ir.BF16Type)):
        compute = _FAST[name] if fast else _FUNCTIONS[name]
        function = _in_f32(b, compute, element)
    else:
        raise report_at(op.location, DSLNotImplemented, f"the NVIDIA target has no {name} of {element}")
    return _each(b, list(op.operands), result, function)


def _in_f32(
    b: DeviceBuilder, compute: Callable[..., Float], element: ir.Type
) -> Callable[[Sequence[ir.Value]], ir.Value]:
    def function(values: Sequence[ir.Value]) -> ir.Value:
        return compute(*(Float(b, value).as_type(_f32()) for value in values)).as_type(element).v

    return function


def _in_f64(
    x: Expander, b: DeviceBuilder, name: str, arity: int, element: ir.Type
) -> Callable[[Sequence[ir.Value]], ir.Value]:
    """Return a function that calls one of the module: its body is long, and LLVM decides whether to inline it."""
    from .f64 import FUNCTIONS

    symbol = f"{OUTLINED}{name}"
    if symbol not in x.module.declared:
        x.module.declared.add(symbol)
        func = new_function(x.module.module, symbol, [_f64()] * arity, [_f64()])
        block = func.regions[0].blocks[0]
        inner = DeviceBuilder(ir.InsertionPoint(block), ir.Location.unknown(context()))
        result = FUNCTIONS[name](*(Float(inner, argument) for argument in block.arguments))
        inner.op("func.return", (), (result.v,))

    def function(values: Sequence[ir.Value]) -> ir.Value:
        wide = [Float(b, value).as_type(_f64()).v for value in values]
        return Float(b, b.call(symbol, [_f64()], wide).results[0]).as_type(element).v

    return function


def _each(
    b: DeviceBuilder, operands: list[ir.Value], result: ir.Type, function: Callable[[Sequence[ir.Value]], ir.Value]
) -> ir.Value:
    """Return a function of each element."""
    if not isinstance(result, ir.VectorType):
        return function(operands)
    flat: Any = flat_type(result)
    operands = [reshape(b, value, flat) for value in operands]
    elements: list[ir.Value] = []
    for number in range(flat.shape[0]):
        elements.append(function([b.element(value, number) for value in operands]))
    return reshape(b, b.value("vector.from_elements", flat, elements), result)


HANDLERS = Handlers()
HANDLERS.expands(*(f"math.{name}" for name in (*_FUNCTIONS, *_ONLY_WIDE, "sqrt")))(_expand)
