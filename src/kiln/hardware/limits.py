"""Limits of the hardware, and the rules of launches that follow from them.

What differs between architectures is a column of `architectures.GENERATIONS`; what all of them share is here. Every
check takes its numbers from these two: of a program that is traced, of a module that is compiled, for a GPU or for the
CPU target, and of a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .architectures import Generation

GRID = (0x7FFFFFFF, 65535, 65535)
"""Blocks of a grid along x, y, z."""
BLOCK = (1024, 1024, 64)
"""Threads of a block along x, y, z."""
THREADS_PER_BLOCK = 1024
WARP = 32
WARPGROUP = 128
PORTABLE_CLUSTER = 8
"""The portable cluster size. Larger clusters need an architecture whose row allows them, and a launch that does."""
STATIC_SMEM = 48 << 10
"""Bytes of shared memory that are static, or dynamic without being allowed to the kernel first."""
DYNAMIC_SMEM_ALIGNMENT = 1024
"""What Kiln aligns dynamic shared memory to."""
KEPT_SMEM = 1 << 10
"""Bytes of shared memory of each block that the hardware keeps for itself."""
REGISTERS = 1 << 16
"""Registers of 32 bits, of an SM and of a block."""
REGISTERS_PER_THREAD = 255
REGISTER_UNIT = 8
"""Granularity of a thread's registers."""
LOCAL_MEMORY = 512 << 10
"""Bytes of memory that a thread has of its own, besides registers."""
SET_REGISTERS = (24, 256)
"""The least and most registers of `setmaxnreg`."""
TMEM_LANES = 128
"""Lanes of tensor memory, of 32 bits in each column."""
TMEM_ALLOCATION = (32, 512)
"""The least and most columns of an allocation of tensor memory, a power of two."""
BARRIERS = 16
"""Named barriers of a block, 0 to 15."""
MBARRIER_ARRIVALS = (1 << 20) - 1
"""Arrivals that a phase of an mbarrier counts; at least 1."""
MBARRIER_BYTES = (1 << 20) - 1
"""Bytes of transactions that a phase of an mbarrier counts, in either direction."""

TENSOR_MAP_RANK = 5
"""Modes of a tensor map; at least 1."""
TENSOR_MAP_UNIT = 16
"""Bytes that addresses, strides and rows of boxes are multiples of."""
TENSOR_MAP_WIDE_UNIT = 32
"""The same for addresses and strides of packed elements and of layouts interleaved by 32 bytes."""
TENSOR_MAP_EXTENT = 1 << 32
"""Elements of a mode; at least 1."""
TENSOR_MAP_STRIDE = 1 << 40
"""Bytes that strides are less than."""
TENSOR_MAP_BOX = 256
"""Elements of a box in a mode; at least 1."""
TENSOR_MAP_STEP = 8
"""Steps in which elements of a mode are taken; at least 1."""
TENSOR_MAP_PIXELS = 1024
"""Pixels that a copy of images takes; at least 1."""


class Needs(NamedTuple):
    """Needs of a kernel for all its launches, known when it is compiled."""

    smem: int = 0
    """Bytes of shared memory that it allocates."""
    dynamic: bool = False
    """Whether it takes the address of dynamic shared memory. If not, the bytes of a launch include what the kernel
    allocates."""
    max_threads: int = 0
    """Threads of a block that it is compiled for; 0 for all that there can be."""
    pieces: tuple[tuple[str, int, int], ...] = ()
    """What it allocates: place in the program, bytes, and how often."""
    pairs: bool = False
    """Whether it has tcgen05 instructions of pairs of CTAs."""
    clusters: bool = False
    """Whether some launch may have clusters of more than one CTA."""

    @property
    def taken(self) -> int:
        """Bytes that its allocations take of a block."""
        return taken(self.smem, self.dynamic)

    def total(self, smem: int) -> int:
        """Bytes of shared memory of a block, where the launch asks for `smem`."""
        return self.taken + smem if self.dynamic else max(self.taken, smem)

    def room(self, of: Generation) -> int:
        """Return the most bytes that a launch can ask for; negative if the kernel alone needs more than there are."""
        return of.smem_per_block - (self.taken if self.dynamic else 0)

    def listing(self, smem: int | None) -> str:
        """Every allocation by its line."""
        lines = [
            f"{place}: {count} x {size} bytes" if count > 1 else f"{place}: {size} bytes"
            for place, size, count in self.pieces
        ]
        between = self.taken - sum(size * count for _, size, count in self.pieces)
        lines += [f"for alignment: {between} bytes"] if between > 0 and self.pieces else []
        lines += (
            [f"launch(smem={smem}): {smem} bytes of dynamic shared memory besides"] if self.dynamic and smem else []
        )
        return "".join(f"\n  {line}" for line in lines)

    def encoded(self, of: Generation) -> str:
        """Return the needs as text, with the architecture; `architectures.decoded_needs` reads it."""
        import json

        return json.dumps([[of.major, of.minor], *self])


def taken(smem: int, dynamic: bool = False) -> int:
    """Return the shared memory of a block with `smem` bytes of allocations, which are aligned past the static limit.

    `dynamic`: the kernel also has dynamic memory, which starts behind them, aligned.
    """
    if smem <= STATIC_SMEM and not dynamic:
        return smem
    return -(-smem // DYNAMIC_SMEM_ALIGNMENT) * DYNAMIC_SMEM_ALIGNMENT


class Sizes(NamedTuple):
    """The sizes of a launch; None for what is not known yet."""

    grid: Sequence[int | None]
    block: Sequence[int | None]
    cluster: Sequence[int | None] = (1, 1, 1)
    smem: int | None = 0
    """Bytes of shared memory, as the program asks for them."""

    def words(self) -> str:
        """Return the sizes as the arguments of a launch."""
        texts = [f"grid={_tuple(self.grid)}", f"block={_tuple(self.block)}"]
        texts += [f"cluster={_tuple(self.cluster)}"] if any(extent != 1 for extent in self.cluster) else []
        texts += [f"smem={'?' if self.smem is None else self.smem}"] if self.smem != 0 else []
        return ", ".join(texts)


def _tuple(extents: Sequence[int | None]) -> str:
    return f"({', '.join('?' if extent is None else str(extent) for extent in extents)})"


def _product(extents: Sequence[int | None]) -> int | None:
    result = 1
    for extent in extents:
        if extent is None:
            return None
        result *= extent
    return result


def broken_rule(
    of: Generation, sizes: Sizes, needs: Needs | None = None, registers: int = 0, empty: bool = False
) -> tuple[str, str] | None:
    """Return the rule that a launch breaks on an architecture, and the limit; unknown sizes break none.

    `registers` are those of a thread, where that is known; `empty` lets a grid have no blocks.
    """
    needs = needs or Needs()
    name = f"sm_{of.number}"
    for what, extents, limits in (("grid", sizes.grid, GRID), ("block", sizes.block, BLOCK)):
        for axis, extent, limit in zip("xyz", extents, limits, strict=True):
            if extent is not None and extent < (0 if empty and what == "grid" else 1):
                for_empty = "; return before the launch where there is nothing to do" if what == "grid" else ""
                return f"{what} {axis} is {extent}", f"every size of a {what} is at least 1{for_empty}"
            if extent is not None and extent > limit:
                return f"{what} {axis} is {extent}", f"{what} {axis} is at most {limit}"
    broken = _broken_cluster(of, sizes, needs.pairs)
    if broken is not None:
        return broken
    threads = _product(sizes.block)
    if threads is not None and threads > THREADS_PER_BLOCK:
        return f"{threads} threads per block", f"a block has at most {THREADS_PER_BLOCK} threads"
    if needs.max_threads > THREADS_PER_BLOCK:
        return f"max_number_threads is {needs.max_threads}", f"a block has at most {THREADS_PER_BLOCK} threads"
    if threads is not None and 0 < needs.max_threads < threads:
        return (
            f"{threads} threads per block, and max_number_threads is {needs.max_threads}",
            "the kernel is compiled for so many threads at most: raise max_number_threads, or make the block smaller",
        )
    if sizes.smem is not None and sizes.smem < 0:
        return f"smem is {sizes.smem}", "it is the bytes of shared memory of a block, at least 0"
    total = needs.total(sizes.smem or 0)
    if total > of.smem_per_block:
        return (
            f"{total} bytes of shared memory per block{needs.listing(sizes.smem)}",
            f"a block has at most {of.smem_per_block} bytes of it on {name}, static and dynamic",
        )
    if threads is not None and registers * (-(-threads // WARP) * WARP) > REGISTERS:
        return (
            f"{threads} threads of {registers} registers each",
            f"a block has {REGISTERS} registers: use fewer threads, or give max_number_threads=[{threads}, 1, 1]",
        )
    return None


def registers_at_start(threads: int, blocks: int) -> int:
    """Registers of each thread of a kernel that changes them, where so many blocks are to share an SM."""
    return min(REGISTERS // (threads * blocks) // REGISTER_UNIT * REGISTER_UNIT, SET_REGISTERS[1])


def broken_register_rule(threads: int, blocks: int, count: int, released: int | None) -> tuple[str, str] | None:
    """Return the rule that a warpgroup breaks whose threads ask for `count` registers: what is wrong, and the limit.

    `released` is the fewest registers that a thread of the block keeps when it gives some back; None if none does.
    """
    start = registers_at_start(threads, blocks)
    others = max(threads - WARPGROUP, 0)
    most = (start * threads - min(start, released or start) * others) // min(threads, WARPGROUP)
    if count <= most:
        return None
    return (
        f"setmaxnreg.inc to {count} registers in a block of {threads} threads",
        f"with min_blocks_per_mp={blocks} a thread starts with {start} of the {REGISTERS} registers, and a warpgroup "
        "gets at most "
        f"{most // REGISTER_UNIT * REGISTER_UNIT} for each when the others have given theirs back",
    )


def _broken_cluster(of: Generation, sizes: Sizes, pairs: bool) -> tuple[str, str] | None:
    name = f"sm_{of.number}"
    for axis, part in zip("xyz", sizes.cluster, strict=True):
        if part is not None and part < 1:
            return f"cluster {axis} is {part}", "every size of a cluster is at least 1"
    blocks = 1
    for part in sizes.cluster:
        blocks *= 1 if part is None else part
    if blocks > 1 and of.cluster == 1:
        return f"clusters of {blocks} blocks", f"{name} has no clusters: they came with sm_90"
    if blocks > of.cluster:
        return f"clusters of {blocks} blocks", f"a cluster has at most {of.cluster} blocks on {name}"
    if pairs and None not in sizes.cluster and blocks % 2:
        return (
            f"clusters of {blocks} block{'s' * (blocks > 1)}, and the kernel has tcgen05 instructions of cta_group::2",
            "launch it with clusters of an even number of blocks, or use CtaGroup.ONE",
        )
    for axis, size, part in zip("xyz", sizes.grid, sizes.cluster, strict=True):
        if size is not None and part is not None and size % part:
            return f"grid {axis} is {size} and cluster {axis} is {part}", "a grid consists of whole clusters"
    return None


def refusal(kernel: str, sizes: Sizes, broken: str = "") -> str:
    """Return the words for a launch that breaks a rule."""
    return f"cannot launch kernel {kernel} with {sizes.words()}" + (f": {broken}" if broken else "")
