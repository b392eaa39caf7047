"""What host code pays for a tensor map: one that was made before, and a new one; beside the driver called from Python.

    python benchmarks/tensor_maps.py [--save]

Loops of native code on a machine with a driver; the least of 20 batches counts. Without a driver maps are zeros and
not kept, so that both figures are those of the rules alone.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from results import Page, Table

import kiln
from kiln import cute
from kiln.cute.runtime import make_ptr
from kiln.dialects import nvgpu
from kiln.hardware import driver

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 10_000
MAPS = Table("Host time of a tensor map", ("tensor map", "us"))
PAGE = Page(__file__, "Tensor maps", MAPS)


@cute.jit
def loop(base: cute.Pointer, count: cute.Int32, step: cute.Int32, size: cute.Int32):
    """Make maps of f16 tensors of 4096 columns that start `step` bytes after each other."""
    for number in range(count):
        place = base + number * step
        sizes = [cute.Int64(4096).ir_value(), cute.Int64(size).ir_value()]
        nvgpu.tma.tensor_map_encode(
            place.ir_value(),
            sizes,
            [cute.Int64(8192).ir_value()],
            element="f16",
            box=(64, 128),
            swizzle="128b",
            tensor="x",
        )


def best(work: Callable[[], Any], count: int) -> float:
    """Microseconds of one of `count`."""
    took: list[float] = []
    for _ in range(20):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took) / count * 1e6


def from_python(count: int) -> None:
    """The same by NVIDIA's bindings."""
    from cuda.bindings import driver as cuda  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]

    u64, u32 = cuda.cuuint64_t, cuda.cuuint32_t
    for _ in range(count):
        cuda.cuTensorMapEncodeTiled(
            cuda.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            2,
            1 << 40,
            [u64(4096), u64(512)],
            [u64(8192)],
            [u32(64), u32(128)],
            [u32(1), u32(1)],
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )


def main() -> None:
    base = make_ptr(kiln.Uint8, 1 << 40, cute.AddressSpace.gmem, assumed_align=16)
    compiled = cute.compile(loop, base, COUNT, 0, 512, target="nvidia")
    fresh = iter(range(1, 1000))
    rows = {
        "the same map again": best(lambda: compiled(base, COUNT, 0, 512), COUNT),
        "a new map": best(lambda: compiled(base, COUNT, 16, next(fresh)), COUNT),
        "a new map, in a call of its own": best(lambda: compiled(base, 1, 0, next(fresh)), 1),
    }
    if driver.available():
        rows["cuda.bindings, from Python"] = best(lambda: from_python(1000), 1000)
    for name, took in rows.items():
        MAPS.add(name, f"{took:.3f}")
    PAGE.finish("--save" in sys.argv)


if __name__ == "__main__":
    main()
