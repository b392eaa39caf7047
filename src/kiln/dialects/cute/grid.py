"""Where a thread is, and launches: `cute` operations about the grid."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...base_dsl.trace import emit, emit_value
from ...mlir import ext, ir
from ..definition import I32, I64, attributes, int_type, one_of
from .packing import is_pack, pack, unpack
from .types import Cute

Dim = one_of(0, 1, 2)

KERNEL = "cute.kernel"
"""Unit attribute of a `func.func` that is a kernel."""
EVENTS = "cute.events"
"""On a launch: the names of the events it records."""


class ThreadIdx(Cute.Operation, name="thread_idx", traits=[ext.Pure]):
    """Index of the thread in its block along `dim` (0, 1, 2: x, y, z). Kernels only."""

    result: ext.Result[I32]
    dim: Dim


class BlockIdx(Cute.Operation, name="block_idx", traits=[ext.Pure]):
    """Index of the block in the grid along `dim`. Kernels only."""

    result: ext.Result[I32]
    dim: Dim


class BlockDim(Cute.Operation, name="block_dim", traits=[ext.Pure]):
    """Number of threads of a block along `dim`; at least 1. Kernels only."""

    result: ext.Result[I32]
    dim: Dim


class GridDim(Cute.Operation, name="grid_dim", traits=[ext.Pure]):
    """Number of blocks of the grid along `dim`; at least 1. Kernels only."""

    result: ext.Result[I32]
    dim: Dim


class LaneIdx(Cute.Operation, name="lane_idx", traits=[ext.Pure]):
    """Position of the thread in its warp of 32: the linear thread index (x fastest) modulo 32. Kernels only."""

    result: ext.Result[I32]


class WarpIdx(Cute.Operation, name="warp_idx", traits=[ext.Pure]):
    """Number of the thread's warp in its block: the linear thread index divided by 32. Kernels only."""

    result: ext.Result[I32]


def index(which: str, dim: int | None = None) -> ir.Value:
    """`thread_idx`, `block_idx`, `block_dim`, `grid_dim` along `dim`; `lane_idx`, `warp_idx` without."""
    return emit_value(f"cute.{which}", int_type(32), (), attributes(dim=dim))


class Launch(Cute.Operation, name="launch"):
    """Run the function `kernel` once for each thread of a grid. Host functions only.

    `kernel` names a `func.func` of the module that has the unit attribute `cute.kernel` and no results. Sizes are
    (x, y, z), 64 bits wide until they are checked; `cluster` is (1, 1, 1) without clusters. `smem` is the number of
    bytes of dynamic shared memory of each block. `stream` is a stream handle (0: the default stream). `arguments` is a
    tuple (see `pack`) of values of the kernel's argument types, and after them for each name in `cute.events`
    (`launch_completion`, `programmatic`) an event to record: its handle, an i64, its flags and whether it triggers at
    the start of blocks, i32. Further attributes of a launch are discardable ones. The launch may run asynchronously on
    a device with streams. A grid that no device takes is a fault, and nothing runs.
    """

    grid_x: ext.Operand[I64]
    grid_y: ext.Operand[I64]
    grid_z: ext.Operand[I64]
    block_x: ext.Operand[I64]
    block_y: ext.Operand[I64]
    block_z: ext.Operand[I64]
    cluster_x: ext.Operand[I64]
    cluster_y: ext.Operand[I64]
    cluster_z: ext.Operand[I64]
    smem: ext.Operand[I64]
    stream: ext.Operand[I64]
    arguments: ext.Operand[Any]
    kernel: ir.FlatSymbolRefAttr

    @staticmethod
    def check(op: ir.Operation) -> str:
        return "" if is_pack(op.operands[11]) else "takes its arguments as a tuple (`pack`)"


def launch(
    kernel: str,
    grid: Sequence[ir.Value],
    block: Sequence[ir.Value],
    cluster: Sequence[ir.Value],
    smem: ir.Value,
    stream: ir.Value,
    arguments: Sequence[ir.Value],
    attributes: Mapping[str, ir.Attribute] | None = None,
) -> ir.Operation:
    """Launch the kernel named `kernel`; sizes are three i64 values each, `smem` and `stream` are i64."""
    return emit(
        "cute.launch",
        (),
        (*grid, *block, *cluster, smem, stream, pack(arguments)),
        {"kernel": ir.FlatSymbolRefAttr.get(kernel), **(attributes or {})},
    )


def launch_parts(op: ir.Operation) -> tuple[list[ir.Value], dict[str, list[ir.Value]]]:
    """The kernel's arguments of a launch, and its events by name: handle, flags, trigger."""
    values = unpack(op.operands[len(op.operands) - 1])
    names = [name.value for name in op.attributes[EVENTS]] if EVENTS in op.attributes else []
    count = len(values) - 3 * len(names)
    return values[:count], {name: values[count + 3 * n : count + 3 * n + 3] for n, name in enumerate(names)}
