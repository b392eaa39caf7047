"""The conversions that LLVM calls: each value, and each place where rounding changes its mind."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import DTypeLike

from kiln.targets.host import jit, soft_float
from kiln.targets.host.runtime import SOFT_FLOAT

pytestmark = pytest.mark.isa

NAMES = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double"}
TYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
NARROW = ["f16", "bf16"]
WIDE = ["f32", "f64"]
LEAST = "x86-64" if jit.host()[0].startswith("x86_64") else "generic"
"""A processor without any of the instructions, whose code runs everywhere."""


@functools.lru_cache(maxsize=None)
def _loop(body: str, source: str, target: str, least: bool = False) -> Any:
    """A function that applies code to each element of an array; `body` computes %y of %x."""
    text = f"""
    declare half @__truncsfhf2(float)\n declare half @__truncdfhf2(double)
    declare bfloat @__truncsfbf2(float)\n declare bfloat @__truncdfbf2(double)
    declare float @__extendhfsf2(half)\n declare double @__extendhfdf2(half)
    declare float @__extendbfsf2(bfloat)\n declare double @__extendbfdf2(bfloat)
    declare i16 @__gnu_f2h_ieee(float)\n declare float @__gnu_h2f_ieee(i16)
    declare half @__floattihf(i128)\n declare half @__floatuntihf(i128)
    declare i128 @__fixhfti(half)\n declare i128 @__fixunshfti(half)
    define void @run(ptr %from, ptr %to, i64 %n) {{
    entry:
      br label %loop
    loop:
      %i = phi i64 [0, %entry], [%next, %loop]
      %in = getelementptr {source}, ptr %from, i64 %i
      %out = getelementptr {target}, ptr %to, i64 %i
      %x = load {source}, ptr %in
      {body}
      store {target} %y, ptr %out
      %next = add i64 %i, 1
      %more = icmp ult i64 %next, %n
      br i1 %more, label %loop, label %end
    end:
      ret void
    }}"""
    processor = jit.supported(jit.host()[0], LEAST, "") if least else None
    library = jit.Library(jit.emit_object(jit.optimize(text, 2, processor), 2, processor), ("run",), parts=[SOFT_FLOAT])
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(library.addresses["run"])

    def call(values: np.ndarray, result: DTypeLike) -> np.ndarray:
        made = np.empty(len(values), result)
        native(values.ctypes.data, made.ctypes.data, len(values))
        return made

    call.__dict__["library"] = library
    return call


def _letters(name: str) -> str:
    return {"f16": "hf", "bf16": "bf", "f32": "sf", "f64": "df"}[name]


def _converted(values: np.ndarray, source: str, target: str, how: str) -> np.ndarray:
    """By a call of the helper, or as LLVM converts for this processor or for the least one."""
    verb = "trunc" if source in WIDE else "extend"
    a, b = NAMES[source], NAMES[target]
    if how == "called":
        body = f"%y = call {b} @__{verb}{_letters(source)}{_letters(target)}2({a} %x)"
    else:
        body = f"%y = fp{'ext' if verb == 'extend' else verb} {a} %x to {b}"
    return _loop(body, a, b, how == "least")(values, TYPES[target])


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.dtype.itemsize}")


def _codes(narrow: str) -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint16).view(TYPES[narrow])


@pytest.mark.parametrize("how", ["called", "least", "host"])
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("narrow", NARROW)
def test_every_value_is_extended_exactly(narrow: str, wide: str, how: str) -> None:
    codes = _codes(narrow)
    with np.errstate(invalid="ignore"):
        expected = codes.astype(TYPES[wide])
    got = _converted(codes, narrow, wide, how)
    nan = np.isnan(expected)
    assert np.array_equal(_bits(got)[~nan], _bits(expected)[~nan])
    assert np.isnan(got[nan]).all()
    assert np.array_equal(np.signbit(got), _bits(codes) >= 0x8000)
    back = _converted(got, wide, narrow, how)
    assert np.array_equal(_bits(back)[~nan], _bits(codes)[~nan])


@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("wide", WIDE)
def test_nan_keeps_the_top_of_its_payload_and_becomes_quiet(narrow: str, wide: str) -> None:
    infinity = 0x7C00 if narrow == "f16" else 0x7F80
    codes = _codes(narrow)[infinity + 1 : 0x8000]
    quiet = 1 << (9 if narrow == "f16" else 6)
    wider = _converted(codes, narrow, wide, "called")
    assert np.array_equal(_bits(_converted(wider, wide, narrow, "called")), _bits(codes) | quiet)
    low = _bits(wider) | 1  # what is lost
    assert np.array_equal(_bits(_converted(low.view(TYPES[wide]), wide, narrow, "called")), _bits(codes) | quiet)


@pytest.mark.parametrize("how", ["called", "least", "host"])
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("narrow", NARROW)
def test_truncation_changes_its_mind_half_way_between_neighbours(narrow: str, wide: str, how: str) -> None:
    infinity = 0x7C00 if narrow == "f16" else 0x7F80
    lower = np.arange(infinity, dtype=np.uint16)
    values = lower.view(TYPES[narrow]).astype(np.float64)
    step = values[-1] - values[-2]
    middle = ((values + np.append(values[1:], values[-1] + step)) / 2).astype(TYPES[wide])
    even = lower + (lower & 1)
    zero, huge = TYPES[wide](0), TYPES[wide](np.inf)
    for inputs, expected in (
        (middle, even),
        (np.nextafter(middle, zero), lower),
        (np.nextafter(middle, huge), lower + 1),
    ):
        assert np.array_equal(_bits(_converted(inputs, wide, narrow, how)), expected)
        assert np.array_equal(_bits(_converted(-inputs, wide, narrow, how)), expected | 0x8000)


@pytest.mark.parametrize("how", ["called", "least", "host"])
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("narrow", NARROW)
def test_truncation_of_random_bits(narrow: str, wide: str, how: str) -> None:
    kind = np.dtype(TYPES[wide])
    bits = np.random.default_rng(0).integers(0, 1 << 8 * kind.itemsize, 100_000, f"u{kind.itemsize}", False)
    values = bits.view(kind)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(TYPES[narrow])
    got = _converted(values, wide, narrow, how)
    nan = np.isnan(values)
    assert np.array_equal(_bits(got)[~nan], _bits(expected)[~nan])
    assert np.isnan(got[nan]).all()


def test_bit_patterns_in_integer_registers() -> None:
    codes = _codes("f16")
    wide = _loop("%y = call float @__gnu_h2f_ieee(i16 %x)", "i16", "float")(_bits(codes), np.float32)
    assert np.array_equal(_bits(wide), _bits(_converted(codes, "f16", "f32", "called")))
    back = _loop("%y = call i16 @__gnu_f2h_ieee(float %x)", "float", "i16")(wide, np.uint16)
    assert np.array_equal(back, _bits(_converted(wide, "f32", "f16", "called")))


@pytest.mark.parametrize("signed", [True, False])
def test_wide_integers(signed: bool) -> None:
    small = [*range(70_000), *((1 << k) + d for k in range(17, 127) for d in (-1, 0, 1))]
    numbers = small + [-n for n in small] if signed else [*small, (1 << 128) - 1]
    data = np.frombuffer(b"".join(n.to_bytes(16, "little", signed=signed) for n in numbers), "V16")
    un = "" if signed else "un"
    got = _loop(f"%y = call half @__float{un}tihf(i128 %x)", "i128", "half")(data, np.float16)
    with np.errstate(over="ignore"):
        assert np.array_equal(got, np.array([float(n) for n in numbers]).astype(np.float16))
    codes = _codes("f16")
    codes = codes[np.isfinite(codes) & (signed | (codes > -1))]
    un = "" if signed else "uns"
    back = _loop(f"%y = call i128 @__fix{un}hfti(half %x)", "half", "i128")(codes, "V16")
    assert [int.from_bytes(one.tobytes(), "little", signed=signed) for one in back] == [int(c) for c in codes]


def test_each_helper_is_tested() -> None:
    assert len(soft_float.floats.exports) == 14
