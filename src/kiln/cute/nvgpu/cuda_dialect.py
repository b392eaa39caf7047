"""`cutlass._mlir.dialects.cuda`: what programs set of a launch that they have traced."""

from __future__ import annotations

from enum import IntEnum

from ..._support import unavailable
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import runtime_error, type_error
from ..deferred_dialects import cute

__all__ = ["CudaClusterSchedulingPolicy", "launch_cfg_cluster_scheduling_policy"]


class CudaClusterSchedulingPolicy(IntEnum):
    """How the driver places the CTAs of a cluster on SMs, as in `cudaClusterSchedulingPolicy`."""

    cudaClusterSchedulingPolicyDefault = 0
    cudaClusterSchedulingPolicySpread = 1
    cudaClusterSchedulingPolicyLoadBalancing = 2


def launch_cfg_cluster_scheduling_policy(
    cfg: ir.Value, policy: CudaClusterSchedulingPolicy, *, loc: object = None, ip: ir.InsertionPoint | None = None
) -> None:
    """Set the cluster scheduling policy of a launch. The insertion point is before the launch, `cuda.launch_ex`, and
    `cfg` is its first operand. The CPU target has no SMs, and takes any policy.
    """
    if not isinstance(policy, CudaClusterSchedulingPolicy):
        raise type_error(f"policy is {policy!r}", "a CudaClusterSchedulingPolicy")
    launch = (ip or ir.InsertionPoint.current).ref_operation
    if launch is None or launch.name != cute.Launch.OPERATION_NAME or launch.operands[0] != cfg:
        raise runtime_error(
            "launch_cfg_cluster_scheduling_policy is not before the launch whose configuration it is given",
            "with ir.InsertionPoint(launch): launch_cfg_cluster_scheduling_policy(launch.operands[0], policy)",
        )
    cute.Launch(launch).cluster_scheduling = int(policy)


def __getattr__(name: str) -> object:
    return unavailable.name(__name__, name)
