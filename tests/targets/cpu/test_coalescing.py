"""Sectors of global memory counted on the CPU target, against cases counted by hand."""

from __future__ import annotations

import inspect
import json

import numpy as np
from kernel_testing import asm, run

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync


def by_line(report, kernel):
    """{(source line, operation): (accesses, sectors, ideal, worst)}, the source as it stands in the kernel."""
    found = {}
    source, first = inspect.getsourcelines(kernel.function)
    for one in report:
        assert one.span is not None and one.span.filename == __file__
        text = source[one.span.line - first].partition("#")[0].strip()
        found[text, one.operation] = (one.accesses, one.sectors, one.ideal, one.worst)
    return found


@cute.kernel
def patterns(x: cute.Tensor, m: cute.Tensor, h: cute.Tensor, out: cute.Tensor):
    t = arch.thread_idx()[0]
    a = x[t]  # 32 lanes of 4 bytes: 128 bytes
    b = x[2 * t]
    c = m[t, 3]
    d = x[t + 1]
    e = x[5]
    f = h[t]
    g = h[2 * t]
    if t % 32 < 16:
        a = x[64 + t]
    if t % 2 == 0:
        b = x[128 + t]
    for i in range(3):
        c += x[t + 32 * i]
    out[t] = a + b + c + d + e + cute.Float32(f) + cute.Float32(g)


PATTERNS = {  # two warps
    ("a = x[t]", "ld"): (2, 8, 8, 4),
    ("b = x[2 * t]", "ld"): (2, 16, 8, 8),
    ("c = m[t, 3]", "ld"): (2, 64, 8, 32),
    ("d = x[t + 1]", "ld"): (2, 10, 8, 5),
    ("e = x[5]", "ld"): (2, 2, 2, 1),
    ("f = h[t]", "ld"): (2, 4, 4, 2),
    ("g = h[2 * t]", "ld"): (2, 8, 4, 4),
    ("a = x[64 + t]", "ld"): (2, 4, 4, 2),
    ("b = x[128 + t]", "ld"): (2, 8, 4, 4),
    ("c += x[t + 32 * i]", "ld"): (6, 24, 24, 4),
    ("out[t] = a + b + c + d + e + cute.Float32(f) + cute.Float32(g)", "st"): (2, 8, 8, 4),
}


def test_patterns_of_lanes():
    arrays = np.zeros(256, np.float32), np.zeros((64, 64), np.float32), np.zeros(256, np.float16)
    with kiln.coalescing() as report:
        run(patterns, *arrays, np.zeros(64, np.float32), block=64)
    assert by_line(report, patterns) == PATTERNS
    sectors, ideal = (sum(counts[n] for counts in PATTERNS.values()) for n in (1, 2))
    assert (report.sectors, report.excess, report.accesses) == (sectors, sectors - ideal, 26)


@cute.kernel
def wide(x: cute.Tensor, out: cute.Tensor):
    tile = cute.make_tensor(arch.alloc_smem(cute.Float32, 128, 128), cute.make_layout((4, 32)))
    t = arch.thread_idx()[0]
    registers = cute.make_rmem_tensor(4, cute.Float32)
    cute.autovec_copy(x[None, t], registers)
    cute.autovec_copy(registers, out[None, 2 * t])  # every other vector: half of each sector
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), cute.Float32, num_bits_per_copy=128)
    taken = cute.make_rmem_tensor(1, cute.Boolean)
    taken[0] = t < 8
    cute.copy(atom, x[None, t], tile[None, t], pred=taken)
    asm(None, [out.iterator.toint() + cute.Int64(4 * t)], "st.global.u32 [$0], 7;", "l")


def test_vectors_asynchronous_copies_and_inline_ptx():
    x, out = (cute.runtime.from_dlpack(np.zeros((n, 4), np.float32).T, assumed_align=16) for n in (32, 64))
    with kiln.coalescing() as report, kiln.target("cpu"):
        run(wide, x, out)
    found = {(one.operation, one.width): (one.accesses, one.sectors, one.ideal, one.lanes) for one in report}
    assert found.pop(("st", 4)) in ((1, 4, 4, 32), (1, 5, 4, 32))  # PTX has the address of a numpy array as it is
    assert found == {("ld", 16): (1, 16, 16, 32), ("st", 16): (1, 32, 16, 32), ("cp.async", 16): (1, 4, 4, 8)}


@cute.kernel
def transposed(x: cute.Tensor, y: cute.Tensor):
    t, block = arch.thread_idx()[0], arch.block_idx()[0]
    tile = cute.make_tensor(arch.alloc_smem(cute.Float32, 64), cute.make_layout(64))
    tile[2 * t] = x[block, t]
    y[t, block] = tile[2 * t]


def test_the_report():
    x = np.zeros((8, 32), np.float32)
    with kiln.coalescing() as report:
        run(transposed, x, np.zeros((32, 8), np.float32), grid=8)
    assert [(place.operation, place.lost) for place in report] == [("st", 8 * 28), ("ld", 0)]
    text = str(report)
    assert text.splitlines()[0].split() == "excess sectors ideal accesses per access worst operation where".split()
    assert "y[t, block] = tile[2 * t]" in text and "test_coalescing.py" in text
    assert text.endswith("288 sectors of global memory, 18 per access; 64 would do (78 % less)")
    first, second = json.loads(report.json())
    assert (first["sectors"], first["ideal"], first["excess"], first["worst"], second["excess"]) == (
        256,
        32,
        224,
        32,
        0,
    )
    assert "sectors" in report._as_html()
    with kiln.bank_conflicts.AccessSession() as both:  # one run counts both
        run(transposed, x, np.zeros((32, 8), np.float32), grid=8)
    assert both.coalescing.json() == report.json() and both.conflicts.conflicts == 16
    with kiln.coalescing() as nothing:
        pass
    assert str(nothing) == "no warp accessed global memory"
