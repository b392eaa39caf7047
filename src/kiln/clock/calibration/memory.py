"""Global memory by loads and stores of threads: latencies by where the data are, rates of L2 cache and DRAM, and what an
access of a warp costs an SM by the rows that it touches."""

from __future__ import annotations

from collections.abc import Iterator

from ... import cute
from ...base_dsl.ranges import const_expr, range_constexpr
from ...base_dsl.typing import Int32, Int64
from ...cute import arch
from .board import Board, Row, row

THREADS = 512
COLD = 1 << 16
"""Rings of fewer links are followed once before, so that they are in the cache that has room for them."""
VECTOR_BYTES = 16


class Chase:
    """A kernel in which one thread follows a chain of addresses; it writes cycles and nanoseconds."""

    def __init__(self, modifier: str) -> None:
        self.modifier = modifier

    @cute.jit
    def __call__(
        self, results: cute.Pointer, data: cute.Pointer, links: Int32, stride: Int32, loops: Int32, stream: Int64
    ):
        """Follow `loops` addresses of a ring of `links` that lie `stride` words apart."""
        self.kernel(results, data, links, stride, loops).launch(grid=(1, 1, 1), block=(1, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, results: cute.Pointer, data: cute.Pointer, links: Int32, stride: Int32, loops: Int32):
        words = cute.make_tensor(data, cute.make_layout(1 << 40))
        at = Int64(0)
        for _ in range(links):
            # A step that has no factor with the number of links, and is not near.
            after = (at + Int64(stride) * (links // 2 + 1)) % (Int64(stride) * links)
            words[at] = data.toint() + 8 * after
            at = after
        address = Int64(data.toint())
        for _ in range(links if links < COLD else 0):
            address = self.next(address)
        began = arch.globaltimer()
        begun = arch.clock64()
        for _ in range(loops):
            address = self.next(address)
        if address == 1:
            words[0] = address
        ended = arch.clock64()
        over = arch.globaltimer()
        times = cute.make_tensor(results, cute.make_layout(2))
        times[0] = ended - begun
        times[1] = over - began

    def next(self, address: Int64) -> Int64:
        """Return the address that stands at an address."""
        code = f"ld.global{self.modifier}.b64 {{$w0}}, [{{$r0}}];"
        return arch.inline_ptx(code, write_only_types=[Int64], read_only_args=[address])


class Stream:
    """A kernel that reads, writes or copies memory by vectors of 16 bytes; each CTA writes cycles and nanoseconds."""

    def __init__(self, what: str, in_flight: int) -> None:
        self.what = what
        self.in_flight = in_flight

    @cute.jit
    def __call__(
        self,
        results: cute.Pointer,
        data: cute.Pointer,
        regions: Int32,
        size: Int32,
        ctas: Int32,
        loops: Int32,
        stream: Int64,
    ):
        """Take `loops` rounds of `in_flight` vectors a thread. A CTA has one of some regions of `size` vectors, again and again."""
        self.kernel(results, data, regions, size, loops).launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, results: cute.Pointer, data: cute.Pointer, regions: Int32, size: Int32, loops: Int32):
        thread = arch.thread_idx()[0]
        cta = arch.block_idx()[0]
        words = cute.recast_ptr(data, dtype=Int32)
        x = cute.make_tensor(words, cute.make_layout((4, 1 << 27), stride=(1, 4)))
        first = cta % regions * size + thread
        place = first
        began = arch.globaltimer()
        begun = arch.clock64()
        total = Int32(0)
        for _ in range(loops):
            places = [place + THREADS * part for part in range_constexpr(self.in_flight)]
            place += THREADS * self.in_flight
            place = first if place >= first + size else place
            if const_expr(self.what == "write"):
                for part in range_constexpr(self.in_flight):
                    held = cute.make_rmem_tensor(4, Int32)
                    held.fill(0)
                    x[None, places[part]].store(held.load())
            else:
                loaded = [self.load(data, places[part]) for part in range_constexpr(self.in_flight)]
                for part in range_constexpr(self.in_flight):
                    if const_expr(self.what == "copy"):
                        held = cute.make_rmem_tensor(4, Int32)
                        for word in range_constexpr(4):
                            held[word] = loaded[part][word]
                        x[None, regions * size + places[part]].store(held.load())
                    else:
                        total += loaded[part][0] | loaded[part][1] | loaded[part][2] | loaded[part][3]
        times = cute.make_tensor(results, cute.make_layout(2 * 2048))
        if total == Int32(-1):
            times[0] = Int64(0)
        arch.sync_threads()
        if thread == 0:
            times[2 * cta] = arch.clock64() - begun
            times[2 * cta + 1] = arch.globaltimer() - began

    def load(self, data: cute.Pointer, place: Int32) -> tuple[Int32, ...]:
        """Read a vector, past the L1 cache."""
        address = Int64(data.toint()) + Int64(place) * VECTOR_BYTES
        code = "ld.global.cg.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];"
        return arch.inline_ptx(code, write_only_types=[Int32] * 4, read_only_args=[address])


class Pattern:
    """A kernel in which warps load or store `size` bytes a lane, with `rows` rows of lanes that lie far apart."""

    def __init__(self, what: str, size: int, rows: int) -> None:
        self.what = what
        self.size = size
        self.rows = rows

    @cute.jit
    def __call__(self, results: cute.Pointer, data: cute.Pointer, ctas: Int32, loops: Int32, stream: Int64):
        """Make `loops` rounds of eight accesses in each warp."""
        self.kernel(results, data, loops).launch(grid=(ctas, 1, 1), block=(PATTERN_THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, results: cute.Pointer, data: cute.Pointer, loops: Int32):
        thread = arch.thread_idx()[0]
        cta = arch.block_idx()[0]
        lane = thread % 32
        a_row = 32 // self.rows
        warp = cta * (PATTERN_THREADS // 32) + thread // 32
        own = Int64(warp) * PATTERN_BYTES + (lane // a_row) * ROW_PITCH + (lane % a_row) * self.size
        address = Int64(data.toint()) + own
        began = arch.globaltimer()
        begun = arch.clock64()
        total = Int32(0)
        for _ in range(loops):
            for part in range_constexpr(8):
                total = self.access(address + part * a_row * self.size, total)
        times = cute.make_tensor(results, cute.make_layout(2 * 2048))
        if total == Int32(-1):
            times[0] = Int64(0)
        arch.sync_threads()
        if thread == 0:
            times[2 * cta] = arch.clock64() - begun
            times[2 * cta + 1] = arch.globaltimer() - began

    def access(self, address: Int64, total: Int32) -> Int32:
        """Load or store; loads pass the L1 cache by."""
        words = self.size // 4
        vector = {1: "b32", 2: "v2.b32", 4: "v4.b32"}[words]
        if self.what == "store":
            values = ", ".join(["{$r1}"] * words)
            values = values if words == 1 else "{" + values + "}"
            arch.inline_ptx(f"st.global.{vector} [{{$r0}}], {values};", read_only_args=[address, total])
            return total
        names = ", ".join(f"t{word}" for word in range(words))
        names = names if words == 1 else "{" + names + "}"
        code = f"{{ .reg .b32 t<4>; ld.volatile.global.{vector} {names}, [{{$r0}}]; xor.b32 {{$w0}}, {{$r1}}, t0; }}"
        return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=[address, total])


PATTERN_THREADS = 512
PATTERN_BYTES = 32 << 10
"""What lies between the data of two warps."""
ROW_PITCH = 1 << 10
PATTERNS = ((4, 1), (8, 1), (16, 1), (4, 8), (8, 8), (16, 8), (4, 32), (16, 32))
"""Bytes of a lane, and rows: 4 and 8 are the accumulators of a WGMMA."""


def measure(board: Board) -> Iterator[Row]:
    """Yield latencies in cycles and nanoseconds, bytes of all SMs in a nanosecond, and cycles of an SM for an access."""
    for modifier, place, links, stride in (("", "l1", 64, 16), (".cg", "l2", 4096, 32), (".cg", "dram", 1 << 20, 16)):
        chase = cute.compile(Chase(modifier), board.results, board.data, 1, 1, 1, 0)
        links = min(links, board.data_bytes // (8 * stride))
        cycles, ns = board.differences(chase, (board.data, links, stride), 2, (512, 2560))
        yield row(f"load latency, {place} cycles", cycles, "cycles")
        yield row(f"load latency, {place} ns", ns, "ns")
    sms = board.device.sm_count
    for what, in_flight, per_sm, footprints in (
        ("read", 8, 2, (24, 1024)),
        ("read", 1, 2, (24, 1024)),
        ("read", 4, 1, (24, 1024)),
        ("read", 1, 1, (24, 1024)),
        ("write", 8, 2, (24, 1024)),
        ("copy", 8, 2, (12, 512)),
        ("copy", 2, 2, (12, 512)),
    ):
        stream = cute.compile(Stream(what, in_flight), board.results, board.data, 1, 1 << 12, 1, 1, 0)
        ctas = sms * per_sm
        vectors = THREADS * in_flight
        for mib in footprints:
            whole = min(mib << 20, board.data_bytes // (2 if what == "copy" else 1)) // VECTOR_BYTES
            size = max(1, whole // ctas // vectors) * vectors
            many = 96 if mib < 256 else size // vectors
            arguments = board.data, ctas, size, ctas
            ns = board.differences(stream, arguments, 2 * ctas, (many // 3, many))[1::2]
            longest = [max(values) for values in zip(*ns, strict=True)]
            moved = ctas * vectors * VECTOR_BYTES * (2 if what == "copy" else 1)
            where = "l2" if mib < 256 else "dram"
            yield row(
                f"{what} {in_flight} x {per_sm * THREADS} threads, {where}",
                [moved / each for each in longest],
                "bytes/ns",
            )
    for what in ("load", "store"):
        for size, rows in PATTERNS:
            pattern = cute.compile(Pattern(what, size, rows), board.results, board.data, 1, 1, 0)
            for ctas in (1, sms):
                cycles = board.differences(pattern, (board.data, ctas), 2 * ctas, (32, 160))[::2]
                longest = [max(values) for values in zip(*cycles, strict=True)]
                warps = PATTERN_THREADS // 32
                where = "1 cta" if ctas == 1 else "all sms"
                name = f"warp {what} {size} bytes a lane, {rows} rows, {where}"
                yield row(name, [each / (8 * warps) for each in longest], "cycles")
