"""Latency and issue interval of instructions of a warp: arithmetic, conversions, exchange between lanes, shared memory, `mma.sync`.

A section of a kernel repeats an instruction. With one chain, each depends on the one before it: that is the latency. With many
chains in four warps of each sub-core, the time of an instruction is the interval at which its pipe takes one of a warp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ... import cute
from ...base_dsl.ranges import range_constexpr
from ...base_dsl.typing import Int32, Int64
from ...cute import arch
from .board import Board, Row, row

CHAINS = 8
UNROLLED = 32
"""The instructions of one round of a section."""
LOOPS = (32, 160)
WARPS = 16
"""The warps of a CTA whose pipes are to be busy: four of each sub-core."""
SUB_CORES = 4

INSTRUCTIONS = """
ffma             fma.rn.f32 {x}, {x}, {y}, {z};
ffma same        fma.rn.f32 {x}, {x}, {x}, {x};
fadd             add.rn.f32 {x}, {x}, {y};
fmul             mul.rn.f32 {x}, {x}, {y};
fmnmx            min.f32 {x}, {x}, {y};
hfma2            fma.rn.f16x2 {x}, {x}, {y}, {z};
hfma2.bf16       fma.rn.bf16x2 {x}, {x}, {y}, {z};
imad             mad.lo.s32 {x}, {x}, {y}, {z};
iadd             add.s32 {x}, {x}, {x1}; add.s32 {x1}, {x1}, {x};
lop3             lop3.b32 {x}, {x}, {y}, {z}, 0x96;
shf              shf.l.wrap.b32 {x}, {x}, {y}, {z};
prmt             prmt.b32 {x}, {x}, {y}, {z};
mov              { .reg .pred p; setp.ne.s32 p, {x}, {y}; selp.b32 {x}, {x}, {z}, p; }
popc             popc.b32 {x}, {x};
dfma             { .reg .b64 a; mov.b64 a, {{x}, {x1}}; fma.rn.f64 a, a, a, a; mov.b64 {{x}, {x1}}, a; }
mufu.ex2         ex2.approx.ftz.f32 {x}, {x};
mufu.lg2         lg2.approx.ftz.f32 {x}, {x};
mufu.rsq         rsqrt.approx.ftz.f32 {x}, {x};
mufu.tanh        tanh.approx.f32 {x}, {x};
mufu.sin         sin.approx.ftz.f32 {x}, {x};
f2f.f16x2        cvt.rn.f16x2.f32 {x}, {x}, {y};
f2f.bf16x2       cvt.rn.bf16x2.f32 {x}, {x}, {y};
f2f.e4m3x2       { .reg .b16 h; cvt.rn.satfinite.e4m3x2.f32 h, {x}, {y}; cvt.u32.u16 {x}, h; }
f2f.f16x2.e4m3x2 { .reg .b16 h; cvt.u16.u32 h, {x}; cvt.rn.f16x2.e4m3x2 {x}, h; }
i2f              cvt.rn.f32.s32 {x}, {x};
f2i              cvt.rzi.s32.f32 {x}, {x};
shfl             shfl.sync.bfly.b32 {x}, {x}, 1, 0x1f, 0xffffffff;
redux            redux.sync.add.s32 {x}, {x}, 0xffffffff;
vote             { .reg .pred p; setp.ne.s32 p, {x}, {y}; vote.sync.ballot.b32 {x}, p, 0xffffffff; }
ex2 ffma1        ex2.approx.ftz.f32 {x}, {x}; fma.rn.f32 {x1}, {x1}, {y}, {z};
ex2 ffma4        ex2.approx.ftz.f32 {x}, {x}; fma.rn.f32 {x1}, {x1}, {y}, {z}; fma.rn.f32 {x2}, {x2}, {y}, {z}; fma.rn.f32 {x3}, {x3}, {y}, {z}; fma.rn.f32 {x4}, {x4}, {y}, {z};
ffma imad        fma.rn.f32 {x}, {x}, {y}, {z}; mad.lo.s32 {x1}, {x1}, {y}, {z};
ffma lop3        fma.rn.f32 {x}, {x}, {y}, {z}; lop3.b32 {x1}, {x1}, {y}, {z}, 0x96;
ffma f2f         fma.rn.f32 {x}, {x}, {y}, {z}; cvt.rn.f16x2.f32 {x1}, {x1}, {y};
hmma.16816.f16   mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{x}, {x1}, {x2}, {x3}}, {{y}, {z}, {y}, {z}}, {{y}, {z}}, {{x}, {x1}, {x2}, {x3}};
imma.16832.s8    mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {{x}, {x1}, {x2}, {x3}}, {{y}, {z}, {y}, {z}}, {{y}, {z}}, {{x}, {x1}, {x2}, {x3}};
hmma.1688.tf32   mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {{x}, {x1}, {x2}, {x3}}, {{y}, {z}, {y}, {z}}, {{y}, {z}}, {{x}, {x1}, {x2}, {x3}};
"""
"""Instructions by name. `{x}`, `{x1}`, ... are the registers of a chain, `{y}` and `{z}` others, `{w}` is zero."""

SHARED = """
lds.32 chase     4   ld.volatile.shared.b32 {x}, [{x}];
lds.32           4   { .reg .b32 t; ld.volatile.shared.b32 t, [{s}]; xor.b32 {x}, {x}, t; }
lds.64           8   { .reg .b32 t<2>; ld.volatile.shared.v2.b32 {t0, t1}, [{s}]; xor.b32 {x}, {x}, t1; }
lds.128          16  { .reg .b32 t<4>; ld.volatile.shared.v4.b32 {t0, t1, t2, t3}, [{s}]; xor.b32 {x}, {x}, t3; }
lds.32 2-way     8   { .reg .b32 t; ld.volatile.shared.b32 t, [{s}]; xor.b32 {x}, {x}, t; }
lds.32 8-way     32  { .reg .b32 t; ld.volatile.shared.b32 t, [{s}]; xor.b32 {x}, {x}, t; }
lds.32 32-way    128 { .reg .b32 t; ld.volatile.shared.b32 t, [{s}]; xor.b32 {x}, {x}, t; }
sts.32           4   st.volatile.shared.b32 [{s}], {x};
sts.64           8   st.volatile.shared.v2.b32 [{s}], {{x}, {y}};
sts.128          16  st.volatile.shared.v4.b32 [{s}], {{x}, {y}, {x}, {z}};
sts.32 8-way     32  st.volatile.shared.b32 [{s}], {x};
ldsm.x1          16  { .reg .b32 t; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {t}, [{x}]; lop3.b32 {x}, {x}, t, {w}, 0x78; }
ldsm.x2          16  { .reg .b32 t<2>; ldmatrix.sync.aligned.m8n8.x2.shared.b16 {t0, t1}, [{x}]; lop3.b32 {x}, {x}, t1, {w}, 0x78; }
ldsm.x4          16  { .reg .b32 t<4>; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {t0, t1, t2, t3}, [{x}]; lop3.b32 {x}, {x}, t3, {w}, 0x78; }
ldsm.x4 trans    16  { .reg .b32 t<4>; ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {t0, t1, t2, t3}, [{x}]; lop3.b32 {x}, {x}, t3, {w}, 0x78; }
stsm.x4          16  stmatrix.sync.aligned.m8n8.x4.shared.b16 [{s}], {{x}, {y}, {x}, {z}};
atoms.add        4   atom.shared.add.u32 {x}, [{s}], {y};
"""
"""Accesses of shared memory by name: the bytes between the addresses `{s}` of neighbouring lanes, and the instruction."""


class Section(NamedTuple):
    """A repeated instruction: its PTX, how many chains, and the bytes between the addresses of lanes."""

    name: str
    ptx: str
    chains: int
    stride: int = 4

    @property
    def registers(self) -> int:
        """How many registers a chain has."""
        return 1 + max(int(each or 0) for each in re.findall(r"\{x(\d*)\}", self.ptx) or ["0"])

    def round(self) -> str:
        """Return the PTX of one round."""
        wide = self.registers

        def chained(chain: int) -> str:
            named = re.sub(r"\{x(\d*)\}", lambda x: f"{{$rw{chain * wide + int(x[1] or 0)}}}", self.ptx)
            return named.replace("{y}", "{$r0}").replace("{z}", "{$r1}").replace("{s}", "{$r2}").replace("{w}", "{$r3}")

        return "\n".join(chained(number % self.chains) for number in range(UNROLLED))


class Sections:
    """A kernel of sections: it writes the cycles of each."""

    def __init__(self, sections: Sequence[Section]) -> None:
        self.sections = sections

    @cute.jit
    def __call__(self, results: cute.Pointer, blocks: Int32, threads: Int32, loops: Int32, stream: Int64):
        """Launch it on some CTAs; the first writes the cycles of each section."""
        self.kernel(results, loops).launch(grid=(blocks, 1, 1), block=(threads, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, results: cute.Pointer, loops: Int32):
        thread = arch.thread_idx()[0]
        block = arch.block_idx()[0]
        smem = arch.alloc_smem(Int32, 8192, alignment=1024)
        words = cute.make_tensor(smem, cute.make_layout(8192))
        cycles = cute.make_tensor(results, cute.make_layout(len(self.sections) + 1))
        zero = Int32(cycles[len(self.sections)])
        for number in range_constexpr(len(self.sections)):
            section = self.sections[number]
            for word in range(thread, 8192, arch.block_dim()[0]):
                words[word] = Int32(smem.toint()) + 4 * word
            own = Int32(smem.toint()) + (thread % 32) * section.stride
            state = [own + 0 * register for register in range(section.chains * section.registers)]
            arch.sync_threads()
            begun = arch.clock64()
            for _ in range(loops):
                read = [Int32(0x3F800001), thread + 7, own, zero]
                changed = arch.inline_ptx(section.round(), read_write_args=state, read_only_args=read)
                state = list(changed) if len(state) > 1 else [changed]
            arch.sync_threads()
            ended = arch.clock64()
            total = Int32(0)
            for value in state:
                total += value
            if total == Int32(-77):  # keeps the chains
                words[thread] = total
            if thread == 0 and block == 0:
                cycles[number] = ended - begun


def sections() -> list[tuple[str, str, int]]:
    """Return name, PTX and stride of all instructions."""
    rows = [(line[:17].strip(), line[17:].strip(), 4) for line in INSTRUCTIONS.strip().splitlines()]
    for line in SHARED.strip().splitlines():
        stride, _, ptx = line[17:].partition(" ")
        rows.append((line[:17].strip(), ptx.strip(), int(stride)))
    return rows


def measure(board: Board) -> Iterator[Row]:
    """Yield latency and interval of each instruction, in cycles."""
    rows = sections()
    for first in range(0, len(rows), 8):
        part = rows[first : first + 8]
        alone = [Section(name, ptx, 1, stride) for name, ptx, stride in part]
        many = [Section(name, ptx, CHAINS, stride) for name, ptx, stride in part]
        for kind, own, warps in (("latency", alone, 1), ("interval", many, WARPS)):
            compiled = cute.compile(Sections(own), board.results, 1, 32, 1, 0)
            shared = max(1, warps // SUB_CORES)
            for section, cycles in zip(own, board.differences(compiled, (1, 32 * warps), len(own), LOOPS), strict=True):
                values = [each / UNROLLED / shared for each in cycles]
                yield row(f"{section.name} {kind}", values, "cycles")
