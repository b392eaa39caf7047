"""`cute` operations as host code: the definition of each operation, one function each.

Values of type `!cute.ptr` and `!cute.memref` are retyped in place (a pointer; a pointer and the dynamic leaves), so they
cross regions, blocks and functions as they are. Every function gets hidden arguments at its end: the context of the
call and, in a kernel, the block's shared memory and the indices (see `FunctionState`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...base_dsl.compiler import report_at, source_span
from ...base_dsl.diagnostics import CompilerDiagnosticError, DSLNotImplemented
from ...dialects import cute
from ...mlir import context, find, ir
from ..cpu.passes.coroutines import END
from ..lowering.builder import (
    Builder,
    declare,
    global_,
    int_type,
    like,
    operations,
    parsed_type,
    ptr_type,
    struct_type,
    symbol,
)
from ..lowering.sites import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..cpu.bank_counter import BankCounter
    from ..cpu.sanitizer.instrument import Instrumentation


@dataclasses.dataclass
class FunctionState:
    """The hidden arguments of a function."""

    name: str
    operation: ir.Operation
    context: ir.Value
    smem: ir.Value | None = None
    dynamic_smem: ir.Value | None = None
    indices: dict[str, tuple[ir.Value, ir.Value, ir.Value]] = dataclasses.field(default_factory=dict)
    smem_bytes: int = 0
    """Static shared memory handed out so far."""
    frame: ir.Value | None = None
    waits: bool = False
    """Whether its threads can wait: it is run by the scheduler then."""
    meets: bool = False
    """Whether lanes of a warp meet in it."""
    copies: bool = False
    """Whether it makes asynchronous copies."""
    spins: bool = False
    """Whether it looks at memory again and again: the blocks of a launch should be resident together."""
    loops: bool = False
    """Whether it has loops that may be long."""
    accesses: bool = False
    """Whether it reads or writes memory that it was given."""
    versions: tuple[str, ...] = ()
    """Names of versions of a kernel made for speed, to be inlined like it."""
    prints: bool = False
    calls: set[str] = dataclasses.field(default_factory=set)

    @property
    def is_kernel(self) -> bool:
        return bool(self.indices)


HIDDEN_INDICES = ("thread_idx", "block_idx", "block_dim", "grid_dim")
KERNEL_HIDDEN = 4 + 3 * len(HIDDEN_INDICES)
"""Number of hidden arguments of a kernel: context, static and dynamic shared memory, indices, the thread's frame."""


@dataclasses.dataclass
class Expansion:
    """The state of expanding one module, and what later stages need to know about it."""

    module: ir.Module
    sites: list[Site] = dataclasses.field(default_factory=list)
    functions: dict[str, FunctionState] = dataclasses.field(default_factory=dict)
    launches: list[tuple[Expander, ir.Operation]] = dataclasses.field(default_factory=list)
    declared: set[str] = dataclasses.field(default_factory=set)
    strings: dict[str, str] = dataclasses.field(default_factory=dict)
    outlined: set[str] = dataclasses.field(default_factory=set)
    """Functions made for operations, to be called and not inlined."""
    sanitizer: Instrumentation | None = None
    """What an instrumented build adds; None in a normal one."""
    banks: BankCounter | None = None
    """The same, for a build that counts bank conflicts."""

    def site(self, op: ir.Operation, kind: str, message: str, kernel: str, types: tuple[str, ...] = ()) -> int:
        """Register a place that can fail; its number."""
        span, calls = source_span(op.location)
        self.sites.append(Site(kind, message, span, calls, kernel, types))
        return len(self.sites) - 1

    def declare(self, name: str, inputs: Sequence[ir.Type], results: Sequence[ir.Type]) -> None:
        """Make an external function known to the module, once."""
        if name in self.functions:
            operation = self.functions[name].operation
            message = f"the function {name} has the name of a C function that the program needs"
            raise report_at(operation.location, CompilerDiagnosticError, message, "rename it")
        if name not in self.declared:
            self.declared.add(name)
            declare(self.module, name, inputs, results)

    def string(self, text: str) -> str:
        """The name of a global constant that holds a C string."""
        name = self.strings.get(text)
        if name is None:
            name = self.strings[text] = f"kiln.str.{len(self.strings)}"
            data = text.encode() + b"\0"
            array = parsed_type(f"!llvm.array<{len(data)} x i8>")
            global_(self.module, name, array, ir.StringAttr.get(data), linkage="internal", constant=True)
        return name


# --- types -----------------------------------------------------------------------------------------------------------


def host_type(type_: ir.Type) -> ir.Type:
    """What a `cute` type is in host code; other types are themselves."""
    if cute.is_ptr(type_):
        return ptr_type()
    if cute.is_memref(type_):
        leaves = cute.info(type_).leaves
        return struct_type([ptr_type(), *map(int_type, leaves)]) if leaves else ptr_type()
    return type_


def carrier_type(type_: ir.Type) -> ir.Type:
    """The LLVM type that holds a value of a type: narrow floats are integers of their width."""
    type_ = host_type(type_)
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    if isinstance(element, ir.FloatTF32Type):
        return like(type_, ir.F32Type.get(context()))  # `expand_narrow_floats` has made such values f32
    if isinstance(element, ir.FloatType) and element.width < 16:
        return like(type_, int_type(element.width))
    if isinstance(element, ir.IndexType):
        return like(type_, int_type(64))
    return type_


def to_carrier(b: Builder, value: ir.Value) -> ir.Value:
    """A value as its `carrier_type`."""
    want = carrier_type(value.type)
    if want == value.type:
        return value
    if isinstance(value.type, ir.IndexType):
        return b.value("arith.index_cast", want, (value,))
    return b.value("arith.bitcast", want, (value,))


def from_carrier(b: Builder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """The inverse of `to_carrier`."""
    if value.type == type_:
        return value
    if isinstance(type_, ir.IndexType):
        return b.value("arith.index_cast", type_, (value,))
    return b.value("arith.bitcast", type_, (value,))


# --- the pass --------------------------------------------------------------------------------------------------------


def expand_module(expansion: Expansion) -> None:
    """Replace every `cute` operation and type of a module by host code."""
    from ..cpu.launch import block_function, launch
    from ..cpu.ops import atomics, llvm_operations, math, mbarrier, mma, sync, warp  # noqa: F401 - they register expansions

    if find(expansion.module.operation, ("llvm.inline_asm",)):
        from ..cpu import ptx  # noqa: F401 - half of what there is to import, and few programs have any

    for func in operations(expansion.module):
        if func.name in ("func.func", "llvm.func"):
            expansion.declared.add(symbol(func))
        if func.name == "func.func" and len(func.regions[0].blocks):
            if expansion.sanitizer is not None:
                expansion.sanitizer.remember(expansion, func)
            expansion.functions[symbol(func)] = add_hidden_arguments(func)
    casts: list[ir.Operation] = []
    for state in expansion.functions.values():
        casts += _expand_function(expansion, state)
    for state in expansion.functions.values():
        if state.waits:
            return_status(state.operation)
    for expander, op in expansion.launches:  # now that everything is known about the kernels
        launch(expander, op, Builder(ir.InsertionPoint(op), op.location))
        op.erase()
    for op in casts:
        op.erase()
    for state in expansion.functions.values():
        if state.is_kernel:
            block_function(expansion, state)
    if expansion.banks is not None:
        expansion.banks.finish()


def is_kernel(func: ir.Operation) -> bool:
    """Whether a function carries the kernel attribute."""
    return cute.KERNEL in func.attributes


def add_hidden_arguments(func: ir.Operation) -> FunctionState:
    """Append the hidden arguments to a function with a body."""
    entry = func.regions[0].blocks[0]
    unknown = ir.Location.unknown(context())
    hidden = [ptr_type()]
    if is_kernel(func):
        hidden += [ptr_type(), ptr_type(), *[int_type(32)] * (3 * len(HIDDEN_INDICES)), ptr_type()]
    values: list[ir.Value] = [entry.add_argument(type_, unknown) for type_ in hidden]
    signature = func.attributes["function_type"].value
    func.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(
            [host_type(t) for t in signature.inputs] + hidden, [host_type(t) for t in signature.results], context()
        )
    )
    if "arg_attrs" in func.attributes:
        old = list(func.attributes["arg_attrs"])
        func.attributes["arg_attrs"] = ir.ArrayAttr.get([*old, *[ir.DictAttr.get({})] * len(hidden)], context())
    state = FunctionState(symbol(func), func, values[0])
    if is_kernel(func):
        state.smem, state.dynamic_smem = values[1], values[2]
        for number, which in enumerate(HIDDEN_INDICES):
            x, y, z = values[3 + 3 * number : 6 + 3 * number]
            state.indices[which] = (x, y, z)
        state.frame = values[-1]
    return state


def return_status(func: ir.Operation) -> None:
    """Let a kernel return an i32: 0 at its end. What it returns while it waits comes with `coroutines.make_resumable`."""
    signature = func.attributes["function_type"].value
    func.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(signature.inputs, [int_type(32)], context()))
    for block in func.regions[0].blocks:
        last = list(block.operations)[-1].operation
        if last.name == "func.return":
            b = Builder(ir.InsertionPoint(last), last.location)
            b.op("func.return", (), (b.i32(0),))
            last.erase()


@dataclasses.dataclass
class Expander:
    """What an expansion may use: the module's and the function's state."""

    module: Expansion
    function: FunctionState
    entry: ir.Block

    def at_entry(self, location: ir.Location) -> Builder:
        """A builder at the start of the function, for memory that lives as long as the call."""
        return Builder(ir.InsertionPoint.at_block_begin(self.entry), location)

    def fault(self, b: Builder, site: int, arguments: Sequence[ir.Value] = ()) -> None:
        """Record a fault; the values are i32, i64 or f64."""
        name = "kiln_cpu_fault"
        i32, ptr = int_type(32), ptr_type()
        self.module.declare(name, [ptr, i32, *[i32] * 6, i32, ptr], [])
        where = (
            [*self.function.indices["block_idx"], *self.function.indices["thread_idx"]]
            if (self.function.is_kernel)
            else [b.i32(-1)] * 6
        )
        buffer = b.null()
        if arguments:
            buffer = self.at_entry(b.location).alloca(int_type(64), len(arguments))
            for number, value in enumerate(arguments):
                b.store(value, b.gep(buffer, int_type(64), number))
        b.call(name, [], [self.function.context, b.i32(site), *where, b.i32(len(arguments)), buffer])


_ACCESSES = ("load", "store", "copy", "rmw", "memset", "call")
"""How the names of operations end that may access memory which a function was given."""


def _expand_function(expansion: Expansion, state: FunctionState) -> list[ir.Operation]:
    """Retype values, then rewrite operations in order: an operation's operands are host values by then.

    Launches are left for later. Returns the casts that made tuples.
    """
    from ..cpu.passes import matrix_fusion
    from .arithmetic import computes_in_f32, in_f32

    func = state.operation
    todo: list[tuple[ir.Operation, Any, list[ir.Type], list[ir.Type]]] = []
    casts: list[ir.Operation] = []
    others: list[ir.Value] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        state.accesses = state.accesses or name.endswith(_ACCESSES)
        if name.startswith(("cute.", "cute_nvgpu.")):
            todo.append((op, HANDLERS.get(name), [v.type for v in op.operands], [r.type for r in op.results]))
            return ir.WalkResult.ADVANCE
        if name == "builtin.unrealized_conversion_cast" and any(isinstance(r.type, ir.TupleType) for r in op.results):
            casts.append(op)
            return ir.WalkResult.ADVANCE
        if name.startswith(("arith.", "math.", "vector.")) and computes_in_f32(op):
            todo.append((op, in_f32, [], []))
        elif name in HANDLERS:
            todo.append((op, HANDLERS[name], [], [r.type for r in op.results]))
        others.extend(op.results)
        for region in op.regions:
            for block in region.blocks:
                others.extend(block.arguments)
        return ir.WalkResult.ADVANCE

    func.walk(visit, ir.WalkOrder.PRE_ORDER)
    for value in others:
        type_ = value.type
        if isinstance(type_, (cute.Ptr, cute.Memref)):
            value.set_type(host_type(type_))
        elif type(type_).__name__ in ("Type", "PointerType") and str(type_).startswith("!llvm.ptr<"):
            value.set_type(ptr_type())  # the host has one address space
    expander = Expander(expansion, state, func.regions[0].blocks[0])
    later: list[tuple[ir.Operation, Any, list[ir.Type], list[ir.Type]]] = []
    if state.is_kernel and expansion.sanitizer is None and expansion.banks is None:
        later = [entry for entry in todo if entry[0].name in matrix_fusion.OPERATIONS]
        todo = [entry for entry in todo if entry[0].name not in matrix_fusion.OPERATIONS]
    _expand_operations(expander, todo)
    left = matrix_fusion.fuse(expander, [entry[0] for entry in later])
    _expand_operations(expander, [later[position] for position in left])
    if expansion.sanitizer is not None and state.is_kernel:
        expansion.sanitizer.enter(expander)
    return casts


def _expand_operations(expander: Expander, todo: list[tuple[ir.Operation, Any, list[ir.Type], list[ir.Type]]]) -> None:
    """Rewrite operations, each with its handler and the types its operands and results had."""
    for op, handler, operands, results in todo:
        if op.name == "cute.launch":
            expander.module.launches.append((expander, op))
            continue
        if handler is None:
            raise report_at(op.location, DSLNotImplemented, f"the CPU target does not implement {op.name}")
        builder = Builder(ir.InsertionPoint(op), op.location)
        values = handler(expander, op, operands, results, builder)
        if values is None:
            continue
        for old, new in zip(op.results, values, strict=True):
            old.replace_all_uses_with(new)
        op.erase()


HANDLERS: dict[str, Any] = {}


def expands(name: str) -> Callable[[Any], Any]:
    """Register the expansion of an operation.

    It is given the expander, the operation (operands are host values already), the types its operands and results had
    in the dialect, and a builder before the operation; it returns the results' replacements, or None to leave the
    operation as it is.
    """

    def register(handler: Any) -> Any:
        HANDLERS[name] = handler
        return handler

    return register


def _int(op: ir.Operation, name: str) -> int:
    return op.attributes[name].value


# --- where a thread is -----------------------------------------------------------------------------------------------


def _kernel_only(x: Expander, op: ir.Operation) -> None:
    if not x.function.is_kernel:
        raise report_at(op.location, DSLNotImplemented, f"{op.name} is only possible in a kernel")


def _index(x: Expander, op: ir.Operation, _o: Any, _r: Any, _b: Builder) -> list[ir.Value]:
    _kernel_only(x, op)
    return [x.function.indices[op.name.removeprefix("cute.")][_int(op, "dim")]]


for _which in HIDDEN_INDICES:
    HANDLERS[f"cute.{_which}"] = _index


def _linear_thread(x: Expander, b: Builder) -> ir.Value:
    (tx, ty, tz), (dx, dy, _) = x.function.indices["thread_idx"], x.function.indices["block_dim"]
    return b.binary("addi", tx, b.binary("muli", dx, b.binary("addi", ty, b.binary("muli", dy, tz))))


@expands("cute.lane_idx")
def _lane_idx(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    _kernel_only(x, op)
    return [b.binary("andi", _linear_thread(x, b), b.i32(31))]


@expands("cute.warp_idx")
def _warp_idx(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    _kernel_only(x, op)
    return [b.binary("shrui", _linear_thread(x, b), b.i32(5))]


# --- calls, launching and reporting ----------------------------------------------------------------------------------


@expands("func.call")
def _call(x: Expander, op: ir.Operation, _o: Any, results: list[ir.Type], b: Builder) -> list[ir.Value]:
    callee = op.attributes["callee"].value
    if callee not in x.module.functions:  # an external C function
        return list(b.call(callee, [host_type(t) for t in results], list(op.operands)).results)
    x.function.calls.add(callee)
    return list(b.call(callee, [host_type(t) for t in results], [*op.operands, x.function.context]).results)


@expands("cute.printf")
def _printf(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    ptr, i32 = ptr_type(), int_type(32)
    x.function.prints = True
    x.module.declare("kiln_cpu_stream", [ptr], [ptr])
    declare_variadic(x.module, "fprintf", i32, [ptr, ptr])
    text = op.attributes["format"].value
    stream = b.call("kiln_cpu_stream", [ptr], [x.function.context]).results[0]
    format_ = b.address_of(x.module.string(text))
    signature = parsed_type("!llvm.func<i32 (ptr, ptr, ...)>")
    b.call_variadic("fprintf", signature, i32, [stream, format_, *cute.unpack(op.operands[0])])
    return []


def declare_variadic(expansion: Expansion, name: str, result: ir.Type, inputs: Sequence[ir.Type]) -> None:
    """Make a C function with variable arguments known to the module, once."""
    if name in expansion.declared:
        return
    expansion.declared.add(name)
    spelled = ", ".join("ptr" if t == ptr_type() else str(t) for t in inputs)
    ir.Operation.create(
        "llvm.func",
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "function_type": ir.TypeAttr.get(parsed_type(f"!llvm.func<{result} ({spelled}, ...)>")),
            "linkage": ir.Attribute.parse("#llvm.linkage<external>"),
            "CConv": ir.Attribute.parse("#llvm.cconv<ccc>"),
            "visibility_": ir.IntegerAttr.get(int_type(64), 0),
            "unnamed_addr": ir.IntegerAttr.get(int_type(64), 0),
        },
        regions=1,
        loc=ir.Location.unknown(),
        ip=ir.InsertionPoint(expansion.module.body),
    )


@expands("cute.assert_")
def _assert(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    condition, packed = op.operands
    arguments = cute.unpack(packed)
    message = op.attributes["message"].value
    kernel = x.function.name if x.function.is_kernel else ""
    site = x.module.site(op, "assert", message, kernel, tuple(str(a.type) for a in arguments))
    failed = b.if_(b.binary("xori", condition, b.const(int_type(1), 1)))
    x.fault(failed, site, arguments)
    x.module.declare(END, [], [])
    failed.call(END, [], [])
    return []


# --- pointers and memrefs --------------------------------------------------------------------------------------------


def shared_pointer(x: Expander, b: Builder, address: ir.Value) -> ir.Value:
    """The pointer whose lowest 32 bits are a shared-memory address: the one nearest to this block's shared memory."""
    i32, i64 = int_type(32), int_type(64)
    base = b.value("llvm.ptrtoint", i64, (x.function.smem,))
    distance = b.binary("subi", address, b.value("arith.trunci", i32, (base,)))
    return b.byte_gep(x.function.smem, b.value("arith.extsi", i64, (distance,)))  # pyright: ignore[reportArgumentType]


@expands("cute.int_to_ptr")
def _int_to_ptr(x: Expander, op: ir.Operation, _o: Any, results: list[ir.Type], b: Builder) -> list[ir.Value]:
    if x.function.smem is not None and cute.info(results[0]).space in ("smem", "dsmem"):
        return [shared_pointer(x, b, b.value("arith.trunci", int_type(32), (op.operands[0],)))]
    return [b.value("llvm.inttoptr", ptr_type(), (op.operands[0],))]


@expands("cute.ptr_to_int")
def _ptr_to_int(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [b.value("llvm.ptrtoint", int_type(64), (op.operands[0],))]


@expands("cute.cast_ptr")
@expands("cute.cast_memref")
def _cast(_x: Expander, op: ir.Operation, _o: Any, _r: Any, _b: Builder) -> list[ir.Value]:
    return [op.operands[0]]


def element_address(b: Builder, pointer: ir.Value, element: ir.Type, offset: ir.Value) -> ir.Value:
    """The address of the byte in which the element `offset` elements on begins."""
    bits = cute.element_bits(element)
    if bits >= 8:
        stored = int_type(bits) if bits in (8, 16, 32, 64) else parsed_type(f"!llvm.array<{bits // 8} x i8>")
        return b.gep(pointer, stored, offset)
    shift = {4: 1, 2: 2}[bits]
    return b.byte_gep(pointer, b.binary("shrsi", offset, b.const(offset.type, shift)))


@expands("cute.ptr_add")
def _ptr_add(_x: Expander, op: ir.Operation, operands: list[ir.Type], _r: Any, b: Builder) -> list[ir.Value]:
    pointer, offset = op.operands
    return [element_address(b, pointer, cute.info(operands[0]).element, offset)]


@expands("cute.view")
def _view(x: Expander, op: ir.Operation, _o: Any, results: list[ir.Type], b: Builder) -> list[ir.Value]:
    pointer, *leaves = op.operands
    if x.module.sanitizer is not None:
        x.module.sanitizer.viewed(x, op, pointer, results[0])
    if not leaves:
        return [pointer]
    made = b.insert(b.value("llvm.mlir.undef", host_type(results[0])), pointer, 0)
    widths = cute.info(results[0]).leaves
    narrow, wide = iter(leaves[: widths.count(32)]), iter(leaves[widths.count(32) :])
    for number, width in enumerate(widths):
        made = b.insert(made, next(narrow if width == 32 else wide), number + 1)
    return [made]


def pointer_of(b: Builder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """The pointer in a host value that had type `type_`."""
    if cute.is_memref(type_) and cute.info(type_).leaves:
        return b.extract(value, ptr_type(), 0)
    return value


@expands("cute.iter")
def _iter(_x: Expander, op: ir.Operation, operands: list[ir.Type], _r: Any, b: Builder) -> list[ir.Value]:
    return [pointer_of(b, op.operands[0], operands[0])]


@expands("cute.leaf")
def _leaf(_x: Expander, op: ir.Operation, _o: Any, results: list[ir.Type], b: Builder) -> list[ir.Value]:
    return [b.extract(op.operands[0], results[0], _int(op, "index") + 1)]


def _alignment(op: ir.Operation, element: ir.Type) -> int:
    if "alignment" in op.attributes:
        return _int(op, "alignment")
    return cute.element_bytes(element)


def _stored_type(element: ir.Type) -> ir.Type:
    """The LLVM type of an element in memory."""
    carrier = carrier_type(element)
    if isinstance(carrier, ir.IntegerType) and cute.element_bits(element) != carrier.width:
        return int_type(cute.element_bits(element))
    return carrier


@expands("cute.load")
def _load(x: Expander, op: ir.Operation, operands: list[ir.Type], results: list[ir.Type], b: Builder) -> list[ir.Value]:
    source, offset = op.operands
    element = cute.info(operands[0]).element
    pointer = pointer_of(b, source, operands[0])
    address = element_address(b, pointer, element, offset)
    type_, stored = results[0], _stored_type(element)
    address = _checked(x, op, b, address, operands[0], type_, write=False)
    if cute.element_bits(element) < 8 and not isinstance(type_, ir.VectorType):
        byte = b.load(int_type(8), address, 1)
        value = b.value("arith.trunci", stored, (b.binary("shrui", byte, _bit_position(b, offset, element)),))
        return [from_carrier(b, value, host_type(type_))]
    value = b.load(like(type_, stored), address, _alignment(op, element))
    carrier = carrier_type(type_)
    if value.type != carrier:  # a byte per boolean, a byte per 6-bit float
        if cute.element_bits(element) == 8 and str(element) == "i1":
            value = b.compare("ne", value, b.const(value.type, 0))
        else:
            value = b.value("arith.trunci", carrier, (value,))
    return [from_carrier(b, value, host_type(type_))]


@expands("cute.store")
def _store(x: Expander, op: ir.Operation, operands: list[ir.Type], _r: Any, b: Builder) -> list[ir.Value]:
    value, target, offset = op.operands
    element = cute.info(operands[1]).element
    pointer = pointer_of(b, target, operands[1])
    address = element_address(b, pointer, element, offset)
    type_, stored = operands[0], _stored_type(element)
    value = to_carrier(b, value)
    if cute.element_bits(element) < 8 and not isinstance(type_, ir.VectorType):
        address = _checked(x, op, b, address, operands[1], type_, write=True)
        position = _bit_position(b, offset, element)
        byte = b.load(int_type(8), address, 1)
        mask = b.binary("shli", b.const(int_type(8), (1 << cute.element_bits(element)) - 1), position)
        kept = b.binary("andi", byte, b.binary("xori", mask, b.const(int_type(8), 255)))
        new = b.binary("shli", b.value("arith.extui", int_type(8), (value,)), position)
        b.store(b.binary("ori", kept, new), address, 1)
        return []
    if value.type != like(type_, stored):
        value = b.value("arith.extui", like(type_, stored), (value,))
    address = _checked(x, op, b, address, operands[1], type_, write=True, value=value)
    b.store(value, address, _alignment(op, element))
    return []


@expands("cute.bounds")
def _bounds(x: Expander, op: ir.Operation, operands: list[ir.Type], _r: Any, b: Builder) -> list[ir.Value]:
    if x.module.sanitizer is not None and x.function.is_kernel:
        x.module.sanitizer.bounds(x, op, b, operands[0])
    return []


@expands("cute.through")
def _through(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer = op.operands[0]
    if x.module.sanitizer is None or not x.function.is_kernel:
        return [pointer]
    return [x.module.sanitizer.through(op, b, pointer)]


def _checked(
    x: Expander, op: ir.Operation, b: Builder, address: ir.Value, memory: ir.Type, type_: ir.Type, write: bool,
    value: ir.Value | None = None,
) -> ir.Value:  # fmt: skip
    """The address of an access; in an instrumented build it is checked first."""
    if x.module.sanitizer is None and x.module.banks is None:
        return address
    element = cute.info(memory).element
    count = 1
    for size in type_.shape if isinstance(type_, ir.VectorType) else ():
        count *= size
    bytes_ = max(1, count * cute.element_bits(element) // 8)
    if x.module.banks is not None and cute.info(memory).space == "smem":
        x.module.banks.access(x, op, b, address, bytes_, _alignment(op, element), "st" if write else "ld")
    if x.module.sanitizer is None:
        return address
    return x.module.sanitizer.access(x, op, b, address, memory, bytes_, write, _alignment(op, element), value=value)


def _bit_position(b: Builder, offset: ir.Value, element: ir.Type) -> ir.Value:
    """Where a packed element starts in its byte, as an i8."""
    bits = cute.element_bits(element)
    low = b.value("arith.trunci", int_type(8), (offset,))
    return b.binary("muli", b.binary("andi", low, b.const(int_type(8), 8 // bits - 1)), b.const(int_type(8), bits))


@expands("cute.alloc_rmem")
def _alloc_rmem(x: Expander, op: ir.Operation, _o: Any, results: list[ir.Type], _b: Builder) -> list[ir.Value]:
    pointer = cute.info(results[0])
    size = (cute.element_bits(pointer.element) * _int(op, "count") + 7) // 8
    # at the function's entry: in a loop it would take new stack every time
    memory = x.at_entry(op.location).alloca(int_type(8), max(size, 1), max(pointer.alignment, 1))
    if x.module.sanitizer is not None:
        x.module.sanitizer.allocated_private(memory, size)
    return [memory]


@expands("cute.alloc_smem")
def _alloc_smem(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    _kernel_only(x, op)
    assert x.function.smem is not None
    alignment = _int(op, "alignment")
    start = -(-x.function.smem_bytes // alignment) * alignment
    x.function.smem_bytes = start + _int(op, "bytes")
    memory = b.byte_gep(x.function.smem, start)
    if x.module.sanitizer is not None:
        x.module.sanitizer.allocated(op, memory, start, _int(op, "bytes"))
    return [memory]


@expands("cute.dynamic_smem")
def _dynamic_smem(x: Expander, op: ir.Operation, _o: Any, _r: Any, _b: Builder) -> list[ir.Value]:
    _kernel_only(x, op)
    assert x.function.dynamic_smem is not None
    if x.module.sanitizer is not None:
        x.module.sanitizer.allocated(op, x.function.dynamic_smem, 0, None)
    return [x.function.dynamic_smem]


@expands("cute.undef")
def _undef(_x: Expander, _op: ir.Operation, _o: Any, results: list[ir.Type], b: Builder) -> list[ir.Value]:
    # zero, not undef: what depends on it by mistake is at least the same every time
    return [from_carrier(b, b.value("llvm.mlir.zero", carrier_type(results[0])), host_type(results[0]))]
