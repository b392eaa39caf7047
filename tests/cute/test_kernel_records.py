"""What a GPU writes, read: clocks that wrap around, SMs whose clocks differ, chunks, losses, warps that never ended."""

from __future__ import annotations

import ctypes
import struct

import pytest

from kiln.base_dsl.kernel_trace import HEADER, REGION, Header, Layout, Site, TracedKernel, code_of
from kiln.cute.kernel_records import read_kernel

SITES = [
    Site("", "mark", "moment"),
    Site("cute_nvgpu.barrier", "wait", "begin", operand="barrier"),
    Site("cute_nvgpu.barrier", "wait", "end"),
    Site("", "mark", "payload"),
    Site("here", "mark", "moment", operand="f32"),
]
CHUNK = 64


def kernel(chunks=3, blocks=(0, 5), warps=2):
    layout = Layout(0, warps, HEADER + chunks * CHUNK, CHUNK, True, 6)
    return TracedKernel("k", layout, blocks, SITES, (64, 1, 1), arch="sm_90a")


def region(traced, records):
    """Return a region's bytes; `records` are (index, header fields, chunks of (clock, code))."""
    data = bytearray(REGION + len(traced.blocks) * traced.layout.warps * traced.layout.warp_bytes)
    for index, fields, chunks in records:
        start = REGION + index * traced.layout.warp_bytes
        header = Header(launches=1, bytes=len(chunks) * CHUNK, **fields)
        header.grid[:] = (132, 1, 1)
        data[start : start + HEADER] = bytes(header)
        for number, entries in enumerate(chunks):
            at = start + HEADER + number * CHUNK
            for place, entry in enumerate([*entries, (0, 0)]):
                struct.pack_into("<2I", data, at + 8 * place, *entry)
    return bytes(data)


def test_a_region_is_what_the_header_says():
    assert ctypes.sizeof(Header) == HEADER
    assert (Header.end.offset, Header.sm.offset, Header.bytes.offset, Header.lost.offset, Header.launches.offset) == (
        16,
        32,
        36,
        40,
        56,
    )


def test_clocks_wrap_around_and_chunks_follow_each_other():
    begin = (7 << 32) + 0xFFFF_FFF0
    fields = {"begin": begin, "began": 1000, "end": begin + 2000, "ended": 2000, "sm": 3 | 9 << 16}
    chunks = [
        [(0xFFFF_FFF8, code_of(1) | 4), (0x10, code_of(2))],
        [(0x20, code_of(4)), (struct.unpack("<I", struct.pack("<f", 0.5))[0], code_of(3))],
    ]
    traced = kernel()
    trace = read_kernel(traced, region(traced, [(3, fields, chunks)]), on_host=False)
    assert trace is not None
    (track,) = trace.tracks
    assert (track.block, track.warp, track.sm) == (5, 1, 3)
    run, wait, here = trace.events
    assert (run.begin, run.end, run.args) == (0, 2000, {"lane": 9})
    assert (wait.name, wait.begin, wait.end, wait.args) == ("barrier", 8, 32, {"barrier": 4})
    assert (here.name, here.begin, here.args) == ("here", 48, {"payload": 0.5})
    assert trace.clock_mhz == pytest.approx(2000.0)
    assert trace.grid == (132, 1, 1) and not trace.lost and not trace.notes


def test_sms_are_compared_by_the_clock_of_the_gpu():
    """Two SMs whose clocks are far apart, at 2 GHz; the GPU's clock goes in steps of 32 ns."""
    records = []
    for index, (sm, start, offset) in enumerate([(0, 100, 10**9), (1, 900, 5), (0, 132, 10**9), (1, 996, 5)]):
        cycles = {"begin": offset + 2 * start, "end": offset + 2 * (start + 12_800)}
        stamps = {"began": start // 32 * 32, "ended": (start + 12_800) // 32 * 32}
        records.append((index, {**cycles, **stamps, "sm": sm}, []))
    traced = kernel(warps=2, blocks=(0, 5))
    trace = read_kernel(traced, region(traced, records), on_host=False)
    assert trace is not None and trace.clock_mhz == pytest.approx(2000.0, rel=1e-3)
    begins = [event.begin for event in trace.events]
    for begin, true in zip(begins, (0, 1600, 64, 1792), strict=True):
        assert abs(begin - begins[0] - true) <= 2 * 32
    assert begins[2] - begins[0] == 64  # exact within an SM
    assert "2 SMs" in trace.notes[0] and "32 ns" in trace.notes[0]


def test_what_is_missing_is_said():
    traced = kernel()
    unfinished = {"begin": 50, "began": 10, "bytes": 0}
    fields = {"begin": 50, "began": 10, "end": 90, "ended": 30, "lost": 80}
    entries = [(60, code_of(2)), (70, code_of(1) | 1)]
    header, chunk = fields, [entries]
    data = region(traced, [(0, header, chunk)])
    late = bytearray(region(traced, [(1, {name: unfinished[name] for name in ("begin", "began")}, [])]))
    size = traced.layout.warp_bytes
    data = data[: REGION + size] + bytes(late[REGION + size :])
    trace = read_kernel(traced, data, on_host=False)
    assert trace is not None and trace.lost == 10
    waits = [event for event in trace.events if event.kind == "wait"]
    assert [(wait.begin, wait.end, wait.args) for wait in waits] == [(20, 40, {"barrier": 1, "ends": "not seen"})]
    assert trace.notes == ["1 warps did not come to their end, so the last of their marks are missing"]


def test_a_kernel_that_was_not_launched_has_no_trace():
    traced = kernel()
    assert read_kernel(traced, region(traced, []), on_host=False) is None
