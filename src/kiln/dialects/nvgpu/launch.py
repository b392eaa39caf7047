"""Launches through the CUDA driver. Host functions only."""

from typing import Any

from ...mlir import ir
from ..cute.grid import LAUNCH_OPTIONS
from ..cute.packing import is_pack
from ..declaration import Operand
from ..definition import I64, int_type
from .dialect import CuteNvgpu


class DriverLaunch(CuteNvgpu.Operation, name="driver_launch"):
    """`cute.launch` through the CUDA driver: kernel number `index` of the executable, by name `name`. Host functions only;
    made by the NVIDIA target from `cute.launch`, whose operands and options it has. `preferred_cluster`: that of the launch, where
    the architecture has it.
    """

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
    index: ir.IntegerAttr
    name: ir.StringAttr
    OPTIONAL = {**LAUNCH_OPTIONS, "preferred_cluster": ir.DenseI32ArrayAttr}

    @staticmethod
    def check(op: ir.Operation) -> str:
        return "" if is_pack(op.operands[11]) else "takes its arguments as a tuple (`pack`)"


def driver_launch(launch: ir.Operation, index: int, name: str) -> ir.Operation:
    """Replace a `cute.launch`."""
    context = launch.context
    attributes = {key: value for key, value in launch.attributes.items() if key != "kernel"}
    attributes["name"] = ir.StringAttr.get(name, context)
    attributes["index"] = ir.IntegerAttr.get(int_type(32), index)
    made = ir.Operation.create(
        "cute_nvgpu.driver_launch", (), list(launch.operands), attributes, None, 0, launch.location, ir.InsertionPoint(launch)
    )  # fmt: skip
    launch.erase()
    return made
