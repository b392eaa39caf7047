"""Configs of row-wise kernels."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from ...dispatch import arrays
from ...dispatch.config import Config, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device

WARP = 32
MAX_REGISTER_ELEMENTS = 64
MAX_THREAD_ELEMENTS = 128
"""Most elements of a row that a thread of a register-resident kernel holds in registers, and in all."""
MAX_STREAMED_ELEMENTS = 64
"""Most elements of a row that a thread of a streaming kernel has."""
EXCHANGE_DEPTH = 4
"""Rows whose statistics a streaming kernel keeps. A CTA that sends those of a row knows that all CTAs have sent those
of two rows before, and that their warps have read those of four rows before."""
_MAX_CTAS_PER_SM = 32
STAGES = 2
"""Rows that a CTA of a double-buffered kernel has in shared memory."""


def _thread_rules(config: RowwiseConfig | StreamingRowwiseConfig, device: Device) -> Iterator[Rule]:
    """Yield the rules for threads, threads of a row, and the cluster size of a config."""
    for name in ("threads", "row_threads", "cluster"):
        value = getattr(config, name)
        yield Rule(value & (value - 1) == 0, f"{name} is {value!r}, not a power of two")
    yield Rule(WARP <= config.threads <= 1024, f"a CTA has 32 to 1024 threads, not {config.threads}")
    text = f"row_threads is {config.row_threads}, more than the {config.threads} threads of a CTA"
    yield Rule(config.row_threads <= config.threads, text)
    text = f"CTAs of a cluster share one row, so row_threads must be {config.threads}"
    yield Rule(config.cluster == 1 or config.row_threads == config.threads, text)
    yield Rule(config.cluster <= device.cluster, f"a cluster has at most {device.cluster} CTAs on this device")


def _copied_at_once(width: int, bits: int) -> str:
    return f"asynchronous copies take 4 bytes or more, and {width} elements of {bits} bits can be copied at once"


@dataclasses.dataclass(frozen=True)
class RowwiseConfig(Config):
    """The config of kernels that hold a row in the registers and shared memory of a CTA or cluster.

    A vector is what one instruction loads, up to 16 bytes.
    """

    may_be_zero = ("smem_vectors",)

    threads: int = 128
    """Threads of a CTA."""
    row_threads: int = 32
    """Threads of a CTA that hold a row, or the part of it that the CTA has."""
    cluster: int = 1
    """CTAs that share a row."""
    smem_vectors: int = 0
    """The most vectors of a thread that are in shared memory; the others are in registers."""
    ctas_per_sm: int = 1
    """CTAs that fit on an SM at least, which limits registers."""
    rows_per_cta: int = 1
    """With several, a CTA loads the next row while it computes one; the rows are wholly in shared memory."""

    @property
    def rows(self) -> int:
        """Rows that a CTA computes at a time."""
        return self.threads // self.row_threads

    def ctas(self, rows: int) -> int:
        """Return how many CTAs so many rows take."""
        return -(-rows // (self.rows * self.rows_per_cta)) * self.cluster

    def vectors(self, n: int, width: int) -> int:
        """Return the vectors of `width` elements of a row of `n` that a thread holds; 0 if the row does not fit."""
        vectors = -(-n // (self.cluster * self.row_threads * width))
        in_registers = (vectors - min(vectors, self.smem_vectors)) * width
        return vectors if in_registers <= MAX_REGISTER_ELEMENTS and vectors * width <= MAX_THREAD_ELEMENTS else 0

    def smem_bytes(self, n: int, width: int, bits: int, sources: int) -> int:
        """Return the shared memory of a CTA that reads so many sources of `bits`-bit elements."""
        row = sources * min(self.smem_vectors, self.vectors(n, width)) * self.threads * width * bits // 8
        stages = STAGES if self.rows_per_cta > 1 else 1
        return stages * (row + 8 * 4 * self.cluster * (self.threads // WARP or 1))

    def rules(self, n: int, width: int, bits: int, sources: int, device: Device) -> Iterator[Rule]:
        """Yield the rules for rows of `n` elements of `bits` bits, accessed `width` at a time."""
        yield from _thread_rules(self, device)
        text = f"ctas_per_sm is {self.ctas_per_sm}, and an SM has at most {_MAX_CTAS_PER_SM} CTAs"
        yield Rule(self.ctas_per_sm <= _MAX_CTAS_PER_SM, text)
        vectors = self.vectors(n, width)
        held = f"{MAX_THREAD_ELEMENTS} elements, {MAX_REGISTER_ELEMENTS} of them in registers"
        hint = "more threads or a larger cluster; with smem_vectors=0 the row is read twice"
        text = f"a thread holds at most {held}, and a row of {n} has more"
        yield Rule(vectors > 0 or self.smem_vectors == 0, text, hint)
        wide = self.smem_vectors == 0 or width * bits >= 32
        yield Rule(wide, _copied_at_once(width, bits), "smem_vectors=0, or aligned rows")
        text = f"with several rows_per_cta a CTA has one row of {n} at a time, all of it in shared memory"
        one_row = self.rows == 1 and self.cluster == 1 and self.smem_vectors >= vectors > 0
        hint = f"row_threads={self.threads}, cluster=1, smem_vectors={max(1, vectors)}"
        yield Rule(self.rows_per_cta == 1 or one_row, text, hint)
        used = self.smem_bytes(n, width, bits, sources)
        yield self.fits_smem(used, device.smem, "more in registers, or a larger cluster")


@dataclasses.dataclass(frozen=True)
class UnalignedRowwiseConfig(RowwiseConfig):
    """The config of kernels for unaligned rows. A thread holds `rows_per_cta` rows at the same time, and prefetches
    columns of `prefetch` vectors."""

    prefetch: int = 1

    def ctas(self, rows: int, width: int = 1) -> int:
        """Return how many CTAs so many rows take. Rows that a thread holds together are `width` apart."""
        if self.rows_per_cta == 1:
            return super().ctas(rows)
        return -(-rows // (width * self.rows_per_cta)) * width * self.cluster

    def vectors(self, n: int, width: int) -> int:
        """Return the most vectors of a row that a thread holds; a few elements of each row are edges, outside of
        vectors."""
        return max(1, -(-(n // width) // (self.cluster * self.row_threads)))

    def smem_bytes(self, n: int, width: int, bits: int, sources: int) -> int:
        one_row = dataclasses.replace(self, rows_per_cta=1)
        return self.rows_per_cta * RowwiseConfig.smem_bytes(one_row, n, width, bits, sources)

    def rules(self, n: int, width: int, bits: int, sources: int, device: Device) -> Iterator[Rule]:
        yield from _thread_rules(self, device)
        text = f"rows_per_cta is {self.rows_per_cta}, which needs row_threads={self.threads}"
        yield Rule(self.rows_per_cta == 1 or self.rows == 1, text)
        text = f"row_threads is {self.row_threads}, and edges of unaligned rows take a warp"
        yield Rule(self.row_threads >= WARP, text)
        hint = "more in registers, fewer rows_per_cta, or a larger cluster"
        yield self.fits_smem(self.smem_bytes(n, width, bits, sources), device.smem, hint)


class StreamedRow(NamedTuple):
    """The sizes of a row that is streamed through shared memory."""

    n: int
    """Elements of the row that are accessed in vectors."""
    width: int
    """Elements of a vector."""
    bits: int
    """Bits of the narrowest element type of a source."""
    source_bits: int
    """Bits of an element of all sources together."""
    column_bits: int
    """Bits of an element of all column vectors together."""
    fields: int
    """Statistics of a row that are exchanged."""
    column_outs: int
    """Reductions over rows."""

    @property
    def units(self) -> int:
        """Vectors of a row."""
        return -(-self.n // self.width)


@dataclasses.dataclass(frozen=True)
class StreamingRowwiseConfig(Config):
    """The config of persistent kernels that stream rows through shared memory.

    Each thread has its vectors of a row in shared memory, or on the way there.
    """

    may_be_zero = ("prefetch",)

    threads: int = 512
    """Threads of a CTA."""
    row_threads: int = 512
    """Threads of a CTA that have a row, or the part of it that the CTA has."""
    cluster: int = 1
    """CTAs that share a row."""
    prefetch: int = 1
    """Vectors that a thread loads ahead of those of a row."""
    overlapped: bool = False
    """Whether the next row is in shared memory, too: its statistics are accumulated while those of the present row are
    exchanged."""
    ctas_per_sm = 1

    @property
    def rows(self) -> int:
        """Rows of a CTA at a time."""
        return self.threads // self.row_threads

    @property
    def groups(self) -> int:
        """Groups of threads of a CTA that synchronise: the threads of a row, or a warp with several rows."""
        return self.threads // max(WARP, self.row_threads)

    def vectors(self, row: StreamedRow) -> int:
        """Return the vectors of a row that a thread has."""
        return -(-row.units // (self.cluster * self.row_threads))

    def stages(self, row: StreamedRow) -> int:
        """Return the vectors of a thread in shared memory."""
        return (2 if self.overlapped else 1) * self.vectors(row) + self.prefetch

    def smem_bytes(self, row: StreamedRow) -> int:
        """Return the shared memory of a CTA: stages and columns, statistics and their mbarriers, accumulators to be
        added."""
        sources = self.threads * self.stages(row) * row.source_bits
        columns = self.row_threads * self.vectors(row) * row.column_bits
        warps = self.threads // min(WARP, self.row_threads) + (self.cluster if self.cluster > 1 else 0)
        exchanged = EXCHANGE_DEPTH * (4 * arrays.power_of_two(row.fields) * warps + 8 * (self.groups + 1))
        folded = 4 * row.width * self.threads if row.column_outs and self.rows > 1 else 0
        return row.width * (sources + columns) // 8 + exchanged + folded + 32

    def rules(self, row: StreamedRow, device: Device) -> Iterator[Rule]:
        """Yield the rules for a row."""
        yield from _thread_rules(self, device)
        elements = self.vectors(row) * row.width
        text = (
            f"a thread has at most {MAX_STREAMED_ELEMENTS} elements, and of a row of {row.n} it would have {elements}"
        )
        yield Rule(elements <= MAX_STREAMED_ELEMENTS, text, "more threads or a larger cluster")
        copied = _copied_at_once(row.width, row.bits)
        yield Rule(row.width * row.bits >= 32, copied, "a RowwiseConfig, or aligned rows")
        yield self.fits_smem(self.smem_bytes(row), device.smem, "less prefetch, or a larger cluster")
