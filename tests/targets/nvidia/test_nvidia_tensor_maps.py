"""Tensor maps of the NVIDIA target: what the driver is asked, what is kept, and what a launch passes on."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest
from nvidia_testing import compile_for
from tma_testing import Box, Map

import kiln.cute as cute
from kiln.base_dsl.diagnostics import DSLRuntimeError
from kiln.dialects import nvgpu
from kiln.targets.host import jit
from kiln.targets.host.tensor_map_rules import BOX, REFUSED
from kiln.targets.host.tensor_maps import KNOWN_BYTES, Finding, Request
from kiln.targets.nvidia import tensor_maps
from kiln.targets.nvidia.parts import TENSOR_MAPS

_P, _I, _U = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint
_TILED = ctypes.CFUNCTYPE(_I, _P, _I, _U, _P, _P, _P, _P, _P, _I, _I, _I, _I)
_IM2COL = ctypes.CFUNCTYPE(_I, _P, _I, _U, _P, _P, _P, _P, _P, _U, _U, _P, _I, _I, _I, _I)


def _read(kind: Any, address: int, count: int) -> list[int]:
    return list((kind * count).from_address(address))


class MapDriver:
    """Stands in for the driver's encoders; a map is the number of the call and the base, over and over."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.status = 0
        self.tiled, self.im2col = _TILED(self._tiled), _IM2COL(self._im2col)

    def _answer(self, map_: int, base: int) -> int:
        assert map_ % 128 == 0
        (ctypes.c_uint64 * 16).from_address(map_)[:] = [len(self.asked), base] * 8
        return self.status

    def _tiled(self, map_: int, element: int, rank: int, base: int, *rest: Any) -> int:
        sizes, strides, box, steps, *modes = rest
        numbers = (_read(ctypes.c_uint64, sizes, rank), _read(ctypes.c_uint64, strides, rank - 1))
        self.asked.append((element, base, *numbers, _read(_U, box, rank), _read(_U, steps, rank), modes))
        return self._answer(map_, base)

    def _im2col(self, map_: int, element: int, rank: int, base: int, *rest: Any) -> int:
        _sizes, _strides, lower, upper, channels, pixels, _steps, *modes = rest
        corners = (_read(_I, lower, rank - 2), _read(_I, upper, rank - 2))
        self.asked.append((element, base, *corners, channels, pixels, modes))
        return self._answer(map_, base)


@pytest.fixture
def maps():
    """Stand-ins in the place of the driver, and an empty table."""
    addresses = jit.part_library(TENSOR_MAPS).addresses
    state = ctypes.c_int32.from_address(addresses[tensor_maps.driver.symbol])
    functions = [ctypes.c_uint64.from_address(addresses[f.symbol]) for f in (tensor_maps.tiled, tensor_maps.im2col)]
    before = [state.value, *(each.value for each in functions)]
    fake = MapDriver()
    ctypes.memset(addresses[tensor_maps.entries.symbol], 0, ctypes.sizeof(tensor_maps.Entry) * tensor_maps.ENTRIES)
    state.value = tensor_maps.THERE
    for place, stand_in in zip(functions, (fake.tiled, fake.im2col), strict=True):
        place.value = ctypes.cast(stand_in, _P).value or 0
    yield fake
    for place, value in zip([state, *functions], before, strict=True):
        place.value = value
    ctypes.memset(addresses[tensor_maps.entries.symbol], 0, ctypes.sizeof(tensor_maps.Entry) * tensor_maps.ENTRIES)


def request(base: int = 4096, **given: Any) -> Any:
    made: Any = Request()
    made.base, made.rank, made.element = base, 2, 6
    made.sizes[:2], made.strides[0] = (100, 50), 208
    made.box[:2], made.element_strides[:2] = (64, 8), (1, 2)
    made.swizzle, made.promotion, made.fill = 3, 2, 1
    for name, value in given.items():
        setattr(made, name, value)
    return made


def encoded(made: Any) -> tuple[int, list[int], Any]:
    """The rule that is broken, the map, what is said."""
    address = jit.part_library(TENSOR_MAPS).addresses["kiln_cuda_encode_tensor_map"]
    encode = ctypes.CFUNCTYPE(_I, _P, ctypes.c_char_p, _P, _P)(address)
    buffer = (ctypes.c_uint64 * 32)()
    place = -(-ctypes.addressof(buffer) // 128) * 128
    finding: Any = Finding()
    rule = encode(ctypes.addressof(made), bytes(made)[-KNOWN_BYTES:], place, ctypes.addressof(finding))
    return rule, _read(ctypes.c_uint64, place, 16), finding


def test_the_driver_is_asked_once_for_the_same_map(maps):
    assert encoded(request())[:2] == (0, [1, 4096] * 8)
    assert encoded(request())[:2] == (0, [1, 4096] * 8)
    assert maps.asked == [(6, 4096, [100, 50], [208], [64, 8], [1, 2], [0, 3, 2, 1])]
    assert encoded(request(fill=0))[1] == [2, 4096] * 8
    assert encoded(request(8192))[1] == [3, 8192] * 8
    assert encoded(request())[1] == [1, 4096] * 8


def test_requests_that_share_a_place_are_told_apart(maps):
    """There are more of them than places."""
    for number in range(3 * tensor_maps.ENTRIES):
        made = request()
        made.box[:2] = 8 * (1 + number % 8), 1 + number // 8
        assert encoded(made)[1][0] == number + 1


def test_an_image_of_pixels(maps):
    made = request(rank=4, im2col=1, swizzle=0)
    made.sizes[:4], made.strides[:3], made.element_strides[:4] = (64, 9, 9, 2), (128, 1152, 10368), (1, 1, 1, 1)
    made.box[:2], made.corners[:] = (64, 300), (-1, -2, 0, 1, 2, 0)
    assert encoded(made)[0] == 0
    assert maps.asked == [(6, 4096, [-1, -2], [1, 2], 64, 300, [0, 0, 2, 1])]


def test_a_broken_rule_and_a_refusal_are_said_and_not_kept(maps):
    wrong = request()
    wrong.box[1] = 257
    rule, _, finding = encoded(wrong)
    assert (rule, finding.mode, finding.value, maps.asked) == (BOX, 1, 257, [])
    maps.status = 801
    for _ in range(2):
        rule, _, finding = encoded(request())
        assert (rule, finding.value) == (REFUSED, 801)
    maps.status = 0
    assert encoded(request())[:2] == (0, [3, 4096] * 8)


def test_a_thread_without_a_context_is_refused_where_it_can_get_none(maps):
    maps.status = 201
    rule, _, finding = encoded(request())
    assert (rule, finding.value) == (REFUSED, 201)


def test_without_a_driver_a_map_is_zeros_and_not_kept(maps):
    state = ctypes.c_int32.from_address(jit.part_library(TENSOR_MAPS).addresses[tensor_maps.driver.symbol])
    state.value = tensor_maps.NOT_THERE
    assert encoded(request())[:2] == (0, [0] * 16)
    state.value = tensor_maps.THERE
    assert encoded(request())[:2] == (0, [1, 4096] * 8)


def test_a_place_that_another_thread_uses_is_passed_by(maps):
    entries = jit.part_library(TENSOR_MAPS).addresses[tensor_maps.entries.symbol]
    size = ctypes.sizeof(tensor_maps.Entry)
    for number in range(tensor_maps.ENTRIES):
        ctypes.c_uint64.from_address(entries + size * number).value = 1
    assert encoded(request())[1] == [1, 4096] * 8
    assert encoded(request())[1] == [2, 4096] * 8


def test_threads_get_the_maps_they_asked_for(maps):
    wrong: list[int] = []

    def work(first: int) -> None:
        for number in range(400):
            base = 16 * (first + number % 40)
            if encoded(request(base))[1][1] != base:
                wrong.append(base)

    threads = [threading.Thread(target=work, args=(1 + 20 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- programs --------------------------------------------------------------------------------------------------------

_BOX = Box("f32", (64, 32), (32, 8), "128b")


class Pair:
    """A structure of two maps and a number."""

    def __init__(self, first: Any, second: Any, count: Any) -> None:
        self.first, self.second, self.count = first, second, count

    def __extract_mlir_values__(self) -> list[Any]:
        return [self.first.value, self.second.value, self.count.ir_value()]

    def __new_from_mlir_values__(self, values: list[Any]) -> Pair:
        return Pair(Map(values[0]), Map(values[1]), cute.Int32(values[2]))


@cute.kernel
def _two(scale: cute.Float32, pair: Pair, single: Map):
    for map_ in (pair.first, pair.second, single):
        nvgpu.tma.tensor_map_prefetch(map_.address())


@cute.jit
def _launch_twice(x: cute.Tensor, y: cute.Tensor):
    first, second = _BOX.encode(x), _BOX.encode(y)
    _two(cute.Float32(1.0), Pair(first, second, cute.Int32(3)), second).launch(grid=1, block=32)
    _two(cute.Float32(1.0), Pair(second, first, cute.Int32(3)), first).launch(grid=1, block=32)


def test_maps_are_passed_by_what_the_pointers_of_a_launch_point_to(maps, fake_driver):
    x, y = (cute.runtime.from_dlpack(np.zeros(_BOX.memory, np.uint8), assumed_align=16) for _ in range(2))
    seen: list[list[list[int]]] = []

    def launch(config: int, kernel: int, parameters: int, _extra: int) -> int:
        places = (_P * 5).from_address(parameters)
        assert all(places[number] % 128 == 0 for number in (1, 2, 4))
        seen.append([_read(ctypes.c_uint64, places[number], 2) for number in (1, 2, 4)])
        return 0

    fake_driver.cuLaunchKernelEx = ctypes.CFUNCTYPE(_I, _P, _P, _P, _P)(launch)
    compiled = compile_for(_launch_twice, x, y)
    for _ in range(2):
        compiled(x, y)
    a, b = ([number + 1, asked[1]] for number, asked in enumerate(maps.asked))
    assert seen == [[a, b, b], [b, a, a]] * 2
    assert len(maps.asked) == 2


def test_kernels_have_maps_as_constants(maps):
    x = cute.runtime.from_dlpack(np.zeros(_BOX.memory, np.uint8), assumed_align=16)
    ptx = compile_for(_launch_twice, x, x).artifacts["ptx"]
    for number in (1, 2, 4):
        assert f".param .align 128 .b8 two_param_{number}[128]" in ptx
    assert "cvta.param.u64" in ptx
    assert "local" not in ptx


@cute.jit
def _encode_only(x: cute.Tensor):
    wrong = Box("f32", (64, 32), (32, 8), "64b").encode(x)
    _two(cute.Float32(1.0), Pair(wrong, wrong, cute.Int32(0)), wrong).launch(grid=1, block=32)


def test_a_broken_rule_names_the_tensor_at_the_line(maps, fake_driver):
    x = cute.runtime.from_dlpack(np.zeros(_BOX.memory, np.uint8), assumed_align=16)
    compiled = compile_for(_encode_only, x)
    with pytest.raises(DSLRuntimeError) as caught:
        compiled(x)
    assert "cannot make the tensor map of x: rows of the box have 128 bytes" in str(caught.value)
    assert "at most those of a row of the swizzle, 64" in str(caught.value)
    assert caught.value.span is not None
    assert fake_driver.launches == []


@cute.jit
def _carried(x: cute.Tensor, count: cute.Int32):
    map_ = _BOX.encode(x)
    for _ in range(count):
        _two(cute.Float32(1.0), Pair(map_, map_, cute.Int32(0)), map_).launch(grid=1, block=32)
        map_ = _BOX.encode(x)


def test_a_map_that_a_loop_carries_is_refused(maps):
    x = cute.runtime.from_dlpack(np.zeros(_BOX.memory, np.uint8), assumed_align=16)
    with pytest.raises(Exception, match="outlives the round of the loop"):
        compile_for(_carried, x, cute.Int32(2))
