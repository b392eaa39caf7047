"""Launches of kernels without suspend points: a native loop over the threads of a block.

For a kernel `k` there is a function `k.block` that runs one block: three nested loops around the inlined kernel, so
that LLVM can vectorize over threads. A launch stores the arguments in a struct and hands both to the runtime, which
checks the sizes and runs the blocks, in parallel if that pays (`runtime/launches.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import CompilerDiagnosticError
from ...dialects import cute
from ...hardware import features
from ...hardware.devices import device_of
from ...hardware.limits import Needs
from ...mlir import context, ir
from ..host.expand import host_type
from ..lowering.builder import Builder, function, int_type, ptr_type, struct_type
from ..lowering.loop_annotations import LOOP_ANNOTATION
from ..lowering.memory import carrier_type, from_carrier, to_carrier
from .expand import HIDDEN, Expander, Expansion, FunctionState
from .passes.loop_versioning import guarded_versions
from .runtime import scheduler
from .runtime.records import SMEM_ALIGNMENT, TMEM_BYTES

LAUNCH_FUNCTION = "kiln_cpu_launch"
_PREFERS = "kiln_cpu_prefers_cluster"

_VECTOR_LOOP = "#llvm.loop_annotation<unroll = <disable = true>>"
_PLAIN_LOOP = "#llvm.loop_annotation<vectorize = <disable = true>, unroll = <disable = true>>"


def block_name(kernel: str) -> str:
    """Return the name of the function that runs one block of a kernel."""
    return f"{kernel}.block"


def static_smem(state: FunctionState) -> int:
    """Bytes of static shared memory, rounded up so that dynamic shared memory can follow."""
    return -(-state.smem_bytes // SMEM_ALIGNMENT) * SMEM_ALIGNMENT


def _arguments_struct(types: Sequence[ir.Type]) -> ir.Type:
    return struct_type([carrier_type(t) for t in types])


def _visible_inputs(kernel: ir.Operation) -> list[ir.Type]:
    """Return the types of a kernel's arguments without the hidden ones."""
    inputs = kernel.attributes["function_type"].value.inputs
    return list(inputs)[: len(inputs) - HIDDEN]


def _unpack(b: Builder, packed: ir.Value, kernel: ir.Operation) -> list[ir.Value]:
    """Return a kernel's arguments from the struct that the launch filled."""
    types = _visible_inputs(kernel)
    struct = _arguments_struct(types)
    return [
        from_carrier(b, b.load(carrier_type(type_), b.field(packed, struct, number)), type_)
        for number, type_ in enumerate(types)
    ]


def block_function(expansion: Expansion, state: FunctionState) -> None:
    """Make `k.block(arguments, context, smem, sizes, bx, by, bz)`: all threads of one block.

    `sizes` points to six i32: the grid's and the block's.
    """
    ptr = ptr_type()
    i32 = int_type(32)
    kernel = state.operation
    if state.waits:
        scheduler.group_function(
            expansion, state, block_name(state.name), lambda b, packed: _unpack(b, packed, kernel), static_smem(state)
        )
        return
    block_function_ = function(expansion.module, block_name(state.name), [ptr, ptr, ptr, ptr, i32, i32, i32], [])
    entry = block_function_.regions[0].blocks[0]
    packed, ctx, smem, sizes, *block_idx = entry.arguments
    end = ir.Operation.create("func.return", loc=kernel.location, ip=ir.InsertionPoint(entry))
    b = Builder(ir.InsertionPoint(end), kernel.location)
    types = _visible_inputs(kernel)
    arguments = _unpack(b, packed, kernel)
    no_frame = b.null()
    grid_dim = [b.load(i32, b.gep(sizes, i32, n)) for n in range(3)]
    block_dim = [b.load(i32, b.gep(sizes, i32, n)) for n in range(3, 6)]
    dynamic = b.byte_gep(smem, static_smem(state))

    def for_each_thread(b: Builder, function_: str, annotation: str = "") -> None:
        """Emit three loops over threads around a call."""
        zero = b.i32(0)
        one = b.i32(1)
        thread_idx: list[ir.Value] = []
        for size in reversed(block_dim):
            b, index = b.for_(zero, size, one)
            if annotation:
                b.point.block.owner.attributes[LOOP_ANNOTATION] = ir.Attribute.parse(annotation, context())
            thread_idx.insert(0, index)
        hidden = [ctx, smem, dynamic, *thread_idx, *block_idx, *block_dim, *grid_dim, no_frame]
        b.call(function_, [], [*arguments, *hidden])

    if expansion.counter is not None:
        for_each_thread(b, state.name)
        expansion.counter.end_of_block(b)
        return
    thread = _thread_function(expansion, state)
    seed = b.load(int_type(64), b.address_of(scheduler.seed_variable(expansion)))
    number = b.linear(block_idx, grid_dim)
    shuffled = scheduler.Shuffled(b, block_dim)
    seeded, b = b.if_else(b.compare("ne", seed, 0))
    each, thread_idx = shuffled.threads(expansion, seeded, number)
    hidden = [ctx, smem, dynamic, *thread_idx, *block_idx, *block_dim, *grid_dim, no_frame]
    each.call(thread, [], [*arguments, *hidden])
    versions = guarded_versions(expansion.module, kernel, state.name, len(types) + 3)
    if versions is None:
        for_each_thread(b, state.name)
        return
    expansion.inlined |= {versions.guard, versions.inside}
    zero = b.i32(0)
    ends = [b.binary("subi", size, 1) for size in block_dim]
    everywhere = b.const(int_type(1), 1)
    for corner in itertools.product((False, True), repeat=len(versions.dims)):
        at = {dim: ends[dim] if end else zero for dim, end in zip(versions.dims, corner, strict=True)}
        hidden = [ctx, smem, dynamic, *(at.get(dim, zero) for dim in range(3)), *block_idx, *block_dim, *grid_dim]
        hidden.append(no_frame)
        holds = b.call(versions.guard, [int_type(1)], [*arguments, *hidden]).results[0]
        everywhere = b.binary("andi", everywhere, holds)
    fast, slow = b.if_else(everywhere)
    for_each_thread(fast, versions.inside, annotation=_VECTOR_LOOP)
    for_each_thread(slow, thread, annotation=_PLAIN_LOOP)


def _thread_function(expansion: Expansion, state: FunctionState) -> str:
    """Make `k.thread`, the kernel as a function that is called: for where its threads do not become a vector loop."""
    name = f"{state.name}.thread"
    inputs = list(state.operation.attributes["function_type"].value.inputs)
    entry = function(expansion.module, name, inputs, []).regions[0].blocks[0]
    b = Builder(ir.InsertionPoint(entry), state.operation.location)
    b.call(state.name, [], list(entry.arguments))
    b.op("func.return", (), ())
    expansion.outlined.add(name)
    return name


def prints(expansion: Expansion, name: str) -> bool:
    """Return whether a function, or one it calls, contains a printf."""
    return any(state.prints for state in _called(expansion, name))


def in_order(expansion: Expansion, name: str) -> bool:
    """Return whether the blocks of a kernel run in order, on one OS thread, because their order shows."""
    return any(state.prints or state.adds_floats for state in _called(expansion, name))


def _called(expansion: Expansion, name: str) -> Iterator[FunctionState]:
    """Yield a function and those that it calls."""
    todo = [name]
    seen = {name}
    while todo:
        state = expansion.functions.get(todo.pop())
        if state is None:
            continue
        yield state
        todo += state.calls - seen
        seen |= state.calls


def _cluster(x: Expander, op: cute.Launch, b: Builder) -> list[ir.Value]:
    """Return the extents of the clusters of a launch: the preferred ones if the grid is whole clusters of them.

    Under a schedule seed they may be the fallback's, as on a GPU without room for larger ones. All clusters of a launch
    are alike.
    """
    if not op.preferred_cluster or not features.PREFERRED_CLUSTER.on(x.module.arch):
        return list(op.cluster)
    x.module.declare(_PREFERS, [], [int_type(32)])
    larger = b.compare("ne", b.call(_PREFERS, [int_type(32)], []).results[0], 0)
    for extent, part in zip(op.grid, op.preferred_cluster, strict=True):
        whole = b.compare("eq", b.binary("remui", extent, b.i64(part)), 0)
        larger = b.binary("andi", larger, whole)
    return [b.select(larger, b.i64(part), least) for part, least in zip(op.preferred_cluster, op.cluster, strict=True)]


def launch(x: Expander, op: cute.Launch, b: Builder) -> None:
    """Expand `cuda.launch_ex`."""
    name = op.kernel
    state = x.module.functions.get(name)
    if state is None or not state.is_kernel:
        raise report_at(op.location, CompilerDiagnosticError, f"launch of {name}, which is not a kernel of this module")
    if x.function.is_kernel:
        raise report_at(op.location, CompilerDiagnosticError, f"kernel {x.function.name} launches kernel {name}")
    arguments, _events = op.kernel_arguments()  # what an event would say of a stream is so when the launch returns
    want = _visible_inputs(state.operation)
    got = [host_type(a.type) for a in arguments]
    if want != got:
        raise report_at(
            op.location,
            CompilerDiagnosticError,
            f"kernel {name} takes ({', '.join(map(str, want))}) but is launched with ({', '.join(map(str, got))})",
        )
    struct = _arguments_struct(got)
    memory = x.at_entry(op.location).alloca(struct)
    for number, value in enumerate(arguments):
        b.store(to_carrier(b, value), b.field(memory, struct, number))
    of = x.module.arch.generation
    needs = x.module.needs.get(name, Needs())
    needs = needs._replace(pairs=state.cta_group == 2)  # inline PTX may say so
    site = x.module.site(op, "launch", needs.encoded(of), name)
    ptr = ptr_type()
    i32 = int_type(32)
    i64 = int_type(64)
    x.module.declare(LAUNCH_FUNCTION, [ptr, ptr, ptr, i32, *[i64] * 11, *[i32] * 10, ptr], [])
    block = b.address_of_function(block_name(name), [ptr, ptr, ptr, ptr, i32, i32, i32], [])
    instrumented = any(each is not None for each in (x.module.sanitizer, x.module.counter, x.module.recorder))
    static = b.i32(static_smem(state))
    serial = b.i32(int(instrumented or in_order(x.module, name)) | 2 * state.loops | 4 * needs.pairs)
    frame = b.load(i32, b.address_of(scheduler.frame_size_name(name))) if state.waits else b.i32(0)
    resident = b.i32(1 if op.cooperative else 2 if state.spins else 0)
    held = 0 if needs.dynamic else needs.taken
    if x.module.sanitizer is not None:
        b = x.module.sanitizer.schedules(x, b, state)
    sizes = (*op.grid, *op.block, *_cluster(x, op, b))
    numbers = [
        b.i32(site),
        *sizes,
        op.smem,
        b.i64(needs.room(of)),
        b.i32(held),
        static,
        b.i32(min(needs.max_threads or of.threads_per_block, of.threads_per_block)),
        b.i32(of.cluster),
        serial,
        frame,
        b.i32(int(state.meets)),
        b.i32(TMEM_BYTES if state.tensor_memory else 0),
        b.i32(device_of(x.module.arch.name).sm_count if state.launch_control else 0),
        resident,
        b.address_of(x.module.string(name)),
    ]
    if x.module.sanitizer is not None:
        more = b.binary("subi", b.binary("maxui", op.smem, held), held)
        narrow = [b.value("arith.trunci", i32, (number,)) for number in (more, *sizes)]
        x.module.sanitizer.launch(x, b, op, state, b.binary("addi", static, narrow[0]), arguments, narrow[1:])
    if x.module.recorder is not None:
        x.module.recorder.launch(b, op.grid, op.block, sizes[6:])
    b.call(LAUNCH_FUNCTION, [], [x.function.context, block, memory, *numbers])
    if x.module.sanitizer is not None:
        x.module.sanitizer.launched(x, b)
    if x.module.recorder is not None:
        x.module.recorder.launched(b)
