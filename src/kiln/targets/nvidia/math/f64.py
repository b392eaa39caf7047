"""Functions of f64, in double arithmetic alone: no library is needed.

The largest error found over sweeps of arguments (`tests/targets/nvidia/math/test_nvidia_math64.py`), in units of the
last place: log2, log10, rsqrt, cbrt 0.51; exp, exp2, log, pow, sin, cos, acos, erf 1; expm1, log1p, cosh, asin 1.5;
tan, atan, atan2, asinh, atanh 2; tanh, sinh, acosh 2.5; erfc 4. Subnormal arguments and results are kept.

Polynomials were fitted for this file by Chebyshev interpolation. Where a result needs more than 53 bits on the way, a
number is a pair: the sum of two floats, the second at most half a unit in the last place of the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from ....mlir import context, ir
from ...lowering.builder import int_type, parsed_type
from ..device_builder import DeviceBuilder, pointer_type
from .expressions import Float, clamp, poly

_INF = float("inf")
_NAN = float("nan")
_LN2 = 0.6931471805599453
_LN2_LOW = 2.3190468138462996e-17
_LOG2E = 1.4426950408889634
_LOG2E_LOW = 2.0355273740931033e-17
_LOG10E = 0.4342944819032518
_LOG10E_LOW = 1.098319650216765e-17
_LOG10_2 = 0.3010299956639812
_LOG10_2_LOW = -2.8037281277851704e-18
_PI = 3.141592653589793
_PI_LOW = 1.2246467991473532e-16

Pair = tuple[Float, Float]


# --- pairs -----------------------------------------------------------------------------------------------------------


def _sum(a: Float, b: Float) -> Pair:
    """Return the exact sum."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _ordered_sum(a: Float, b: Float) -> Pair:
    """Return the exact sum, where b is not larger than a."""
    s = a + b
    return s, b - (s - a)


def _product(a: Float, b: Float) -> Pair:
    """Multiply exactly."""
    p = a * b
    return p, a.fma(b, -p)


def _times(a: Pair, b: Pair) -> Pair:
    high, low = _product(a[0], b[0])
    return _ordered_sum(high, low + (a[0] * b[1] + a[1] * b[0]))


def _pair(x: Float, high: float, low: float) -> Pair:
    return x.const(high), x.const(low)


# --- bits ------------------------------------------------------------------------------------------------------------


def _wide(x: Float, value: ir.Value) -> ir.Value:
    return x.b.value("arith.extsi", int_type(64), (value,))


def _power_of_two(x: Float, exponent: ir.Value) -> Float:
    """Return 2^exponent, a normal number; the exponent is an i64."""
    b = x.b
    return x.of_bits(b.binary("shli", b.binary("addi", exponent, 1023), 52))


def _scale(x: Float, exponent: ir.Value) -> Float:
    """Return x * 2^exponent for |exponent| < 2040, by two normal factors."""
    b = x.b
    half = b.binary("shrsi", exponent, 1)
    return x * _power_of_two(x, half) * _power_of_two(x, b.binary("subi", exponent, half))


def _is_negative(x: Float) -> ir.Value:
    """Return whether the sign bit is set."""
    return x.b.compare("slt", x.bits(), 0)


def _either(x: Float, *conditions: ir.Value) -> ir.Value:
    return functools.reduce(lambda a, c: x.b.binary("ori", a, c), conditions)


def _both(x: Float, *conditions: ir.Value) -> ir.Value:
    return functools.reduce(lambda a, c: x.b.binary("andi", a, c), conditions)


# --- exponentials ----------------------------------------------------------------------------------------------------

# (e^r - 1 - r) / r^2 for |r| <= ln2 / 2
_EXP = (
    2.0914686968086876e-09,
    2.5105217004720745e-08,
    2.75572736431103e-07,
    2.7557255400206422e-06,
    2.4801587325547743e-05,
    0.00019841269874820627,
    0.0013888888888883748,
    0.008333333333326136,
    0.04166666666666667,
    0.1666666666666667,
    0.5,
)
# (2^r - 1) / r for |r| <= 1/2
_EXP2 = (
    1.3716962392737587e-12,
    2.5733568308756892e-11,
    4.4455303091051067e-10,
    7.054894386348348e-09,
    1.0178086021185474e-07,
    1.3215486815999978e-06,
    1.5252733804051129e-05,
    0.00015403530393362755,
    0.0013333558146428445,
    0.009618129107628484,
    0.05550410866482158,
    0.24022650695910072,
    0.6931471805599453,
)


def _exp_parts(x: Float, tail: Float | None = None) -> tuple[Pair, ir.Value]:
    """Return (e^r - 1, n) with x + tail = r + n ln2; the tail is tiny."""
    whole = (x * _LOG2E).call("roundeven")
    rest, low = _sum(whole.fma(-_LN2, x), whole * -_LN2_LOW)
    low = low if tail is None else low + tail
    value, lost = _ordered_sum(rest, poly(rest, *_EXP) * (rest * rest))
    return (value, lost + value.fma(low, low)), _wide(x, whole.to_int())


def _exp(x: Float, tail: Float | None = None, exponent: int = 0) -> Float:
    """Return e^(x + tail) * 2^exponent; the tail is tiny."""
    (less_one, low), step = _exp_parts(clamp(x, -760.0, 720.0), tail)
    value, lost = _ordered_sum(x.const(1.0), less_one)
    result = _scale(value + (lost + low), x.b.binary("addi", step, exponent) if exponent else step)
    return x.where(x.compare("uno", x), result)


def _exp2(x: Float) -> Float:
    bounded = clamp(x, -1100.0, 1030.0)
    whole = bounded.call("roundeven")
    rest = bounded - whole
    result = _scale(poly(rest, *_EXP2).fma(rest, 1.0), _wide(x, whole.to_int()))
    return x.where(x.compare("uno", x), result)


def _expm1(x: Float) -> Float:
    (value, low), step = _exp_parts(clamp(x, -50.0, 710.0))
    # 2^n (e^r - 1) + 2^n - 1, at half its size: 2^1024 is no number
    half = _power_of_two(x, x.b.binary("subi", step, 1))
    result = (value.fma(half, half - 0.5) + half * low) * 2.0
    result = value.where(x.b.compare("eq", step, 0), result)
    result = x.where(x.compare("oeq", 0.0), result)
    return x.where(x.compare("uno", x), result)


# --- logarithms ------------------------------------------------------------------------------------------------------

# (log((1 + s) / (1 - s)) - 2 s) / s^3 in s^2
_LOG = (
    0.13086767009948175,
    0.13268759668560612,
    0.15386240205813478,
    0.18181795630884753,
    0.2222222239180047,
    0.2857142857080323,
    0.4000000000000088,
    0.6666666666666666,
)
# the same without its first term
_LOG_TAIL = (
    0.107624244195648,
    0.10456327269484514,
    0.11766813121034213,
    0.13333296534432942,
    0.15384615761170173,
    0.18181818179656925,
    0.2222222222222843,
    0.28571428571428564,
    0.4,
)
_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)


def _split(x: Float) -> tuple[Float, Float]:
    """Return (exponent, f) with x = 2^exponent * (1 + f), 1 + f in [sqrt(1/2), sqrt(2))."""
    b = x.b
    tiny = x.compare("olt", 2.2250738585072014e-308)
    scaled = (x * 18014398509481984.0).where(tiny, x)
    bits = scaled.bits()
    exponent = b.binary("shrsi", b.binary("subi", bits, 0x3FE6A09E667F3BCD), 52)
    fraction = x.of_bits(b.binary("subi", bits, b.binary("shli", exponent, 52)))
    whole = x.of_int(b.value("arith.trunci", int_type(32), (exponent,)))
    return (whole - 54.0).where(tiny, whole), fraction - 1.0


def _log_edges(x: Float, result: Float) -> Float:
    result = result.where(x.compare("olt", _INF), x)  # infinity and NaN are themselves
    result = x.const(-_INF).where(x.compare("oeq", 0.0), result)
    return x.const(_NAN).where(x.compare("olt", 0.0), result)


def _log(x: Float) -> Float:
    e, f = _split(x)
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    inner = half - ((half + poly(z, *_LOG) * z) * s + e * _LN2_LOW)
    return _log_edges(x, e.fma(_LN2, f - inner))


def _log_pair(f: Float) -> Pair:
    """Return log(1 + f) to 64 bits, for 1 + f in [sqrt(1/2), sqrt(2))."""
    t, t_low = _ordered_sum(f.const(2.0), f)
    s = f / t
    s_low = ((-s).fma(t, f) - s * t_low) / t
    z, z_low = _product(s, s)
    z_low = s.fma(s_low + s_low, z_low)
    c, c_low = _sum(f.const(_TWO_THIRDS[0]), poly(z, *_LOG_TAIL) * z)
    cube = _times(_times((z, z_low), (s, s_low)), (c, c_low + _TWO_THIRDS[1]))
    high, low = _ordered_sum(s + s, cube[0])
    return _ordered_sum(high, low + ((s_low + s_low) + cube[1]))


def _log_of_base(x: Float, factor: tuple[float, float], unit: tuple[float, float]) -> Float:
    """Return log(x) * factor, where unit is log(2) * factor."""
    e, f = _split(x)
    high, low = _times(_log_pair(f), _pair(x, *factor))
    whole, whole_low = _product(e, x.const(unit[0])) if unit != (1.0, 0.0) else (e, x.const(0.0))
    total, rest = _sum(whole, high)
    return _log_edges(x, total + (rest + (low + e.fma(unit[1], whole_low))))


def _log2(x: Float) -> Float:
    return _log_of_base(x, (_LOG2E, _LOG2E_LOW), (1.0, 0.0))


def _log10(x: Float) -> Float:
    return _log_of_base(x, (_LOG10E, _LOG10E_LOW), (_LOG10_2, _LOG10_2_LOW))


def _log1p(x: Float) -> Float:
    u, lost = _sum(x.const(1.0), x)
    logarithm = _log(u)
    result = (logarithm + lost / u).where(u.compare("olt", _INF), logarithm)
    result = x.where(u.compare("oeq", 1.0), result)
    return x.const(-_INF).where(x.compare("oeq", -1.0), result)


def _pow(x: Float, y: Float) -> Float:
    """Return e^(y log|x|), the logarithm to 64 bits, with the special cases of C's pow."""
    b = x.b
    ax = abs(x)
    ay = abs(y)
    e, f = _split(ax)
    high, low = _log_pair(f)
    whole, whole_low = _product(e, x.const(_LN2))
    total, rest = _sum(whole, high)
    logarithm = _ordered_sum(total, rest + (low + e.fma(_LN2_LOW, whole_low)))
    bounded = clamp(y, -1e20, 1e20)  # beyond it any power but that of 1 is 0 or infinite
    power, power_low = _product(logarithm[0], bounded)
    tail = logarithm[1].fma(bounded, power_low)
    result = _exp(power, tail.where(abs(power).compare("olt", 1000.0), 0.0))

    one_bit = int_type(1)
    integer = _both(x, y.call("trunc").compare("oeq", y), ay.compare("olt", _INF))
    half = y * 0.5
    odd = _both(x, integer, half.call("trunc").compare("one", half), ay.compare("olt", 9007199254740992.0))
    negative = _is_negative(x)
    # for a base of 0 or infinity the result is one or the other, by the sign of the exponent
    grows = b.value("arith.xori", one_bit, (ax.compare("oeq", 0.0), y.compare("ogt", 0.0)))
    edge = x.const(_INF).where(grows, 0.0)
    result = edge.where(_either(x, ax.compare("oeq", 0.0), ax.compare("oeq", _INF)), result)
    up = b.value("arith.xori", one_bit, (ax.compare("olt", 1.0), y.compare("ogt", 0.0)))
    at_infinity = x.const(1.0).where(ax.compare("oeq", 1.0), x.const(_INF).where(up, 0.0))
    result = at_infinity.where(ay.compare("oeq", _INF), result)
    result = (-result).where(_both(x, negative, odd), result)
    finite = _both(x, ax.compare("olt", _INF), ax.compare("ogt", 0.0), ay.compare("olt", _INF))
    no_root = _both(x, negative, finite, b.binary("xori", integer, b.const(one_bit, 1)))
    result = x.const(_NAN).where(no_root, result)
    result = (x + y).where(_either(x, x.compare("uno", x), y.compare("uno", y)), result)
    return x.const(1.0).where(_either(x, x.compare("oeq", 1.0), y.compare("oeq", 0.0)), result)


# --- angles ----------------------------------------------------------------------------------------------------------

# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 in r^2
_SIN = (
    -7.586636882825159e-13,
    1.6058530596645953e-10,
    -2.50521062259944e-08,
    2.755731921932058e-06,
    -0.0001984126984126504,
    0.008333333333333331,
    -0.16666666666666666,
)
_COS = (
    4.745838412531023e-14,
    -1.1470460319209511e-11,
    2.0876755787492604e-09,
    -2.755731922139249e-07,
    2.4801587301584632e-05,
    -0.0013888888888888887,
    0.041666666666666664,
)
_QUARTER = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
"""pi/2 in three parts."""
_SWITCH = 1073741824.0
"""Above it the quotient by pi/2 has too many bits for the quick reduction."""
_TURNS = (
    0,
    0x28BE60DB9391054A,
    0x7F09D5F47D4D3770,
    0x36D8A5664F10E410,
    0x7F9458EAF7AEF158,
    0x6DC91B8E909374B8,
    0x01924BBA82746487,
    0x3F877AC72C4A69CF,
    0xBA208D7D4BAED121,
    0x3A671C09AD17DF90,
    0x4E64758E60D4CE7D,
    0x272117E2EF7E4A0E,
    0xC7FE25FFF7816603,
    0xFBCBC462D6829B47,
    0xDB4D9FB3C9F2C26D,
    0xD3D18FD9A797FA8B,
    0x5D49EEB1FAF97C5E,
    0xCF41CE7DE294A4BA,
    0x9AFED7EC47E35742,
    0x1580CC11BF1EDAEA,
    0xFC33EF0826BD0D87,
)
"""1 / (2 pi), 64 bits at a time; the first word is what is left of the binary point."""
_TABLE = "kiln_turns"
_CONSTANT_SPACE = 4


def _reduce_angle(x: Float) -> tuple[Float, Float, ir.Value]:
    """Return (r, low, q) with x = r + low + q * pi/2 (q modulo 4, an i32) and |r| <= pi/4."""
    b = x.b
    whole = (x * 0.6366197723675814).call("roundeven")
    near = whole.fma(-_QUARTER[0], x)  # exact
    part, part_low = _product(whole, x.const(_QUARTER[1]))
    high, low = _sum(near, -part)
    high, low = _ordered_sum(high, (low - part_low) - whole * _QUARTER[2])
    branch = b.op("scf.if", [x.v.type, x.v.type, int_type(32)], (abs(x).compare("ogt", _SWITCH),), None, 2)
    for region, far in zip(branch.regions, (True, False), strict=True):
        inner = DeviceBuilder(ir.InsertionPoint(region.blocks.append()), b.location)
        x_here = Float(inner, x.v)
        r, rest, quarter = _reduce_far(x_here) if far else (high, low, Float(inner, whole.v).to_int())
        inner.op("scf.yield", (), (r.v, rest.v, quarter))
    return Float(b, branch.results[0]), Float(b, branch.results[1]), branch.results[2]


def _table_address(b: DeviceBuilder) -> ir.Value:
    """Return where `_TURNS` lies; the module gets it when first asked."""
    op = b.point.block.owner
    while op.operation.name != "builtin.module":
        op = op.operation.parent
    body = op.operation.regions[0].blocks[0]
    if not any("sym_name" in o.attributes and o.attributes["sym_name"].value == _TABLE for o in body.operations):
        words = ir.RankedTensorType.get([len(_TURNS)], int_type(64), loc=ir.Location.unknown(context()))
        signed = [word - (1 << 64) if word >> 63 else word for word in _TURNS]
        value = ir.DenseElementsAttr.get([ir.IntegerAttr.get(int_type(64), word) for word in signed], words)
        attributes = {
            "sym_name": ir.StringAttr.get(_TABLE, context()),
            "global_type": ir.TypeAttr.get(parsed_type(f"!llvm.array<{len(_TURNS)} x i64>")),
            "linkage": ir.Attribute.parse("#llvm.linkage<internal>", context()),
            "constant": ir.UnitAttr.get(context()),
            "value": value,
            "addr_space": ir.IntegerAttr.get(int_type(32), _CONSTANT_SPACE),
            "visibility_": ir.IntegerAttr.get(int_type(64), 0),
        }
        point = ir.InsertionPoint.at_block_begin(body)
        ir.Operation.create("llvm.mlir.global", attributes=attributes, regions=1, loc=b.location, ip=point)
    name = ir.FlatSymbolRefAttr.get(_TABLE, context())
    return b.value("llvm.mlir.addressof", pointer_type(_CONSTANT_SPACE), (), {"global_name": name})


def _reduce_far(x: Float) -> tuple[Float, Float, ir.Value]:
    """Reduce a large angle (Payne and Hanek): multiply its fraction by the bits of 1 / (2 pi) at its exponent."""
    b = x.b
    i32 = int_type(32)
    i64 = int_type(64)
    i128 = int_type(128)

    def wide(value: ir.Value) -> ir.Value:
        return b.value("arith.extui", i128, (value,))

    def low_half(value: ir.Value) -> ir.Value:
        return b.value("arith.trunci", i64, (value,))

    def high_half(value: ir.Value) -> ir.Value:
        return low_half(b.binary("shrui", value, b.const(i128, 64)))

    bits = x.bits()
    fraction = b.binary("ori", b.binary("andi", bits, (1 << 52) - 1), 1 << 52)
    exponent = b.binary("subi", b.binary("andi", b.binary("shrui", bits, 52), 2047), 1075)
    # x = fraction * 2^exponent: the first `exponent` bits after the point give whole turns. (Not for infinity.)
    skipped = b.binary("minsi", b.binary("addi", exponent, 64), 1035)
    word = b.binary("shrui", skipped, 6)
    shift = b.binary("andi", skipped, 63)
    start = b.gep(_table_address(b), i64, word)
    words = [b.load(i64, b.gep(start, i64, n), 8) for n in range(4)]

    def joined(high: ir.Value, low: ir.Value) -> ir.Value:
        both = b.binary("ori", b.binary("shli", wide(high), b.const(i128, 64)), wide(low))
        return high_half(b.value("llvm.shl", i128, (both, wide(shift))))

    top, middle, bottom = (joined(words[n], words[n + 1]) for n in range(3))
    factor = wide(fraction)
    lowest = b.binary("muli", factor, wide(bottom))
    second = b.binary("addi", b.binary("muli", factor, wide(middle)), wide(high_half(lowest)))
    highest = b.binary("addi", b.binary("muli", fraction, top), high_half(second))
    # the fraction of a turn, times 2^128
    turn = b.binary("ori", b.binary("shli", wide(highest), b.const(i128, 64)), wide(low_half(second)))
    quarter = b.value("arith.trunci", i32, (b.binary("shrui", high_half(turn), 62),))
    rest = b.binary("shli", turn, b.const(i128, 2))  # of a quarter, times 2^128
    above = b.compare("slt", high_half(rest), 0)
    quarter = b.select(above, b.binary("addi", quarter, 1), quarter)
    size = b.select(above, b.binary("subi", b.const(i128, 0), rest), rest)
    zeros = b.value("math.ctlz", i64, (high_half(size),))
    size = b.value("llvm.shl", i128, (size, wide(zeros)))
    high = Float(b, b.value("arith.uitofp", x.v.type, (b.binary("shrui", high_half(size), 11),)))
    next_bits = low_half(b.binary("shrui", size, b.const(i128, 22)))
    next_bits = b.binary("andi", next_bits, (1 << 53) - 1)
    low = Float(b, b.value("arith.uitofp", x.v.type, (next_bits,)))
    scale = _power_of_two(x, b.binary("subi", b.i64(-53), zeros))
    pair = _ordered_sum(high * scale, low * scale * 1.1102230246251565e-16)
    r, r_low = _times(pair, _pair(x, *_QUARTER[:2]))
    flipped = b.value("arith.xori", int_type(1), (above, x.compare("olt", 0.0)))
    r = (-r).where(flipped, r)
    r_low = (-r_low).where(flipped, r_low)
    return r, r_low, b.select(x.compare("olt", 0.0), b.binary("subi", b.i32(0), quarter), quarter)


def _sine_and_cosine(r: Float, low: Float) -> tuple[Float, Float]:
    """Return the sine and the cosine of r + low, |r| <= pi/4."""
    z = r * r
    cube = z * r
    sine = r + (poly(z, *_SIN).fma(cube, low - z * 0.5 * low))
    half = z * 0.5
    near = 1.0 - half
    cosine = near + (((1.0 - near) - half) + (poly(z, *_COS) * z).fma(z, -(r * low)))
    return sine, cosine


def _sin_cos(x: Float, shift: int) -> Float:
    """Return sin(x + shift * pi/2)."""
    b = x.b
    r, low, quarter = _reduce_angle(x)
    if shift:
        quarter = b.binary("addi", quarter, shift)
    sine, cosine = _sine_and_cosine(r, low)
    odd = b.compare("ne", b.binary("andi", quarter, 1), 0)
    flipped = b.compare("ne", b.binary("andi", quarter, 2), 0)
    result = cosine.where(odd, sine)
    result = (-result).where(flipped, result)
    if not shift:
        result = x.where(x.compare("oeq", 0.0), result)
    return result.where(abs(x).compare("olt", _INF), _NAN)


def _tan(x: Float) -> Float:
    b = x.b
    r, low, quarter = _reduce_angle(x)
    sine, cosine = _sine_and_cosine(r, low)
    odd = b.compare("ne", b.binary("andi", quarter, 1), 0)
    result = (-cosine).where(odd, sine) / sine.where(odd, cosine)
    result = x.where(x.compare("oeq", 0.0), result)
    return result.where(abs(x).compare("olt", _INF), _NAN)


# (atan(t) - t) / t^3 in t^2 for |t| <= sqrt(2) - 1
_ATAN = (
    0.01627194475162406,
    -0.034558092551413795,
    0.04551108126325172,
    -0.052303478730160745,
    0.058789145444006215,
    -0.06666423628069258,
    0.0769229630497447,
    -0.09090908751076636,
    0.11111111105106705,
    -0.14285714285659326,
    0.199999999999998,
    -0.3333333333333333,
)
# (asin(t) - t) / t^3 in t^2 for |t| <= 1/2
_ASIN = (
    0.02963502626354855,
    -0.019277545928584557,
    0.019579201619744684,
    0.0030350071727267623,
    0.009322101501082774,
    0.00962140274734483,
    0.011566511821890942,
    0.013963775787848137,
    0.017352816768546473,
    0.022372157435623815,
    0.030381944475693704,
    0.04464285714255019,
    0.07500000000000119,
    0.16666666666666666,
)


def _atan(x: Float) -> Float:
    a = abs(x)
    far = a.compare("ogt", 2.414213562373095)
    middle = a.compare("ogt", 0.41421356237309503)
    t = (-1.0 / a).where(far, ((a - 1.0) / (a + 1.0)).where(middle, a))
    base = x.const(_PI / 2).where(far, x.const(_PI / 4).where(middle, 0.0))
    base_low = x.const(_PI_LOW / 2).where(far, x.const(_PI_LOW / 4).where(middle, 0.0))
    z = t * t
    return (base + (t + (poly(z, *_ATAN) * z).fma(t, base_low))).sign_of(x)


def _atan2(y: Float, x: Float) -> Float:
    ax = abs(x)
    ay = abs(y)
    swapped = ay.compare("ogt", ax)
    high = ay.where(swapped, ax)
    low = ax.where(swapped, ay)
    ratio = x.const(1.0).where(_both(x, ax.compare("oeq", _INF), ay.compare("oeq", _INF)), low / high)
    ratio = x.const(0.0).where(high.compare("oeq", 0.0), ratio)
    angle = _atan(ratio)
    angle = (_PI / 2 - (angle - _PI_LOW / 2)).where(swapped, angle)
    angle = (_PI - (angle - _PI_LOW)).where(_is_negative(x), angle).sign_of(y)
    return (x + y).where(_either(x, x.compare("uno", x), y.compare("uno", y)), angle)


def _asin_parts(x: Float) -> tuple[ir.Value, Float, Float]:
    """Return (far, s, rest): asin|x| = s + rest; where far (|x| > 1/2), asin(sqrt((1 - |x|) / 2)) = s + rest."""
    a = abs(x)
    far = a.compare("ogt", 0.5)
    z = ((1.0 - a) * 0.5).where(far, a * a)
    root = z.call("sqrt")
    lost = (-root).fma(root, z) / (root + root)
    lost = lost.where(root.compare("ogt", 0.0), 0.0)
    s = root.where(far, a)
    return far, s, (poly(z, *_ASIN) * z).fma(s, lost.where(far, 0.0))


def _asin(x: Float) -> Float:
    far, s, rest = _asin_parts(x)
    twice = _PI / 2 - ((s + s) + ((rest + rest) - _PI_LOW / 2))
    return twice.where(far, s + rest).sign_of(x)


def _acos(x: Float) -> Float:
    far, s, rest = _asin_parts(x)
    positive = (s + rest) * 2.0
    negative = _PI - ((s + rest) * 2.0 - _PI_LOW)
    edge = negative.where(x.compare("olt", 0.0), positive)
    signed = s.sign_of(x)
    signed_rest = (-rest).where(x.compare("olt", 0.0), rest)
    middle = _PI / 2 - (signed + (signed_rest - _PI_LOW / 2))
    return edge.where(far, middle)


# --- hyperbolic functions --------------------------------------------------------------------------------------------


def _tanh(x: Float) -> Float:
    a = abs(x)
    e = _expm1(a * 2.0)
    result = (1.0 - 2.0 / (e + 2.0)).where(a.compare("ogt", 0.55), e / (e + 2.0))
    return result.where(a.compare("olt", 22.0), 1.0).sign_of(x).where(x.compare("oeq", x), x)


def _sinh(x: Float) -> Float:
    a = abs(x)
    e = _expm1(a)
    near = (e + e / (e + 1.0)) * 0.5
    return near.where(a.compare("olt", 30.0), _exp(a, exponent=-1)).sign_of(x).where(x.compare("oeq", x), x)


def _cosh(x: Float) -> Float:
    e = _exp(abs(x), exponent=-1)
    return e + 0.25 / e


def _asinh(x: Float) -> Float:
    a = abs(x)
    near = _log1p(a + a * a / ((a * a + 1.0).call("sqrt") + 1.0))
    far = _log(a) + _LN2
    return near.where(a.compare("olt", 1e8), far).sign_of(x).where(x.compare("oeq", x), x)


def _acosh(x: Float) -> Float:
    t = x - 1.0
    near = _log1p(t + (t * 2.0 + t * t).call("sqrt"))
    result = near.where(x.compare("olt", 1e8), _log(x) + _LN2)
    return x.const(_NAN).where(x.compare("olt", 1.0), result)


def _atanh(x: Float) -> Float:
    a = abs(x)
    twice = a + a
    result = _log1p(twice + twice * a / (1.0 - a)) * 0.5
    result = x.const(_INF).where(a.compare("oeq", 1.0), result)
    return x.const(_NAN).where(a.compare("ogt", 1.0), result).sign_of(x)


# --- others ----------------------------------------------------------------------------------------------------------

# erf(x) / x - 1 in x^2 for |x| <= 1
_ERF = (
    2.8054220986137053e-13,
    -6.195864282997604e-12,
    9.323460781924857e-11,
    -1.227768795002617e-09,
    1.4806021764755666e-08,
    -1.636576822227565e-07,
    1.6462110758341477e-06,
    -1.492565023604373e-05,
    0.00012055332978854427,
    -0.000854832702340254,
    0.005223977625441668,
    -0.026866170645131218,
    0.11283791670955126,
    -0.37612638903183754,
    0.1283791670955126,
)
# (1 + 2 x) e^(x^2) erfc(x) in (x - 4) / (x + 4) for x from 0.46 to 27.5
_ERFC = (
    1.5789357797075802e-09,
    2.4350950591616615e-09,
    -1.4885429137324037e-08,
    -1.981281323184303e-08,
    1.1080859856115461e-07,
    7.724329440929915e-08,
    -8.25729414300714e-07,
    2.9177677488071154e-07,
    5.709717125651087e-06,
    -1.1221050628964054e-05,
    -2.439914726264998e-05,
    0.00015062137528036495,
    -0.0001992567235176858,
    -0.000757773229745507,
    0.005031969983996305,
    -0.016197734064973088,
    0.03716751553681613,
    -0.0663303658117046,
    0.09373283499838736,
    -0.10103906603632333,
    0.06809705425469176,
    0.01537965210262002,
    -0.1396211168405625,
    1.2329951186255526,
)


def _erf_near(x: Float) -> Float:
    return poly(x * x, *_ERF).fma(x, x)


def _erfc_far(a: Float) -> Float:
    """Return erfc(a) for a of 0.46 and more."""
    a = clamp(a, 0.46, 28.0)
    square, low = _product(a, a)
    e = _exp(-square)
    e = e.fma(-low, e)
    return e * (poly((a - 4.0) / (a + 4.0), *_ERFC) / (a + a + 1.0))


def _erf(x: Float) -> Float:
    a = abs(x)
    result = _erf_near(x).where(a.compare("olt", 1.0), (1.0 - _erfc_far(a)).sign_of(x))
    result = x.where(x.compare("oeq", 0.0), result)
    return x.where(x.compare("uno", x), result)


def _erfc(x: Float) -> Float:
    a = abs(x)
    far = _erfc_far(a)
    result = (2.0 - far).where(x.compare("olt", 0.0), far)
    result = (1.0 - _erf_near(x)).where(a.compare("olt", 0.47), result)
    return x.where(x.compare("uno", x), result)


def _rsqrt(x: Float) -> Float:
    tiny = x.compare("olt", 1e-290)
    scaled = (x * 2.0**200).where(tiny, x)
    root = scaled.call("sqrt")
    y = 1.0 / root
    # both roundings undone, to first order
    better = y.fma((-root).fma(y, 1.0) - (-root).fma(root, scaled) * y * y * 0.5, y)
    better = (better * 2.0**100).where(tiny, better)
    return better.where(_both(x, x.compare("ogt", 0.0), x.compare("olt", _INF)), y)


def _cbrt(x: Float) -> Float:
    b = x.b
    a = abs(x)
    tiny = a.compare("olt", 2.2250738585072014e-308)
    bits = (a * 18014398509481984.0).where(tiny, a).bits()
    exponent = b.binary("subi", b.binary("shrui", bits, 52), 1023)
    third = b.binary("subi", b.binary("divui", b.binary("addi", exponent, 1500), 3), 500)
    m = x.of_bits(b.binary("subi", bits, b.binary("shli", b.binary("muli", third, 3), 52)))  # in [1, 8)
    y = poly(m, 0.0016274953380330931, -0.03402605365290486, 0.3288364544631474, 0.7167346418604423)
    for _ in range(2):
        cube = y * y * y
        y = y * ((cube + (m + m)) / (cube + cube + m))
    square, low = _product(y, y)
    y = y - (square.fma(y, -m) + low * y) / (square * 3.0)
    third = b.select(tiny, b.binary("subi", third, 18), third)
    result = (y * _power_of_two(x, third)).sign_of(x)
    ordinary = _both(x, a.compare("olt", _INF), a.compare("ogt", 0.0))
    return result.where(ordinary, x)


FUNCTIONS: dict[str, Callable[..., Float]] = {
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
    "erfc": _erfc,
    "rsqrt": _rsqrt,
    "powf": _pow,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
    "cbrt": _cbrt,
}
"""The functions by the names of operations of `math`."""
