"""Random arguments at the entry_points of one exported file: what fits is taken, all else is refused with the argument's name and what was found."""

from __future__ import annotations

import ctypes
import random
import threading
from typing import Any

import numpy as np
import pytest

import kiln
import kiln.cute as cute
from kiln import Float32, Int32
from kiln.cute.runtime import make_fake_compact_tensor

LIMIT = (1 << 31) - 1
EXTENTS = (
    -(1 << 63),
    -4,
    -1,
    0,
    1,
    3,
    4,
    8,
    8,
    8,
    16,
    1 << 15,
    LIMIT - 3,
    LIMIT,
    1 << 31,
    1 << 32,
    1 << 62,
    (1 << 63) - 4,
    (1 << 63) - 1,
)
NUMBERS = (-(1 << 63), -(1 << 31) - 1, -(1 << 31), -1, 0, 1, LIMIT, LIMIT + 1, (1 << 63) - 1)
FLOAT32, CPU = (2, 32, 1), 1


@cute.jit
def touch(x: cute.Tensor, n: Int32):
    """Looks at no element but the first, so that extents may say what they like."""
    x[0, 0] = n.to(Float32)


class Tensor(ctypes.Structure):
    """DLPack's."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
    ]  # fmt: skip


class Argument(ctypes.Structure):
    """TVM-FFI's."""

    _fields_ = [("type", ctypes.c_int32), ("padding", ctypes.c_int32), ("value", ctypes.c_int64)]


class Matrix(ctypes.Structure):
    """That of the file's header."""

    _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 2), ("stride", ctypes.c_int64)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    x = make_fake_compact_tensor(
        Float32, (cute.SymInt(), cute.SymInt(divisibility=4)), stride_order=(1, 0), assumed_align=16
    )
    path = tmp_path_factory.mktemp("exported") / "libtouch.so"
    kiln.export(
        touch, x, 1, to=path, name="random::touch", archs=("cpu",), entry_points=("c", "tvm_ffi", "torch", "jax")
    )
    return str(path)


@pytest.fixture
def memory() -> np.ndarray:
    whole = np.zeros(1 << 14, np.float32)
    return whole[-whole.ctypes.data % 64 // 4 :]


def wrong_tensor(kind: Any, device: int, address: int, shape: Any, strides: Any) -> str:
    """What is said of a tensor that does not fit; empty: it fits, or has no elements."""
    if kind != FLOAT32:
        return "its elements are "
    if len(shape) != 2:
        return f"its rank is {len(shape)}, expected 2"
    if device not in (CPU, 3):
        return "it is on a GPU, expected the host"
    bad = [n for n, extent in enumerate(shape) if not 0 <= extent <= LIMIT or extent % (1, 4)[n]]
    if 0 in shape and not bad:
        return ""
    if address % 16:
        return f"its address modulo the alignment is {address % 16}, expected 0"
    if bad:
        return f"its extent {bad[0]} is {shape[bad[0]]}, expected "
    if strides[0] < 0 or strides[0] % 4:
        return f"its stride 0 is {strides[0]}, expected "
    if strides[1] != 1:
        return f"its stride 1 is {strides[1]}, expected 1"
    if shape[0] * shape[1] > LIMIT:
        return f"the number of its elements is {shape[0] * shape[1]}, expected at most {LIMIT}"
    return ""


def test_descriptions_of_tensors(file: str, memory: np.ndarray) -> None:
    """By TVM-FFI's interface and by C's, both ways into it."""
    library, generator, taken = ctypes.CDLL(file), random.Random(1), 0
    by_tvm_ffi, by_c, packed = (
        library[name] for name in ("__tvm_ffi_touch", "cute_dsl_touch_wrapper", "__kiln_packed_touch")
    )
    text = library["touch_Kernel_Module_Error"]
    text.restype = ctypes.c_char_p
    for _ in range(400):
        rank = generator.choice((0, 1, 2, 2, 2, 2, 2, 2, 3))
        usual = generator.random() < 0.5
        shape = [generator.choice(EXTENTS) for _ in range(rank)] if not usual else [3, 8, 2][:rank]
        strides = [generator.choice((8, 8, 16, *EXTENTS)), generator.choice((1, 1, 1, 2)), 1][:rank]
        kind = generator.choice((FLOAT32, FLOAT32, FLOAT32, FLOAT32, (0, 32, 1), (2, 64, 1), (2, 32, 2), (200, 32, 1)))
        device, number = generator.choice((1, 1, 1, 1, 2, 3, 99, -1)), generator.choice((*NUMBERS, 5, 5, 5, 5))
        start, offset = generator.choice((0, 0, 0, 4, 16)), generator.choice((0, 0, 12, 16, 4096))
        extents, steps = ((ctypes.c_int64 * max(rank, 1))(*values) for values in (shape, strides))
        tensor = Tensor(
            memory.ctypes.data + start,
            (device, 0),
            rank,
            *kind,
            ctypes.addressof(extents),
            ctypes.addressof(steps),
            offset,
        )
        given = (Argument * 2)((7, 0, ctypes.addressof(tensor)), (1, 0, number))
        result, place = Argument(), (start + offset) // 4
        memory[place] = -1
        status = by_tvm_ffi(None, given, 2, ctypes.byref(result))
        said, wrong = text(None).decode(), wrong_tensor(kind, device, start + offset, shape, strides)
        fits = -(1 << 31) <= number <= LIMIT
        if wrong:
            assert status == -1 and "argument 1 (x) of touch(" in said and wrong in said, (wrong, said)
        elif not fits:
            assert (
                status == -1
                and f"argument 2 (n) of touch(x: Tensor([?, ?], Float32), n: Int32): it is {number}, expected" in said
            )
        else:
            assert status == 0 and memory[place] == (-1 if 0 in shape else np.float32(number)), (shape, strides)
            taken += 1
        if rank == 2:
            short = (ctypes.c_int32 * 2)(*shape)
            matrix = Matrix(memory.ctypes.data + start, short, strides[0])
            bad = start % 16 or min(short) < 0 or short[1] % 4 or strides[0] < 0 or strides[0] % 4
            n, told = ctypes.c_int32(number), ctypes.c_int32(7)
            pointers = (ctypes.c_void_p * 3)(*map(ctypes.addressof, (matrix, n, told)))
            for call in (lambda: by_c(None, ctypes.byref(matrix), n), lambda: packed(pointers, 3)):
                memory[start // 4] = 0.5
                status = call()
                assert status == (-1 if bad else 0), (*short, strides, text(None))
                assert memory[start // 4] == (0.5 if bad else np.float32(n.value))
            assert told.value == status
    assert taken > 9


def test_tensors_of_pytorch(file: str) -> None:
    torch = pytest.importorskip("torch")
    torch.ops.load_library(file)
    call, generator, memory = torch.ops.random.touch, random.Random(2), torch.zeros(4096)
    for _ in range(300):
        shape = [generator.choice((0, 1, 3, 4, 8)) for _ in range(generator.choice((0, 1, 2, 2, 2, 2, 3)))]
        strides = [generator.choice((0, 1, 4, 6, 8, 16)), generator.choice((1, 1, 1, 2)), 1][: len(shape)]
        start, whole = generator.choice((0, 0, 4, 5)), generator.random() < 0.9
        x = memory.as_strided(shape, strides, start)
        x = x if whole else x.to(torch.float64)
        number = generator.choice((*NUMBERS, 5, 5, 5, 5))
        wrong = wrong_tensor(FLOAT32 if whole else None, CPU, x.data_ptr(), shape, x.stride())
        wrong = wrong or ("" if -(1 << 31) <= number <= LIMIT else f"it is {number}, expected")
        overlaps = x.numel() > 0 and any(e > 1 and s == 0 for e, s in zip(shape, x.stride()))
        memory[start] = -1
        try:
            call(x, number)
            assert not wrong and not overlaps and memory[start] == (np.float32(number) if x.numel() else -1)
        except RuntimeError as failure:
            told = [wrong] if wrong else []
            told += ["it shows one element at several coordinates"] if overlaps else []
            assert any(text in str(failure) for text in told), (told, failure)


def test_texts_of_errors_are_the_thread_s(file: str, memory: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    torch.ops.load_library(file)
    library, told = ctypes.CDLL(file), []
    library.touch_Kernel_Module_Error.restype = ctypes.c_char_p

    def call(extent: int) -> None:
        matrix = Matrix(memory.ctypes.data, (3, extent), 8)
        for _ in range(100):
            library.cute_dsl_touch_wrapper(None, ctypes.byref(matrix), 1)
            told.append((extent, library.touch_Kernel_Module_Error(None).decode()))
            try:
                torch.ops.random.touch(torch.zeros(3, extent), 1)
            except RuntimeError as failure:
                told.append((extent, str(failure)))

    threads = [threading.Thread(target=call, args=(extent,)) for extent in (1, 2, 3, 5, 6, 7)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(told) == 6 * 200
    assert all(f"its extent 1 is {extent}, expected a multiple of 4" in text for extent, text in told)
