# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportOperatorIssue=false
"""Kernels for `kiln.measure`: they flush the L2 cache, delay a stream, chase addresses, copy, or do nothing."""

from __future__ import annotations

import functools
from typing import Any

from .. import cute
from ..base_dsl.ranges import range_constexpr
from ..base_dsl.typing import Int32, Int64

_THREADS = 256
_VECTOR = 4
_ROWS = 8
BLOCK_BYTES = _THREADS * _VECTOR * _ROWS * 4
"""The bytes that one CTA reads or copies."""
LINES = 128
LINE_BYTES = 1 << 14
"""How many addresses are chased, and how far apart they are."""
_Words = Any


def _pieces(words: _Words, blocks: object) -> Any:
    layout = cute.make_layout((_VECTOR, blocks * _THREADS * _ROWS), stride=(1, _VECTOR))
    return cute.make_tensor(words, layout)


@cute.kernel
def _read(source: cute.Tensor):
    """Read memory without the compiler removing the loads: the sum of zeros is never -1, which it does not know."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * (_THREADS * _ROWS) + thread
    loaded = [source[None, at + _THREADS * row].load() for row in range_constexpr(_ROWS)]
    total = loaded[0]
    for row in range_constexpr(1, _ROWS):
        total = total | loaded[row]
    if (total[0] | total[1] | total[2] | total[3]) == Int32(-1):
        source[0, at] = Int32(0)


@cute.jit
def _flush(words: cute.Pointer, blocks: Int32, stream: Int64):
    _read(_pieces(words, blocks)).launch(grid=(blocks, 1, 1), block=(_THREADS, 1, 1), stream=stream)


@cute.kernel
def _copy_pieces(source: cute.Tensor, target: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * (_THREADS * _ROWS) + thread
    loaded = [source[None, at + _THREADS * row].load() for row in range_constexpr(_ROWS)]
    for row in range_constexpr(_ROWS):
        target[None, at + _THREADS * row] = loaded[row]


@cute.jit
def _copy(source: cute.Pointer, target: cute.Pointer, blocks: Int32, stream: Int64):
    pieces = _pieces(source, blocks), _pieces(target, blocks)
    _copy_pieces(*pieces).launch(grid=(blocks, 1, 1), block=(_THREADS, 1, 1), stream=stream)


@cute.kernel
def _spin_for(nanoseconds: Int64):
    begun = cute.arch.globaltimer()
    while cute.arch.globaltimer() - begun < nanoseconds:
        cute.arch.nanosleep(500)


@cute.jit
def _spin(nanoseconds: Int64, stream: Int64):
    _spin_for(nanoseconds).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)


@cute.kernel
def _chase(words: cute.Tensor, lines: Int32):
    """Follow a chain of addresses, each known when the word before it has been read: dependent loads."""
    at = Int32(0)
    for line in range(lines):
        at = words[(line * 37) % lines * (LINE_BYTES // 4) + at]
    if at != 0:
        words[0] = at


@cute.jit
def _probe(words: cute.Pointer, lines: Int32, stream: Int64):
    places = cute.make_tensor(words, cute.make_layout(lines * (LINE_BYTES // 4)))
    _chase(places, lines).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)


@cute.kernel
def _nothing(n: Int32):
    pass


@cute.jit
def _empty(stream: Int64):
    _nothing(0).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


def _pointer(address: int) -> Any:
    return cute.make_ptr(Int32, address, cute.AddressSpace.gmem, assumed_align=16)


@functools.lru_cache(maxsize=1)
def _compiled() -> dict[str, Any]:
    words = _pointer(256)
    return {
        "flush": cute.compile(_flush, words, 1, 0),
        "copy": cute.compile(_copy, words, words, 1, 0),
        "spin": cute.compile(_spin, 0, 0),
        "probe": cute.compile(_probe, words, 1, 0),
        "empty": cute.compile(_empty, 0),
    }


def flush(address: int, size: int, stream: int) -> None:
    """Read memory of zeros, of a multiple of `BLOCK_BYTES`."""
    _compiled()["flush"](_pointer(address), size // BLOCK_BYTES, stream)


def copy(source: int, target: int, size: int, stream: int) -> None:
    """Copy memory, of a multiple of `BLOCK_BYTES`."""
    _compiled()["copy"](_pointer(source), _pointer(target), size // BLOCK_BYTES, stream)


def spin(microseconds: float, stream: int) -> None:
    """Delay later work on a stream by some time."""
    _compiled()["spin"](int(microseconds * 1e3), stream)


def probe(address: int, stream: int, lines: int = LINES) -> None:
    """Read one word of each of some lines of memory of zeros, one after another."""
    _compiled()["probe"](_pointer(address), lines, stream)


def empty(stream: int) -> None:
    """Do nothing."""
    _compiled()["empty"](stream)
