"""Arrays of other libraries as arguments: layouts, marks, signatures, checks."""

from __future__ import annotations

import ctypes
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from tensor_testing import DTYPES, aligned, bits, copy_elements, sample

import kiln
from kiln import cute
from kiln.cute.runtime import from_dlpack, make_fake_compact_tensor, make_fake_tensor, make_ptr


@cute.jit
def show(t):
    print(t)


def traced(t, capsys) -> str:
    """How a tensor looks inside a function."""
    capsys.readouterr()
    show(t, no_cache=True)
    return capsys.readouterr().out.strip()


def test_static_and_implicit_layouts(capsys):
    a = aligned((30, 20, 32), np.float32)
    t = from_dlpack(a)
    assert t.shape == (30, 20, 32) and t.stride == (640, 32, 1) and t.element_type is kiln.Float32
    assert str(t.memspace) == "generic" and t.leading_dim == 2
    assert str(t) == f"Tensor<0x{a.ctypes.data:016x}@generic o (30, 20, 32):(640, 32, 1)>"
    assert traced(t, capsys) == "tensor<ptr<f32, generic> o (30,20,32):(640,32,1)>"
    assert traced(a[..., 1:], capsys) == "tensor<ptr<f32, generic> o (?,?,?):(?{i64},?{i64},1)>"
    assert traced(a.transpose(2, 0, 1)[1:], capsys) == "tensor<ptr<f32, generic> o (?,?,?):(1,?{i64},?{i64})>"
    assert traced(from_dlpack(aligned((4, 4), np.float16), assumed_align=16), capsys) == (
        "tensor<ptr<f16, generic, align<16>> o (4,4):(4,1)>"
    )
    assert traced(np.broadcast_to(np.zeros(3, np.int8), (2, 3)), capsys).endswith("(?,?):(0,1)>")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_element_types(dtype):
    assert from_dlpack(np.zeros(2, DTYPES[dtype])).element_type is dtype


@pytest.mark.parametrize(
    "dtype", [np.complex64, "M8[s]", object, ml_dtypes.int4, ml_dtypes.float4_e2m1fn, ">f4"], ids=str
)
def test_element_types_that_do_not_exist(dtype):
    with pytest.raises(kiln.DSLUserCodeTypeError):
        from_dlpack(np.zeros(2, dtype))


def test_mark_layout_dynamic():
    a = np.empty((16, 4, 8, 2), np.float32).transpose(2, 1, 0, 3)
    assert str(from_dlpack(a).mark_layout_dynamic()).endswith("(?,?,?,?):(?{i64},?{i64},?{i64},1)>")
    t = from_dlpack(a, use_32bit_stride=True).mark_layout_dynamic(leading_dim=-1)
    assert str(t).endswith("(?,?,?,?):(?,?,?,1)>")
    assert t.dynamic_shapes_mask == (1, 1, 1, 1) and t.dynamic_strides_mask == (1, 1, 1, 0)
    assert str(from_dlpack(np.empty((3, 4))[::2, ::2]).mark_layout_dynamic()).endswith("(?,?):(?{i64},?{i64})>")
    wide = np.broadcast_to(np.empty((3, 1, 1, 5)), (3, 4, 2, 5))
    assert str(from_dlpack(wide).mark_layout_dynamic()).endswith("(?,?,?,?):(?{i64},0,0,1)>")
    one = np.lib.stride_tricks.as_strided(np.empty(5), (1, 5, 1), (8, 8, 8))
    assert str(from_dlpack(one).mark_layout_dynamic()).endswith("(?,?,?):(?{i64},1,?{i64})>")
    with pytest.raises(kiln.DSLUserCodeTypeError, match="stride of mode 1 is 16"):
        from_dlpack(a).mark_layout_dynamic(leading_dim=1)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="does not follow from the layout"):
        from_dlpack(np.lib.stride_tricks.as_strided(np.empty(1), (1, 1), (8, 8))).mark_layout_dynamic()
    with pytest.raises(kiln.DSLUserCodeTypeError, match="range"):
        from_dlpack(a).mark_layout_dynamic(leading_dim=4)


def strided(shape, strides):
    reach = sum((s - 1) * d for s, d in zip(shape, strides, strict=True)) + 1
    return np.lib.stride_tricks.as_strided(np.empty(reach, np.float32), shape, [4 * d for d in strides])


def test_mark_compact_shape_dynamic():
    def a():
        return from_dlpack(strided((8, 4, 16, 2), (2, 16, 64, 1)), use_32bit_stride=True)

    def b():
        return from_dlpack(strided((1, 4, 1, 32, 1), (1, 1, 1, 4, 1)), use_32bit_stride=True)

    def layout(t):
        return str(t).split(" o ")[1][:-1]

    assert layout(a().mark_compact_shape_dynamic(0, divisibility=2)) == "(?{div=2},4,16,2):(2,?{div=4},?{div=16},1)"
    assert layout(a().mark_compact_shape_dynamic(1, divisibility=2)) == "(8,?{div=2},16,2):(2,16,?{div=32},1)"
    twice = a().mark_compact_shape_dynamic(1, divisibility=2).mark_compact_shape_dynamic(3, divisibility=2)
    assert layout(twice) == "(8,?{div=2},16,?{div=2}):(?{div=2},?{div=16},?{div=32},1)"
    assert layout(b().mark_compact_shape_dynamic(2, (3, 0, 2, 4, 1))) == "(1,4,?,32,1):(0,1,4,?{div=4},0)"
    assert layout(b().mark_compact_shape_dynamic(2, (2, 3, 4, 0, 1))) == "(1,4,?,32,1):(0,1,128,4,0)"
    for t, arguments, message in (
        (twice, (3, (0, 1, 2, 3)), "the order .* of an earlier call"),
        (a(), (3, (0, 1, 2, 3)), "does not agree"),
        (b(), (0,), "does not follow from the layout"),
        (b(), (30, (3, 0, 2, 4, 1)), "range"),
        (b(), (3, (2, 1, 2, 3, 4)), "does not contain mode 0"),
        (b(), (3, (0, 1, 2, 3, 4, 5)), "6 elements for 5 modes"),
        (b(), (0, (3, 2, 4, 0, 1), 4), "not a multiple"),
        (b(), (0, (2, 1, 3, 0, 4)), "does not agree"),
        (from_dlpack(strided((4, 4), (8, 1))), (0,), "not compact"),
    ):
        with pytest.raises(kiln.DSLUserCodeTypeError, match=message):
            t.mark_compact_shape_dynamic(*arguments)


def test_marked_tensors_pass_their_numbers():
    src = np.arange(24, dtype=np.float32).reshape(4, 6)
    dst = np.zeros_like(src)
    copy_elements(from_dlpack(src).mark_layout_dynamic(), from_dlpack(dst).mark_compact_shape_dynamic(0))
    assert (src == dst).all()
    dst[:] = 0
    copy_elements(from_dlpack(src).mark_compact_shape_dynamic(1), from_dlpack(dst).mark_layout_dynamic())
    assert (src == dst).all()


def test_divisibility_widens_access():
    a = aligned((4, 8), np.float32)

    @cute.jit
    def f(a: cute.Tensor):
        a[1, None].store(a[2, None].load())

    def loads(t):
        return cute.compile(f, t).__mlir__.count("cute.load")

    assert loads(from_dlpack(a, assumed_align=16)) == 2

    @cute.jit
    def g(a: cute.Tensor, i: cute.Int32):
        tile = cute.local_tile(a, (1, 4), (i, i))
        tile.store(tile.load())

    def tile_loads(t):
        return cute.compile(g, t, 0).__mlir__.count("cute.load")

    assert tile_loads(from_dlpack(a, assumed_align=16).mark_compact_shape_dynamic(1, divisibility=4)) == 1
    assert tile_loads(from_dlpack(a, assumed_align=16).mark_compact_shape_dynamic(1)) == 4


def test_a_compiled_function_takes_what_fits():
    src = np.arange(12, dtype=np.float32).reshape(3, 4)
    dst = np.zeros_like(src)
    dynamic = cute.compile(
        copy_elements, from_dlpack(src).mark_layout_dynamic(), from_dlpack(dst).mark_layout_dynamic()
    )
    dynamic(from_dlpack(src), dst)  # a static one and a raw array have the numbers the code asks for
    assert (src == dst).all()
    more = np.arange(35, dtype=np.float32).reshape(5, 7)
    out = np.zeros_like(more)
    dynamic(more, out)
    assert (more == out).all()
    fixed = cute.compile(copy_elements, from_dlpack(src), from_dlpack(dst))
    for wrong, message in (
        (more, "extent of mode 0 is 5, not 3"),
        (src.astype(np.float64), "Float64"),
        (src.reshape(3, 4, 1), "3 modes"),
        (np.asfortranarray(src), "stride of mode 0 is 1, not 4"),
    ):
        with pytest.raises(kiln.DSLUserCodeTypeError, match=message) as caught:
            fixed(wrong, dst)
        assert "argument 'src'" in str(caught.value) and "compiled for a tensor of Float32" in str(caught.value)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="'src' of copy_elements takes Tensor and got the int 7"):
        fixed(7, dst)


def test_fake_tensors():
    n = cute.sym_int(divisibility=4)
    assert str(n) == "?{div=4}" and str(n * 2) == "?{div=8}" and n % 4 == 0
    fake = make_fake_compact_tensor(kiln.Float32, (n, 8), stride_order=(1, 0), assumed_align=16)
    assert str(fake) == "FakeTensor<Float32@gmem o (?{div=4},8):(8,1)>"
    compiled = cute.compile(copy_elements, fake, make_fake_tensor(kiln.Float32, (cute.sym_int(), 8), (8, 1)))
    src, dst = aligned((8, 8), np.float32), aligned((8, 8), np.float32)
    src[:] = sample(np.float32, (8, 8))
    compiled(src, dst)
    assert (src == dst).all()
    with pytest.raises(kiln.DSLUserCodeTypeError, match="not a multiple of 4"):
        compiled(src[:6], dst)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="not a multiple of 16"):
        compiled(aligned(100, np.float32)[1:33].reshape(4, 8), dst)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="fake tensor"):
        compiled(fake, dst)
    assert str(make_fake_compact_tensor(kiln.Float16, (cute.sym_int64(), n))).endswith("(?{i64},?{div=4}):(1,?{i64})>")


def test_static_int_arguments():
    seen = []

    @cute.jit
    def f(shape: cute.Shape, layout: cute.Layout, tile: cute.Tile, n):
        seen.append((shape, layout, tile, n))
        cute.printf("{} {} {}", shape, layout, n)

    f((4, (2, kiln.Int32(3))), cute.make_layout((2, 4)), (8, cute.make_layout(4)), 5)
    (shape, layout, tile, n), *_ = seen
    assert shape[0] == 4 and isinstance(shape[1][0], int) and not isinstance(shape[1][1], int)
    assert str(layout) == "(2,4):(1,2)" and tile[0] == 8 and str(n) == "?"
    f((4, (2, kiln.Int32(7))), cute.make_layout((2, 4)), (8, cute.make_layout(4)), 6)
    assert len(seen) == 1
    f((5, (2, kiln.Int32(7))), cute.make_layout((2, 4)), (8, cute.make_layout(4)), 6)
    assert len(seen) == 2


def test_tensors_in_containers():
    a, b = np.arange(3, dtype=np.int32), np.zeros(3, np.int32)

    @cute.jit
    def f(inputs, out: cute.Tensor):
        out.store(inputs[0].load() + inputs[1]["x"].load())

    f([from_dlpack(a), {"x": from_dlpack(a)}], from_dlpack(b))
    assert b.tolist() == [0, 2, 4]


def test_the_array_is_kept_alive():
    a = np.arange(4, dtype=np.int32)
    gone = weakref.ref(a)
    t, out = from_dlpack(a), np.zeros(4, np.int32)
    del a
    gc.collect()
    assert gone() is not None
    copy_elements(t, from_dlpack(out))
    assert out.tolist() == [0, 1, 2, 3]
    del t
    gc.collect()
    assert gone() is None


class Exporter:
    """An array that offers DLPack and nothing else."""

    def __init__(self, array, versioned=True):
        self.array = array
        self.versioned = versioned

    def __dlpack__(self, **arguments):
        if not self.versioned:
            if arguments.get("max_version"):
                raise TypeError
            arguments.pop("max_version", None)
        return self.array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("versioned", [True, False])
def test_any_dlpack_exporter(versioned):
    src = np.asfortranarray(sample(np.float16, (3, 5)))
    dst = np.zeros_like(src)
    copy_elements(from_dlpack(Exporter(src, versioned)), Exporter(dst, versioned))
    assert (bits(src) == bits(dst)).all()
    assert from_dlpack(Exporter(src, versioned)).stride == (1, 3)


def test_read_only_arrays():
    src = np.arange(4, dtype=np.int32)
    src.flags.writeable = False
    dst = np.zeros(4, np.int32)
    copy_elements(from_dlpack(src), from_dlpack(dst))
    assert dst.tolist() == [0, 1, 2, 3]
    with pytest.raises(kiln.DSLUserCodeTypeError, match="read-only"):
        copy_elements(from_dlpack(dst), from_dlpack(src))
    compiled = cute.compile(copy_elements, from_dlpack(dst), from_dlpack(dst))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="read-only"):
        compiled(from_dlpack(dst), from_dlpack(src))


def test_a_promise_of_less_than_elements_need():
    x = from_dlpack(np.zeros(4), assumed_align=4)
    assert x.iterator.alignment == 8


def test_refused_arrays():
    with pytest.raises(kiln.DSLUserCodeTypeError, match="not a multiple of 64"):
        from_dlpack(aligned(9, np.float32)[1:], assumed_align=64)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="power of two"):
        from_dlpack(np.zeros(4), assumed_align=24)
    with pytest.raises(
        kiln.DSLUserCodeTypeError, match="(?s)not a multiple of 8.*Float64 elements lie at multiples of 8"
    ):
        from_dlpack(np.zeros(36, np.int8)[4:].view(np.float64), assumed_align=4)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="negative strides"):
        from_dlpack(np.zeros(4)[::-1])
    with pytest.raises(kiln.DSLUserCodeTypeError, match="negative strides"):
        show(np.zeros(4)[::-1])
    with pytest.raises(kiln.DSLUserCodeTypeError, match="no DLPack"):
        from_dlpack([1, 2, 3])
    odd = np.zeros(3, np.dtype([("a", np.int8), ("b", np.int32)]))["b"]
    with pytest.raises(kiln.DSLUserCodeTypeError, match="not multiples|not a multiple"):
        from_dlpack(odd)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="outside a traced function"):
        from_dlpack(np.zeros(3))[0]


def test_empty_and_scalar_arrays(capsys):
    assert traced(np.zeros((0, 3), np.float32), capsys).endswith("(?,?):(?{i64},1)>")
    assert traced(np.zeros((), np.float32), capsys).endswith("():()>")
    copy_elements(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))


def test_pointers_from_python():
    memory = (ctypes.c_int32 * 4)(1, 2, 3, 4)
    out = np.zeros(4, np.int32)

    @cute.jit
    def f(p: cute.Pointer, out: cute.Tensor):
        out.store(cute.make_tensor(p, 4).load())

    for p in (make_ptr(kiln.Int32, ctypes.addressof(memory)), make_ptr(kiln.Int32, ctypes.pointer(memory))):
        out[:] = 0
        f(p, from_dlpack(out))
        assert out.tolist() == [1, 2, 3, 4]
    assert (p + 1).toint() == ctypes.addressof(memory) + 4
    for wrong, message in (("x", "address"), (-4, "negative"), (ctypes.addressof(memory) + 1, "not a multiple")):
        with pytest.raises(kiln.DSLUserCodeTypeError, match=message):
            make_ptr(kiln.Int32, wrong)
    compiled = cute.compile(f, make_ptr(kiln.Int32, ctypes.addressof(memory)), from_dlpack(out))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="argument 'p'.*pointer to Float32"):
        compiled(make_ptr(kiln.Float32, ctypes.addressof(memory)), from_dlpack(out))


def test_a_tensor_is_a_pointer_where_code_was_compiled_for_one():
    source, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)

    @cute.jit
    def f(p: cute.Pointer, out: cute.Tensor):
        out.store(cute.make_tensor(p, 4).load())

    compiled = cute.compile(f, make_ptr(kiln.Float32, 0, assumed_align=4), from_dlpack(out))
    for _ in range(3):  # Python takes the first call, native code may take others
        out[:] = -1
        compiled(from_dlpack(source), from_dlpack(out))
        assert out.tolist() == [0, 1, 2, 3]
    with pytest.raises(kiln.DSLUserCodeValueError, match="'p'.*its type or memory differs"):
        compiled(from_dlpack(source.astype(np.int32)), from_dlpack(out))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="argument 'p' of f takes Pointer and got a RuntimeTensor"):
        f(from_dlpack(source), from_dlpack(out))


torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "float16",
        "bfloat16",
        "float64",
        "int8",
        "uint8",
        "int32",
        "int64",
        "bool",
        "float8_e4m3fn",
        "float8_e5m2",
    ],
)
def test_torch(dtype):
    kind = getattr(torch, dtype)
    src = torch.arange(15).reshape(3, 5).to(kind)
    dst = torch.zeros(3, 5).to(kind)
    copy_elements(from_dlpack(src), from_dlpack(dst))
    assert bytes(src.view(torch.uint8).numpy()) == bytes(dst.view(torch.uint8).numpy())
    dst.zero_()
    copy_elements(src.t(), dst.t())
    assert bytes(src.view(torch.uint8).numpy()) == bytes(dst.view(torch.uint8).numpy())


def test_torch_packed_floats():
    kind = getattr(torch, "float4_e2m1fn_x2", None)
    if kind is None:
        pytest.skip("this torch has no packed floats")
    src = torch.arange(32, dtype=torch.uint8).reshape(4, 8)
    dst = torch.zeros_like(src)
    t = from_dlpack(src.view(kind))
    assert t.shape == (4, 16) and t.stride == (16, 1) and t.element_type is kiln.Float4E2M1FN
    copy_elements(t, from_dlpack(dst.view(kind)))
    assert (src == dst).all()


def test_torch_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.zeros(3, 4)
        compiled = cute.compile(copy_elements, from_dlpack(fake), from_dlpack(fake))
    src, dst = torch.randn(3, 4), torch.zeros(3, 4)
    compiled(from_dlpack(src), from_dlpack(dst))
    assert (src == dst).all()


@cute.jit
def first_element(x: cute.Tensor, y: cute.Tensor):
    y[0] = x[0]


def test_a_sparse_tensor_is_refused_also_after_a_dense_one():
    y = torch.zeros(1)
    for x in (torch.ones(8), torch.ones(8)):
        first_element(x, y)
    for _ in range(6):
        with pytest.raises(kiln.DSLUserCodeTypeError, match="layout torch.sparse_coo"):
            first_element(torch.ones(8).to_sparse(), y)


class OnlyAnInterface:
    """An array of a library that has numpy's interface and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def __array_interface__(self) -> dict[str, object]:
        return self.array.__array_interface__


def test_an_object_with_the_array_interface_alone_is_an_array():
    y = np.zeros(1, np.float32)
    for i in range(8):
        first_element(OnlyAnInterface(np.arange(i, i + 9, dtype=np.float32)[i % 2 :]), y)
        assert y[0] == i + i % 2


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_])
def test_scalars_of_numpy_are_numbers(kind, capfd):
    @cute.jit
    def show(annotated: kiln.Float32, bare):
        cute.printf("{} {}", annotated, bare)

    number = kind(1)
    shown = "1.0 1.000000" if isinstance(number.item(), float) else "1.0 1"
    show(number, number)
    cute.compile(show, number, number)(number, number)
    assert capfd.readouterr().out.replace("1.000000", "1.0", 1).splitlines()[0] == shown


def test_a_scalar_of_numpy_keeps_to_the_annotation():
    @cute.jit
    def show(n: kiln.Int32):
        pass

    with pytest.raises(kiln.DSLUserCodeTypeError, match="argument 'n' takes Int32 and got the float 1.5"):
        show(np.float64(1.5))


def test_torch_refused():
    with pytest.raises(kiln.DSLUserCodeTypeError, match="complex64"):
        from_dlpack(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="dense"):
        from_dlpack(torch.eye(3).to_sparse())
    with pytest.raises(kiln.DSLUserCodeTypeError, match="the negative of what is in memory"):
        from_dlpack(torch.ones(3, dtype=torch.complex64).conj().imag)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="meta"):
        from_dlpack(torch.zeros(2, device="meta"))


def test_keys_of_what_compiled_code_knows():
    """Libraries key their own caches by them."""

    def key(shape, dtype=np.float32, mark=False, **how):
        tensor = from_dlpack(np.zeros(shape, dtype), **how)
        return (tensor.mark_layout_dynamic() if mark else tensor).__cache_key__

    assert key((4, 8)) == key((4, 8)) and hash(key((4, 8))) == hash(key((4, 8)))
    assert key((4, 8), mark=True) == key((5, 8), mark=True)
    others = [key((4, 8)), key((4, 9)), key((8, 4)), key((4, 8), np.int32), key((4, 8), mark=True)]
    others.append(key((4, 8), assumed_align=16))
    assert len(set(others)) == len(others)
    fakes = [make_fake_compact_tensor(cute.Float16, (cute.sym_int(divisibility=n), 64)) for n in (8, 8, 16)]
    assert fakes[0].__cache_key__ == fakes[1].__cache_key__ != fakes[2].__cache_key__
    pointers = [
        cute.runtime.make_ptr(cute.Float16, 64, space) for space in (cute.AddressSpace.gmem, cute.AddressSpace.smem)
    ]
    assert pointers[0].__cache_key__ == (cute.Float16, cute.AddressSpace.gmem, 2) != pointers[1].__cache_key__
