"""Functions of a module as device code of the `llvm` and `nvvm` dialects: their state, and how they are expanded."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import CompilerDiagnosticError, DSLArchitectureError
from ...dialects import cute
from ...dialects.declaration import OpView
from ...dialects.nvgpu.tma import TensorMap
from ...hardware.architectures import Architecture
from ...hardware.features import Feature
from ...mlir import context, ir
from ..lowering import expansion as lowering
from ..lowering.arithmetic import element_of
from ..lowering.builder import Builder, declare, int_type, parsed_type, ptr_type, struct_type
from ..lowering.expansion import AnyOp, Handler, Handlers, begin, expand_operations, find_work
from ..lowering.memory import lowered_type
from ..lowering.sites import Site
from .codegen import supported_ptx
from .device_builder import DeviceBuilder, pointer_type
from .ops import wide_access
from .passes import store_forwarding
from .passes.smem_allocation import place_smem
from .registers import Registers

if TYPE_CHECKING:
    from .ops.trace import Recording
    from .ops.wgmma import PendingWgmma

_SPACES = {"gmem": 1, "smem": 3, "tmem": 6, "rmem": 0, "generic": 0, "dsmem": 0}
"""LLVM's numbers for address spaces. A thread's own memory is generic: LLVM infers it, and mostly removes it. The shared memory of
other CTAs is reached by generic addresses; only as integers they are those of the window of the cluster."""


@dataclasses.dataclass
class Kernel:
    """Facts about a kernel that its expansion finds."""

    name: str
    operation: ir.Operation
    prints: bool = False
    asserts: bool = False
    smem: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    """Static shared memory: name, bytes, alignment of each piece."""
    smem_addresses: list[ir.Operation] = dataclasses.field(default_factory=list)
    """Operations that take the address of a piece, or of dynamic shared memory."""
    smem_sizes: list[ir.Operation] = dataclasses.field(default_factory=list)
    """Operations that ask how much dynamic shared memory there is."""
    dynamic: bool = False
    """Whether it uses dynamic shared memory."""

    tensor_maps: list[int] = dataclasses.field(default_factory=list)
    """Positions of the arguments that are tensor maps."""
    cta_group: int = 0
    """The cta_group of its tcgen05 instructions; 0 if it has none."""
    merge_smem: bool = False
    """Whether branches that exclude each other share memory."""
    smem_bytes: int = 0
    """Bytes of static shared memory; known when all of the kernel is expanded."""


@dataclasses.dataclass
class Expansion:
    """The state of expanding one module of device code."""

    module: ir.Module
    handlers: Handlers
    arch: Architecture
    blocks: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """Threads of a block of each kernel, where known."""
    merged: frozenset[str] = frozenset()
    """The kernels whose branches share memory."""
    wide_accesses: bool = False
    """Whether the PTX that is written has accesses of 32 bytes."""
    ptx: int = 0
    """The PTX version that the features of the module need, 88 for 8.8."""
    sites: list[Site] = dataclasses.field(default_factory=list)
    kernels: dict[str, Kernel] = dataclasses.field(default_factory=dict)
    declared: set[str] = dataclasses.field(default_factory=set)
    strings: dict[str, str] = dataclasses.field(default_factory=dict)

    def declare(self, name: str, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> None:
        """Make an external function known to the module, once."""
        if name not in self.declared:
            self.declared.add(name)
            declare(self.module, name, inputs, results)

    def variable(
        self,
        name: str,
        type_: ir.Type,
        space: int,
        alignment: int = 0,
        value: ir.Attribute | None = None,
        linkage: str = "internal",
    ) -> str:
        """Add a global variable once, and return its name."""
        if name not in self.declared:
            self.declared.add(name)
            attributes = {
                "sym_name": ir.StringAttr.get(name, context()),
                "global_type": ir.TypeAttr.get(type_),
                "linkage": ir.Attribute.parse(f"#llvm.linkage<{linkage}>", context()),
                "addr_space": ir.IntegerAttr.get(int_type(32), space),
                "visibility_": ir.IntegerAttr.get(int_type(64), 0),
            }
            if value is not None:
                attributes["value"] = value
            if alignment:
                attributes["alignment"] = ir.IntegerAttr.get(int_type(64), alignment)
            ir.Operation.create(
                "llvm.mlir.global",
                attributes=attributes,
                regions=1,
                loc=ir.Location.unknown(context()),
                ip=ir.InsertionPoint.at_block_begin(self.module.body),
            )
        return name

    def string(self, text: str) -> str:
        """Return the name of a global constant that holds a C string."""
        name = self.strings.setdefault(text, f"kiln_str_{len(self.strings)}")
        data = text.encode() + b"\0"
        type_ = parsed_type(f"!llvm.array<{len(data)} x i8>")
        return self.variable(name, type_, 1, value=ir.StringAttr.get(data, context()))


# --- types -----------------------------------------------------------------------------------------------------------


def _pointer_in(space: str) -> ir.Type:
    return pointer_type(_SPACES[space])


@functools.lru_cache(maxsize=4096)
def device_type(type_: ir.Type) -> ir.Type:
    """Return the device type of a `cute` type; other types are unchanged."""
    return lowered_type(type_, _pointer_in)


# --- the pass --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Expander(lowering.Expander):
    """What a handler may use: the module's and the kernel's state."""

    builder: ClassVar[type[DeviceBuilder]] = DeviceBuilder
    target = "the NVIDIA target"

    module: Expansion
    kernel: Kernel
    entry: ir.Block
    taken_apart: dict[Any, list[ir.Value]] = dataclasses.field(default_factory=dict)
    """Fragments of MMAs taken apart, by their values and the blocks where that was done."""
    results: dict[ir.Value, list[ir.Value]] = dataclasses.field(default_factory=dict)
    """Registers of fragments that operations made; vectors are assembled at the end where they are needed."""
    places: dict[tuple[ir.Value, ir.Type, int], ir.Value] | None = dataclasses.field(default_factory=dict)
    registers: Registers = dataclasses.field(default_factory=Registers)
    pending: list[PendingWgmma] = dataclasses.field(default_factory=list)
    """WGMMAs that become one piece of inline PTX with the next one."""
    recording: Recording | None = None
    """Where marks of a trace go, in a kernel that is compiled for one."""
    _shared: dict[Any, ir.Value] = dataclasses.field(default_factory=dict)
    """Constants at the start of the function."""

    @property
    def arch(self) -> Architecture:
        return self.module.arch

    def handler(self, op: ir.Operation, name: str) -> Handler | None:
        del op
        return self.module.handlers.get(name)

    def names(self) -> Iterable[str]:
        return self.module.handlers

    def pointer_in(self, space: str) -> ir.Type:
        return _pointer_in(space)

    def lowered(self, type_: ir.Type) -> ir.Type:
        return device_type(type_)

    def allocated(self, pointer: ir.Value, address: ir.Value) -> None:
        self.registers.allocate(pointer, address)

    def cast_pointer(self, b: DeviceBuilder, pointer: ir.Value, type_: ir.Type) -> ir.Value:
        return b.cast_space(pointer, type_)

    def load(self, b: DeviceBuilder, type_: ir.Type, address: ir.Value, alignment: int) -> ir.Value:
        if self.module.wide_accesses and wide_access.is_wide(type_, address, alignment):
            return wide_access.load(b, type_, address)
        words = _word_type(type_, alignment)
        value = self.registers.read(b, words or type_, address, alignment)
        return b.value("llvm.bitcast", type_, (value,)) if words else value

    def store(self, b: DeviceBuilder, value: ir.Value, address: ir.Value, alignment: int) -> None:
        if self.module.wide_accesses and wide_access.is_wide(value.type, address, alignment):
            wide_access.store(b, value, address)
            return
        words = _word_type(value.type, alignment)
        self.registers.write(b, b.value("llvm.bitcast", words, (value,)) if words else value, address, alignment)

    def _once(self, key: object, name: str, type_: ir.Type, attributes: dict[str, ir.Attribute] | None) -> ir.Value:
        """Return the result of an operation at the start of the function, made once."""
        shared = self._shared.get(key)
        if shared is None:
            b = self.at_entry(ir.Location.unknown(context()))
            shared = self._shared[key] = b.value(name, type_, (), attributes)
        return shared

    def _number(self, value: int) -> ir.Value:
        i32 = int_type(32)
        return self._once(value, "llvm.mlir.constant", i32, {"value": ir.IntegerAttr.get(i32, value)})

    def elements(self, b: Builder, vector: ir.Value) -> list[ir.Value]:
        """Return the elements of a vector, by LLVM operations: MLIR takes five times as long to convert vector
        operations."""
        type_: Any = vector.type
        element = type_.element_type
        return [b.value("llvm.extractelement", element, (vector, self._number(n))) for n in range(type_.shape[0])]

    def joined(self, b: Builder, type_: ir.Type, parts: Sequence[ir.Value]) -> ir.Value:
        """Return a vector of what registers hold."""
        vector = _vector_type(len(parts), parts[0].type)
        vector_ = self._once(vector, "llvm.mlir.poison", vector, None)
        for number, part in enumerate(parts):
            vector_ = b.value("llvm.insertelement", vector, (vector_, part, self._number(number)))
        return vector_ if vector == type_ else b.value("llvm.bitcast", type_, (vector_,))

    def require(self, op: AnyOp, feature: Feature, what: str = "") -> None:
        """Refuse an operation that needs a feature which the architecture lacks; `what` names the operation."""
        message = feature.refusal(self.arch, what)
        if message:
            hint = "choose the architecture with --gpu-arch or CUTE_DSL_ARCH"
            raise report_at(op.location, DSLArchitectureError, message, hint=hint)
        if feature.ptx > (taken := supported_ptx(self.arch)):
            message = (
                f"{what or feature.what} needs PTX {feature.ptx / 10}, and the assembler takes PTX {taken / 10} at most"
            )
            raise report_at(op.location, DSLArchitectureError, message, hint="pip install a newer nvidia-cuda-nvcc")
        self.module.ptx = max(self.module.ptx, feature.ptx)

    def require_needs(self, op: OpView) -> None:
        """Refuse an operation that needs what the architecture lacks, or of another CTA group than the kernel's."""
        for feature, what in op.needs():
            self.require(op, feature, what)
        cta_group = getattr(op, "cta_group", None)
        if cta_group is None:
            return
        if self.kernel.cta_group not in (0, cta_group):  # ptxas refuses two
            message = (
                f"{op.operation.name} has cta_group {cta_group} in a kernel with cta_group {self.kernel.cta_group}"
            )
            hint = "all tcgen05 instructions of a kernel have the same one: alloc, mma, cp and commit included"
            raise report_at(op.location, CompilerDiagnosticError, message, hint=hint)
        self.kernel.cta_group = cta_group


@functools.lru_cache(maxsize=1024)
def _word_type(type_: ir.Type, alignment: int) -> ir.Type | None:
    """Return the words in which to move a vector of narrow elements, which LLVM would split into small accesses."""
    if not isinstance(type_, ir.VectorType) or len(type_.shape) != 1:
        return None
    bits = type_.shape[0] * type_.element_type.width
    if type_.element_type.width >= 32 or bits < 32 or bits % 32 or alignment < 4:
        return None
    return (
        int_type(32)
        if bits == 32
        else ir.VectorType.get([bits // 32], int_type(32), loc=ir.Location.unknown(context()))
    )


def expand_module(expansion: Expansion) -> None:
    """Replace every operation and type of `cute` and `cute_nvgpu` in a module of device functions."""
    functions: list[Kernel] = []
    for op in expansion.module.body.operations:
        func = op.operation
        if func.name != "func.func":
            continue
        name = func.attributes["sym_name"].value
        expansion.declared.add(name)
        if len(func.regions[0].blocks):
            kernel = Kernel(name, func, merge_smem=name in expansion.merged)
            functions.append(kernel)
            if cute.KERNEL in func.attributes:
                expansion.kernels[name] = kernel
    for kernel in functions:
        _expand_function(expansion, kernel)
    for kernel in functions:
        place_smem(expansion, kernel)


def _expand_function(expansion: Expansion, kernel: Kernel) -> None:
    func = kernel.operation
    x = Expander(expansion, kernel, func.regions[0].blocks[0])
    work = find_work(x, func)
    accesses = enumerate(work.operations)
    gone = store_forwarding.forward_stores(
        {n: (op, name) for n, (op, name, _) in accesses if name in store_forwarding.ACCESSES}
    )
    tasks = begin(x, work, gone)
    signature = func.attributes["function_type"].value
    func.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(
            [device_type(t) for t in signature.inputs], [device_type(t) for t in signature.results], context()
        )
    )
    if cute.KERNEL in func.attributes:
        kernel.tensor_maps = [n for n, type_ in enumerate(signature.inputs) if isinstance(type_, TensorMap)]
        _global_arguments(func, list(signature.inputs))
    expand_operations(x, tasks)
    for op in work.casts:
        op.erase()
    _join_registers(x)
    x.registers.end()


def _join_registers(x: Expander) -> None:
    """Assemble the vectors of fragments that are still needed, and erase the operations that made them."""
    for value, parts in reversed(x.results.items()):
        op = value.owner.operation
        b = DeviceBuilder(ir.InsertionPoint(op), op.location)
        for use in list(value.uses):
            _take_part(x, b, use.owner.operation, parts)
        if any(True for _ in value.uses):
            value.replace_all_uses_with(x.joined(b, value.type, parts))
        operands = list(op.operands)
        op.erase()
        for operand in operands:
            store_forwarding.erase_unused(operand)


def _take_part(x: Expander, b: Builder, user: ir.Operation, parts: list[ir.Value]) -> None:
    """Replace an extraction from a fragment by its registers, if these are whole elements."""
    result = user.results[0] if len(user.results) == 1 else None
    if result is None or parts[0].type != element_of(result.type):
        return
    if user.name == "vector.extract" and (position := user.attributes["static_position"][0]) >= 0:
        result.replace_all_uses_with(parts[position])
        user.erase()
    elif user.name == "vector.extract_strided_slice":
        first = store_forwarding.first_element(user)
        count = result.type.shape[0]  # pyright: ignore[reportAttributeAccessIssue]
        result.replace_all_uses_with(x.joined(b, result.type, parts[first : first + count]))
        user.erase()


@functools.lru_cache(maxsize=256)
def _vector_type(count: int, element: ir.Type) -> ir.Type:
    return ir.VectorType.get([count], element, loc=ir.Location.unknown(context()))


def _global_arguments(func: ir.Operation, types: list[ir.Type]) -> None:
    """Retype pointer arguments of kernels to global memory, also where the program says only "generic".

    `types` are those the arguments had in the dialect.
    """
    entry = func.regions[0].blocks[0]
    b = DeviceBuilder(ir.InsertionPoint.at_block_begin(entry), func.location)
    for argument, type_ in zip(entry.arguments, types, strict=True):
        if not isinstance(type_, (cute.Ptr, cute.Memref)) or cute.info(type_).space != "generic":
            continue
        leaves = cute.info(type_).leaves
        if not leaves:
            replacement = b.value("llvm.addrspacecast", ptr_type(), (argument,))
            argument.replace_all_uses_except(replacement, [replacement.owner.operation])
            argument.set_type(pointer_type(1))
            continue
        parts = [b.extract(argument, pointer_type(1), 0)]
        parts += [b.extract(argument, int_type(width), n + 1) for n, width in enumerate(leaves)]
        own = [part.owner.operation for part in parts]
        replacement = b.value("llvm.mlir.undef", argument.type)
        for number, part in enumerate([b.value("llvm.addrspacecast", ptr_type(), (parts[0],)), *parts[1:]]):
            replacement = b.insert(replacement, part, number)
        argument.replace_all_uses_except(replacement, own)
        argument.set_type(struct_type([pointer_type(1), *map(int_type, leaves)]))
    signature = func.attributes["function_type"].value
    func.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get([a.type for a in entry.arguments], list(signature.results), context())
    )
