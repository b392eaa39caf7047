"""Calls of libdevice as operations that the CPU target computes as it does those of `cute.math`.

Functions whose results CUDA rounds correctly are exact here. The others have an error that CUDA's documentation states, and are at
least as close here. Other device functions from outside are refused: their bitcode is code for GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import DSLNotImplemented
from ....dialects.cute import external
from ....mlir import ir
from ...lowering.builder import Builder, int_type, parsed_type

_Function = Callable[[Builder, Sequence[ir.Value]], ir.Value]


def serve(module: ir.Module, calls: Sequence[external.Call]) -> None:
    """Replace calls of libdevice in a module, and refuse other functions from outside."""
    for call in calls:
        op = call.operation
        entry = served().get(call.symbol)
        if entry is None:
            of_libdevice = call.symbol.startswith("__nv_")
            what = "function of libdevice" if of_libdevice else f"device function of {call.library or 'a library'}"
            raise report_at(
                op.location,
                DSLNotImplemented,
                f"the CPU target does not have {call.symbol}, a {what}",
                hint="it has the functions of libdevice that cute.math has, and those that are exact; bitcode is code for GPUs: compile "
                "with target='nvidia'",
            )
        signature, function = entry
        declared = [str(value.type) for value in (*op.operands, *op.results)]
        if declared != signature:
            *taken, result = signature
            raise report_at(
                op.location,
                DSLNotImplemented,
                f"{call.symbol} takes ({', '.join(taken)}) and gives {result}, and is declared with {', '.join(declared)}",
                hint="declare it with the types of its definition",
            )
        op.results[0].replace_all_uses_with(function(Builder(ir.InsertionPoint(op), op.location), list(op.operands)))
        op.erase()
    external.drop_declarations(module)


_OF_BOTH = """
F F: acos acosh asin asinh atan atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 floor log log10 log1p log2 round rsqrt
F F: sin sinh sqrt tan tanh trunc fabs=absf rint=roundeven nearbyint=roundeven
F F F: atan2 copysign pow=powf fmax=arith.maxnumf fmin=arith.minnumf fmod=arith.remf
F F F F: fma
"""
"""Functions of f64, and with an `f` after the name of f32: types of operands and result, and the operation, of `math` by default."""
_OTHERS = """
f32 f32: fast_sinf=math.sin fast_cosf=math.cos fast_tanf=math.tan fast_tanhf=math.tanh fast_expf=math.exp fast_logf=math.log
f32 f32: fast_log2f=math.log2 fast_log10f=math.log10 fsqrt_rn=math.sqrt
f32 f32 f32: fast_powf=math.powf fast_fdividef=arith.divf fadd_rn=arith.addf fsub_rn=arith.subf fmul_rn=arith.mulf
f32 f32 f32: fdiv_rn=arith.divf
f64 f64: dsqrt_rn=math.sqrt
f64 f64 f64: dadd_rn=arith.addf dsub_rn=arith.subf dmul_rn=arith.mulf ddiv_rn=arith.divf
f32 f32 f32 f32: fmaf_rn=math.fma
f64 f64 f64 f64: fma_rn=math.fma
i32 i32: abs=math.absi brev=llvm.intr.bitreverse popc=math.ctpop clz=math.ctlz
i64 i64: llabs=math.absi brevll=llvm.intr.bitreverse
i32 i32 i32: min=arith.minsi max=arith.maxsi umin=arith.minui umax=arith.maxui
i64 i64 i64: llmin=arith.minsi llmax=arith.maxsi ullmin=arith.minui ullmax=arith.maxui
f32 i32: float2int_rz=arith.fptosi float2uint_rz=arith.fptoui float_as_int=arith.bitcast float_as_uint=arith.bitcast
f32 i64: float2ll_rz=arith.fptosi float2ull_rz=arith.fptoui
f64 i32: double2int_rz=arith.fptosi double2uint_rz=arith.fptoui
f64 i64: double2ll_rz=arith.fptosi double2ull_rz=arith.fptoui double_as_longlong=arith.bitcast
i32 f32: int2float_rn=arith.sitofp uint2float_rn=arith.uitofp int_as_float=arith.bitcast uint_as_float=arith.bitcast
i32 f64: int2double_rn=arith.sitofp uint2double_rn=arith.uitofp
i64 f32: ll2float_rn=arith.sitofp ull2float_rn=arith.uitofp
i64 f64: ll2double_rn=arith.sitofp ull2double_rn=arith.uitofp longlong_as_double=arith.bitcast
f64 f32: double2float_rn=arith.truncf
"""
_ROUNDINGS = {"rn": "math.roundeven", "rd": "math.floor", "ru": "math.ceil"}


@functools.cache
def served() -> dict[str, tuple[list[str], _Function]]:
    """Return the functions by name: the types of operands and result, and what emits them."""
    table: dict[str, tuple[list[str], _Function]] = {}

    def enter(name: str, types: str, function: _Function) -> None:
        table[f"__nv_{name}"] = (types.split(), function)

    for letter, kind in (("", "f64"), ("f", "f32")):
        for types, name, operation in _entries(_OF_BOTH.replace("F", kind)):
            enter(name + letter, types, _operation(operation, kind))
        enter(f"exp10{letter}", f"{kind} {kind}", _exp10)
        enter(f"fdim{letter}", f"{kind} {kind} {kind}", _fdim)
        enter(f"{letter or 'd'}rcp_rn", f"{kind} {kind}", _reciprocal)
    for types, name, operation in _entries(_OTHERS):
        enter(name, types, _operation(operation, types.split()[-1]))
        if name.endswith("_rz"):
            for rounding, rounds in _ROUNDINGS.items():
                enter(name.replace("_rz", f"_{rounding}"), types, _rounded(rounds, operation, types.split()[-1]))
    enter("fast_exp10f", "f32 f32", _exp10)
    enter("saturatef", "f32 f32", _saturate)
    enter("popcll", "i64 i32", _counted("math.ctpop"))
    enter("clzll", "i64 i32", _counted("math.ctlz"))
    for suffix, bits in (("", 32), ("ll", 64)):
        enter(f"ffs{suffix}", f"i{bits} i32", _first_set)
    for middle, bits in (("", 32), ("64", 64)):
        for sign, operation in (("", "arith.mulsi_extended"), ("u", "arith.mului_extended")):
            enter(f"{sign}mul{middle}hi", f"i{bits} i{bits} i{bits}", _upper_half(operation))
    for name, operation in (("isnanf", "isnan"), ("isinff", "isinf"), ("finitef", "isfinite")):
        enter(name, "f32 i32", _classified(operation))
    for name, operation in (("isnand", "isnan"), ("isinfd", "isinf"), ("isfinited", "isfinite")):
        enter(name, "f64 i32", _classified(operation))
    return table


def _entries(table: str) -> Iterator[tuple[str, str, str]]:
    """Yield types, name and operation of each entry of a table."""
    for line in table.strip().splitlines():
        types, _, entries = line.partition(": ")
        for entry in entries.split():
            name, _, operation = entry.partition("=")
            operation = operation or name
            yield types, name, operation if "." in operation else f"math.{operation}"


def _operation(name: str, result: str) -> _Function:
    """Return a function that emits an operation with a result of the type `result`."""

    def emit(b: Builder, operands: Sequence[ir.Value]) -> ir.Value:
        return b.value(name, parsed_type(result), operands)

    return emit


def _number(b: Builder, type_: ir.Type, value: float) -> ir.Value:
    return b.value("arith.constant", type_, (), {"value": ir.FloatAttr.get(type_, value, b.location)})


def _reciprocal(b: Builder, operands: Sequence[ir.Value]) -> ir.Value:
    (x,) = operands
    return b.binary("divf", _number(b, x.type, 1.0), x)


def _exp10(b: Builder, operands: Sequence[ir.Value]) -> ir.Value:
    (x,) = operands
    return b.value("math.powf", x.type, (_number(b, x.type, 10.0), x))


def _fdim(b: Builder, operands: Sequence[ir.Value]) -> ir.Value:
    x, y = operands
    less = b.value("arith.cmpf", int_type(1), (x, y), {"predicate": ir.IntegerAttr.get(int_type(64), 5)})  # ole
    return b.select(less, _number(b, x.type, 0.0), b.binary("subf", x, y))


def _saturate(b: Builder, operands: Sequence[ir.Value]) -> ir.Value:
    (x,) = operands
    above = b.binary("maxnumf", x, _number(b, x.type, 0.0))  # of NaN: 0
    return b.binary("minnumf", above, _number(b, x.type, 1.0))


def _counted(operation: str) -> _Function:
    """Return a function that counts bits."""

    def emit(b: Builder, operands: Sequence[ir.Value]) -> ir.Value:
        (x,) = operands
        count = b.value(operation, x.type, (x,))
        return b.value("arith.trunci", int_type(32), (count,)) if x.type == int_type(64) else count

    return emit


def _first_set(b: Builder, operands: Sequence[ir.Value]) -> ir.Value:
    """Return the place of the lowest bit that is set, from 1 on; 0 of 0."""
    (x,) = operands
    place = b.binary("addi", _counted("math.cttz")(b, operands), 1)
    return b.select(b.compare("eq", x, 0), b.i32(0), place)


def _upper_half(operation: str) -> _Function:
    """Return a function that gives the upper half of what two integers multiply to."""

    def emit(b: Builder, operands: Sequence[ir.Value]) -> ir.Value:
        type_ = operands[0].type
        return b.op(operation, (type_, type_), operands).results[1]

    return emit


def _rounded(rounding: str, convert: str, result: str) -> _Function:
    """Return a function that rounds to an integral value and converts it."""

    def emit(b: Builder, operands: Sequence[ir.Value]) -> ir.Value:
        (x,) = operands
        return b.value(convert, parsed_type(result), (b.value(rounding, x.type, (x,)),))

    return emit


def _classified(kind: str) -> _Function:
    """Return a function that gives 1 or 0."""

    def emit(b: Builder, operands: Sequence[ir.Value]) -> ir.Value:
        return b.value("arith.extui", int_type(32), (b.value(f"math.{kind}", int_type(1), operands),))

    return emit
