"""Arrays of jax, and of libraries that keep them on a GPU, by the DLPack protocol."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute.host import arrays
from kiln.cute.runtime import from_dlpack
from kiln.hardware import current as hardware


@cute.jit
def copy(src: cute.Tensor, dst: cute.Tensor):
    for i in range(cute.size(src)):
        dst[i] = src[i].to(dst.element_type)


class TestJax:
    """The arrays of jax itself."""

    @pytest.fixture
    def jnp(self) -> Any:
        pytest.importorskip("jax")
        import jax.numpy

        return jax.numpy

    @pytest.mark.quick(6)
    @pytest.mark.parametrize(
        "name",
        "float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu float4_e2m1fn int8 uint8 int32 uint32 bool_".split(),
    )
    def test_element_types(self, jnp: Any, name: str):
        dtype = getattr(jnp, name, None)
        if dtype is None:
            pytest.skip(f"this jax has no {name}")
        numbers = [1.0, 2.0, 4.0, 0.5, 1.0, 2.0] if "float" in name else [1, 0, 1, 1, 0, 1]
        x = jnp.asarray(numbers, jnp.float32).astype(dtype).reshape(2, 3)
        if name == "float4_e2m1fn":
            x = x.reshape(6)  # rows of three half bytes have no addresses
        for given in (x, from_dlpack(x), from_dlpack(x).mark_layout_dynamic()):
            got = np.zeros(x.shape, np.float32)
            copy(given, got)
            assert np.array_equal(got, np.asarray(x.astype(jnp.float32)))

    def test_layout_lifetime_and_devices(self, jnp: Any):
        x = jnp.arange(12.0).reshape(3, 4)
        t = from_dlpack(x)
        assert t.shape == (3, 4) and t.stride == (4, 1) and t.element_type is kiln.Float32
        assert str(t.memspace) == "generic" and t.data_ptr == x.unsafe_buffer_pointer()
        del x
        gc.collect()
        got = np.zeros((3, 4), np.float32)
        copy(t, got)
        assert np.array_equal(got, np.arange(12.0).reshape(3, 4))
        with pytest.raises(kiln.DSLUserCodeTypeError, match="argument 'src'"):
            cute.compile(copy, t, got)(jnp.arange(12.0), got)


class OnGpu:
    """An array that says it is in the memory of a GPU, as cupy's do: DLPack 0, a `stream` and no `max_version`."""

    def __init__(self, data: np.ndarray, device: int = 2) -> None:
        self.data, self.device = data, device
        self.streams: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, stream: Any = None) -> Any:
        self.streams.append(stream)
        capsule = self.data.__dlpack__()
        tensor = arrays._DLTensor.from_address(arrays._capsule_pointer(capsule, b"dltensor"))
        tensor.device.kind = self.device
        return capsule


def test_an_array_on_a_gpu():
    x = OnGpu(np.arange(8, dtype=np.float32).reshape(2, 4))
    t = from_dlpack(x, assumed_align=4)
    assert str(t.memspace) == "gmem" and t.shape == (2, 4) and t.stride == (4, 1)
    assert t.data_ptr == x.data.ctypes.data
    assert x.streams == [-1]  # no wait: the launch is ordered by the stream it is given
    out = np.zeros((2, 4), np.float32)
    with kiln.target("cpu"):
        for given in (x, t):
            with pytest.raises(kiln.DSLUserCodeTypeError, match="on a CUDA device"):
                copy(given, out)


def test_a_gpu_served_from_host_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "cuda_is_host_memory", True)
    out = OnGpu(np.zeros((2, 4), np.float32))
    with kiln.target("cpu"):
        copy(OnGpu(np.arange(8, dtype=np.int16).reshape(4, 2).T), out)
        copy(from_dlpack(OnGpu(np.ones((2, 4), np.uint8))), OnGpu(np.zeros((2, 4), np.float32)))
    assert np.array_equal(out.data, np.arange(8).reshape(4, 2).T)


class ByInterface:
    """An array that knows nothing but CUDA's array interface."""

    def __init__(self, memory: np.ndarray, **told: Any) -> None:
        self.memory, where = memory, (memory.ctypes.data, False)
        self.told = {"shape": memory.shape, "typestr": memory.dtype.str, "data": where, "version": 3}
        self.told |= told

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.told


def test_cudas_array_interface(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "cuda_is_host_memory", True)
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    turned, out = ByInterface(data.T, strides=data.T.strides), ByInterface(np.zeros((4, 3), np.float32))
    t = from_dlpack(turned)
    assert str(t.memspace) == "gmem" and t.shape == (4, 3) and t.stride == (1, 4)
    with kiln.target("cpu"):
        copy(turned, out)
        assert np.array_equal(out.memory, data.T)
        with pytest.raises(kiln.DSLUserCodeTypeError, match="read-only"):
            copy(turned, ByInterface(out.memory, data=(out.memory.ctypes.data, True)))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="mask"):
        from_dlpack(ByInterface(data, mask=data))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="not multiples of its element size 4"):
        from_dlpack(ByInterface(data, strides=(16, 3)))


@pytest.mark.parametrize("device, space", [(3, "generic"), (13, "gmem")])
def test_memory_that_both_reach(device: int, space: str):
    assert str(from_dlpack(OnGpu(np.zeros(4, np.float32), device)).memspace) == space


def test_what_is_refused():
    with pytest.raises(kiln.DSLUserCodeTypeError, match="DLPack's device type 10"):
        from_dlpack(OnGpu(np.zeros(4, np.float32), 10))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="no DLPack protocol"):
        from_dlpack([1.0, 2.0])


class Versioned:
    """An array of DLPack 1 with flags."""

    def __init__(self, data: np.ndarray, flags: int, bits: int) -> None:
        self.data, self.flags, self.bits = data, flags, bits
        self.keep: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, max_version: Any = None) -> Any:
        made = arrays._Versioned(1, 0, None, None, self.flags)
        shape = (ctypes.c_int64 * 1)(self.data.size * 8 // self.bits)
        made.tensor.data, made.tensor.device.kind, made.tensor.ndim = self.data.ctypes.data, 1, 1
        made.tensor.dtype.code, made.tensor.dtype.bits, made.tensor.dtype.lanes = 1, self.bits, 1
        made.tensor.shape = shape
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.keep += [made, shape]
        return new(ctypes.addressof(made), b"dltensor_versioned", None)


def test_flags_of_the_protocol():
    data = np.array([0x21, 0x43], np.uint8)
    got = np.zeros(4, np.uint8)
    copy(Versioned(data, 0, 4), got)
    assert got.tolist() == [1, 2, 3, 4]
    with pytest.raises(kiln.DSLUserCodeTypeError, match="a byte of its own"):
        from_dlpack(Versioned(data, 4, 4))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="read-only"):
        copy(got[:2], Versioned(data, 1, 8))


# --- headers that no array has ---------------------------------------------------------------------------------------


class Headed:
    """An array whose header is changed by a function."""

    def __init__(self, data: np.ndarray, change: Any) -> None:
        self.data, self.change = data, change

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.data.__dlpack__()
        tensor = arrays._DLTensor.from_address(arrays._capsule_pointer(capsule, b"dltensor"))
        return self.change(tensor) or capsule


def set_extent(value: int) -> Any:
    def change(tensor: Any) -> None:
        tensor.shape[0] = value

    return change


def set_step(value: int) -> Any:
    steps = (ctypes.c_int64 * 2)(value, 1)

    def change(tensor: Any) -> None:
        tensor.strides = steps

    return change


def set_field(name: str, value: Any) -> Any:
    def change(tensor: Any) -> None:
        owner = tensor
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, value)

    return change


HEADERS = {
    "a million modes": (set_field("ndim", 1_000_000), "1000000 modes"),
    "65 modes": (set_field("ndim", 65), "65 modes"),
    "negative modes": (set_field("ndim", -1), "-1 modes"),
    "no extents": (set_field("shape", None), "pointer to them is null"),
    "negative extent": (set_extent(-3), r"shape is \(-3, 4\)"),
    "endless": (set_extent(2**63 - 1), "elements lie from address"),
    "before memory": (set_step(-(2**62)), "elements lie from address"),
    "no memory": (set_field("data", None), "pointer is null"),
    "behind memory": (set_field("byte_offset", 2**64 - 8), "elements lie from address"),
    "bits": (set_field("dtype.bits", 7), "of 7 bits"),
    "no bits": (set_field("dtype.bits", 0), "of 0 bits"),
    "code": (set_field("dtype.code", 99), "type code 99"),
    "lanes": (set_field("dtype.lanes", 65535), "vectors of 65535"),
    "device": (set_field("device.kind", 77), "device type 77"),
    "no capsule": (lambda tensor: "capsule", "gave 'capsule'"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_no_array_has_are_refused(name: str):
    change, words = HEADERS[name]
    data = np.zeros((3, 4), np.float32)
    assert size(Headed(data, lambda tensor: None)) == 12
    for call in (size, lambda x: size_of_first([x]), from_dlpack, cute.compile(size, data)):
        with pytest.raises(kiln.DSLUserCodeTypeError, match=words):
            call(Headed(data, change))


def test_headers_without_elements_need_no_memory():
    no_memory = set_field("data", None)
    assert from_dlpack(Headed(np.zeros((0, 4), np.float32), no_memory)).shape == (0, 4)
    assert from_dlpack(Headed(np.zeros(8, np.float32), set_field("strides", None))).shape == (8,)
    assert size(np.broadcast_to(np.float32(1), (1 << 20, 4))) == 1 << 22


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": (-1, 4)}, r"shape is \(-1, 4\)"),
        ({"data": (0, False)}, "pointer is null"),
        ({"strides": (16,)}, "2 extents and 1 strides"),
    ],
)
def test_interfaces_that_no_array_has_are_refused(change: dict[str, Any], words: str):
    class Interface:
        __cuda_array_interface__ = {
            "shape": (3, 4), "typestr": "<f4", "data": (1 << 20, False), "strides": None, "version": 3, **change
        }  # fmt: skip

    with pytest.raises(kiln.DSLUserCodeTypeError, match=words):
        from_dlpack(Interface())


# --- arrays whose elements are not what lies in memory ---------------------------------------------------------------


class Vectors:
    """An array that says its elements are vectors."""

    def __init__(self, data: np.ndarray, lanes: int) -> None:
        self.data, self.lanes = data, lanes

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self.data.__dlpack__()
        arrays._DLTensor.from_address(arrays._capsule_pointer(capsule, b"dltensor")).dtype.lanes = self.lanes
        return capsule


@cute.jit
def size(x: cute.Tensor):
    return cute.size(x)


@cute.jit
def size_of_first(xs: list):
    return cute.size(xs[0])


class Masked(np.ma.MaskedArray):
    pass


@pytest.mark.parametrize("lanes", [0, 2, 4])
def test_elements_that_are_vectors_are_refused(lanes: int):
    data = np.zeros(8, np.float32)
    assert size(Vectors(data, 1)) == size_of_first([Vectors(data, 1)]) == 8
    for call in (size, lambda x: size_of_first([x]), from_dlpack, cute.compile(size, data)):
        with pytest.raises(kiln.DSLUserCodeTypeError, match=f"vectors of {lanes} Float32"):
            call(Vectors(data, lanes))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="lanes"):
        kiln.kernels.softmax(Vectors(data, lanes))


@pytest.mark.parametrize("kind", [np.ma.MaskedArray, Masked])
def test_arrays_with_a_mask_are_refused(kind: type):
    data = np.zeros(8, np.float32)
    masked = np.ma.masked_array(data, mask=np.arange(8) < 4).view(kind)
    compiled = cute.compile(size, data)
    for _ in range(8):  # native code has seen arrays
        assert size(data) == compiled(data) == 8
    for call in (size, lambda x: size_of_first([x]), from_dlpack, compiled):
        with pytest.raises(kiln.DSLUserCodeTypeError, match="has a mask"):
            call(masked)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="masked array"):
        kiln.kernels.softmax(masked)
