"""The lowering of the NVIDIA target: from modules of device functions to LLVM IR text."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...analysis import effects
from ...base_dsl.compiler import Compilation
from ...base_dsl.numeric.expand import CONVERSIONS, expand_narrow_floats
from ...dialects import nvgpu
from ...dialects.nvgpu.wgmma import Wgmma
from ...hardware import features
from ...hardware.architectures import Architecture
from ...mlir import context, find, ir, only_has
from ..lowering import arithmetic as shared_arithmetic
from ..lowering import memory as shared_memory
from ..lowering.builder import int_type, operations, symbol, translate
from ..lowering.expansion import Handlers, combined
from ..lowering.llvm_text import fix_float_literals, mark_asm_convergent
from ..lowering.loop_annotations import keep_loop_annotations
from ..lowering.vector_legalisation import legalise_vectors
from .codegen import newest_ptx
from .device_builder import printed
from .expand import Expansion, expand_module
from .math import f32
from .math.f32 import OUTLINED
from .ops import (
    async_copy,
    cluster,
    control,
    cute,
    launch_control,
    math,
    mbarrier,
    memory,
    mma,
    multicast,
    sync,
    tcgen05,
    tma,
    trace,
    warp,
    wgmma,
)
from .ops.narrow_conversions import narrow_conversion
from .passes.fma_contraction import allow_contraction
from .passes.if_conversion import convert_branches
from .passes.llvm_conversion import conversion
from .passes.loop_unrolling import mark_loops
from .passes.wgmma_registers import order_registers
from .passes.wgmma_unrolling import unroll_wgmma

if TYPE_CHECKING:
    from .passes.kernel_outlining import LaunchFacts

HANDLERS = combined(
    shared_arithmetic.HANDLERS,
    Handlers(shared_memory.HANDLERS | cluster.OVERRIDES),
    cute.HANDLERS,
    math.HANDLERS,
    f32.HANDLERS,
    sync.HANDLERS,
    warp.HANDLERS,
    memory.HANDLERS,
    multicast.HANDLERS,
    mbarrier.HANDLERS,
    async_copy.HANDLERS,
    tma.HANDLERS,
    cluster.HANDLERS,
    mma.HANDLERS,
    wgmma.HANDLERS,
    tcgen05.HANDLERS,
    launch_control.HANDLERS,
    control.HANDLERS,
    trace.HANDLERS,
    printed(nvgpu.OPERATIONS),
)
"""How the NVIDIA target expands operations."""

# `DebugDirectivesOnly`: with any other kind the PTX asks ptxas not to optimize.
_LINES = "ensure-debug-info-scope-on-llvm-func{emission-kind=DebugDirectivesOnly}"


def lower(
    compilation: Compilation, arch: Architecture, facts: list[LaunchFacts], lines: bool, before: Expansion | None = None
) -> Expansion:
    """Convert a module of device functions to the `llvm` dialect, and return its expansion, joined with the one
    `before`."""
    blocks = {fact.name: fact.block for fact in facts if fact.block and not fact.max_threads}
    merged = frozenset(fact.name for fact in facts if fact.merge_smem)
    wide = features.WIDE_ACCESS.on(arch) and newest_ptx(arch) >= 88
    expansion = Expansion(compilation.module, HANDLERS, arch, blocks, merged, wide)
    if before is not None:
        expansion.sites = before.sites
        expansion.kernels = before.kernels
        expansion.strings = before.strings
        expansion.ptx = before.ptx
    with context(), ir.Location.unknown():
        if "fmad=false" not in compilation.options.ptxas_options:
            compilation.run("fma-contraction", allow_contraction)
        compilation.run("narrow-floats", lambda module: expand_floats(module, arch))
        compilation.run("wgmma-unrolling", unroll_wgmma)
        compilation.run("wgmma-registers", lambda module: order_registers(module, {fact.name for fact in facts}))
        compilation.run("vector-legalisation", legalise_vectors)
        compilation.run("if-conversion", convert_branches)
        compilation.run("expansion", lambda _: expand_module(expansion))
        compilation.run("loop-unrolling", lambda module: mark_loops(module, facts))
        with compilation.stage("llvm-conversion"):
            passes = conversion(compilation.module)
        compilation.run("llvm-conversion", passes)
        compilation.run("loop-annotations", keep_loop_annotations)
        compilation.run("kernel-attributes", lambda module: _attributes(module, expansion, facts))
        if lines:
            compilation.run("lines", _LINES)
        with compilation.stage("check"):
            legal = only_has(compilation.module.operation, ("llvm", "nvvm"), ("builtin.module",), _FATAL)
        if not legal:
            compilation.check_lowered(lambda op: _reason(op.name))
    return expansion


def has_wgmma(module: ir.Module) -> bool:
    """Return whether a module of device functions has WGMMAs."""
    operations = find(module.operation, (Wgmma.OPERATION_NAME, "llvm.inline_asm"))
    return any(
        "asm_string" not in op.attributes or "wgmma.mma_async" in op.attributes["asm_string"].value for op in operations
    )  # pyright: ignore


def text_of(compilation: Compilation) -> str:
    """Return the LLVM IR text of a lowered module."""
    with context(), compilation.stage("translate"):
        return mark_asm_convergent(fix_float_literals(translate(compilation.module)))


# --- modules of kernels -----------------------------------------------------------------------------------------------


def is_alone(module: ir.Module, kernels: Sequence[str]) -> bool:
    """Return whether a lowered module defines only kernels and their shared memory."""
    own = {*kernels, *(f"{kernel}_smem" for kernel in kernels)}
    parts = tuple(f"{kernel}_smem_" for kernel in kernels)
    for op in operations(module):
        name = symbol(op)
        declared = not len(op.regions[0].blocks) and "value" not in op.attributes
        external = op.name == "llvm.mlir.global" and str(op.attributes["linkage"]) == "#llvm.linkage<external>"
        intrinsic = op.name == "llvm.func" and name.startswith("llvm.")
        if not (name in own or name.startswith(parts) or (declared and (external or intrinsic))):
            return False
    return True


def take_in(module: ir.Module, other: ir.Module) -> None:
    """Add the definitions of another module of the program that a lowered module lacks."""
    symbols = set(map(symbol, operations(module)))
    for op in operations(other):
        if symbol(op) not in symbols:
            module.body.append(op)


# --- floats ----------------------------------------------------------------------------------------------------------


_MAKERS = ("arith.bitcast", "arith.constant", "func.call", "ub.poison", "vector.bitcast", *effects.makers())
"""Operations other than conversions that make tf32."""


def expand_floats(module: ir.Module, arch: Architecture) -> None:
    """Convert floats of 8 bits and less by integer arithmetic, or by instructions that the architecture has."""
    operations = find(module.operation, (*CONVERSIONS, *_MAKERS))
    expand_narrow_floats(module, operations, functools.partial(narrow_conversion, arch))


# --- kernels ---------------------------------------------------------------------------------------------------------


def _attributes(module: ir.Module, expansion: Expansion, facts: list[LaunchFacts]) -> None:
    """Mark kernels with the bounds of their launches, and let other functions be inlined."""
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
        if expansion.kernels[name].tensor_maps:
            _pass_by_value(func, expansion.kernels[name].tensor_maps)
        fact = by_name[name]
        if fact.max_threads:
            func.attributes["nvvm.maxntid"] = ir.DenseI32ArrayAttr.get([fact.max_threads])
        elif fact.block and all(size > 0 for size in fact.block):
            func.attributes["nvvm.reqntid"] = ir.DenseI32ArrayAttr.get(list(fact.block))
        if fact.min_blocks and (fact.max_threads or fact.block):
            func.attributes["nvvm.minctasm"] = ir.IntegerAttr.get(int_type(32), fact.min_blocks)
        if fact.cluster and fact.cluster != (1, 1, 1) and features.CLUSTERS.on(expansion.arch):
            func.attributes["nvvm.cluster_dim"] = ir.DenseI32ArrayAttr.get(list(fact.cluster))


_TENSOR_MAP = (
    "{llvm.byval = !llvm.array<128 x i8>, llvm.align = 16 : i64, llvm.alignstack = 128 : i64, nvvm.grid_constant}"
)
"""The attributes of a tensor map that is passed by value, in constant memory: without `grid_constant` LLVM would copy it.

`alignstack` becomes `.align 128`, the alignment among the parameters. They begin in a constant bank where ptxas wants
(sm_90: at 0x210), so that no address is known to be a multiple of more than 16: LLVM would add offsets with `or`.
"""


def _pass_by_value(func: ir.Operation, arguments: list[int]) -> None:
    """Pass tensor maps by value."""
    count = len(func.regions[0].blocks[0].arguments)
    arg_attrs = list(func.attributes["arg_attrs"]) if "arg_attrs" in func.attributes else [ir.DictAttr.get({})] * count
    for number in arguments:
        arg_attrs[number] = ir.Attribute.parse(_TENSOR_MAP)
    func.attributes["arg_attrs"] = ir.ArrayAttr.get(arg_attrs)


# Intrinsics that NVPTX cannot select: it would end the process. What reaches LLVM of them is a mistake of the lowering.
_FATAL = frozenset(
    f"llvm.intr.{name}"
    for name in (
        "exp",
        "exp10",
        "log",
        "log10",
        "pow",
        "powi",
        "tan",
        "asin",
        "acos",
        "atan",
        "atan2",
        "sinh",
        "cosh",
        "tanh",
        "sin",
        "cos",
        "log2",
        "ldexp",
        "frexp",
        "sincos",
    )
)


def _reason(name: str) -> str:
    """Return why an operation must not reach LLVM, whose code generator aborts on what it cannot select."""
    if name in _FATAL:
        return f"the NVIDIA target cannot lower {name}"
    if name.startswith(("llvm.", "nvvm.")) or name == "builtin.module":
        return ""
    return f"the NVIDIA target cannot lower {name}"
