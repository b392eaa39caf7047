"""Cluster launch control (CLC): a running cluster takes over the work of one that has not started.

One thread requests; the answer is 16 bytes of shared memory, which are written asynchronously.
"""

from typing import Any

from ...base_dsl.trace import emit_value
from ...hardware.engines import BULK_LOAD
from ...mlir import context, ir
from ..declaration import Access, Build, Operand, OptionalAttr, Result
from ..definition import Pointer, int_type
from .dialect import CuteNvgpu, wrong_space


class ClcTryCancel(
    CuteNvgpu.Operation, name="clc_try_cancel", writes=Access("response", 16), engine=BULK_LOAD, mbarrier="mbarrier"
):
    """Request that a cluster which has not started be canceled, so that this one does its work.

    The answer is written to 16 bytes at `response`, aligned to 16 bytes, and completes 16 bytes of the transaction
    count of `mbarrier`; with `multicast`, in every CTA of the cluster at the same offsets. After an answer that says no
    there must be no further request.
    """

    response: Operand[Pointer]
    mbarrier: Operand[Pointer]
    multicast: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        return wrong_space(self.response, "response", "smem") or wrong_space(self.mbarrier, "mbarrier", "smem")


clc_try_cancel: Build = ClcTryCancel.build


class ClcQueryCancel(CuteNvgpu.Operation, name="clc_query_cancel", reads=Access("response", 16), alias=None):
    """Read an answer to `clc_try_cancel`: a vector of 4 i32, the x, y and z of the canceled cluster's first CTA, and 1.

    The last one is 0 if no cluster was canceled; then the others are 0.
    """

    response: Operand[Pointer]
    result: Result[Any]

    def check(self) -> str:
        type_ = self.result.type
        if str(type_) != "vector<4xi32>":
            return f"returns {type_}: vector<4xi32>"
        return wrong_space(self.response, "response", "smem")


def clc_query_cancel(response: ir.Value) -> ir.Value:
    """Return x, y and z of the first CTA of a canceled cluster, and whether one was canceled, as a vector of 4 i32."""
    type_ = ir.VectorType.get([4], int_type(32), loc=ir.Location.unknown(context()))
    return emit_value("cute_nvgpu.clc_query_cancel", type_, (response,))
