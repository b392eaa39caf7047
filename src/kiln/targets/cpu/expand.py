"""Kernels as host code: their state beyond that of host functions, and what an instrumented build adds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...analysis import pointers
from ...analysis.values import bounds
from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import CompilerDiagnosticError, DSLNotImplemented
from ...dialects import cute, nvgpu
from ...hardware.architectures import DEFAULT, Arch, Architecture
from ...hardware.limits import Needs
from ...mlir import ir
from ..host import expand as host
from ..host import splitting
from ..host.call_context import WARN
from ..host.exits import return_at_ends
from ..host.loops import stopped
from ..lowering.builder import Builder, constant_value, int_type, operations, ptr_type, symbol
from ..lowering.expansion import AnyOp
from ..lowering.loop_annotations import keep_loop_annotations
from ..lowering.memory import alignment_of
from .passes import coroutines, lane_updates
from .runtime import record_access, scheduler
from .runtime.record_access import Fields
from .runtime.records import HEADER, FrameHeader

if TYPE_CHECKING:
    from ...dialects.declaration import OpView
    from .access_counter import AccessCounter
    from .event_recorder import EventRecorder
    from .ops.trace import Recording
    from .sanitizer.instrument import Instrumentation

INDICES: dict[type[OpView], str] = {
    cute.ThreadIdx: "thread_idx",
    cute.BlockIdx: "block_idx",
    cute.BlockDim: "block_dim",
    cute.GridDim: "grid_dim",
}
"""Operations that return thread and block indices and dimensions, and the names of these."""
HIDDEN = 4 + 3 * len(INDICES)
"""Number of hidden arguments of a kernel: context, static and dynamic shared memory, indices, the thread's frame."""


@dataclasses.dataclass
class FunctionState(host.FunctionState):
    """A function, and what is known of a kernel: its hidden arguments, and what its threads do."""

    smem: ir.Value | None = None
    dynamic_smem: ir.Value | None = None
    indices: dict[str, tuple[ir.Value, ir.Value, ir.Value]] = dataclasses.field(default_factory=dict)
    smem_bytes: int = 0
    """Where the last piece of static shared memory that was expanded so far ends."""
    frame: ir.Value | None = None
    waits: bool = False
    """Whether its threads can wait: it is run by the scheduler then."""
    meets: bool = False
    """Whether lanes of a warp meet in it."""
    copies: bool = False
    """Whether it makes asynchronous copies."""
    tensor_memory: bool = False
    """Whether its blocks have tensor memory."""
    launch_control: bool = False
    """Whether its clusters take the work of others."""
    cta_group: int = 0
    """The CTAs that its tcgen05 instructions work for: 1 or 2, or 0 if it has none."""
    adds_floats: bool = False
    """Whether its blocks may add floating point numbers in global memory, whose result depends on the order."""
    recording: Recording | None = None
    """Where marks of a trace go, in a kernel that is compiled for one."""
    ptx_registers: dict[str, tuple[ir.Value, int]] = dataclasses.field(default_factory=dict)
    """Registers that inline PTX has declared outside of braces: where they lie, and their widths."""
    spins: bool = False
    """Whether it spins on memory: the blocks of a launch should then be resident together."""

    @property
    def is_kernel(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return bool(self.indices)

    def where(self, b: Builder) -> list[ir.Value]:
        return [*self.indices["block_idx"], *self.indices["thread_idx"]] if self.is_kernel else super().where(b)


@dataclasses.dataclass
class Expansion(host.Expansion):
    """The state of expanding one module with kernels."""

    functions: dict[str, FunctionState] = dataclasses.field(default_factory=dict)  # pyright: ignore[reportIncompatibleVariableOverride]
    launches: list[tuple[Expander, cute.Launch]] = dataclasses.field(default_factory=list)
    sanitizer: Instrumentation | None = None
    """The sanitizer of an instrumented build; None in a normal one."""
    counter: AccessCounter | None = None
    """The counter of a build that counts accesses of warps; None in others."""
    recorder: EventRecorder | None = None
    """The recorder of a build that records what warps do; None in others."""
    arch: Architecture = Arch[DEFAULT]
    """The architecture whose limits launches must keep."""
    needs: dict[str, Needs] = dataclasses.field(default_factory=dict)
    """What the kernels need of their launches."""
    register_bytes: dict[ir.Value, int] = dataclasses.field(default_factory=dict)
    """The sizes of register tensors, by their lowered pointers."""

    def enter(self, func: ir.Operation) -> FunctionState:
        if self.sanitizer is not None:
            self.sanitizer.remember(self, func)
        if cute.KERNEL not in func.attributes:
            return FunctionState(symbol(func), func, host.add_arguments(func, [ptr_type()])[0])
        types = [*[ptr_type()] * 3, *[int_type(32)] * (3 * len(INDICES)), ptr_type()]
        ctx, smem, dynamic_smem, *numbers, frame = host.add_arguments(func, types)
        indices = {
            which: (x, y, z) for which, x, y, z in zip(INDICES.values(), numbers[::3], numbers[1::3], numbers[2::3])
        }
        positive = (*indices["block_dim"], *indices["grid_dim"])  # a launch checks them
        return FunctionState(
            symbol(func),
            func,
            ctx,
            positive=positive,
            smem=smem,
            dynamic_smem=dynamic_smem,
            indices=indices,
            frame=frame,
        )

    def announce(
        self, b: Builder, inputs: Sequence[ir.Type], arguments: Sequence[ir.Value], layouts: Sequence[str | None]
    ) -> None:
        if self.sanitizer is not None:
            self.sanitizer.announce(self, b, inputs, arguments, layouts)

    def finish_lowered(self, module: ir.Module) -> None:
        """Kernels whose threads wait become state machines."""
        for func in operations(module):
            if func.name != "llvm.func":
                continue
            state = self.functions.get(symbol(func))
            return_at_ends(func)
            if state is not None and state.is_kernel:
                coroutines.return_at_leaves(func, state.waits)
            elif symbol(func) in self.inlined:  # a version of one
                coroutines.return_at_leaves(func, waits=False)
            if state is not None and state.waits:
                frame_argument = len(func.regions[0].blocks[0].arguments) - 1
                frame = coroutines.make_resumable(func, frame_argument, HEADER)
                splitting.split(func, resumes=frame.resumes)
                record_access.indices_from_frame(func)
                scheduler.set_frame_size(module, state.name, frame.size)
            else:
                splitting.split(func)
        keep_loop_annotations(module)


_SUSPENDS = {operation.OPERATION_NAME for operation in nvgpu.OPERATIONS if operation.WAITS}


_CASTS = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci")


def _is_below(value: ir.Value, limit: int) -> bool:
    """Return whether a number is the counter of a loop with constant bounds inside [0, limit)."""
    while not isinstance(value.owner, ir.Block) and value.owner.operation.name in _CASTS:
        value = value.owner.operation.operands[0]
    if not isinstance(value.owner, ir.Block):
        return False
    loop = value.owner.owner.operation
    if loop.name != "scf.for" or value != value.owner.arguments[0]:
        return False
    low, high, _ = map(constant_value, bounds(loop))
    return low is not None and high is not None and low >= 0 and high <= limit


class Expander(host.Expander):
    """What the expansion of an operation in a kernel, or in host code that launches some, may use."""

    module: Expansion  # pyright: ignore[reportIncompatibleVariableOverride]
    function: FunctionState  # pyright: ignore[reportIncompatibleVariableOverride]

    def divided_by_zero(self, op: AnyOp, b: Builder) -> None:
        """Report a division by zero: a fault in host code; a warning or finding in kernels, since a GPU goes on."""
        sanitizer = self.module.sanitizer
        if not self.function.is_kernel:
            super().divided_by_zero(op, b)
        elif sanitizer is not None and "numeric" in sanitizer.kinds:
            sanitizer.call(self.module, b, "divided", sanitizer.site(op, self, "division"))
        else:
            result = "a GPU goes on, with all bits of the result set"
            self.warn(op, b, "integer division or modulo by zero", result)

    def warn(self, op: AnyOp, b: Builder, what: str, result: str) -> None:
        """Let a kernel warn of what a thread does wrong, and say what a GPU makes of it."""
        site = self.module.site(op, "warning", f"{what}\n{result}", self.function.kernel)
        self.module.declare(WARN, [ptr_type(), *[int_type(32)] * 7], [])
        b.call(WARN, [], [self.function.context, b.i32(site), *self.function.where(b)])

    def shifts_by(self, op: AnyOp, amount: ir.Value, b: Builder) -> None:
        """Report a shift by a negative amount: a fault in host code, a finding in sanitized kernels. A GPU goes on."""
        sanitizer = self.module.sanitizer
        if not self.function.is_kernel:
            super().shifts_by(op, amount, b)
        elif sanitizer is not None and "numeric" in sanitizer.kinds:
            sanitizer.call(self.module, host.where_negative(b, amount), "shifted", sanitizer.site(op, self, "shift"))

    def register_offset(self, b: Builder, pointer: ir.Value, offset: ir.Value, bytes_: int) -> ir.Value:
        """Return the offset modulo the number of elements: a read past the end of a register tensor wraps around.

        Such a read is undefined. For a GPU, LLVM drops what is done with the value; here it would be what happens to be
        on the stack. FlashAttention's loop that stores the log-sum-exps depends on the former.
        """
        count = self.module.register_bytes.get(pointers.unchanged_from(pointer), 0) // bytes_
        if count == 0 or _is_below(offset, count):
            return offset
        return b.binary("remui", offset, b.const(offset.type, count))

    # -- what an instrumented build adds -----------------------------------------------------------------

    def accessed(
        self,
        op: cute.Load | cute.Store,
        b: Builder,
        address: ir.Value,
        memory: ir.Type,
        type_: ir.Type,
        *,
        write: bool,
        value: ir.Value | None = None,
    ) -> ir.Value:
        """Return the address of an access; in an instrumented build it is checked first."""
        if lane_updates.UPDATE in op.attributes:
            self.pause(op, b, "update by all lanes")
        sanitizer = self.module.sanitizer
        counter = self.module.counter
        if sanitizer is None and counter is None:
            return address
        element = cute.info(memory).element
        space = cute.info(memory).space
        count = math.prod(type_.shape) if isinstance(type_, ir.VectorType) else 1
        alignment = alignment_of(op, element)
        bytes_ = max(1, count * cute.element_bits(element) // 8)
        if counter is not None:
            counter.access(self, op, b, space, address, bytes_, alignment, "st" if write else "ld")
        if sanitizer is None:
            return address
        return sanitizer.checked_address(self, op, b, address, memory, bytes_, write, alignment, value=value)

    # -- threads that wait -------------------------------------------------------------------------------

    def kernel_only(self, op: AnyOp) -> None:
        """Refuse an operation in host code."""
        if not self.function.is_kernel:
            raise report_at(op.location, DSLNotImplemented, f"{op.operation.name} is only possible in a kernel")

    def refuse(
        self, op: AnyOp, b: Builder, wrong: Callable[[Builder], ir.Value], value: ir.Value, what: str, limit: str
    ) -> None:
        """End the thread with a fault where the hardware does not take a number; `what` names it, with `%d` for the
        number.

        Numbers that are known when compiling are checked by the dialect's verifiers, or here for inline PTX.
        """
        self.kernel_only(op)
        site = self.module.site(op, "limit", f"{what}\n{limit}", self.function.name)
        failed = b.if_(wrong(b))
        is_wide = value.type == int_type(64)
        self.fault(failed, site, [value if is_wide else failed.value("arith.extsi", int_type(64), (value,))])
        self.end(failed)

    def refuse_outside(
        self, op: AnyOp, b: Builder, value: ir.Value, least: int, most: int, what: str, limit: str, multiple: int = 1
    ) -> None:
        """End the thread with a fault where a number is not in a range, or no multiple of a power of two.

        A number that is known when compiling is refused then.
        """
        constant = constant_value(value)
        if constant is None:

            def is_wrong(c: Builder) -> ir.Value:
                outside = c.compare("ugt", c.binary("subi", value, least), most - least)
                return c.binary("ori", outside, c.compare("ne", c.binary("andi", value, multiple - 1), 0))

            self.refuse(op, b, is_wrong, value, what, limit)
        elif not least <= constant <= most or constant % multiple:
            raise report_at(op.location, CompilerDiagnosticError, what % constant, hint=limit)

    @property
    def has_clusters(self) -> bool:
        """Whether the kernel may run in clusters of more than one CTA."""
        needs = self.module.needs.get(self.function.name)
        return needs is None or needs.clusters

    def frame_of(self, op: AnyOp) -> ir.Value:
        """Return the frame of the running thread; the kernel becomes one that waits."""
        self.kernel_only(op)
        assert self.function.frame is not None
        self.function.waits = True
        return self.function.frame

    def site_of(self, op: AnyOp, what: str) -> int:
        """Return the number of a place where threads wait."""
        return self.module.site(op, "wait", what, self.function.name)

    def call(self, b: Builder, name: str, operands: Sequence[ir.Value], result: ir.Type | None = None) -> Any:
        """Call a function of the runtime."""
        results = [] if result is None else [result]
        self.module.declare(name, [v.type for v in operands], results)
        called = b.call(name, results, operands)
        return called.results[0] if result is not None else None

    def suspend(self, b: Builder) -> None:
        """Let the other threads run."""
        self.module.declare(coroutines.SUSPEND, [], [])
        b.call(coroutines.SUSPEND, [], [])

    def suspend_if(self, b: Builder, must_wait: ir.Value) -> None:
        """Let the other threads run, if a number is not 0."""
        self.suspend(b.if_(b.compare("ne", must_wait, 0)))

    def let_others_run(self, op: AnyOp, b: Builder, what: str, pointer: ir.Value | None = None) -> None:
        """Suspend without waiting, at a load that a loop may repeat until another thread changes the memory."""
        if in_open_loop(op):
            self.function.spins = True
            if pointer is not None:
                Fields(b, self.frame_of(op), FrameHeader).store("spins_on", pointer)
            self.pause(op, b, what)

    def pause(self, op: AnyOp, b: Builder, what: str) -> None:
        """Let the other threads run once."""
        Fields(b, self.frame_of(op), FrameHeader).store("site", b.i32(self.site_of(op, what)))
        self.suspend(b)

    def stop_if_asked(self, op: AnyOp, b: Builder, steps: Callable[[Builder], ir.Value] | None) -> None:
        """Leave the thread in a loop of a kernel if kernels have to stop after so many more steps."""
        if not self.function.is_kernel:
            super().stop_if_asked(op, b, steps)
            return
        if steps is None:
            self.frame_of(op)
        else:
            self.function.loops = True
        ctx = self.function.context
        frame = self.function.frame
        assert frame is not None
        asked = b.if_(b.compare("ne", stopped(self.module, b, ctx), 0))
        taken = asked.i32(1) if steps is None else steps(asked)
        stop = self.call(asked, "kiln_cpu_step", [ctx, taken], int_type(32))
        then = asked.if_(asked.compare("ne", stop, 0))
        has_frame = then.compare("ne", then.value("llvm.ptrtoint", int_type(64), (frame,)), 0)
        site = self.site_of(op, "loop")
        waits, ends = then.if_else(has_frame)
        Fields(waits, frame, FrameHeader).store("site", waits.i32(site))
        self.fault(ends, site)
        self.module.declare(coroutines.LEAVE, [], [])
        then.call(coroutines.LEAVE, [], [])

    def suspends(self, loop: ir.Operation) -> bool:
        """Return whether a loop's body has operations that suspend."""
        suspending = False

        def visit(op: ir.Operation) -> ir.WalkResult:
            nonlocal suspending
            suspending = suspending or op.name in _SUSPENDS
            return ir.WalkResult.INTERRUPT if suspending else ir.WalkResult.ADVANCE

        loop.walk(visit)
        return suspending


OPEN_LOOP = "kiln.open_loop"
"""An attribute of inline PTX that branches back."""


def in_open_loop(op: AnyOp) -> bool:
    """Return whether an operation is in a loop without a trip count: it may be waiting for another thread."""
    if OPEN_LOOP in op.attributes:
        return True
    parent = op.parent
    while parent is not None:
        name = parent.operation.name if hasattr(parent, "operation") else parent.name
        if name == "scf.while":
            return True
        if name == "func.func":
            return False
        parent = parent.parent
    return False
