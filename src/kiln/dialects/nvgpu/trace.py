"""Marks of a trace: a warp records when it comes to a place. Only code that is compiled for a trace has them."""

from ...mlir import ir
from ..declaration import Build, Operands, OptionalAttr
from ..definition import I32, I64, Pointer, one_of
from .dialect import CuteNvgpu

PHASES = ("begin", "end", "moment")


class TraceMark(CuteNvgpu.Operation, name="trace_mark", stays="time passes"):
    """Record when the warp comes here: where the event `event` begins or ends, or a moment of that name.

    `payload` is a number of 32 or 64 bits that is recorded with it, or an mbarrier. An end without a name ends the
    event that began last. A pass gives marks their `site`, and says which are `behind` a barrier of the CTA.
    """

    payload: Operands[Pointer | I32 | I64]
    event: ir.StringAttr
    phase: one_of(*PHASES)
    kind: ir.StringAttr
    token: OptionalAttr[ir.BoolAttr]
    number: OptionalAttr[ir.StringAttr]
    site: OptionalAttr[ir.IntegerAttr]
    behind: OptionalAttr[ir.BoolAttr]

    def check(self) -> str:
        if len(self.payload) > 1:
            return f"has {len(self.payload)} payloads: at most one"
        if not self.event and self.phase != "end":
            return f"has no name, and is a '{self.phase}'"
        return ""


trace_mark: Build = TraceMark.build


class TraceRoom(CuteNvgpu.Operation, name="trace_room", stays="time passes"):
    """Move what the warp recorded on if there is little room for more."""


trace_room: Build = TraceRoom.build


class TraceStart(CuteNvgpu.Operation, name="trace_start", stays="time passes"):
    """Begin to record the warps of some CTAs in the region of global memory at `address`.

    `shared` is the shared memory where they collect what they record, if there is room for that. The other fields are
    those of `base_dsl.kernel_trace.Layout`.
    """

    shared: Operands[Pointer]
    address: ir.IntegerAttr
    warps: ir.IntegerAttr
    warp_bytes: ir.IntegerAttr
    chunk_bytes: ir.IntegerAttr
    entries: ir.IntegerAttr
    lane: ir.IntegerAttr
    blocks: OptionalAttr[ir.DenseI32ArrayAttr]

    def check(self) -> str:
        lane = self.lane
        return "" if -1 <= lane < 32 else f"has the lane {lane}: it is one of 0 to 31, or -1 for the elected one"


trace_start: Build = TraceStart.build


class TraceStop(CuteNvgpu.Operation, name="trace_stop", stays="time passes"):
    """Write what the warp recorded and did not write yet."""


trace_stop: Build = TraceStop.build
