"""Cluster launch control: a running cluster takes over the work of one that has not started."""

from __future__ import annotations

from ...base_dsl.typing import Int32
from ..deferred_dialects import nvgpu
from ..tensor.vector_access import extract
from .values import kernel_only, pointer

__all__ = ["clc_response", "issue_clc_query"]


def issue_clc_query(
    mbar_ptr: object, clc_response_ptr: object, multicast: bool = True, loc: object = None, ip: object = None
) -> None:
    """Request that a cluster which has not started be canceled, to take over its tile. Needs sm_100 or later.

    One thread of the cluster executes it. The response completes 16 bytes at the mbarrier; `clc_response` reads it.

    Args:
        mbar_ptr: the mbarrier in shared memory.
        clc_response_ptr: 16 bytes of shared memory for the response, at a multiple of 16.
        multicast: write response and mbarrier in every CTA of the cluster, at the same places.
    """
    kernel_only("issue_clc_query")
    where = pointer(clc_response_ptr, "issue_clc_query", "smem")
    nvgpu.launch_control.clc_try_cancel(
        where, pointer(mbar_ptr, "issue_clc_query", "smem"), multicast=multicast or None
    )


def clc_response(result_addr: object, loc: object = None, ip: object = None) -> tuple[Int32, Int32, Int32, Int32]:
    """Return the x, y and z of the first CTA of the canceled cluster, and 1; the last is 0 if none was canceled.

    Needs sm_100 or later.

    Args:
        result_addr: the response in shared memory that `issue_clc_query` requested, after its mbarrier has completed.
    """
    kernel_only("clc_response")
    words = nvgpu.launch_control.clc_query_cancel(pointer(result_addr, "clc_response", "smem"))
    x, y, z, is_valid = (Int32._make(extract(words, number, Int32), True) for number in range(4))
    return x, y, z, is_valid
