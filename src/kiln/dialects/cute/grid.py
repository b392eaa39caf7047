"""Indices of threads, and launches: `cute` operations about the grid."""

from collections.abc import Sequence
from typing import Any

from ...base_dsl.trace import emit, emit_value
from ...mlir import ir
from ..declaration import PURE, Operand, OptionalAttr, Result, attributes
from ..definition import I32, I64, int_type, one_of
from .packing import is_pack, pack, unpack
from .types import Cuda, Cute

__all__ = [
    "EVENTS",
    "KERNEL",
    "BlockDim",
    "BlockIdx",
    "GridDim",
    "LaneIdx",
    "Launch",
    "ThreadIdx",
    "WarpIdx",
    "index",
    "launch",
]

Dim: Any = one_of(0, 1, 2)

KERNEL = "cute.kernel"
"""Unit attribute of a `func.func` that is a kernel."""
EVENTS = "cute.events"
"""On a launch: the names of the events it records."""


class ThreadIdx(Cute.Operation, name="thread_idx", traits=PURE, varies="thread"):
    """Return the index of the thread in its block along `dim` (0, 1, 2: x, y, z). Kernels only."""

    result: Result[I32]
    dim: Dim


class BlockIdx(Cute.Operation, name="block_idx", traits=PURE, varies="cta"):
    """Return the index of the block in the grid along `dim`. Kernels only."""

    result: Result[I32]
    dim: Dim


class BlockDim(Cute.Operation, name="block_dim", traits=PURE, varies=""):
    """Return the number of threads of a block along `dim`; at least 1. Kernels only."""

    result: Result[I32]
    dim: Dim


class GridDim(Cute.Operation, name="grid_dim", traits=PURE, varies=""):
    """Return the number of blocks of the grid along `dim`; at least 1. Kernels only."""

    result: Result[I32]
    dim: Dim


class LaneIdx(Cute.Operation, name="lane_idx", traits=PURE, varies="thread"):
    """Return the thread's position in its warp of 32: the linear thread index (x fastest) modulo 32. Kernels only."""

    result: Result[I32]


class WarpIdx(Cute.Operation, name="warp_idx", traits=PURE, varies="warp"):
    """Return the number of the thread's warp in its block: the linear thread index divided by 32. Kernels only."""

    result: Result[I32]


def index(which: str, dim: int | None = None) -> ir.Value:
    """Return `thread_idx`, `block_idx`, `block_dim` or `grid_dim` along `dim`, or `lane_idx` or `warp_idx`."""
    return emit_value(f"cute.{which}", int_type(32), (), attributes(dim=dim))


class LaunchFields:
    """The fields that `cuda.launch_ex` and `cute_nvgpu.driver_launch` share."""

    grid_x: Operand[I64]
    grid_y: Operand[I64]
    grid_z: Operand[I64]
    block_x: Operand[I64]
    block_y: Operand[I64]
    block_z: Operand[I64]
    cluster_x: Operand[I64]
    cluster_y: Operand[I64]
    cluster_z: Operand[I64]
    smem: Operand[I64]
    stream: Operand[I64]
    arguments: Operand[Any]
    cooperative: OptionalAttr[ir.UnitAttr]
    use_pdl: OptionalAttr[ir.UnitAttr]
    max_threads: OptionalAttr[ir.IntegerAttr]
    min_blocks: OptionalAttr[ir.IntegerAttr]
    preferred_cluster: OptionalAttr[ir.DenseI32ArrayAttr]
    carveout: OptionalAttr[ir.IntegerAttr]
    merge_smem: OptionalAttr[ir.UnitAttr]
    events: OptionalAttr[ir.ArrayAttr]
    cluster_scheduling: OptionalAttr[ir.IntegerAttr]

    @property
    def grid(self) -> "tuple[ir.Value, ir.Value, ir.Value]":
        """The extents of the grid."""
        return self.grid_x, self.grid_y, self.grid_z

    @property
    def block(self) -> "tuple[ir.Value, ir.Value, ir.Value]":
        """The extents of a CTA."""
        return self.block_x, self.block_y, self.block_z

    @property
    def cluster(self) -> "tuple[ir.Value, ir.Value, ir.Value]":
        """The extents of a cluster."""
        return self.cluster_x, self.cluster_y, self.cluster_z

    def check(self) -> str:
        return "" if is_pack(self.arguments) else "takes its arguments as a tuple (`pack`)"

    def kernel_arguments(self) -> "tuple[list[ir.Value], dict[str, list[ir.Value]]]":
        """Return the arguments of the kernel, and handle, flags and trigger of each event by its name."""
        values = unpack(self.arguments)
        names = self.events or ()
        count = len(values) - 3 * len(names)
        return values[:count], {name: values[count + 3 * n : count + 3 * n + 3] for n, name in enumerate(names)}


class Launch(
    LaunchFields, Cuda.Operation, name="launch_ex", reads="arguments", writes="arguments", orders="grid", prefix="cute."
):
    """Run the function `kernel` once for each thread of a grid. Host functions only.

    `kernel` names a `func.func` of the module that has the unit attribute `cute.kernel` and no results. Sizes are (x,
    y, z), 64 bits wide until they are checked; `cluster` is (1, 1, 1) without clusters. `smem` is the least shared
    memory of a block in bytes, the kernel's own allocations included; for a kernel that takes the address of dynamic
    shared memory (`dynamic_smem`), the size of that memory. `stream` is a stream handle (0: the default stream).
    `arguments` is a tuple (see `pack`) of values of the kernel's argument types, followed for each name in
    `cute.events` (`launch_completion`, `programmatic`) by an event to record: its handle (i64), its flags and whether
    it triggers at the start of blocks (both i32). The launch may run asynchronously on a device with streams. A grid
    that no device takes is a fault, and nothing runs.

    `cute.cooperative`: all blocks run at the same time. `cute.use_pdl`: the kernel may start before earlier kernels
    are complete (programmatic dependent launch). `cute.max_threads` of a block and `cute.min_blocks` of an SM limit
    registers. `cute.preferred_cluster`: a larger cluster that blocks may be launched in. `cute.carveout`: percent of
    the L1 cache that is shared memory. `cute.merge_smem`: static shared memory of mutually exclusive branches
    overlaps. `cute.cluster_scheduling`: how the driver places clusters (`CUclusterSchedulingPolicy`).
    """

    kernel: ir.FlatSymbolRefAttr


def launch(
    kernel: str,
    grid: Sequence[ir.Value],
    block: Sequence[ir.Value],
    cluster: Sequence[ir.Value],
    smem: ir.Value,
    stream: ir.Value,
    arguments: Sequence[ir.Value],
    *,
    cooperative: bool = False,
    use_pdl: bool = False,
    max_threads: int = 0,
    min_blocks: int = 0,
    preferred_cluster: Sequence[int] = (),
    carveout: int | None = None,
    merge_smem: bool = False,
    events: Sequence[str] = (),
) -> ir.Operation:
    """Launch the kernel named `kernel`; sizes are three i64 values each, `smem` and `stream` are i64."""
    unit = ir.UnitAttr.get()
    i32 = int_type(32)
    options = {
        "cute.cooperative": unit if cooperative else None,
        "cute.use_pdl": unit if use_pdl else None,
        "cute.max_threads": ir.IntegerAttr.get(i32, max_threads) if max_threads else None,
        "cute.min_blocks": ir.IntegerAttr.get(i32, min_blocks) if min_blocks else None,
        "cute.preferred_cluster": ir.DenseI32ArrayAttr.get(list(preferred_cluster)) if preferred_cluster else None,
        "cute.carveout": None if carveout is None else ir.IntegerAttr.get(i32, carveout),
        "cute.merge_smem": unit if merge_smem else None,
        EVENTS: ir.ArrayAttr.get([ir.StringAttr.get(name) for name in events]) if events else None,
    }
    attrs = {name: value for name, value in options.items() if value is not None}
    operands = (*grid, *block, *cluster, smem, stream, pack(arguments))
    return emit("cuda.launch_ex", (), operands, {"kernel": ir.FlatSymbolRefAttr.get(kernel), **attrs})
