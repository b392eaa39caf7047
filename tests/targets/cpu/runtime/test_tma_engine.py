"""The tensor memory accelerator by itself: random boxes against a model in numpy, all reductions, edited maps."""

from __future__ import annotations

import ctypes
import operator

import ml_dtypes
import numpy as np
import pytest
from thread_groups import Group
from tma_testing import Box

from kiln.dialects.nvgpu.tma import ELEMENTS, FIELDS, REDUCTIONS, SWIZZLES
from kiln.targets.cpu.runtime import parts, reductions, tensor_maps, tma
from kiln.targets.host import jit
from kiln.targets.host.tensor_maps import KNOWN_BYTES, Finding, Request

P, N = ctypes.c_void_p, ctypes.c_int32
FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
INTEGERS = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64}


def exported(name: str, *kinds):
    address = jit.part_library(parts.ACCELERATOR).addresses[f"kiln_cpu_{name}"]
    return ctypes.CFUNCTYPE(ctypes.c_int64 if name.startswith("tma") else N, *kinds)(address)


def aligned(bytes_: int, alignment: int = 1024) -> np.ndarray:
    raw = np.zeros(bytes_ + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + bytes_]


def encoded(box: Box, memory: np.ndarray) -> np.ndarray:
    """The map of a box, as bytes."""
    request = Request(base=memory.ctypes.data, rank=len(box.sizes), element=list(ELEMENTS).index(box.element))
    request.swizzle, request.fill = list(SWIZZLES).index(box.swizzle), int(box.fill == "nan")
    for mode, size in enumerate(box.sizes):
        request.sizes[mode] = size
        request.element_strides[mode] = box.steps[mode] if box.steps else 1
    for mode, extent in enumerate(box.box):
        request.box[mode] = extent
    for mode, stride in enumerate(box.strides):
        request.strides[mode] = stride
    for number, corner in enumerate(box.pixel_box or ()):
        half = len(box.pixel_box) // 2
        request.corners[number if number < half else 3 + number - half] = corner
    request.im2col = int(box.pixel_box is not None)
    record, finding = aligned(128, 128), Finding()
    rule = exported("encode_tensor_map", P, ctypes.c_char_p, P, P)(
        ctypes.addressof(request), bytes(request)[-KNOWN_BYTES:], record.ctypes.data, ctypes.addressof(finding)
    )
    assert rule == 0, finding.rule
    return record


def load(box: Box, record: np.ndarray, at, offsets=(), way: int | None = None, bytes_: int = 0) -> np.ndarray:
    group, shared, word = Group((32, 1, 1)), aligned(max(box.space, 1024)), ctypes.c_uint64(1 | 1 << 20)
    shared[:] = 0xEE
    word.value |= (bytes_ or box.bytes) << 40
    way = int(bool(offsets)) if way is None else way
    failed = exported("tma_load", P, P, P, P, P, P, N, N, N, N)(
        ctypes.addressof(group.frame(0)), record.ctypes.data, shared.ctypes.data, ctypes.addressof(word),
        (N * 5)(*at), (ctypes.c_int16 * 3)(*offsets), len(at), way, -1, 1,
    )  # fmt: skip
    assert not failed
    assert word.value == 1 | 1 << 20  # all bytes have come
    return shared


def store(box: Box, record: np.ndarray, shared: np.ndarray, at, reduction: int = 0, im2col: int = 0) -> int:
    return exported("tma_store", P, P, P, P, P, N, N, N)(
        ctypes.addressof(Group((32, 1, 1)).frame(0)), record.ctypes.data, shared.ctypes.data, (N * 5)(*at),
        (ctypes.c_int16 * 3)(), len(at), int(im2col), reduction,
    )  # fmt: skip


def random_box(r: np.random.Generator) -> Box:
    rank = int(r.integers(1, 6))
    element = str(r.choice(["u8", "u16", "f16", "bf16", "f32", "u32", "s64", "f64"]))
    swizzle = str(r.choice(list(SWIZZLES)))
    width = ELEMENTS[element] // 8
    pieces = int(r.integers(1, (SWIZZLES[swizzle] or 256) // 16 + 1))
    inner = min(pieces * 16 // width, 256)
    sizes = (int(r.integers(1, 2 * inner + 2)), *(int(r.integers(1, 9)) for _ in range(rank - 1)))
    box = (inner, *(int(r.integers(1, 6)) for _ in range(rank - 1)))
    steps = tuple(int(r.choice([1, 1, 1, 2, 3])) for _ in range(rank))
    fill = str(r.choice(["zeros", "nan"])) if element in ("f16", "bf16", "f32", "f64") else "zeros"
    return Box(element, sizes, box, swizzle, steps, fill)


@pytest.mark.parametrize("seed", range(4))
def test_random_boxes(seed):
    r = np.random.default_rng(seed)
    for _ in range(40):
        box = random_box(r)
        memory = aligned(box.memory)
        memory[:] = r.integers(0, 256, box.memory)
        record = encoded(box, memory)
        first, *others = (int(r.integers(-b, s + 2)) for b, s in zip(box.box, box.sizes))
        low = (first - first % (128 // box.bits), *others)
        got, want = load(box, record, low), box.load(memory, low, before=0xEE)
        np.testing.assert_array_equal(got, want, str((box, low)))
        at = tuple(max(0, c) for c in low)
        shared = aligned(box.space)
        shared[:] = r.integers(0, 256, shared.size)
        want = box.store(memory, shared, at)
        assert store(box, record, shared, at) == 0
        np.testing.assert_array_equal(memory, want, str((box, at)))


@pytest.mark.parametrize(
    ("element", "swizzle", "width"),
    [
        ("f16", "128b", 32),
        ("f32", "128b", 8),
        ("u8", "128b", 16),
        ("f16", "64b", 16),
        ("f32", "64b", 4),
        ("f16", "32b", 8),
    ],
)
def test_rows_shorter_than_the_span_of_a_swizzle_lie_a_span_apart(element, swizzle, width):
    box = Box(element, (64, 12), (width, 9), swizzle)
    memory = aligned(box.memory)
    memory[:] = np.random.default_rng(9).integers(0, 256, memory.size)
    shared = load(box, encoded(box, memory), (0, 0))
    rows = memory.reshape(12, -1)[:9, : box.row]
    span, places = SWIZZLES[swizzle], np.zeros((9, box.row // 16), int)
    for (row, piece), _ in np.ndenumerate(places):
        at = row * span + 16 * piece
        at ^= (at >> 7) % (span // 16) << 4
        np.testing.assert_array_equal(shared[at : at + 16], rows[row, 16 * piece :][:16])
        shared[at : at + 16] = 0xEE
    assert np.all(shared == 0xEE)  # the rest of a span is left alone


@pytest.mark.parametrize(
    ("element", "bits"), [("f16", 0x7FF7), ("bf16", 0x7FF7), ("f32", 0x7FF77FF7), ("tf32", 0x7FF77FF7)]
)
def test_what_stands_for_elements_that_are_not_there(element, bits):
    box = Box(element, (8,), (16,), fill="nan")
    memory = aligned(box.memory)
    found = load(box, encoded(box, memory), (0,)).view(f"u{box.bits // 8}")[:16]
    assert [hex(each) for each in found] == ["0x0"] * 8 + [hex(bits)] * 8


@pytest.mark.parametrize(
    ("element", "starts"),
    [("u8", (1, 8, 40, -3)), ("u16", (1, -1)), ("f32", (1, -3)), ("u64", (1,)), ("16u4_align8b", (16, -1))],
)
def test_boxes_start_at_multiples_of_16_bytes(element, starts):
    box = Box(element, (128, 4), (64, 2))
    memory, shared, word = aligned(box.memory), aligned(box.space), ctypes.c_uint64(0)
    record, frame = encoded(box, memory), Group((32, 1, 1)).frame(0)
    for start in starts:
        answers = [store(box, record, shared, (start, 0), reduction) for reduction in (0, 1)]
        answers.append(
            exported("tma_load", P, P, P, P, P, P, N, N, N, N)(
                ctypes.addressof(frame),
                record.ctypes.data,
                shared.ctypes.data,
                ctypes.addressof(word),
                (N * 5)(start),
                (ctypes.c_int16 * 3)(),
                2,
                0,
                -1,
                1,
            )  # fmt: skip
        )
        assert answers == [tma.START | box.bits << 8 | start << 32] * 3


def test_boxes_of_pixels():
    r = np.random.default_rng(5)
    for rank, corners, steps in (
        (3, (-1, 1), (1, 1, 1)),
        (4, (-1, -2, -1, 1), (1, 1, 1, 1)),
        (4, (0, 0, 0, -2), (1, 2, 2, 1)),
        (5, (-1, 0, -1, 0, -1, 1), (1, 1, 1, 1, 1)),
    ):
        sizes = (16, *(int(r.integers(3, 7)) for _ in range(rank - 2)), 3)
        box = Box("f16", sizes, (8, 40), "none", steps, pixel_box=corners)
        memory = aligned(box.memory)
        memory[:] = r.integers(0, 256, box.memory)
        record = encoded(box, memory)
        at, offsets = (8, *corners[: rank - 2], 1), (1, 2, 1)[: rank - 2]
        got = load(box, record, at, offsets)
        np.testing.assert_array_equal(got, box.load(memory, at, offsets, before=0xEE), str(box))
        at = (8, *(max(0, c) for c in corners[: rank - 2]), 1)
        shared = aligned(1024)
        shared[:] = r.integers(0, 256, 1024)
        want = box.store(memory, shared, at)
        assert store(box, record, shared, at, im2col=True) == 0
        np.testing.assert_array_equal(memory, want)


def test_packed_elements():
    box, r = Box("16u4_align8b", (64, 4), (32, 2)), np.random.default_rng(6)
    memory = aligned(box.memory)
    memory[:] = r.integers(0, 256, memory.size)
    got = load(box, encoded(box, memory), (32, 3))
    np.testing.assert_array_equal(got[:32], [*memory[96 + 16 : 128], *[0] * 16])


@pytest.mark.parametrize(("element", "bits", "swizzle"), [("16u4_align16b", 4, "128b"), ("16u6_align16b", 6, "none")])
def test_elements_with_padding(element, bits, swizzle):
    """16 elements take 16 bytes of shared memory, the first 8 or 12 of which they fill; a row of 128 has 128 bytes."""
    box, r = Box(element, (256, 8), (128, 4), swizzle), np.random.default_rng(6)
    memory = aligned(box.memory)
    memory[:] = r.integers(0, 256, memory.size)
    record, filled = encoded(box, memory), 2 * bits
    rows = memory.reshape(8, 2, 8, filled)
    for at in ((128, 3), (0, 6), (256, 0)):
        want = np.zeros((4, 8, 16), np.uint8)
        inside = rows[at[1] : at[1] + 4, at[0] // 128 : at[0] // 128 + 1].reshape(-1, 8, filled)
        want[: len(inside), :, :filled] = inside
        got = load(box, record, at, bytes_=4 * 8 * filled)  # without padding
        np.testing.assert_array_equal(got[:512], box.swizzled(np.pad(want.reshape(-1), (0, 512)))[:512])
    at = (N * 5)(64, 0)
    offsets, frame, word = (ctypes.c_int16 * 3)(), Group((32, 1, 1)).frame(0), ctypes.c_uint64(0)
    shared = aligned(1024)
    why = exported("tma_load", P, P, P, P, P, P, N, N, N, N)(
        ctypes.addressof(frame),
        record.ctypes.data,
        shared.ctypes.data,
        ctypes.addressof(word),
        at,
        offsets,
        2,
        0,
        -1,
        1,
    )
    assert why == tma.PADDED | 64 << 32
    assert store(box, record, shared, (0, 0)) == tma.ELEMENT


@pytest.mark.parametrize(
    ("element", "width", "swizzle"),
    [("f16", 64, "128b"), ("f32", 8, "32b"), ("u8", 48, "none"), ("f32", 32, "128b_32b")],
)
def test_rows_by_their_numbers(element, width, swizzle):
    """`gather4` and `scatter4`: four rows of a matrix, which may be outside, land as a box of four rows would."""
    box, r = Box(element, (96, 10), (width, 1), swizzle), np.random.default_rng(8)
    memory = aligned(box.memory)
    memory[:] = r.integers(0, 256, memory.size)
    record, numbers, start = encoded(box, memory), (7, 2, 12, 2), 16
    first = start * box.bits // 8
    rows = np.pad(memory.reshape(10, -1), ((0, 3), (0, 0)))[list(numbers), first : first + box.row]
    plain = np.full(1024, 0xEE, np.uint8)
    for i, row in enumerate(rows):
        plain[i * box.distance : i * box.distance + box.row] = row
    want = box.swizzled(plain)
    shared = load(box, record, (start, *numbers), way=tma.GATHER4, bytes_=4 * box.row)
    np.testing.assert_array_equal(shared, want)
    into = (1, 9, -1, 4)
    expected = memory.reshape(10, -1).copy()
    for number, row in zip(into, rows):
        if number >= 0:
            expected[number, first : first + box.row] = row
    assert store(box, record, shared, (start, *into), im2col=tma.GATHER4) == 0
    np.testing.assert_array_equal(memory.reshape(10, -1), expected)
    wide = Box(element, (96, 10), (width, 2), swizzle)
    assert store(wide, encoded(wide, memory), shared, (0, *into), im2col=tma.GATHER4) == tma.ROWS | 2 << 8 | 2 << 32


def test_numbers_as_the_map_has_them():
    values = aligned(64).view(np.uint32)
    values[:4] = [0x3F801000, 0x3F803000, 0x80004001, 0x7F800001]
    for element, want in (
        ("f32_ftz", [0x3F801000, 0x3F803000, 0x80004001, 0x7F800001]),
        ("tf32", [0x3F800000, 0x3F804000, 0x80004000, 0x7F800001]),
        ("tf32_ftz", [0x3F800000, 0x3F804000, 0x80004000, 0x7F800001]),
    ):
        box = Box(element, (16,), (16,))
        got = load(box, encoded(box, values.view(np.uint8)), (0,)).view(np.uint32)[:4]
        np.testing.assert_array_equal(got, np.array(want, np.uint32))


def combined(kind: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    if kind == "inc":
        return np.where(old >= new, 0, old + 1)
    if kind == "dec":
        return np.where((old == 0) | (old > new), new, old - 1)
    known = {"add": operator.add, "min": np.fmin, "max": np.fmax, "and": operator.and_, "or": operator.or_}
    return {**known, "xor": operator.xor}[kind](old, new)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(reduction):
    r = np.random.default_rng(7)
    number = REDUCTIONS.index(reduction) + 1
    known = [list(ELEMENTS)[element] for element in tma.REDUCED[number] if element != reductions.F32_FTZ]
    for element in (*FLOATS, *INTEGERS):
        kind = {**FLOATS, **INTEGERS}[element]
        box = Box(element, (40, 3), (128 // np.dtype(kind).itemsize, 2), "128b")
        memory, shared = aligned(box.memory), aligned(1024)
        record = encoded(box, memory)
        if element not in known:
            assert store(box, record, shared, (0, 0), number) & 255 == tma.REDUCTION
            continue
        for part in (memory, shared):
            part[:] = (
                r.integers(0, 256, part.size)
                if element in INTEGERS
                else r.standard_normal(part.size // np.dtype(kind).itemsize).astype(kind).view(np.uint8)
            )
        combine = lambda old, new, kind=kind: combined(reduction, old.view(kind), new.view(kind)).astype(kind).view(np.uint8)  # fmt: skip
        with np.errstate(all="ignore"):
            want = box.store(memory, shared, (8, 1), combine)
        assert store(box, record, shared, (8, 1), number) == 0
        np.testing.assert_array_equal(memory, want, element)


def test_maps_are_edited():
    box = Box("f16", (64, 16), (32, 4), "64b")
    memory, other = aligned(box.memory), aligned(4 * box.memory)
    other[:] = np.random.default_rng(8).integers(0, 256, other.size)
    record = encoded(box, memory)
    replace = exported("tensor_map_replace", P, N, N, ctypes.c_int64)
    want = Box("f32", (100, 3, 5), (32, 2, 2), "128b", (1, 2, 1))
    edits = [
        ("global_address", 0, other.ctypes.data),
        ("rank", 0, 2),
        ("elemtype", 0, 7),
        ("swizzle_mode", 0, 3),
        ("fill_mode", 0, 0),
    ]
    for field in ("box_dim", "global_dim", "element_stride", "global_stride"):
        values = {
            "box_dim": want.box,
            "global_dim": want.sizes,
            "element_stride": want.steps,
            "global_stride": want.strides,
        }
        edits += [(field, mode, value) for mode, value in enumerate(values[field])]
    made = aligned(128, 128)  # a map of zeros becomes one
    for target in (record, made):
        for field, ordinal, value in edits:
            assert replace(target.ctypes.data, FIELDS.index(field), ordinal, value) == 0
        np.testing.assert_array_equal(load(want, target, (8, 1, 3)), want.load(other, (8, 1, 3), before=0xEE))
    nothing = aligned(128, 128)
    nothing[:] = 7
    assert replace(nothing.ctypes.data, 0, 0, 0) == tma.NOT_A_MAP


def test_the_runtime_knows_the_lists_of_the_dialect():
    assert tensor_maps.FIELDS == FIELDS
    assert tma.BITS == tuple(ELEMENTS.values())
    names = list(ELEMENTS)
    for name, number in (
        ("f16", reductions.F16),
        ("f32", reductions.F32),
        ("f64", reductions.F64),
        ("bf16", reductions.BF16),
    ):
        assert names.index(name) == number
    assert names.index("s64") == reductions.S64
    assert len(reductions.REDUCED) == len(REDUCTIONS)
