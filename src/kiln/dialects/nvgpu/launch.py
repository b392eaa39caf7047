"""Launches through the CUDA driver. Host functions only."""

from ...mlir import ir
from ..cute.grid import LaunchFields
from ..declaration import OptionalAttr
from ..definition import int_type
from .dialect import CuteNvgpu


class DriverLaunch(
    LaunchFields,
    CuteNvgpu.Operation,
    name="driver_launch",
    reads="arguments",
    writes="arguments",
    orders="grid",
    prefix="cute.",
):
    """Launch kernel number `index` of the executable, named `name`, through the CUDA driver. Host functions only.

    The NVIDIA target makes it from a `cuda.launch_ex`, whose operands and options it has. Later passes add what the
    kernel needs of its launches: `needs` (`limits.Needs`, encoded), bytes of shared memory, and `reports` if it prints
    or asserts. More dynamic shared memory than `smem_optin` is oversized, which a launch has to allow.
    """

    index: ir.IntegerAttr
    name: ir.StringAttr
    needs: OptionalAttr[ir.StringAttr]
    extra_smem: OptionalAttr[ir.IntegerAttr]
    held_smem: OptionalAttr[ir.IntegerAttr]
    least_smem: OptionalAttr[ir.IntegerAttr]
    static_smem: OptionalAttr[ir.IntegerAttr]
    smem_per_sm: OptionalAttr[ir.IntegerAttr]
    smem_optin: OptionalAttr[ir.IntegerAttr]
    reports: OptionalAttr[ir.UnitAttr]


def driver_launch(launch: ir.Operation, index: int, name: str) -> ir.Operation:
    """Replace a `cuda.launch_ex` by a `driver_launch`."""
    context = launch.context
    attributes = {key: value for key, value in launch.attributes.items() if key != "kernel"}
    attributes["name"] = ir.StringAttr.get(name, context)
    attributes["index"] = ir.IntegerAttr.get(int_type(32), index)
    operation = ir.Operation.create(
        "cute_nvgpu.driver_launch",
        (),
        list(launch.operands),
        attributes,
        None,
        0,
        launch.location,
        ir.InsertionPoint(launch),
    )
    launch.erase()
    return operation
