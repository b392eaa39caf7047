"""The configs of row-wise kernels that measurements on an H200 found best, by the vectors of a row.

| vectors of a row, 16 bytes each | forward | why |
|---|---|---|
| up to 1024 (16 KB) | registers or shared memory of one CTA, 2 to 7 vectors to a thread | few vectors: the threads of a row wait for each other |
| to 4096 (64 KB) | one CTA of 512 threads, 2 or 3 on an SM | rows of other CTAs are on the way while one computes |
| more | clusters, or streaming | a cluster's CTAs hold 64 KB each; streaming keeps columns in shared memory |

Quantised rows compute more for each byte, so that all threads get vectors; backward kernels stream wherever rows fit.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...dispatch import arrays
from ...dispatch.registry import passes
from .config import (
    MAX_REGISTER_ELEMENTS,
    WARP,
    RowwiseConfig,
    StreamedRow,
    StreamingRowwiseConfig,
    UnalignedRowwiseConfig,
)

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .problem import RowFunctionProblem

MAX_CTA_VECTORS = 13 * 512
"""Most vectors of a row that one CTA holds where most threads of a cluster would have none."""
MAX_UNSTREAMED = 32768
"""Most columns of `softmax_backward` for which a CTA for each row is faster than streaming."""
_NARROW_ELEMENTS = 16
"""Elements of a row that a thread has where accesses are of one element."""
LONG_ROWS = {1: (False, 1), 2: (False, 2), 4: (True, 0), 8: (True, 0), 16: (False, 4)}
"""`overlapped` and `prefetch` of streaming rows that fill all threads, by cluster size."""
LONG_ROWS_MANY_STATISTICS = {1: (True, 1), 2: (True, 1), 4: (False, 4), 8: (False, 4), 16: (True, 4)}
"""The same for statistics of more than two values."""


# --- forward ---------------------------------------------------------------------------------------------------------


def default_config(problem: RowFunctionProblem, device: Device, columns: int) -> RowwiseConfig:
    """Return the config of a resident row, with or without `columns` of weights."""
    n = problem.n
    units = problem.units
    if not problem.wide:  # narrow accesses, many to a thread
        threads = min(512, arrays.power_of_two(-(-n // 32)))
        cluster = arrays.power_of_two(-(-n // (512 * MAX_REGISTER_ELEMENTS)))
        if cluster <= device.cluster:
            return RowwiseConfig(max(128, threads), threads, cluster)
        return RowwiseConfig(512, 512)
    if units <= 1024:
        threads = arrays.power_of_two(-(-units // (2 if units <= (256 if columns > 1 else 512) else 4)))
        cta = max(128, threads)
        return RowwiseConfig(cta, threads, 1, 4 * (threads >= 128), (1024 if threads >= 128 else 768) // cta)
    if units <= 2048:
        return RowwiseConfig(512, 512, 1, 0, 2)
    cluster = arrays.power_of_two(-(-units // 4096))
    if cluster > device.cluster:
        return RowwiseConfig(512, 512)
    exact = units % (512 * cluster) == 0  # predicates leave no registers for three CTAs
    return RowwiseConfig(512, 512, cluster, 8, 3 if exact and (cluster > 1 or columns > 1) else 2)


def even_threads(units: int, most: int, prefer_fewer: bool = False) -> int:
    """Return the threads that divide `units` vectors best, 2 to `most` each: the fewest idle; of equals the more, or
    fewer."""
    return min(
        (512, 256, 128, 64),
        key=lambda t: (not 2 <= -(-units // t) <= most, -(-units // t) * t, t if prefer_fewer else -t),
    )


def forward_config(problem: RowFunctionProblem, device: Device) -> RowwiseConfig:
    """Return the config of softmax and norms: from 2 KB on as few idle threads as can be."""
    units = problem.units
    columns = len(problem.present)
    if problem.wide and 128 < units <= 1024 and units & (units - 1):
        if columns > 1:  # few threads with many vectors divide the fixed cost of a row among more elements
            threads = even_threads(units, 7, prefer_fewer=True)
            return RowwiseConfig(threads, threads, 1, 7, 640 // threads)
        threads = even_threads(units, 7 if columns else 5)
        vectors = -(-units // threads)
        cta = max(128, threads)
        return RowwiseConfig(cta, threads, 1, vectors if columns else 0, 1024 // cta if columns else 768 // cta)
    if not problem.wide or not 512 < units <= 1024:
        return default_config(problem, device, columns)
    ctas_per_sm = 4 if units == 1024 else 3  # predicates take registers, too
    if columns < 2 or problem.bits == 32:
        return RowwiseConfig(512, 512, 1, 0, ctas_per_sm)
    return RowwiseConfig(256, 256, 1, 4, ctas_per_sm)


def softmax_config(problem: RowFunctionProblem, device: Device) -> Any:
    """Return the config of softmax: rows of 64 to 128 KB in one CTA, longer ones streamed, since exponentials
    overlap."""
    cluster = arrays.power_of_two(-(-problem.units // 4096))
    if not problem.wide or problem.units <= 4096 or cluster > device.cluster:
        return forward_config(problem, device)
    if cluster == 2:
        return RowwiseConfig(512, 512, 1, 12, 2)
    return StreamingRowwiseConfig(512, 512, cluster, 4, overlapped=True)


def norm_config(problem: RowFunctionProblem, device: Device) -> Any:
    """Return the config of norms: rows of more than 64 KB in many small CTAs (RMSNorm), or streamed.

    LayerNorm is streamed, which keeps its columns in shared memory.
    """
    units = problem.units
    centred = problem.function.counts_elements
    cluster = arrays.power_of_two(-(-units // 2048))
    if not problem.wide or units <= 4096 or cluster > device.cluster:
        return forward_config(problem, device)
    if units <= MAX_CTA_VECTORS:
        return RowwiseConfig(512, 512, 1, 13, 2)
    if centred:
        return StreamingRowwiseConfig(512, 512, cluster, 8, overlapped=cluster == 16)
    return RowwiseConfig(128, 128, cluster, 12, 8) if cluster <= 8 else StreamingRowwiseConfig(512, 512, cluster, 6)


def smem_config(problem: RowFunctionProblem, device: Device) -> RowwiseConfig:
    """Return the config for several sources: rows in shared memory, half as much of one to a CTA."""
    if not problem.wide or problem.units <= 1024:
        return default_config(problem, device, 0)
    for vectors in (2048, 4096):
        cluster = arrays.power_of_two(-(-problem.units // vectors))
        if cluster <= device.cluster:
            return RowwiseConfig(512, 512, cluster, 16, 4096 // vectors)
    return RowwiseConfig(512, 512)


# --- quantised -------------------------------------------------------------------------------------------------------


def quantized_config(problem: RowFunctionProblem, device: Device) -> RowwiseConfig:
    """Return the config of quantised rows: four vectors to a thread, which saves results, or more where that idles no
    threads.

    More is computed for each byte than elsewhere. Few rows get more threads each.
    """
    units = problem.units
    columns = len(problem.present)
    config = smem_config(problem, device)
    if not problem.wide:  # half of the elements to a thread, since all are unrolled
        threads = min(512, 2 * config.row_threads)
        return dataclasses.replace(config, threads=max(config.threads, threads), row_threads=threads)
    if config.cluster > 1 and columns == 0 and config.ctas_per_sm > 1:
        threads = min(512, max(128, arrays.power_of_two(-(-units // 32))))
        return RowwiseConfig(threads, threads, arrays.power_of_two(-(-units // (4 * threads))), 16, 1024 // threads)
    if problem.bits == 16 and problem.function.fields and units > 128 and problem.rows > 2 * device.sm_count:
        norm = quantized_norm_config(units, len(problem.sources), problem.function.counts_elements)
        if norm is not None:
            return norm
    single = columns == 1 and len(problem.sources) == 1
    if config.ctas_per_sm > 1 and (config.cluster > 1 or (units > 1024 and single)):
        uneven = units % (256 * config.cluster) != 0  # predicates take registers, too
        many = columns > 1 or len(problem.sources) > 1
        ctas_per_sm = 2 if (uneven and many) or (columns > 1 and problem.bits == 32) else 3
        return dataclasses.replace(config, threads=256, row_threads=256, ctas_per_sm=ctas_per_sm)
    if not 256 < units <= 1024:
        return config
    if problem.rows <= 2 * device.sm_count:
        threads = arrays.power_of_two(-(-units // 2))
        return RowwiseConfig(threads, threads)
    threads = even_threads(units, 5) if columns and units % 5 == 0 else arrays.power_of_two(-(-units // 4))
    cta = max(128, threads)
    return RowwiseConfig(cta, threads, 1, 5, (768 if columns > 1 or threads * 4 < units else 1024) // cta)


def quantized_norm_config(units: int, sources: int, centred: bool) -> RowwiseConfig | None:
    """Return the config of quantised norms of many rows, four to eight vectors to a thread; None: as other quantised
    rows.

    LayerNorm (`centred`) reduces twice and computes most for each byte: CTAs double-buffer rows. With a fused add there
    are more bytes, and rows are in registers, which takes the fewest instructions.
    """
    choices = [t for t in (WARP, 64, 128, 256, 512) if 4 <= -(-units // t) <= (6 if t == WARP else 8)]
    if not choices:
        return None
    threads = min(choices, key=lambda t: (-(-units // t) * t, t))
    vectors = -(-units // threads)
    if not centred:
        even = units & (units - 1) == 0 or sources > 1 or units > 1024
        cta = max(threads, 128 if threads == WARP else 0)
        return None if even else RowwiseConfig(cta, threads, 1, vectors, 768 // cta)
    sm_threads = 512 if threads == WARP or vectors > 6 else 768 if vectors == 5 else 640
    if sources == 1 and units != 2048:
        return RowwiseConfig(threads, threads, 1, vectors, sm_threads // threads, rows_per_cta=4)
    if threads == WARP:
        return RowwiseConfig(128, threads, 1, vectors, 4)
    return RowwiseConfig(threads, threads, 1, 0, (512 if units % threads else min(sm_threads, 640)) // threads)


# --- streaming and backward ------------------------------------------------------------------------------------------


def streaming_config(row: StreamedRow, device: Device, unaligned: bool) -> StreamingRowwiseConfig | None:
    """Return the config for streaming rows: a CTA of 512 threads on each SM, four vectors to a thread; None if they
    cannot be.

    Two vectors where that makes a row half of the threads of a CTA or all of them, or fewer than a warp. More prefetch
    is slower where one or two CTAs have a row: the SMs that reach memory first take it from the others, and all wait
    for the last. Rows that do not fill all threads need registers for predicates, and stages for whole rows; edges take
    registers, too.
    """
    units = row.units
    vectors = 2 if units <= 2 * WARP or 256 < units <= 1024 or (unaligned and units <= 1024) else 4
    across = arrays.power_of_two(-(-units // vectors))
    threads = min(512, across)
    cluster = max(1, across // 512)
    many = row.fields > 2
    if cluster > device.cluster or (unaligned and threads < WARP):
        return None
    if threads < 512 or vectors < 4:
        overlapped = False
        prefetch = 2 if vectors == 2 and threads > WARP else 1
    elif units == across * vectors:
        overlapped, prefetch = (LONG_ROWS_MANY_STATISTICS if many else LONG_ROWS)[cluster]
    elif cluster == 1:
        overlapped = many
        prefetch = 0 if many else 1
    else:
        overlapped, prefetch = (False, vectors) if cluster in (2, 16) or (unaligned and cluster == 4) else (True, 0)
    config = StreamingRowwiseConfig(512, threads, cluster, prefetch, overlapped)
    return config if passes(lambda candidate: candidate.check(row, device), config) else None


def two_pass_config(problem: RowFunctionProblem, device: Device) -> RowwiseConfig:
    """Return the config of norm gradients that cannot be streamed: half the threads of softmax, with more values to
    hold.

    With narrow accesses a thread has few elements, so that more threads hide each other's latency.
    """
    n = problem.n
    cluster = arrays.power_of_two(-(-n // (512 * _NARROW_ELEMENTS)))
    if problem.width == 1 and n > 128 * _NARROW_ELEMENTS and cluster <= device.cluster:
        threads = min(512, arrays.power_of_two(-(-n // _NARROW_ELEMENTS)))
        short = n <= threads * cluster * 12
        return RowwiseConfig(threads, threads, cluster, 0, (1024 if short else 512) // threads)
    config = smem_config(problem, device)
    if config.smem_vectors and config.threads == config.row_threads:
        threads = min(256, config.threads)
        config = dataclasses.replace(config, threads=threads, row_threads=threads)
    return dataclasses.replace(config, ctas_per_sm=1 if config.smem_vectors else min(2, config.ctas_per_sm))


def softmax_backward_config(problem: RowFunctionProblem, device: Device) -> Any:
    """Return the config of `softmax_backward`: long rows are streamed, where all accesses are as wide as can be."""
    least = min(x.size for x in (*problem.sources, *problem.outs))
    if problem.width * least == arrays.MAX_VECTOR_BYTES and problem.n > MAX_UNSTREAMED:
        config = streaming_config(problem.streamed, device, problem.streams_unaligned)
        if config is not None:
            return config
    return smem_config(problem, device)


def norm_backward_config(problem: RowFunctionProblem, device: Device) -> Any:
    """Return the config of norm gradients: streamed where rows can be, else in two passes."""
    config = streaming_config(problem.streamed, device, problem.streams_unaligned)
    return config or two_pass_config(problem, device)


# --- unaligned -------------------------------------------------------------------------------------------------------


def unaligned_config(
    n: int, width: int, sources: int, columns: int, rows: int, device: Device
) -> UnalignedRowwiseConfig | None:
    """Return the config of unaligned rows in which few threads idle; None if rows are too short or too long.

    Short rows are in registers, longer ones in shared memory: of one CTA if two fit on an SM, since CTAs of a cluster
    wait for each other. With many columns and rows, a thread holds two rows, for which it reads columns once; not with
    7 to 8 vectors to a thread, where a cluster would idle.
    """
    units = n // width
    if units < WARP:
        return None
    narrow = sources == 1 and columns < 2
    two_rows = columns > 1 and 256 < units <= 512 * 14 and not 512 * 7 < units <= 512 * 8
    if two_rows and rows >= 8 * device.sm_count:
        threads = 128 if units <= 512 else 256 if units <= 1024 else 512
        cluster = 1 if units <= 512 * 7 else 2
        config = UnalignedRowwiseConfig(threads, threads, cluster, 7, 1024 // threads, rows_per_cta=2, prefetch=2)
    elif units <= (512 * 3 if sources > 1 else 1024):
        most = 3 if sources > 1 else 4 if columns else 5
        choices = [t for t in (32, 64, 128, 256, 512) if t * most >= units]
        threads = min(choices, key=lambda t: (t * -(-units // t), t))
        cta = max(128, threads)
        config = UnalignedRowwiseConfig(cta, threads, 1, 0, (768 if columns > 1 else 1024) // cta)
    elif units <= 512 * (13 // sources):
        short = units <= 512 * 8
        prefetch = 1 if short or columns > 1 else 3
        config = UnalignedRowwiseConfig(512, 512, 1, 13, 3 if short and narrow else 2, prefetch=prefetch)
    else:
        cluster = 2
        while units * sources > cluster * 512 * 8:
            cluster *= 2
        threads = 512 if columns or sources > 1 else 256
        config = UnalignedRowwiseConfig(threads, threads, cluster, 16, 3 if narrow else 2)
    fits = config.cluster <= device.cluster and config.smem_bytes(n, width, 128 // width, sources) <= device.smem
    return config if fits else None
