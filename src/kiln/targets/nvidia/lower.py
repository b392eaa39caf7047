"""From a module of device functions to LLVM IR text: the pipeline of the NVIDIA target."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ...base_dsl.compiler import source_span
from ...base_dsl.numeric.expand import CONVERSIONS, expand_narrow_floats
from ...hardware import features
from ...mlir import context, find, ir, only_has
from ..lowering import arithmetic as shared_arithmetic
from ..lowering import memory as shared_memory
from ..lowering.builder import constant_value, int_type, operations, symbol, translate
from ..lowering.expansion import combined
from ..lowering.llvm_text import fix_float_literals, mark_asm_convergent
from .codegen import newest_ptx
from .expand import Expansion, expand_module
from .math import f32
from .math.f32 import OUTLINED
from .ops import async_copy, cluster, control, cute, math, mbarrier, memory, mma, sync, warp
from .ops.narrow_conversions import narrow_conversion
from .passes.if_conversion import flatten_branches
from .passes.vector_legalisation import cut_long_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...base_dsl.compiler import Compilation
    from ...hardware.architectures import Architecture
    from .passes.kernel_outlining import LaunchFacts

HANDLERS = combined(
    shared_arithmetic.HANDLERS, shared_memory.HANDLERS, cute.HANDLERS, math.HANDLERS, f32.HANDLERS, sync.HANDLERS, warp.HANDLERS,
    memory.HANDLERS, mbarrier.HANDLERS, async_copy.HANDLERS, cluster.HANDLERS, mma.HANDLERS, control.HANDLERS,
)  # fmt: skip
"""How the NVIDIA target expands operations."""

_TO_LLVM = (
    "convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,convert-index-to-llvm,"
    "convert-ub-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)
# `DebugDirectivesOnly`: with any other kind the PTX asks ptxas not to optimize.
_LINES = "ensure-debug-info-scope-on-llvm-func{emission-kind=DebugDirectivesOnly}"


def lower(compilation: Compilation, arch: Architecture, facts: list[LaunchFacts], lines: bool) -> tuple[str, Expansion]:
    """LLVM IR text of a module of device functions, and what its expansion found out."""
    blocks = {fact.name: fact.block for fact in facts if fact.block and not fact.max_threads}
    merged = frozenset(fact.name for fact in facts if fact.merge_smem)
    wide = features.WIDE_ACCESS.on(arch) and newest_ptx(arch) >= 88
    expansion = Expansion(compilation.module, HANDLERS, arch, blocks, merged, wide)
    with context(), ir.Location.unknown():
        if "fmad=false" not in compilation.options.ptxas_options:
            compilation.run("allow-fusion", allow_fusion)
        compilation.run("expand-narrow-floats", lambda module: _expand_narrow_floats(module, arch))
        compilation.run("cut-vectors", cut_long_vectors)
        compilation.run("flatten-branches", flatten_branches)
        compilation.run("expand-cute", lambda _: expand_module(expansion))
        compilation.run("mark-loops", lambda module: mark_loops(module, facts))
        compilation.run("to-llvm", _TO_LLVM)
        compilation.run("keep-loop-marks", _keep_loop_marks)
        compilation.run("kernel-attributes", lambda module: _attributes(module, expansion, facts))
        if lines:
            compilation.run("lines", _LINES)
        with compilation.stage("check"):
            legal = only_has(compilation.module.operation, ("llvm", "nvvm"), ("builtin.module",), _FATAL)
        if not legal:
            compilation.check_lowered(lambda op: _reason(op.name))
        with compilation.stage("translate"):
            text = mark_asm_convergent(fix_float_literals(translate(compilation.module)))
    return text, expansion


# --- floats ----------------------------------------------------------------------------------------------------------


def allow_fusion(module: ir.Module) -> None:
    """Let a product and the sum it goes into be one instruction that rounds once, as CUDA's compilers do.

    Only what the program wrote: what expansions add later counts on its own roundings.
    """
    contract, none = (ir.Attribute.parse(f"#arith.fastmath<{flag}>", context()) for flag in ("contract", "none"))
    for op in find(module.operation, ("arith.mulf", "arith.addf", "arith.subf")):
        if op.attributes["fastmath"] == none:
            op.attributes["fastmath"] = contract


_MAKERS = (
    "arith.bitcast", "arith.constant", "cute.load", "cute.undef", "cute_nvgpu.ordered_load", "func.call", "ub.poison",
    "vector.bitcast",
)  # fmt: skip
"""Operations that make tf32 of something else, besides conversions."""


def _expand_narrow_floats(module: ir.Module, arch: Architecture) -> None:
    operations = find(module.operation, (*CONVERSIONS, *_MAKERS))
    expand_narrow_floats(module, operations, functools.partial(narrow_conversion, arch))


# --- loops -----------------------------------------------------------------------------------------------------------

_ANNOTATION = "llvm.loop_annotation"


def _unroll(inside: str) -> ir.Attribute:
    return ir.Attribute.parse(f"#llvm.loop_annotation<unroll = <{inside}>>", context())


def mark_loops(module: ir.Module, facts: Sequence[LaunchFacts]) -> None:
    """Say how each loop is to be unrolled: as the program asks; else only loops of constant length are.

    Loops that are to be pipelined stay as they are: that copies of later turns may be made early is not known here. So do those
    that are to be vectorized: a thread has no vectors. The facts of their kernel note them, for a remark.

    A loop of constant length whose body indexes a thread's own memory by its counter is unrolled fully: only then can
    that memory live in registers.
    """
    by_name = {fact.name: fact for fact in facts}
    for op in find(module.operation, ("scf.for", "scf.while")):
        if (hint := _unheeded(op)) and (fact := by_name.get(_function_name(op))):
            fact.unheeded.append((source_span(op.location)[0], hint))
        wish = _wish(op)
        if wish:
            op.attributes[_ANNOTATION] = _unroll(wish)


def _unheeded(loop: ir.Operation) -> str:
    """The hint of a loop that changes nothing."""
    if "cute.prefetch_stages" in loop.attributes:
        return f"prefetch_stages={loop.attributes['cute.prefetch_stages'].value}"
    asked = "cute.vectorize" in loop.attributes and isinstance(loop.attributes["cute.vectorize"], ir.UnitAttr)
    return "vectorize=True" if asked else ""


def _function_name(op: ir.Operation) -> str:
    while op.name != "func.func":
        op = op.parent.operation  # pyright: ignore[reportOptionalMemberAccess]
    return symbol(op)


_FULL, _NEVER = "disable = false, full = true", "disable = true"


def _wish(op: ir.Operation) -> str:
    if op.name == "scf.while":
        return _NEVER
    if "cute.unroll_full" in op.attributes:
        return _FULL
    if "cute.unroll" in op.attributes:
        count = op.attributes["cute.unroll"].value
        return f"disable = false, count = {count} : i32" if count > 1 else _NEVER
    bounds = [constant_value(v) for v in list(op.operands)[:3]]
    if None in bounds:
        return _NEVER
    return _FULL if _indexes_memory(op) else ""


def _indexes_memory(loop: ir.Operation) -> bool:
    """Whether an address of a thread's own memory in a loop depends on its counter."""
    reached = [loop.regions[0].blocks[0].arguments[0]]
    seen = set(reached)
    while reached:
        for use in reached.pop().uses:
            user = use.owner.operation
            if user.name == "llvm.getelementptr" and _is_local(user.operands[0]):
                return True
            if user.name.startswith(("arith.", "llvm.getelementptr")):
                new = [r for r in user.results if r not in seen]
                reached += new
                seen.update(new)
    return False


def _is_local(pointer: ir.Value) -> bool:
    """Whether a pointer comes from an allocation of this function."""
    while True:
        owner = pointer.owner
        if isinstance(owner, ir.Block):
            return False
        name = owner.operation.name
        if name == "llvm.alloca":
            return True
        if name not in ("llvm.getelementptr", "llvm.extractvalue", "llvm.insertvalue", "llvm.addrspacecast"):
            return False
        operands = owner.operation.operands
        pointer = (
            operands[1]
            if name == "llvm.insertvalue" and len(operands) > 1 and _is_pointer(operands[1])
            else operands[0]
        )


def _is_pointer(value: ir.Value) -> bool:
    return str(value.type).startswith("!llvm.ptr")


def _keep_loop_marks(module: ir.Module) -> None:
    """Lowering hands a loop's mark to its branch as an attribute that means nothing there: make it the branch's own."""
    for func in operations(module):
        for block in func.regions[0].blocks if func.name == "llvm.func" else ():
            inside = block.operations
            op = inside[len(inside) - 1].operation
            if _ANNOTATION in op.attributes:
                op.attributes["loop_annotation"] = op.attributes[_ANNOTATION]
                del op.attributes[_ANNOTATION]


# --- kernels ---------------------------------------------------------------------------------------------------------


def _attributes(module: ir.Module, expansion: Expansion, facts: list[LaunchFacts]) -> None:
    """Mark kernels, say what their launches promise; other functions are inlined."""
    by_name = {fact.name: fact for fact in facts}
    for func in operations(module):
        if func.name != "llvm.func" or not len(func.regions[0].blocks):
            continue
        name = func.attributes["sym_name"].value
        if name not in expansion.kernels:
            func.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
            if not name.startswith(OUTLINED):
                func.attributes["always_inline"] = ir.UnitAttr.get()
            continue
        func.attributes["nvvm.kernel"] = ir.UnitAttr.get()
        fact = by_name[name]
        if fact.max_threads:
            func.attributes["nvvm.maxntid"] = ir.DenseI32ArrayAttr.get([fact.max_threads])
        elif fact.block and all(size > 0 for size in fact.block):
            func.attributes["nvvm.reqntid"] = ir.DenseI32ArrayAttr.get(list(fact.block))
        if fact.min_blocks and (fact.max_threads or fact.block):
            func.attributes["nvvm.minctasm"] = ir.IntegerAttr.get(int_type(32), fact.min_blocks)
        if fact.cluster and fact.cluster != (1, 1, 1) and features.CLUSTERS.on(expansion.arch):
            func.attributes["nvvm.cluster_dim"] = ir.DenseI32ArrayAttr.get(list(fact.cluster))


# Intrinsics that NVPTX cannot select: it would end the process. What reaches LLVM of them is a mistake of the lowering.
_FATAL = frozenset(
    f"llvm.intr.{name}"
    for name in (
        "exp", "exp10", "log", "log10", "pow", "powi", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "sin", "cos",
        "log2", "ldexp", "frexp", "sincos",
    )
)  # fmt: skip


def _reason(name: str) -> str:
    """Why an operation must not reach LLVM: its code generator ends the process on what it cannot select."""
    if name in _FATAL:
        return f"the NVIDIA target cannot lower {name}"
    if name.startswith(("llvm.", "nvvm.")) or name == "builtin.module":
        return ""
    return f"the NVIDIA target cannot lower {name}"
