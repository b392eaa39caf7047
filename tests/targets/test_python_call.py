# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Calls that native code takes: the same results and the same errors as when Python takes them, nothing leaked."""

from __future__ import annotations

import contextlib
import gc
import struct
import sys
import sysconfig
import threading
import tracemalloc
import typing
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kiln
import kiln.cute as cute
from kiln import Boolean, Constexpr, Float32, Float64, Int8, Int32, Int64, Uint8, Uint32, Uint64
from kiln.base_dsl import call_plan
from kiln.base_dsl.diagnostics import DSLBaseError, DSLUserCodeRuntimeError, DSLUserCodeTypeError
from kiln.base_dsl.function import CompiledFunction, JitFunction
from kiln.cute.array_keys import array_key, stream_of
from kiln.cute.runtime import from_dlpack, make_fake_compact_tensor, make_fake_stream, make_ptr, sym_int

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython" or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="calls are made by Python here",
)

WARM_UP = 10


@pytest.fixture(autouse=True)
def _on_the_cpu():
    kiln.target("cpu")


def taken_by_python(function, *args, **kwargs):
    """How many of a few calls Python took (after those by which native code gets to know a function)."""
    for _ in range(WARM_UP):
        function(*args, **kwargs)
    return python_calls(lambda: [function(*args, **kwargs) for _ in range(3)])


def python_calls(run):
    """How many calls of compiled and jit functions Python takes while `run` runs."""
    count = 0
    names = {CompiledFunction._run_in_python.__code__, JitFunction._run_in_python.__code__}

    def profile(frame, event, _):
        nonlocal count
        count += event == "call" and frame.f_code in names

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def test_it_works_on_this_python():
    assert call_plan.native() is not None


# --- numbers ---------------------------------------------------------------------------------------------------------


@cute.jit
def back(x):
    return x


def annotated(kind):
    def give_back(x):
        return x

    give_back.__annotations__["x"] = kind
    return cute.jit(give_back)


INTEGERS = [Int8, Uint8, Int32, Uint32, Int64, Uint64]


@pytest.mark.parametrize("kind", [*INTEGERS, Boolean])
def test_integers_at_the_ends_of_their_ranges(kind):
    function = annotated(kind)
    compiled = cute.compile(function, 1)
    assert taken_by_python(compiled, 1) == 0
    for value in (kind.min, kind.max, 0, 1, True, False):
        assert compiled(value) == value
        assert function(value) == value
    for value in (kind.min - 1, kind.max + 1, 1 << 70, -(1 << 70)):
        with pytest.raises(DSLUserCodeTypeError, match="outside its range"):
            compiled(value)
        with pytest.raises(DSLUserCodeTypeError, match="outside its range"):
            function(value)
    with pytest.raises(DSLUserCodeTypeError, match="got the float"):
        compiled(1.5)


@pytest.mark.parametrize("kind", [Float32, Float64])
def test_floats(kind):
    function = annotated(kind)
    compiled = cute.compile(function, 1.0)
    assert taken_by_python(compiled, 1.5) == 0
    assert taken_by_python(compiled, 3) == 0
    letter = "f" if kind is Float32 else "d"
    largest = float.fromhex("0x1.fffffeffffffp127") if kind is Float32 else sys.float_info.max
    for value in (0.1, -0.0, 1e-45, 1e30, largest, -largest, float("inf"), float("-inf"), 7, True, -(1 << 40)):
        expected = struct.unpack(letter, struct.pack(letter, value))[0]
        assert struct.pack("d", compiled(value)) == struct.pack("d", expected)
    assert np.isnan(compiled(float("nan")))
    for value in (1 << 2000, *([1e39, -1e39] if kind is Float32 else [])):
        for called in (compiled, function):
            with pytest.raises(DSLUserCodeTypeError, match="outside its range"):
                called(value)


def test_without_an_annotation_the_value_chooses_the_type():
    for value, wrong in ((3, 1 << 40), (1 << 40, 3), (True, 3), (1.5, 3), (3, True), (3, 1.5)):
        compiled = cute.compile(back, value)
        assert taken_by_python(compiled, value) == 0
        assert compiled(value) == value
        assert type(compiled(value)) is type(value)
        with pytest.raises(DSLUserCodeTypeError, match="compiled for"):
            compiled(wrong)
    for value in (3, 1 << 40, True, 1.5):  # each a specialization of its own
        assert taken_by_python(back, value) == 0
        assert back(value) == value
        assert type(back(value)) is type(value)


def test_python_annotations():
    whole, real = annotated(int), annotated(float)
    for function, values in ((whole, (3, True, 1 << 40)), (real, (1.5, 3, True))):
        for value in values:
            assert taken_by_python(function, value) == 0
            assert function(value) == value
    assert whole(1.5) == 1.5


def test_typed_numbers():
    compiled = cute.compile(annotated(Float32), 1.0)
    assert taken_by_python(compiled, Float32(1.5)) == 0
    assert compiled(Float32(2.5)) == 2.5
    compiled = cute.compile(back, Int8(3))
    assert taken_by_python(compiled, Int8(3)) == 0
    assert compiled(Int8(-128)) == -128
    with pytest.raises(DSLUserCodeTypeError):
        compiled(3)
    with pytest.raises(DSLUserCodeTypeError):
        compiled(Int32(3))
    compiled = cute.compile(annotated(Int64), 1)
    assert compiled(Int32(-5)) == -5


# --- arguments by name, groups, values known while tracing ------------------------------------------------------------


@cute.jit
def weigh(a: Int32, b: Int32, c: Int32 = 3):
    return a * 100 + b * 10 + c


def test_arguments_by_name():
    compiled = cute.compile(weigh, 1, 2, 3)
    for function in (compiled, weigh):
        assert taken_by_python(function, 1, 2, 3) == 0
        assert taken_by_python(function, 1, c=3, b=2) == 0
        assert function(c=1, a=2, b=3) == 231
        assert function(1, b=2, c=4) == 124
        assert function(1, 2) == 123  # by Python: a default
        with pytest.raises(DSLUserCodeTypeError):
            function(1, 2, 3, d=4)
        with pytest.raises(DSLUserCodeTypeError):
            function(1, 2, b=3)
        with pytest.raises(DSLUserCodeTypeError):
            function(1, 2, 3, 4)
        with pytest.raises(DSLUserCodeTypeError):
            function()
        name = "".join(["", "b"])  # equal to a parameter's name, perhaps not the same object
        assert function(1, **{name: 2, "c": 5}) == 125


class Pair(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


@cute.jit
def add_all(parts):
    total = Int32(0)
    for part in parts:
        total = total + (add_all(part) if isinstance(part, (tuple, list)) else part)
    return total


@pytest.mark.parametrize(
    ("value", "others"),
    [((1, 2, (3, 4)), [[1, 2, (3, 4)], (1, 2, [3, 4]), (1, 2), (1, 2, (3, 4, 5)), (1, 2.0, (3, 4))]),
     ([1, 2], [(1, 2), [1], [1, 2, 3]]),
     (Pair(1, (2, 3)), [(1, (2, 3))])],
)  # fmt: skip
def test_groups(value, others):
    compiled = cute.compile(add_all, value)

    def total(x):
        return sum(total(e) if isinstance(e, (tuple, list)) else e for e in x)

    for function in (compiled, add_all):
        assert taken_by_python(function, value) == 0
        assert function(value) == total(value)
    for other in others:
        with pytest.raises(DSLUserCodeTypeError):
            compiled(other)
        if 2.0 not in other:
            assert add_all(other) == total(other)


@cute.jit
def scaled(x: Int32, factor: Constexpr, name: Constexpr = "plus"):
    if name == "minus":
        return -x * factor
    return x * factor


def test_values_known_while_tracing():
    compiled = cute.compile(scaled, 1, 5)
    assert taken_by_python(compiled, 7) == 0
    assert compiled(7) == 35
    for factor in (5, 1000, 1001):
        for name in ("plus", "minus"):
            assert taken_by_python(scaled, 7, factor, name) == 0
            assert scaled(7, int(str(factor)), name) == (7 if name == "plus" else -7) * factor
    changing = [1, 2]

    @cute.jit
    def lengths(x: Int32, parts: Constexpr):
        return x + len(parts)

    for _ in range(WARM_UP):
        assert lengths(1, changing) == 1 + len(changing)
        changing.append(0)


class Method:
    def __init__(self, factor):
        self.factor = factor

    @cute.jit
    def __call__(self, x: Int32):
        return x * self.factor


def test_methods():
    compiled = cute.compile(Method(3), 1)
    assert taken_by_python(compiled, 2) == 0
    assert compiled(2) == 6
    method = Method(3)
    for factor in (3, 4, 5, 3):
        method.factor = factor
        for _ in range(WARM_UP):
            assert method(2) == 2 * factor


# --- arrays ----------------------------------------------------------------------------------------------------------


@cute.jit
def look(x: cute.Tensor):
    """A number that depends on all that is passed of a matrix."""
    rows, columns = x.shape
    a, b = x.stride
    return Int64(rows) * 1000003 + Int64(columns) * 10007 + Int64(a) * 101 + Int64(b)


def seen(shape, strides):
    return shape[0] * 1000003 + shape[1] * 10007 + strides[0] * 101 + strides[1]


@cute.jit
def first(x: cute.Tensor):
    return x[0, 0]


def matrices():
    base = np.arange(240, dtype=np.float32).reshape(12, 20)
    return [base, base.T, base[::2], base[:, ::2], base[2:3], base[:, 4:5], base[:1, :1], base[3:, 8:]]


def test_numpy_arrays():
    compiled = cute.compile(look, matrices()[0])
    assert taken_by_python(compiled, matrices()[0]) == 0
    for x in matrices():
        strides = tuple(s // 4 for s in x.strides)
        assert look(x) == seen(x.shape, strides)
        assert first(x) == x[0, 0]
    assert taken_by_python(look, matrices()[1]) == 0
    for wrong in (
        np.zeros((3, 4), np.float64), np.zeros((3, 4), np.int32), np.zeros(4, np.float32), np.zeros((3, 4), ">f4"),
        np.zeros((3, 4, 5), np.float32), np.asfortranarray(np.zeros((3, 4), np.float32)),
        np.frombuffer(bytes(4 * 12), np.float32).reshape(3, 4),
    ):  # fmt: skip
        with pytest.raises(DSLBaseError):
            compiled(wrong)
    with pytest.raises(DSLBaseError, match="negative strides"):
        look(np.zeros((3, 4), np.float32)[::-1])
    with pytest.raises(DSLBaseError, match="not multiples"):
        look(np.zeros((3, 4), [("a", "f4"), ("b", "i1")])["a"])
    with pytest.raises(DSLBaseError, match="not a multiple"):
        look(misaligned())


def misaligned():
    memory = np.zeros(64, np.int8)
    return memory[1:49].view(np.float32).reshape(3, 4)


def test_arrays_without_elements():
    compiled = cute.compile(look, np.zeros((3, 4), np.float32))
    taken_by_python(compiled, np.zeros((3, 4), np.float32))
    assert compiled(np.zeros((0, 4), np.float32)) == seen((0, 4), (4, 1))


def test_read_only_arrays():
    frozen = np.zeros((3, 4), np.float32)
    frozen.flags.writeable = False
    compiled = cute.compile(first, frozen)
    assert taken_by_python(compiled, frozen) == 0
    assert taken_by_python(compiled, np.zeros((3, 4), np.float32)) == 0  # writable memory may be read
    writing = cute.compile(first, np.zeros((3, 4), np.float32))
    taken_by_python(writing, np.zeros((3, 4), np.float32))
    with pytest.raises(DSLUserCodeTypeError, match="read-only"):
        writing(frozen)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no C functions for DLPack")
    compiled = cute.compile(look, torch.zeros(3, 4))
    assert taken_by_python(compiled, torch.zeros(5, 6)) == 0
    assert taken_by_python(compiled, torch.nn.Parameter(torch.zeros(5, 6))) == 0
    for x in matrices():
        tensor = torch.from_numpy(x)
        assert look(tensor) == seen(tensor.shape, tensor.stride())
        assert first(tensor) == x[0, 0]
    assert taken_by_python(look, torch.zeros(5, 6).T) == 0
    for wrong in (
        torch.zeros(3, 4, dtype=torch.float64), torch.zeros(3), torch.zeros(4, 3).T, torch.zeros(3, 4).to_sparse(),
        torch.zeros(3, 4, device="meta"),
    ):  # fmt: skip
        with pytest.raises((DSLBaseError, RuntimeError, NotImplementedError)):
            compiled(wrong)
    assert compiled(torch.zeros(0, 4)) == seen((0, 4), (4, 1))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_where_a_prepared_tensor_was_compiled(library):
    if library == "torch":
        torch = pytest.importorskip("torch")
        zeros = lambda *shape: torch.zeros(shape)
    else:
        zeros = lambda *shape: np.zeros(shape, np.float32)
    dynamic = from_dlpack(np.zeros((8, 16), np.float32)).mark_layout_dynamic(leading_dim=1)
    compiled = cute.compile(look, dynamic)
    taken_by_python(compiled, zeros(8, 16))
    assert compiled(zeros(3, 5)) == seen((3, 5), (5, 1))
    compact = from_dlpack(np.zeros((8, 16), np.float32)).mark_compact_shape_dynamic(1, (0, 1), divisibility=8)
    compiled = cute.compile(look, compact)
    if library == "numpy":
        assert taken_by_python(compiled, zeros(8, 16)) == 0
    assert compiled(zeros(8, 24)) == seen((8, 24), (24, 1))
    with pytest.raises(DSLUserCodeTypeError, match="not a multiple of 8"):
        compiled(zeros(8, 20))
    with pytest.raises(DSLUserCodeTypeError, match="extent of mode 0 is 9, not 8"):
        compiled(zeros(9, 24))
    fake = make_fake_compact_tensor(Float32, (sym_int(), sym_int(divisibility=4)), stride_order=(1, 0))
    compiled = cute.compile(look, fake)
    assert compiled(zeros(2, 4)) == seen((2, 4), (4, 1))
    static = cute.compile(look, from_dlpack(np.zeros((2, 3), np.float32)))
    taken_by_python(static, zeros(2, 3))
    assert static(zeros(2, 3)) == seen((2, 3), (3, 1))
    with pytest.raises(DSLUserCodeTypeError, match="stride of mode 0 is 1, not 3"):
        static(zeros(3, 2).T)


def test_prepared_tensors():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = from_dlpack(x)
    compiled = cute.compile(look, tensor)
    assert taken_by_python(compiled, tensor) == 0
    assert compiled(from_dlpack(np.zeros((3, 4), np.float32))) == seen((3, 4), (4, 1))
    with pytest.raises(DSLUserCodeTypeError, match="extent of mode 0"):
        compiled(from_dlpack(np.zeros((5, 4), np.float32)))
    for prepared in (tensor, from_dlpack(x).mark_layout_dynamic()):
        assert taken_by_python(look, prepared) == 0
        assert look(prepared) == seen((3, 4), (4, 1))
    # marking changes what is passed
    marked = from_dlpack(x)
    assert look(marked) == look(marked.mark_layout_dynamic())
    dynamic = cute.compile(look, marked)
    assert taken_by_python(dynamic, tensor) == 0  # another signature that fits
    assert dynamic(from_dlpack(np.zeros((7, 9), np.float32))) == seen((7, 9), (9, 1))
    with pytest.raises(DSLUserCodeTypeError, match="elements are Int32"):
        dynamic(from_dlpack(np.zeros((7, 9), np.int32)))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_tensors_are_prepared_alike_with_and_without_native_code(library, monkeypatch):
    native = call_plan.native()
    given = matrices()
    if library == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.from_numpy(x) for x in given]
    else:
        given += [np.zeros((0, 4), np.int8), np.zeros((2, 3), np.bool_)]

    def facts(x, align, leading):
        tensor = from_dlpack(x, assumed_align=align)
        found = [str(tensor), tensor.shape, tensor.stride, tensor.element_type, tensor.data_ptr, tensor._passport]
        tensor = tensor.mark_layout_dynamic(leading_dim=leading)
        return [*found, str(tensor), tensor.dynamic_strides_mask, tensor._passport, tensor._keep is x]

    for x in given:
        for align in (None, 1, 3, 8, 16, 256):
            for leading in (0, 1, 2):
                results = []
                for how in (native, None, native):
                    monkeypatch.setattr(call_plan, "_native", how)
                    try:
                        results.append(facts(x, align, leading))
                    except DSLUserCodeTypeError as failure:
                        results.append(failure.message)
                assert results[0] == results[1] == results[2]


def test_alignment():
    memory = np.zeros(64, np.float32)
    start = (-memory.ctypes.data // 4) % 4
    aligned, not_aligned = memory[start : start + 32].reshape(2, 16), memory[start + 1 : start + 33].reshape(2, 16)
    compiled = cute.compile(look, from_dlpack(aligned, assumed_align=16).mark_layout_dynamic())
    assert taken_by_python(compiled, aligned) == 0
    for wrong in (not_aligned, from_dlpack(not_aligned)):
        with pytest.raises(DSLUserCodeTypeError, match="not a multiple of 16"):
            compiled(wrong)


def test_arrays_beyond_32_bits():
    """Code for 32-bit extents is promised offsets of 32 bits: what breaks that is not taken."""
    memory = np.zeros((1 << 16, 1 << 15), np.int8)  # memory that is never touched
    small = memory[:10, :20]
    compiled = cute.compile(look, small)
    assert taken_by_python(compiled, small) == 0
    assert taken_by_python(look, small) == 0
    for rows, columns in ((1 << 15, 1 << 15), ((1 << 15) + 1, 1 << 15), ((1 << 16) - 1, 1 << 15)):
        x = memory[:rows, :columns]
        assert compiled(x) == look(x) == seen(x.shape, x.strides)
    with pytest.raises(DSLUserCodeTypeError, match="2147483648 elements"):
        compiled(memory)
    assert look(memory) == seen(memory.shape, memory.strides)
    narrow = cute.compile(look, from_dlpack(small, use_32bit_stride=True).mark_layout_dynamic())
    sparse = np.lib.stride_tricks.as_strided(memory, (3, 2), (1 << 30, 1), writeable=True)
    assert taken_by_python(narrow, small) == 0
    with pytest.raises(DSLUserCodeTypeError, match="offsets go up to"):
        narrow(sparse)
    assert compiled(sparse) == seen(sparse.shape, sparse.strides)


def test_pointers():
    x = np.arange(4, dtype=np.float32)

    @cute.jit
    def at(p: cute.Pointer, i: Int32):
        return cute.make_tensor(p, cute.make_layout(4))[i]

    pointer = make_ptr(Float32, x.ctypes.data, assumed_align=4)
    compiled = cute.compile(at, pointer, 0)
    for function in (compiled, at):
        assert taken_by_python(function, pointer, 2) == 0
        assert function(pointer, 3) == 3.0
    assert compiled(make_ptr(Float32, x.ctypes.data + 4), 0) == 1.0
    with pytest.raises(DSLUserCodeTypeError):
        compiled(make_ptr(Int32, x.ctypes.data), 0)


class CUstream:
    """As cuda-bindings' class of this name: a handle by int()."""

    def __init__(self, handle):
        self.handle = handle

    def __int__(self):
        if self.handle is None:
            raise RuntimeError("no handle")
        return self.handle


class Stream:
    """As torch's: a handle by an attribute."""

    def __init__(self, handle):
        self.cuda_stream = handle


@pytest.mark.parametrize("kind", [CUstream, Stream])
def test_streams(kind):
    compiled = cute.compile(back, kind(5))
    for function in (compiled, back):
        assert taken_by_python(function, kind(5)) == 0
        assert function(kind(1 << 47)) == 1 << 47
    with pytest.raises((RuntimeError, TypeError)):
        compiled(kind(None))


def test_a_stream_that_is_not_passed():
    torch = pytest.importorskip("torch")

    @cute.jit
    def where(n: Int32, x: cute.Tensor, stream):
        return Int64(stream) * 1000 + n

    compiled = cute.compile(where, 1, torch.zeros(3, 4), make_fake_stream(use_tvm_ffi_env_stream=True))
    assert taken_by_python(compiled, 7, torch.zeros(5, 6)) == 0
    assert compiled(8, torch.zeros(5, 6)) == 8
    assert compiled(9, np.zeros((5, 6), np.float32)) == 9  # by Python
    assert compiled(9, torch.zeros(5, 6), CUstream(3)) == 3009


LAYOUTS = st.tuples(
    st.lists(st.integers(0, 4), min_size=2, max_size=2), st.permutations([0, 1]), st.lists(st.integers(1, 3), min_size=2, max_size=2)
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(LAYOUTS)
def test_native_code_sees_what_python_sees(layout):
    """A view of any layout, passed in every way, is taken alike."""
    extents, order, steps = layout
    base = np.zeros([(e + 1) * s for e, s in zip(extents, steps)], np.float32).transpose(order)
    x = base[tuple(slice(0, extents[m] * steps[m], steps[m]) for m in order)]
    if 0 in x.shape:
        expected = None
    else:
        expected = seen(x.shape, tuple(s // 4 for s in x.strides))
    for _ in range(WARM_UP):
        got = look(x)
        assert expected is None or got == expected


def test_leaves():
    """What programs that know the leaves of arguments use."""

    @cute.jit
    def count(a: Int32, b: Float32, c: Uint64, d: Boolean):
        return Int64(a) + Int64(b) + Int64(c) + Int64(d)

    compiled = cute.compile(count, 1, 2.0, 3, True)
    early, taken = compiled.run_leaves, CompiledFunction._run_leaves_in_python.__code__

    def python_runs(run):
        frames = []
        sys.setprofile(lambda frame, event, _: event == "call" and frame.f_code is taken and frames.append(1))
        try:
            run()
        finally:
            sys.setprofile(None)
        return len(frames)

    for _ in range(2 * WARM_UP):
        assert compiled.run_leaves([1, 2.0, 3, True]) == 7
    for run in (early, compiled.run_leaves):
        assert python_runs(lambda: run([-5, 2.5, 1 << 40, False])) == 0
        assert run([-5, 2.5, 1 << 40, False]) == (1 << 40) - 3
        assert python_runs(lambda: run((1, 2.0, 3, True))) == 1  # no list
        for wrong in ([1, 2.0, 3], [1, 2.0, 3, True, 4], ["1", 2.0, 3, True], [1 << 40, 2.0, 3, True]):
            with pytest.raises(struct.error):
                run(wrong)


# --- failures, output, threads ----------------------------------------------------------------------------------------


@cute.jit
def divide(a: Int32, b: Int32):
    return a // b


@cute.kernel
def check(x: Int32):
    cute.printf("x={}", x)
    assert x != 3, "three"


@cute.jit
def launch_check(x: Int32):
    check(x).launch(grid=1, block=1)


def test_failures_and_output(capfd):
    compiled = cute.compile(divide, 1, 1)
    for function in (compiled, divide):
        assert taken_by_python(function, 7, 2) == 0
        with pytest.raises(ZeroDivisionError) as raised:
            function(1, 0)
        assert isinstance(raised.value, DSLUserCodeRuntimeError)
        assert raised.value.span.filename == __file__
    compiled = cute.compile(launch_check, 1)
    taken_by_python(compiled, 1)
    capfd.readouterr()

    def run():
        compiled(7)
        with pytest.raises(AssertionError, match="three"):
            compiled(3)
        compiled(8)

    assert python_calls(run) == 0
    assert capfd.readouterr().out.split() == ["x=7", "x=3", "x=8"]


def test_threads_run_during_a_call():
    """The GIL is released, and calls from several threads do not disturb each other."""
    compiled = cute.compile(weigh, 1, 2, 3)
    taken_by_python(compiled, 1, 2, 3)
    wrong = []

    def work(number):
        for i in range(2000):
            got = compiled(number, i % 10, c=1)
            if got != number * 100 + i % 10 * 10 + 1:
                wrong.append((number, i, got))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_calls_inside_a_trace_are_inlined():
    @cute.jit
    def seven():
        return 7

    @cute.jit
    def outer(x: Int32):
        return weigh(x, x, x) + seven()

    taken_by_python(weigh, 1, 2, 3)
    taken_by_python(seven)
    assert outer(2) == 229
    assert "call" not in cute.compile(outer, 1).__mlir__


# --- what a specialization depends on ---------------------------------------------------------------------------------

FACTOR = 3


@cute.jit
def times_global(x: Int32):
    return x * FACTOR


def test_a_changed_global_is_seen():
    global FACTOR
    for value in (3, 4, 3, 5):
        FACTOR = value
        assert taken_by_python(times_global, 2) == 0
        assert times_global(2) == 2 * value
    FACTOR = 3


class Config:
    size = 4


@cute.jit
def times_attribute(x: Int32):
    return x * Config.size


def test_a_changed_class_attribute_is_seen():
    for value in (4, 5, 4):
        Config.size = value
        for _ in range(WARM_UP):
            assert times_attribute(2) == 2 * value


class Held:
    def __init__(self):
        self.size = 2


HELD = Held()


@cute.jit
def times_held(x: Int32):
    return x * HELD.size


def test_a_changed_object_is_seen():
    for value in (2, 3, 2):
        HELD.size = value
        for _ in range(WARM_UP):
            assert times_held(2) == 2 * value


def test_a_changed_cell_is_seen():
    factor = 2

    @cute.jit
    def times(x: Int32):
        return x * factor

    for value in (2, 3, 2):
        factor = value
        assert taken_by_python(times, 5) == 0
        assert times(5) == 5 * value


def test_the_target_in_force_is_seen(monkeypatch):
    @cute.jit
    def one(x: Int32):
        return x + 1

    assert taken_by_python(one, 1) == 0
    with kiln.target("cpu"):  # on this thread only: Python looks
        assert python_calls(lambda: one(1)) == 1
    assert python_calls(lambda: one(1)) == 0
    with kiln.sanitize():
        assert one(1) == 2
        assert python_calls(lambda: one(1)) == 1
    monkeypatch.setenv("KILN_TARGET", "cpu")
    assert python_calls(lambda: one(1)) == 1


# --- lifetime --------------------------------------------------------------------------------------------------------


def test_nothing_is_kept():
    @cute.jit
    def use(x: cute.Tensor, n: Int32):
        return n

    class Array(np.ndarray):
        pass

    compiled = cute.compile(use, np.zeros((3, 4), np.float32), 1)
    x = np.zeros((3, 4), np.float32)
    tensor = from_dlpack(x)
    taken_by_python(compiled, x, 1)
    taken_by_python(use, tensor, 1)
    alive = [weakref.ref(tensor), weakref.ref(x)]
    del x, tensor
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    code = weakref.ref(compiled)
    del compiled
    gc.collect()
    assert code() is None
    function = weakref.ref(use)
    del use
    gc.collect()
    assert function() is None


def test_memory_is_flat():
    x = np.zeros((3, 4), np.float32)
    prepared = from_dlpack(x)
    compiled = cute.compile(look, x)
    stream = cute.compile(back, CUstream(1))

    def run():
        for _ in range(2500):
            compiled(x)
            look(prepared)
            weigh(1, c=2, b=3)
            stream(CUstream(1 << 40))
        for _ in range(50):
            with contextlib.suppress(DSLBaseError, OverflowError):
                divide(1, 0)

    for function, arguments in ((compiled, (x,)), (look, (prepared,)), (weigh, (1, 2, 3)), (divide, (1, 1))):
        taken_by_python(function, *arguments)
    objects = [x, prepared, None, compiled, look]
    run()
    gc.collect()
    counts = [sys.getrefcount(o) for o in objects]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000
    assert [abs(sys.getrefcount(o) - n) < 50 for o, n in zip(objects, counts)] == [True] * len(objects)


# --- keys for plans of programs ---------------------------------------------------------------------------------------


def test_descriptions_of_arrays():
    native = call_plan.native()
    from kiln.cute.arguments import introduce

    introduce(native, np.zeros(1))
    a = np.zeros((3, 4), np.float32)
    assert native.describe(a, None) == native.describe(a[:], None)
    others = [
        a.astype(np.int32), a.T, a[:2], a[:, :2], a.reshape(12), a.reshape(2, 6), a.reshape(1, 3, 4), a.view(">f4"), a[1:],
    ]  # fmt: skip
    seen_ = {native.describe(x) for x in (a, *others)}
    assert len(seen_) == 1 + len(others)
    frozen = a.view()
    frozen.flags.writeable = False
    assert native.describe(frozen) != native.describe(a)
    assert native.describe(a, a) != native.describe(a)
    assert native.describe(None, a) != native.describe(a, None)
    assert native.describe([1]) is None
    assert native.describe(np.zeros([1] * 9)) is None
    assert native.stream(a) == 0
    assert native.stream(3) is None


@pytest.mark.parametrize("library", ["numpy", "torch", "other"])
def test_keys_of_arrays(library, monkeypatch):
    class Other:
        """An array that only says how to be read."""

        def __init__(self, x):
            self.__dlpack__, self.x = x.__dlpack__, x

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    if library == "torch":
        zeros = pytest.importorskip("torch").zeros
    else:
        zeros = np.zeros if library == "numpy" else lambda *a, **k: Other(np.zeros(*a, **k))
    for _ in range(2):  # with native code, and without
        made = [zeros((3, 4)), zeros((4, 3)), zeros((3, 4, 1))]
        keys = [array_key(x) for x in made]
        assert len(set(keys)) == 3
        assert keys == [array_key(x) for x in made]
        assert len({array_key(made[0], None), array_key(None, made[0]), array_key(made[0]), array_key()}) == 4
        assert stream_of(made[0]) == 0
        monkeypatch.setattr(call_plan, "_native", None)
