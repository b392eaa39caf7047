"""Named tuples as arguments of compiled functions: field by field, by their annotations."""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np
import pytest

import kiln
from kiln import Int32, const_expr, cute
from kiln.base_dsl.typing import get_c_pointers, get_mlir_types
from kiln.cute.runtime import from_dlpack, make_ptr

STATIC = (int, str, bool, type(None))


@pytest.fixture(params=[False, True], ids=["python", "tvm-ffi"])
def tvm_ffi(request):
    """Whether functions are compiled for TVM-FFI, which passes plain tuples, addresses, and None for constants."""
    if request.param:
        pytest.importorskip("tvm_ffi")
    return request.param


class Options(NamedTuple):
    values: cute.Tensor
    factor: Int32
    start: Optional[cute.Pointer] = None
    negative: kiln.Constexpr[bool] = False


class WithProtocols(Options):
    """The same, with the protocols that values of a trace have."""

    def _dynamic(self):
        return [x for x in self if not isinstance(x, STATIC)]

    def __get_mlir_types__(self):
        return [t for x in self._dynamic() for t in get_mlir_types(x)]

    def __c_pointers__(self):
        return [p for x in self._dynamic() for p in get_c_pointers(x)]

    def __extract_mlir_values__(self):
        return [v for x in self._dynamic() for v in kiln.extract_mlir_values(x)]

    def __new_from_mlir_values__(self, values):
        values, parts = list(values), []
        for part in self:
            count = 0 if isinstance(part, STATIC) else len(get_mlir_types(part))
            parts.append(kiln.new_from_mlir_values(part, values[:count]) if count else part)
            values = values[count:]
        return type(self)(*parts)


class Nested(NamedTuple):
    inner: Options
    shift: Int32


def _scaled(out, options, shift):
    thread = cute.arch.thread_idx()[0]
    start = 0
    if const_expr(options.start is not None):
        start = cute.make_tensor(options.start, cute.make_layout(1))[0]
    sign = -1 if const_expr(options.negative) else 1
    out[thread] = (options.values[thread] * options.factor + start) * sign + shift


@cute.kernel
def kernel(out: cute.Tensor, options: Options):
    _scaled(out, options, 0)


@cute.kernel
def nested_kernel(out: cute.Tensor, options: Nested):
    _scaled(out, options.inner, options.shift)


@cute.jit
def run(out: cute.Tensor, options: Options):
    kernel(out, options).launch(grid=1, block=4)


@cute.jit
def run_nested(out: cute.Tensor, options: Nested):
    nested_kernel(out, options).launch(grid=1, block=4)


def arrays():
    return np.array([1, 2, 3, 4], np.int32), np.array([1], np.int32), np.zeros(4, np.int32)


@pytest.mark.parametrize("kind", [Options, WithProtocols])
@pytest.mark.parametrize("calls", [1, 3], ids=["first", "again"])
def test_calls_of_a_compiled_function(kind, calls, tvm_ffi):
    values, start, out = arrays()
    with kiln.target("cpu"):
        pointer = make_ptr(Int32, start.ctypes.data, cute.AddressSpace.generic, assumed_align=4)
        options = "--enable-tvm-ffi" if tvm_ffi else ""
        example = kind(from_dlpack(values), Int32(1), pointer, True)
        compiled = cute.compile(run, from_dlpack(out), example, options=options)
        address = start.ctypes.data
        plain = lambda *fields: tuple(fields)
        for made in (kind, plain) if tvm_ffi else (kind,):
            for fields in ((values, 2, pointer, True), (values, 2, address, None))[: 1 + tvm_ffi]:
                for _ in range(calls):
                    out[:] = 0
                    compiled(out, made(*fields))
                    assert out.tolist() == [-3, -5, -7, -9]
        with pytest.raises(kiln.DSLBaseError):
            compiled(out, kind(values, 2, pointer, False))  # another constant than the one that was compiled in
        if not tvm_ffi:
            for wrong in (plain(values, 2, pointer, True), kind(values, 2, address, True)):
                with pytest.raises(kiln.DSLBaseError):
                    compiled(out, wrong)


def test_nested_ones(tvm_ffi):
    values, _, out = arrays()
    with kiln.target("cpu"):
        inner = Options(from_dlpack(values), Int32(3))
        options = "--enable-tvm-ffi" if tvm_ffi else ""
        compiled = cute.compile(run_nested, from_dlpack(out), Nested(inner, Int32(0)), options=options)
        compiled(out, Nested(Options(values, 3), 10))
        assert out.tolist() == [13, 16, 19, 22]
        if tvm_ffi:
            compiled(out, ((values, 2, None, None), 1))
            assert out.tolist() == [3, 5, 7, 9]
