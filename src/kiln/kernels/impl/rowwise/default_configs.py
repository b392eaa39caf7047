"""How rows are cut by default, as measured on an H200."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ...dispatch import arrays
from .double_buffered import DoubleBufferedRowwiseConfig
from .row_kernel import MOST_IN_REGISTERS, WARP, RowwiseConfig
from .streaming import StreamingRowwiseConfig

if TYPE_CHECKING:
    from ...dispatch import devices
    from ...dispatch.devices import Device
    from .problem import Rows


def default_config(n: int, width: int, bits: int, device: devices.Device, columns: int = 0) -> RowwiseConfig:
    """Few vectors to a thread, for a row's threads wait for each other; from 16 kB on more, and then more blocks to a row.

    Measured on an H200, with and without `columns` of weights. Rows of up to 32 kB are held in registers or, where they are
    short, in shared memory, longer ones in 64 kB of it for each block, so that three blocks have rows on the way.
    """
    units = -(-n // width)
    if width * bits < 128:  # rows that begin anywhere: narrow accesses, many of them to a thread
        threads = min(512, arrays.power_of_two(-(-n // 32)))
        cluster = arrays.power_of_two(-(-n // (512 * MOST_IN_REGISTERS)))
        if cluster <= device.cluster:
            return RowwiseConfig(max(128, threads), threads, cluster)
        return RowwiseConfig(512, 512)
    if units <= 1024:
        threads = arrays.power_of_two(-(-units // (2 if units <= (256 if columns > 1 else 512) else 4)))
        block = max(128, threads)
        return RowwiseConfig(block, threads, 1, 4 * (threads >= 128), (1024 if threads >= 128 else 768) // block)
    if units <= 2048:
        return RowwiseConfig(512, 512, 1, 0, 2)
    cluster = arrays.power_of_two(-(-units // 4096))
    if cluster > device.cluster:
        return RowwiseConfig(512, 512)
    exact = units % (512 * cluster) == 0  # else there are more predicates than registers for three blocks
    return RowwiseConfig(512, 512, cluster, 8, 3 if exact and (cluster > 1 or columns > 1) else 2)


def shared_config(n: int, width: int, bits: int, device: Device, columns: int = 0) -> RowwiseConfig:
    """Of several matrices, or where registers are needed for more: rows in shared memory, half as much of one to a block."""
    units = -(-n // width)
    if width * bits < 128 or units <= 1024:
        return default_config(n, width, bits, device)
    for each in (2048, 4096):
        cluster = arrays.power_of_two(-(-units // each))
        if cluster <= device.cluster:
            return RowwiseConfig(512, 512, cluster, 16, 4096 // each)
    return RowwiseConfig(512, 512)


def shared_rule(problem: Rows, device: Device) -> RowwiseConfig:
    """The same of a problem."""
    return shared_config(problem.n, problem.width, problem.bits, device)


def even_threads(units: int, most: int, few: bool = False) -> int:
    """Threads that share so many vectors best, two to `most` each: the fewest are left without one; of equals the more, or the `few`er."""
    return min(
        (512, 256, 128, 64), key=lambda t: (not 2 <= -(-units // t) <= most, -(-units // t) * t, t if few else -t)
    )


def quantized_rule(problem: Rows, device: Device) -> RowwiseConfig:
    """Of rows that are quantized: four vectors to a thread, which keeps what it computes of them, or more, where that leaves none without.

    More is computed for each byte than elsewhere: all threads shall have something to do. Few rows have more threads each.
    """
    n, units, columns = problem.n, -(-problem.n // problem.width), len(problem.present)
    config = shared_config(n, problem.width, problem.bits, device)
    if problem.width * problem.bits < 128:  # half of the elements to a thread, for all of them are unrolled
        threads = min(512, 2 * config.row_threads)
        return dataclasses.replace(config, threads=max(config.threads, threads), row_threads=threads)
    if config.cluster > 1 and columns == 0 and config.together > 1:
        threads = min(512, max(128, arrays.power_of_two(-(-units // 32))))
        return RowwiseConfig(threads, threads, arrays.power_of_two(-(-units // (4 * threads))), 16, 1024 // threads)
    if problem.bits == 16 and problem.kind.fields and units > 128 and problem.rows > 2 * device.multiprocessors:
        found = quantized_norm_config(units, len(problem.sources), problem.kind.counted)
        if found is not None:
            return found
    alone = columns == 1 and len(problem.sources) == 1
    if config.together > 1 and (config.cluster > 1 or (units > 1024 and alone)):
        uneven = units % (256 * config.cluster) != 0  # predicates take registers, too
        many = columns > 1 or len(problem.sources) > 1
        together = 2 if (uneven and many) or (columns > 1 and problem.bits == 32) else 3
        return dataclasses.replace(config, threads=256, row_threads=256, together=together)
    if not 256 < units <= 1024:
        return config
    if problem.rows <= 2 * device.multiprocessors:
        threads = arrays.power_of_two(-(-units // 2))
        return RowwiseConfig(threads, threads)
    threads = even_threads(units, 5) if columns and units % 5 == 0 else arrays.power_of_two(-(-units // 4))
    block = max(128, threads)
    return RowwiseConfig(block, threads, 1, 5, (768 if columns > 1 or threads * 4 < units else 1024) // block)


def quantized_norm_config(units: int, sources: int, centred: bool) -> RowwiseConfig | None:
    """Of norms with many rows: four to eight vectors to a thread, which keeps what it computes of them; None: as other quantized rows.

    LayerNorm waits twice for a row's threads, and computes most for each byte: blocks take rows in turn, the next on its way. Where a sum
    is made and written there are more bytes, and rows are in registers, which takes fewest instructions.
    """
    choices = [t for t in (WARP, 64, 128, 256, 512) if 4 <= -(-units // t) <= (6 if t == WARP else 8)]
    if not choices:
        return None
    threads = min(choices, key=lambda t: (-(-units // t) * t, t))
    vectors = -(-units // threads)
    if not centred:
        even = units & (units - 1) == 0 or sources > 1 or units > 1024
        block = max(threads, 128 if threads == WARP else 0)
        return None if even else RowwiseConfig(block, threads, 1, vectors, 768 // block)
    together = 512 if threads == WARP or vectors > 6 else 768 if vectors == 5 else 640  # threads of a multiprocessor
    if sources == 1 and units != 2048:
        return DoubleBufferedRowwiseConfig(threads, threads, 1, vectors, together // threads)
    if threads == WARP:
        return RowwiseConfig(128, threads, 1, vectors, 4)
    return RowwiseConfig(threads, threads, 1, 0, (512 if units % threads else min(together, 640)) // threads)


def held_bits(problem: Rows) -> tuple[int, int, int, int]:
    """What streaming holds: bits of sources and of columns for each element, numbers of a finding, sums over rows."""
    sources, columns = (sum(x.dtype.width for x in group) for group in (problem.sources, problem.present))
    return sources, columns, problem.kind.fields - problem.kind.counted, len(problem.totals)


def streaming_config(problem: Rows, device: Device) -> StreamingRowwiseConfig | None:
    """How rows are streamed by default; None: they cannot be."""
    width, edged = problem.streamed
    if width * min(x.dtype.width for x in problem.sources) < 32:
        return None
    found = config_for(problem.n // width * width, width, *held_bits(problem), device, edged)
    return None if found is not None and edged and found.row_threads < WARP else found


LONG_FEW = {1: (False, 1), 2: (False, 2), 4: (True, 0), 8: (True, 0), 16: (False, 4)}
"""Of rows that fill all threads: whether exchanges are hidden and how many vectors are read ahead, by the size of the cluster."""
LONG_MANY = {1: (True, 1), 2: (True, 1), 4: (False, 4), 8: (False, 4), 16: (True, 4)}
"""The same where findings have more than two numbers."""


def config_for(
    n: int, width: int, sources: int, columns: int, fields: int, sums: int, device: devices.Device, edged: bool = False
) -> StreamingRowwiseConfig | None:
    """The same, for sources and columns of so many bits for each element.

    As measured on an H200: a block of 512 threads on each multiprocessor, four vectors of a row to a thread, or two where that makes
    it half of the threads of a block or all of them, or fewer than a warp. More on the way is slower where a block, or two, have a row:
    those multiprocessors that reach memory first take it from the others, and all wait for the last. Rows that do not fill all
    threads need registers for predicates, and are kept in a ring of whole rows; edges take registers, too.
    """
    units = -(-n // width)
    vectors = 2 if units <= 2 * WARP or 256 < units <= 1024 or (edged and units <= 1024) else 4
    across = arrays.power_of_two(-(-units // vectors))
    threads, cluster, many = min(512, across), max(1, across // 512), fields > 2
    if cluster > device.cluster:
        return None
    if threads < 512 or vectors < 4:
        overlapped, ahead = False, 2 if vectors == 2 and threads > WARP else 1
    elif units == across * vectors:
        overlapped, ahead = (LONG_MANY if many else LONG_FEW)[cluster]
    elif cluster == 1:
        overlapped, ahead = many, 0 if many else 1
    else:
        overlapped, ahead = (False, vectors) if cluster in (2, 16) or (edged and cluster == 4) else (True, 0)
    config = StreamingRowwiseConfig(512, threads, cluster, ahead, overlapped)
    return config if config.fits(n, width, sources, columns, fields, sums, device) else None
