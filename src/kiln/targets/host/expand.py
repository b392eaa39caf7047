"""Functions of a module as host code: their state, and how operations are expanded.

Every function gets the context of the call as a hidden argument at its end. A target that runs kernels on the host adds
to `Expansion`, `FunctionState` and `Expander`, and hands its own table of handlers in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ...base_dsl.compiler import report_at, source_span
from ...base_dsl.diagnostics import CompilerDiagnosticError
from ...mlir import context, ir
from ..lowering import expansion as lowering
from ..lowering.builder import Builder, declare, global_, int_type, operations, parsed_type, ptr_type, symbol
from ..lowering.expansion import AnyOp, Handler, Handlers, begin, expand_operations, find_work
from ..lowering.memory import lowered_type
from ..lowering.sites import Site
from .arithmetic import computes_in_f32, drop_fast_math, in_f32
from .call_context import STOPS, offset
from .exits import END, return_at_ends
from .loops import stopped
from .splitting import split


@dataclasses.dataclass
class FunctionState:
    """The state of a function that is expanded."""

    name: str
    operation: ir.Operation
    context: ir.Value
    """The hidden argument."""
    loops: bool = False
    """Whether it has potentially long loops."""
    repeats: bool = False
    """Whether it has loops."""
    accesses: bool = False
    """Whether it reads or writes memory that it was given."""
    prints: bool = False
    calls: set[str] = dataclasses.field(default_factory=set)
    positive: Collection[ir.Value] = ()
    """Values that are known not to be zero."""

    is_kernel = False

    @property
    def kernel(self) -> str:
        """The kernel that it is; empty for host code."""
        return self.name if self.is_kernel else ""

    def where(self, b: Builder) -> list[ir.Value]:
        """Return the indices of block and thread; -1 in host code."""
        return [b.i32(-1)] * 6


@dataclasses.dataclass
class Expansion:
    """The state of expanding one module, also for later stages."""

    module: ir.Module
    handlers: Handlers
    target: str
    """The target's name in messages."""
    encoder: str = "kiln_cpu_encode_tensor_map"
    """The target's function that writes tensor maps (`tensor_maps.py`)."""
    sites: list[Site] = dataclasses.field(default_factory=list)
    functions: dict[str, FunctionState] = dataclasses.field(default_factory=dict)
    declared: set[str] = dataclasses.field(default_factory=set)
    constants: dict[bytes, str] = dataclasses.field(default_factory=dict)
    inlined: set[str] = dataclasses.field(default_factory=set)
    """Functions that are to be inlined wherever they are called."""
    outlined: set[str] = dataclasses.field(default_factory=set)
    """Functions that are to be called and never inlined."""

    def site(self, op: AnyOp, kind: str, message: str, kernel: str, types: tuple[str, ...] = ()) -> int:
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

    def declare_variable(self, name: str, type_: ir.Type) -> None:
        """Make an external variable known to the module, once."""
        if name not in self.declared:
            self.declared.add(name)
            global_(self.module, name, type_, None, linkage="external")

    def string(self, text: str) -> str:
        """Return the name of a global constant that holds a C string."""
        return self.constant(text.encode() + b"\0")

    def constant(self, data: bytes) -> str:
        """Return the name of a global constant that holds some bytes."""
        name = self.constants.get(data)
        if name is None:
            name = self.constants[data] = f"kiln.str.{len(self.constants)}"
            array = parsed_type(f"!llvm.array<{len(data)} x i8>")
            global_(self.module, name, array, ir.StringAttr.get(data), linkage="internal", constant=True)
        return name

    # -- what a target may add ---------------------------------------------------------------------------

    def enter(self, func: ir.Operation) -> FunctionState:
        """Append the hidden arguments of a function, and return its state."""
        return FunctionState(symbol(func), func, add_arguments(func, [ptr_type()])[0])

    def expand_function(self, state: FunctionState) -> list[ir.Operation]:
        """Expand the operations of a function; the casts that made tuples, which are erased at the end."""
        x = Expander(self, state)
        work = find_work(x, state.operation)
        expand_operations(x, begin(x, work))
        return work.casts

    def announce(
        self, b: Builder, inputs: Sequence[ir.Type], arguments: Sequence[ir.Value], layouts: Sequence[str | None]
    ) -> None:
        """Observe the start of a call, with its arguments and the layouts of its arrays."""

    def finish(self) -> None:
        """Finish the expansion, when all functions are expanded."""

    def finish_lowered(self, module: ir.Module) -> None:
        """Finish the lowering, when the module is in the `llvm` dialect."""
        for func in operations(module):
            if func.name == "llvm.func":
                return_at_ends(func)
                split(func)


_ACCESSES = ("load", "store", "copy", "rmw", "memset", "call")
"""Suffixes of operations that may access memory passed to a function."""
_LOOPS = ("scf.for", "scf.while")
_NUMBERS = ("arith.", "math.", "vector.")


def host_type(type_: ir.Type) -> ir.Type:
    """Return the host type of a `cute` type; other types are unchanged."""
    return lowered_type(type_, lambda _: ptr_type())


def where_negative(b: Builder, amount: ir.Value) -> Builder:
    """Open a branch that is taken if one of some numbers is negative."""
    return b.if_(b.any(b.compare("slt", amount, b.const(amount.type, 0))))


class Expander(lowering.Expander):
    """What a handler may use: the module's and the function's state."""

    def __init__(self, module: Expansion, function: FunctionState) -> None:
        self.module = module
        self.function = function
        self.entry: Any = function.operation.regions[0].blocks[0]
        self.target: str = module.target
        self._scratch: dict[str, ir.Value] = {}

    def handler(self, op: ir.Operation, name: str) -> Handler | None:
        state = self.function
        state.accesses = state.accesses or name.endswith(_ACCESSES)
        state.repeats = state.repeats or name in _LOOPS
        if name.startswith(_NUMBERS):
            drop_fast_math(op)
            if computes_in_f32(op):
                return Handler(in_f32)
        return self.module.handlers.get(name)

    def pointer_in(self, space: str) -> ir.Type:
        del space  # the host has one address space
        return ptr_type()

    def lowered(self, type_: ir.Type) -> ir.Type:
        return ptr_type() if _is_llvm_pointer(type_) else host_type(type_)

    def is_retyped(self, type_: ir.Type) -> bool:
        return super().is_retyped(type_) or _is_llvm_pointer(type_)

    def divided_by_zero(self, op: ir.Operation, b: Builder) -> None:
        """Report an integer division by zero."""
        self.fault(b, self.module.site(op, "division", "integer division or modulo by zero", self.function.kernel))

    def shifts_by(self, op: ir.Operation, amount: ir.Value, b: Builder) -> None:
        """A shift by a negative number is a fault."""
        site = self.module.site(op, "shift", "an integer is shifted by a negative number", self.function.kernel)
        self.fault(where_negative(b, amount), site)

    def fault(self, b: Builder, site: int, arguments: Sequence[ir.Value] = ()) -> None:
        """Record a fault; the values are i32, i64 or f64."""
        buffer = b.null()
        if arguments:
            buffer = self.at_entry(b.location).alloca(int_type(64), len(arguments))
            for number, value in enumerate(arguments):
                b.store(value, b.gep(buffer, int_type(64), number))
        self.fault_with(b, site, len(arguments), buffer)

    def fault_with(self, b: Builder, site: int, count: int, buffer: ir.Value) -> None:
        """Record a fault with values that are in memory, of 8 bytes each."""
        name = "kiln_cpu_fault"
        i32 = int_type(32)
        ptr = ptr_type()
        self.module.declare(name, [ptr, i32, *[i32] * 6, i32, ptr], [])
        where = self.function.where(b)
        b.call(name, [], [self.function.context, b.i32(site), *where, b.i32(count), buffer])

    def scratch(self, name: str, words: int, location: ir.Location) -> ir.Value:
        """Return scratch memory of a function, shared by all uses of a name."""
        if name not in self._scratch:
            self._scratch[name] = self.at_entry(location).alloca(int_type(64), words)
        return self._scratch[name]

    def end(self, b: Builder) -> None:
        """End the function, as the last thing in a block."""
        self.module.declare(END, [], [])
        b.call(END, [], [])

    def stop_if_asked(self, op: ir.Operation, b: Builder, steps: Callable[[Builder], ir.Value] | None) -> None:
        """Leave a loop if Ctrl-C asks for it. `steps` returns the steps that kernels count, one per iteration by
        default."""
        del steps
        self.function.loops = True
        stop = b.binary("andi", stopped(self.module, b, self.function.context), STOPS)
        then = b.if_(b.compare("ne", stop, 0))
        then.atomic("_or", then.byte_gep(self.function.context, offset("stop")), stop)
        self.fault(then, self.module.site(op, "wait", "loop", ""))
        self.end(then)

    def suspends(self, loop: ir.Operation) -> bool:
        """Return whether threads wait in a loop, so that it need not poll for a stop."""
        del loop
        return False


def _is_llvm_pointer(type_: ir.Type) -> bool:
    """Return whether a type is a pointer to an address space of its own."""
    return type(type_).__name__ in ("Type", "PointerType") and str(type_).startswith("!llvm.ptr<")


def add_arguments(func: ir.Operation, types: Sequence[ir.Type]) -> list[ir.Value]:
    """Append arguments to a function with a body, whose others are retyped."""
    entry = func.regions[0].blocks[0]
    unknown = ir.Location.unknown(context())
    values: list[ir.Value] = [entry.add_argument(type_, unknown) for type_ in types]
    signature = func.attributes["function_type"].value
    inputs, results = ([host_type(t) for t in part] for part in (signature.inputs, signature.results))
    func.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([*inputs, *types], results, context()))
    if "arg_attrs" in func.attributes:
        old = list(func.attributes["arg_attrs"])
        func.attributes["arg_attrs"] = ir.ArrayAttr.get([*old, *[ir.DictAttr.get({})] * len(types)], context())
    return values


def expand_module(expansion: Expansion) -> None:
    """Replace every `cute` operation and type of a module by host code."""
    for func in operations(expansion.module):
        if func.name in ("func.func", "llvm.func"):
            expansion.declared.add(symbol(func))
        if func.name == "func.func" and len(func.regions[0].blocks):
            expansion.functions[symbol(func)] = expansion.enter(func)
    casts = [cast for state in expansion.functions.values() for cast in expansion.expand_function(state)]
    expansion.finish()
    for op in casts:
        op.erase()
