"""Global memory by loads and stores of threads: latencies by where the data are, and rates of L2 cache and DRAM by footprint."""

from __future__ import annotations

from collections.abc import Iterator

from ... import cute
from ...base_dsl.ranges import const_expr, range_constexpr
from ...base_dsl.typing import Int32, Int64
from ...cute import arch
from .board import Board, Row, row

THREADS = 512
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
        for _ in range(links):
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
                loaded = [x[None, places[part]].load() for part in range_constexpr(self.in_flight)]
                for part in range_constexpr(self.in_flight):
                    if const_expr(self.what == "copy"):
                        x[None, regions * size + places[part]].store(loaded[part])
                    else:
                        total += loaded[part][0] | loaded[part][1] | loaded[part][2] | loaded[part][3]
        times = cute.make_tensor(results, cute.make_layout(2 * 2048))
        if total == Int32(-1):
            times[0] = Int64(0)
        arch.sync_threads()
        if thread == 0:
            times[2 * cta] = arch.clock64() - begun
            times[2 * cta + 1] = arch.globaltimer() - began


def measure(board: Board) -> Iterator[Row]:
    """Yield latencies in cycles and nanoseconds, and bytes of all SMs in a nanosecond."""
    for modifier, place, links, stride in (
        ("", "l1", 64, 16),
        (".cg", "l2", 4096, 32),
        (".cg", "l2, far apart", 1024, 2048),
        (".cg", "dram", 8192, 16384),
    ):
        chase = cute.compile(Chase(modifier), board.results, board.data, 1, 1, 1, 0)
        links = min(links, board.data_bytes // (8 * stride))
        cycles, ns = board.differences(chase, (board.data, links, stride), 2, (512, 2560))
        yield row(f"load latency, {place} cycles", cycles, "cycles")
        yield row(f"load latency, {place} ns", ns, "ns")
    sms = board.device.sm_count
    for what, in_flight, per_sm, footprints in (
        ("read", 8, 2, (8, 16, 24, 32, 40, 48, 56, 64, 1024)),
        ("read", 1, 2, (16, 1024)),
        ("read", 4, 1, (16, 1024)),
        ("write", 8, 2, (16, 1024)),
        ("copy", 8, 2, (8, 512)),
    ):
        stream = cute.compile(Stream(what, in_flight), board.results, board.data, 1, 1 << 12, 1, 1, 0)
        ctas = sms * per_sm
        vectors = THREADS * in_flight
        for mib in footprints:
            whole = min(mib << 20, board.data_bytes // (2 if what == "copy" else 1)) // VECTOR_BYTES
            size = max(1, whole // ctas // vectors) * vectors
            many = 96 if mib < 256 else size // vectors
            arguments = board.data, whole // size, size, ctas
            ns = board.differences(stream, arguments, 2 * ctas, (many // 3, many))[1::2]
            longest = [max(values) for values in zip(*ns, strict=True)]
            moved = ctas * vectors * VECTOR_BYTES * (2 if what == "copy" else 1)
            name = f"{what} {in_flight} x {per_sm * THREADS} threads, {mib} MiB"
            yield row(name, [moved / value for value in longest], "bytes/ns")
