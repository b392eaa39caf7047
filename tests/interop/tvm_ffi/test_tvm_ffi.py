"""Compiled functions as TVM-FFI's: through Python, through its registry (so by native code alone), and what is refused."""

import ctypes
import gc
import os
import resource
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from exporting import build, needs_compiler

import kiln.cute as cute
from kiln import Boolean, Float32, Float64, Int32, Int64
from kiln.cute.runtime import from_dlpack, load_module, make_fake_stream, make_ptr

tvm_ffi = pytest.importorskip("tvm_ffi")

OPTION = "--enable-tvm-ffi"
LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")


def by_registry(function):
    """The same function as C++ and other languages find it."""
    tvm_ffi.register_global_func("kiln.test", function, override=True)
    found = tvm_ffi.get_global_func("kiln.test")
    assert type(found) is tvm_ffi.Function
    return found


@cute.kernel
def scaled(x: cute.Tensor, y: cute.Tensor, by: Float32):
    thread, _, _ = cute.arch.thread_idx()
    if thread < x.shape[0]:
        y[thread] = x[thread] * by


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, by: Float32 = 2.0):
    scaled(x, y, by).launch(grid=1, block=32)


def row(count=8):
    return np.arange(count, dtype=np.float32)


def frozen(array):
    array.flags.writeable = False
    return array


def dynamic(array):
    return from_dlpack(array).mark_layout_dynamic()


@pytest.fixture(scope="module")
def compiled():
    return cute.compile(scale, dynamic(row()), dynamic(row()), 1.0, options=OPTION)


def test_a_compiled_function_is_one_of_tvm_ffi(compiled):
    assert isinstance(compiled, tvm_ffi.Function)
    assert "scale(x: Tensor([?], Float32)" in repr(compiled)
    assert compiled.executable is compiled.compiled.executable  # what TVM-FFI's lack is the compiled function's
    with pytest.raises(AttributeError, match="nonsense"):
        compiled.nonsense


def test_python_calls_have_keywords_and_defaults(compiled):
    out = np.zeros(8, np.float32)
    compiled(row(), y=out, by=3.0)
    assert np.array_equal(out, 3 * row())
    compiled(row(), out)
    assert np.array_equal(out, 2 * row())


@pytest.mark.parametrize("count", [1, 5, 31])
def test_the_registry_calls_it_with_any_extent(compiled, count):
    out = np.zeros(count, np.float32)
    by_registry(compiled)(row(count), out, 4)  # an int for a float is taken
    assert np.array_equal(out, 4 * row(count))


def test_the_registry_takes_tensors_of_all_kinds(compiled):
    torch = pytest.importorskip("torch")
    function, out = by_registry(compiled), torch.zeros(4)
    function(torch.arange(9.0)[3:7], out, 1.0)  # an offset
    assert out.tolist() == [3, 4, 5, 6]
    function(tvm_ffi.from_dlpack(row(4)), from_dlpack(out), 1.0)
    assert out.tolist() == [0, 1, 2, 3]
    function(torch.zeros(0), torch.zeros(0), 1.0)  # nothing to do


def test_calls_in_threads(compiled):
    function, wrong = by_registry(compiled), []

    def work(by):
        out = np.zeros(8, np.float32)
        for _ in range(100_000 if LONG else 200):
            function(row(), out, float(by))
        if not np.array_equal(out, by * row()):
            wrong.append(by)

    threads = [threading.Thread(target=work, args=(by,)) for by in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_function_lives_as_long_as_a_handle():
    function = by_registry(cute.compile(scale, from_dlpack(row()), from_dlpack(row()), 1.0, options=OPTION))
    gc.collect()
    out = np.zeros(8, np.float32)
    function(row(), out, 5.0)
    assert np.array_equal(out, 5 * row())


@pytest.mark.skipif(not LONG, reason="a million calls; set KILN_LONG_TESTS=1")
def test_calls_leave_nothing_behind(compiled):
    function, x, out = by_registry(compiled), row(), np.zeros(8, np.float32)

    def call(times):
        for _ in range(times):
            function(x, out, 2.0)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert call(1_000_000) - call(10_000) < 4096  # KiB


WRONG = {
    "too few": (lambda x, y: (x,), TypeError, "scale needs y"),
    "too many": (lambda x, y: (x, y, 1.0, 2.0), TypeError, "3 arguments"),
    "None": (lambda x, y: (x, None, 1.0), TypeError, "'y'.*got None"),
    "a number for a tensor": (lambda x, y: (x, 3, 1.0), TypeError, "'y'"),
    "dtype": (lambda x, y: (x, y.astype(np.float64), 1.0), ValueError, r"#1 \('y'\).*Float64"),
    "rank": (lambda x, y: (x[None], y, 1.0), ValueError, r"#0 \('x'\).*2 modes"),
    "stride": (lambda x, y: (x[::2], y, 1.0), ValueError, "stride of mode 0 is 2, not 1"),
    "read-only": (lambda x, y: (x, frozen(y), 1.0), (ValueError, BufferError), "(?i)read-?only"),
    "no elements": (lambda x, y: (x[:0], y[None], 1.0), ValueError, r"#1 \('y'\).*2 modes"),
    "text": (lambda x, y: (x, y, "x"), TypeError, "'by' of scale takes Float32"),
    "too large for f32": (lambda x, y: (x, y, 1e300), TypeError, "1e\\+300"),
}


@pytest.mark.parametrize("way", ["python", "registry"])
@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(compiled, name, way):
    arguments, kind, text = WRONG[name]
    function = by_registry(compiled) if way == "registry" else compiled
    with pytest.raises(kind, match=text):
        function(*arguments(row(), np.zeros(8, np.float32)))


def test_a_shared_symbol_is_checked():
    n = cute.sym_int(symbol="n")
    fake = lambda: cute.runtime.make_fake_compact_tensor(Float32, (n,))
    function = by_registry(cute.compile(scale, fake(), fake(), 1.0, options=OPTION))
    with pytest.raises(ValueError, match=r"(?s)scale\(.*(6|8).*(6|8)"):
        function(row(8), row(6), 1.0)


def test_numbers_come_back():
    @cute.jit
    def add(a: Int32, b: Int64):
        return a + b

    @cute.jit
    def half(a: Float32):
        return a / 2

    @cute.jit
    def positive(a: Float64):
        return a > 0

    @cute.jit
    def negated(a: Boolean):
        return not a

    assert by_registry(cute.compile(add, 1, 2, options=OPTION))(-3, 1 << 40) == (1 << 40) - 3
    assert by_registry(cute.compile(half, 1.0, options=OPTION))(3.0) == 1.5
    assert by_registry(cute.compile(positive, 1.0, options=OPTION))(-1) is False
    assert by_registry(cute.compile(negated, True, options=OPTION))(False) is True
    function = by_registry(cute.compile(add, 1, 2, options=OPTION))
    for bad in (2.5, 1 << 40, 1 << 63, "x", None):
        with pytest.raises((TypeError, OverflowError), match="'a'|too large"):  # the latter by older TVM-FFI
            function(bad, 1)


@cute.jit
def scale_both(pair: tuple, by: Float32):
    scaled(pair[0], pair[1], by).launch(grid=1, block=32)


def test_tuples_are_taken_apart():
    function = cute.compile(scale_both, (from_dlpack(row()), from_dlpack(row())), 1.0, options=OPTION)
    for call, kind in ((function, tuple), (by_registry(function), tuple), (by_registry(function), list)):
        out = np.zeros(8, np.float32)
        call(kind([row(), out]), 2.0)
        assert np.array_equal(out, 2 * row())
    with pytest.raises(ValueError, match="element 1: the extent of mode 0 is 7"):
        function((row(), np.zeros(7, np.float32)), 1.0)


@cute.jit
def scale_at(place: cute.Pointer, by: Float32):
    tensor = cute.make_tensor(place, cute.make_layout((8,)))
    scaled(tensor, tensor, by).launch(grid=1, block=32)


class Pair(NamedTuple):
    x: Any
    y: Any


@cute.jit
def fill(pair: Pair, shape: cute.Shape, scalar: cute.Tensor, matrix: cute.Tensor):
    pair.y[0] = pair.x[1] + Float32(shape[1]) + scalar[()] + matrix[1, 2]


def test_named_tuples_shapes_and_tensors_of_any_rank():
    wide = np.arange(24, dtype=np.float32).reshape(3, 8)
    one, out = np.array(100, np.float32), np.zeros(8, np.float32)
    given = Pair(dynamic(row()), dynamic(row())), (Int32(1), Int32(2)), from_dlpack(one), dynamic(wide)
    function = cute.compile(fill, *given, options=OPTION)
    for call in (function, by_registry(function)):
        for shape in ((3, 50), [3, 50], tvm_ffi.Shape((3, 50))):
            out[:] = 0
            call(Pair(row(), out), shape, tvm_ffi.from_dlpack(one), wide[:, 2:6])  # with an offset, and gaps
            assert out[0] == 1 + 50 + 100 + wide[1, 4]
        with pytest.raises((TypeError, ValueError), match="'shape'.*element 1: it is 4294967296, and Int32"):
            call(Pair(row(), out), (3, 1 << 32), tvm_ffi.from_dlpack(one), wide)
        with pytest.raises((TypeError, ValueError), match=r"'pair'.*it is tuple\(.*expected Pair\("):
            call((row(), out, out), (3, 50), tvm_ffi.from_dlpack(one), wide)  # is no `Pair`


def test_extents_addresses_and_symbols_have_their_limits():
    n = cute.sym_int(divisibility=4)
    fake = cute.runtime.make_fake_compact_tensor(Float32, (n, 1), stride_order=(1, 0), assumed_align=16)
    function = by_registry(cute.compile(lambda x: None, fake, options=OPTION))
    memory = np.zeros(64, np.float32)
    memory = memory[-memory.ctypes.data % 64 // 4 :]
    function(memory[:8, None])
    for bad, words in (
        (memory[:6, None], "6.*multiple of 4|multiple of 4.*6"),
        (memory[1:9, None], "16"),
        (np.lib.stride_tricks.as_strided(memory, (1 << 31, 1), (0, 4)), "2147483648|stride"),
    ):
        with pytest.raises(ValueError, match=words):
            function(bad)


REGISTRY = """
#include <tvm/ffi/c_api.h>
int call(DLTensor *x, DLTensor *y, double by) { /* 0: it was called; 1: there is none; 2: it failed */
  TVMFFIByteArray name = {"kiln.test", 9};
  TVMFFIObjectHandle found = NULL;
  TVMFFIAny given[3] = {{0}}, result = {0};
  int status;
  if (TVMFFIFunctionGetGlobal(&name, &found) || !found)
    return 1;
  given[0].type_index = given[1].type_index = kTVMFFIDLTensorPtr;
  given[0].v_ptr = x, given[1].v_ptr = y;
  given[2].type_index = kTVMFFIFloat, given[2].v_float64 = by;
  status = TVMFFIFunctionCall(found, given, 3, &result) ? 2 : 0;
  TVMFFIObjectDecRef(found);
  return status;
}
"""


@needs_compiler
def test_c_finds_it_in_the_registry(compiled, tmp_path):
    (tmp_path / "call.c").write_text(REGISTRY)
    include = os.path.join(os.path.dirname(tvm_ffi.__file__), "include")
    build(tmp_path, "-std=c11", "-shared", "-fPIC", f"-isystem{include}", "-o", "call.so", "call.c")
    by_registry(compiled)
    x, y = row(4), np.zeros(4, np.float32)

    extents = (ctypes.c_int64 * 1)(4)

    def described(array):
        """DLPack's: address, device, rank and type of elements, extents, strides and offset."""
        kind = 1 | 2 << 32 | 32 << 40 | 1 << 48
        return (ctypes.c_uint64 * 6)(array.ctypes.data, 1, kind, ctypes.addressof(extents), 0, 0)

    call = ctypes.CDLL(str(tmp_path / "call.so")).call
    call.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double]
    assert call(described(x), described(y), 3.0) == 0 and np.array_equal(y, 3 * x)  # strides are null: compact
    assert call(described(x), described(y), 1e300) == 2


def test_pointers_may_be_plain_addresses():
    data = row()
    here = make_ptr(Float32, data.ctypes.data, assumed_align=16)
    function = cute.compile(scale_at, here, 1.0, options=OPTION)
    for call in (function, by_registry(function)):
        call(here, 2.0)
        call(ctypes.c_void_p(data.ctypes.data), 2.0)
        call(data.ctypes.data, 0.25)  # as `tensor.data_ptr()` is
        assert np.array_equal(data, row())
        for address in (ctypes.c_void_p(data.ctypes.data + 4), data.ctypes.data + 4):
            with pytest.raises((TypeError, ValueError), match="not a multiple of 16"):
                call(address, 1.0)


def test_an_address_says_too_little_to_compile_for():
    with pytest.raises(TypeError, match="does not say of what"):
        cute.compile(scale_at, ctypes.c_void_p(16), 1.0)


def test_a_stream_of_the_environment_is_not_passed():
    @cute.jit
    def on_stream(x: cute.Tensor, y: cute.Tensor, stream):
        scaled(x, y, 2.0).launch(grid=1, block=32, stream=stream)

    fake = make_fake_stream(use_tvm_ffi_env_stream=True)
    function = cute.compile(on_stream, dynamic(row()), dynamic(row()), fake, options=OPTION)
    for call in (function, by_registry(function)):
        out = np.zeros(8, np.float32)
        call(row(), out)
        assert np.array_equal(out, 2 * row())


def test_a_stream_of_the_environment_is_not_passed_wherever_it_stands(tmp_path):
    @cute.jit
    def between(x: cute.Tensor, stream, by: Float32, y: cute.Tensor, none: cute.Tensor | None):
        scaled(x, y, by).launch(grid=1, block=32, stream=stream)

    fake = make_fake_stream(use_tvm_ffi_env_stream=True)
    function = cute.compile(between, dynamic(row()), fake, Float32(1), dynamic(row()), None, options=OPTION)
    function.export_to_c(str(tmp_path / "between.o"), function_name="between")
    loaded = [
        load_module(str(tmp_path / "between.o"), enable_tvm_ffi=for_tvm_ffi).between for for_tvm_ffi in (True, False)
    ]
    for call in (function, by_registry(function), *loaded):
        for by in (2.0, 3.0):
            out = np.zeros(8, np.float32)
            call(row(), by, out, None)
            assert np.array_equal(out, by * row())
    with pytest.raises(TypeError, match="the number of arguments is 3, expected 4"):
        loaded[0](row(), 2.0, row())


def test_a_launch_that_fails_is_an_error_of_the_call():
    @cute.jit
    def launch(x: cute.Tensor, blocks: Int32):
        scaled(x, x, 1.0).launch(grid=blocks, block=32)

    function = by_registry(cute.compile(launch, from_dlpack(row()), 1, options=OPTION))
    with pytest.raises(RuntimeError, match="grid x is 0"):
        function(row(), 0)


def test_jax_calls_it(compiled):
    jax = pytest.importorskip("jax")
    bridge = pytest.importorskip("jax_tvm_ffi")

    @cute.jit
    def double(x: cute.Tensor, y: cute.Tensor):
        scaled(x, y, 2.0).launch(grid=1, block=32)

    function = cute.compile(double, dynamic(row()), dynamic(row()), options=OPTION)
    bridge.register_ffi_target("kiln_double", function, platform="cpu")
    x = jax.numpy.arange(8, dtype=jax.numpy.float32)
    y = jax.jit(jax.ffi.ffi_call("kiln_double", jax.ShapeDtypeStruct(x.shape, x.dtype)))(x)
    assert np.array_equal(y, 2 * row())


def test_without_the_package_it_is_the_compiled_function(monkeypatch):
    monkeypatch.setattr("kiln.base_dsl.packages.is_here", lambda _: False)
    function = cute.compile(scale, from_dlpack(row()), from_dlpack(row()), 1.0, options=OPTION)
    assert not isinstance(function, tvm_ffi.Function)
    with pytest.raises(ValueError, match=r"Mismatched argument #0 \('x'\)"):
        function(row(7), row(), 1.0)


def test_what_was_compiled_in_may_be_passed_again():
    @cute.jit
    def scale_by(x: cute.Tensor, y: cute.Tensor, by: cute.Constexpr):
        scaled(x, y, by).launch(grid=1, block=32)

    function = cute.compile(scale_by, dynamic(row()), dynamic(row()), 3.0, options=OPTION)
    out = np.zeros(8, np.float32)
    function(row(), out, 3.0)
    assert np.array_equal(out, 3 * row())
