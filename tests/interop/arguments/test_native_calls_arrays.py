# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Arrays, pointers and streams in calls that native code takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_calls_testing import WARM_UP, CUstream, back, look, matrices, seen, strays

import kiln.cute as cute
from kiln import Float32, Int32, Int64, kernels
from kiln.base_dsl import target
from kiln.base_dsl.diagnostics import DSLBaseError, DSLUserCodeTypeError
from kiln.cute.host.array_keys import array_key, stream_of
from kiln.cute.host.arrays import introduce_array
from kiln.cute.runtime import from_dlpack, make_fake_compact_tensor, make_fake_stream, make_ptr, sym_int
from kiln.interop.arguments import loading

pytestmark = pytest.mark.usefixtures("taker")


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(target, "_process_choice", "cpu")


# --- arrays ----------------------------------------------------------------------------------------------------------


@cute.jit
def first(x: cute.Tensor):
    return x[0, 0]


def test_numpy_arrays():
    compiled = cute.compile(look, matrices()[0])
    assert strays(compiled, matrices()[0]) == 0
    for x in matrices():
        strides = tuple(s // 4 for s in x.strides)
        assert look(x) == seen(x.shape, strides)
        assert first(x) == x[0, 0]
    assert strays(look, matrices()[1]) == 0
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


@cute.jit
def static_strides(x: cute.Tensor):
    """Which strides are compiled in, as bits."""
    return Int32(sum(1 << mode for mode, d in enumerate(x.stride) if isinstance(d, int)))


def test_a_jit_function_tells_layouts_apart():
    """The same numbers can be passed to several specializations; which one is taken does not depend on earlier calls."""
    memory = np.zeros(64, np.float32)
    cases = [((3, 5), (5, 1), 2), ((5, 1), (1, 1), 1), ((1, 5), (1, 1), 2), ((3, 5), (0, 1), 3), ((3, 5), (7, 2), 0),
             ((1, 1), (1, 1), 2), ((3, 5), (1, 3), 1), ((3, 1), (1, 0), 3)]  # fmt: skip
    arrays = [
        (np.lib.stride_tricks.as_strided(memory, shape, [4 * d for d in strides]), wanted)
        for shape, strides, wanted in cases
    ]
    for _ in range(3):
        for x, wanted in arrays:
            for _ in range(WARM_UP):
                assert static_strides(x) == wanted


def test_arrays_without_elements():
    compiled = cute.compile(look, np.zeros((3, 4), np.float32))
    strays(compiled, np.zeros((3, 4), np.float32))
    assert compiled(np.zeros((0, 4), np.float32)) == seen((0, 4), (4, 1))


def test_read_only_arrays():
    frozen = np.zeros((3, 4), np.float32)
    frozen.flags.writeable = False
    compiled = cute.compile(first, frozen)
    assert strays(compiled, frozen) == 0
    assert strays(compiled, np.zeros((3, 4), np.float32)) == 0  # writable memory may be read
    writing = cute.compile(first, np.zeros((3, 4), np.float32))
    strays(writing, np.zeros((3, 4), np.float32))
    with pytest.raises(DSLUserCodeTypeError, match="read-only"):
        writing(frozen)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this PyTorch has no C functions for DLPack")
    compiled = cute.compile(look, torch.zeros(3, 4))
    assert strays(compiled, torch.zeros(5, 6)) == 0
    assert strays(compiled, torch.nn.Parameter(torch.zeros(5, 6))) == 0
    for x in matrices():
        tensor = torch.from_numpy(x)
        assert look(tensor) == seen(tensor.shape, tensor.stride())
        assert first(tensor) == x[0, 0]
    assert strays(look, torch.zeros(5, 6).T) == 0
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
    strays(compiled, zeros(8, 16))
    assert compiled(zeros(3, 5)) == seen((3, 5), (5, 1))
    compact = from_dlpack(np.zeros((8, 16), np.float32)).mark_compact_shape_dynamic(1, (0, 1), divisibility=8)
    compiled = cute.compile(look, compact)
    if library == "numpy":
        assert strays(compiled, zeros(8, 16)) == 0
    assert compiled(zeros(8, 24)) == seen((8, 24), (24, 1))
    with pytest.raises(DSLUserCodeTypeError, match="not a multiple of 8"):
        compiled(zeros(8, 20))
    with pytest.raises(DSLUserCodeTypeError, match="extent of mode 0 is 9, not 8"):
        compiled(zeros(9, 24))
    fake = make_fake_compact_tensor(Float32, (sym_int(), sym_int(divisibility=4)), stride_order=(1, 0))
    compiled = cute.compile(look, fake)
    assert compiled(zeros(2, 4)) == seen((2, 4), (4, 1))
    static = cute.compile(look, from_dlpack(np.zeros((2, 3), np.float32)))
    strays(static, zeros(2, 3))
    assert static(zeros(2, 3)) == seen((2, 3), (3, 1))
    with pytest.raises(DSLUserCodeTypeError, match="stride of mode 0 is 1, not 3"):
        static(zeros(3, 2).T)


def test_prepared_tensors():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = from_dlpack(x)
    compiled = cute.compile(look, tensor)
    assert strays(compiled, tensor) == 0
    assert compiled(from_dlpack(np.zeros((3, 4), np.float32))) == seen((3, 4), (4, 1))
    with pytest.raises(DSLUserCodeTypeError, match="extent of mode 0"):
        compiled(from_dlpack(np.zeros((5, 4), np.float32)))
    for prepared in (tensor, from_dlpack(x).mark_layout_dynamic()):
        assert strays(look, prepared) == 0
        assert look(prepared) == seen((3, 4), (4, 1))
    # marking changes what is passed
    marked = from_dlpack(x)
    assert look(marked) == look(marked.mark_layout_dynamic())
    dynamic = cute.compile(look, marked)
    assert strays(dynamic, tensor) == 0  # another signature that fits
    assert dynamic(from_dlpack(np.zeros((7, 9), np.float32))) == seen((7, 9), (9, 1))
    with pytest.raises(DSLUserCodeTypeError, match="elements are Int32"):
        dynamic(from_dlpack(np.zeros((7, 9), np.int32)))


def test_tensors_of_torch_that_are_not_what_lies_in_memory():
    torch = pytest.importorskip("torch")
    compiled = cute.compile(first, torch.ones(2, 3))
    plain = torch.ones(2, 3)
    negative, part = torch._neg_view(plain), torch.full((2, 3), 4 + 5j).conj().imag
    for function in (compiled, first):
        for _ in range(3):
            assert function(plain) == 1.0
        for wrong in (negative, part):
            with pytest.raises(DSLBaseError, match="the negative of what is in memory"):
                function(wrong)
        with pytest.raises(DSLBaseError, match="no memory of its own"):
            function(torch._efficientzerotensor(2, 3))
        assert function(part.resolve_neg()) == -5.0
        assert strays(function, plain) == 0
    with pytest.raises(DSLBaseError, match="the negative of what is in memory"):
        from_dlpack(negative)
    for _ in range(4):
        kernels.softmax(plain)
    for _ in range(2):
        with pytest.raises(DSLBaseError, match="stands for the negative"):
            kernels.softmax(negative)
        with pytest.raises(DSLBaseError, match="no memory of its own"):
            kernels.softmax(torch._efficientzerotensor(2, 3))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_tensors_are_prepared_alike_with_and_without_native_code(library, monkeypatch):
    native = loading.engine()
    given = matrices()
    if library == "torch":
        torch = pytest.importorskip("torch")
        given = [torch.from_numpy(x) for x in given]
    else:
        given += [np.zeros((0, 4), np.int8), np.zeros((2, 3), np.bool_)]

    def facts(x, align, leading):
        tensor = from_dlpack(x, assumed_align=align)
        found = [
            str(tensor),
            tensor.shape,
            tensor.stride,
            tensor.element_type,
            tensor.data_ptr,
            tensor._argument_record,
        ]
        tensor = tensor.mark_layout_dynamic(leading_dim=leading)
        return [*found, str(tensor), tensor.dynamic_strides_mask, tensor._argument_record, tensor._keep is x]

    for x in given:
        for align in (None, 1, 3, 8, 16, 256):
            for leading in (0, 1, 2):
                results = []
                for how in (native, None, native):
                    monkeypatch.setattr(loading, "_engine", how)
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
    assert strays(compiled, aligned) == 0
    for wrong in (not_aligned, from_dlpack(not_aligned)):
        with pytest.raises(DSLUserCodeTypeError, match="not a multiple of 16"):
            compiled(wrong)


def test_arrays_beyond_32_bits():
    """Code for 32-bit extents is promised offsets of 32 bits: what breaks that is not taken."""
    memory = np.zeros((1 << 16, 1 << 15), np.int8)  # memory that is never touched
    small = memory[:10, :20]
    compiled = cute.compile(look, small)
    assert strays(compiled, small) == 0
    assert strays(look, small) == 0
    for rows, columns in ((1 << 15, 1 << 15), ((1 << 15) + 1, 1 << 15), ((1 << 16) - 1, 1 << 15)):
        x = memory[:rows, :columns]
        assert compiled(x) == look(x) == seen(x.shape, x.strides)
    with pytest.raises(DSLUserCodeTypeError, match="2147483648 elements"):
        compiled(memory)
    assert look(memory) == seen(memory.shape, memory.strides)
    narrow = cute.compile(look, from_dlpack(small, use_32bit_stride=True).mark_layout_dynamic())
    sparse = np.lib.stride_tricks.as_strided(memory, (3, 2), (1 << 30, 1), writeable=True)
    assert strays(narrow, small) == 0
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
        assert strays(function, pointer, 2) == 0
        assert function(pointer, 3) == 3.0
    assert compiled(make_ptr(Float32, x.ctypes.data + 4), 0) == 1.0
    with pytest.raises(DSLUserCodeTypeError):
        compiled(make_ptr(Int32, x.ctypes.data), 0)


class Stream:
    """As torch's: a handle by an attribute."""

    def __init__(self, handle):
        self.cuda_stream = handle


@pytest.mark.parametrize("kind", [CUstream, Stream])
def test_streams(kind):
    compiled = cute.compile(back, kind(5))
    for function in (compiled, back):
        assert strays(function, kind(5)) == 0
        assert function(kind(1 << 47)) == 1 << 47
    with pytest.raises((RuntimeError, TypeError)):
        compiled(kind(None))


def test_a_stream_that_is_not_passed():
    torch = pytest.importorskip("torch")

    @cute.jit
    def where(n: Int32, x: cute.Tensor, stream):
        return Int64(stream) * 1000 + n

    compiled = cute.compile(where, 1, torch.zeros(3, 4), make_fake_stream(use_tvm_ffi_env_stream=True))
    assert strays(compiled, 7, torch.zeros(5, 6)) == 0
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


# --- keys for plans of programs ---------------------------------------------------------------------------------------


def test_descriptions_of_arrays(taker):
    if taker == "python":
        return
    native = loading.engine()
    introduce_array(native, np.ndarray)
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
        monkeypatch.setattr(loading, "_engine", None)
