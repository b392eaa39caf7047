"""The symbols of an exported object: each passes the record of its function to code that all functions share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mlir import context, ir
from ...targets.host import jit
from ...targets.host.elf import Object, read
from ...targets.host.lower import lower_library
from ...targets.lowering.builder import Builder, declare, function, global_, int_type, parsed_type, ptr_type
from ..arguments import plan
from ..c.entry import entry
from ..c.signature import c_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...targets.host.jit import Processor
    from ..c.signature import Parameter, Signature

KERNEL = "kiln_torch_kernel"
META = "kiln_torch_meta"
START = "kiln_torch_start"
"""Symbols that are not exported."""
_TYPES = {"float": "f32", "double": "f64"}


class Thunks:
    """The functions for the record of one exported function, whose symbol is `record`."""

    def __init__(self, record: str) -> None:
        self._record = record
        self._location = ir.Location.unknown(context())
        self.names: list[str] = []
        """The exported symbols."""
        self._hidden: list[str] = []
        with context(), self._location:
            self._module = ir.Module.create()
            global_(self._module, record, parsed_type("!llvm.array<8 x i8>"), None, linkage="external")
            self._declared: set[str] = set()

    def add_c(self, prefix: str, signature: Signature) -> None:
        """Add the functions that C programs call."""
        ptr = ptr_type()
        i32 = int_type(32)
        self._passing(f"{prefix}_Kernel_Module_Load", "load", [ptr])
        self._passing(f"{prefix}_Kernel_Module_Unload", "unload", [ptr])
        self._passing(f"{prefix}_Kernel_Module_Error", "last_error", [ptr], ptr)
        self._passing(f"__kiln_packed_{prefix}", "packed", [ptr, i32])
        with context(), self._location:
            passed = [each for each in signature.parameters if each.is_in_c]
            b, (_, *arguments) = self._begin(
                f"cute_dsl_{prefix}_wrapper", [ptr, *(_c_type(each) for each in passed)], i32
            )
            result = b.alloca(i32)
            pointers = b.alloca(ptr, max(len(passed), 1))
            places = [b.alloca(value.type) for value in arguments]
            slots = b.alloca(int_type(64), -(-signature.slots_bytes // 8) or 1, 16)
            wrong = _take(b, signature, passed, arguments, slots)
            fit, unfit = b.if_else(b.compare("eq", wrong, b.i64(0)))
            fit.store(self._called(fit, "call_taken", [slots], [ptr], i32)[0], result)
            for number, (each, value, place) in enumerate(zip(passed, arguments, places, strict=True)):
                unfit.store(value, place)
                by_address = each.kind in ("tensor", "tuple")
                unfit.store(value if by_address else place, unfit.gep(pointers, ptr, number))
            status = self._called(unfit, "call", [pointers, unfit.i64(len(passed))], [ptr, int_type(64)], i32)
            unfit.store(status[0], result)
            b.op("func.return", (), (b.load(i32, result),))

    def add_slots(self, prefix: str) -> None:
        """Add the function that Kiln itself calls."""
        self._passing(f"__kiln_slots_{prefix}", "call_slots", [ptr_type()], ptr_type())

    def add_tvm_ffi(self, name: str) -> None:
        """Add the function that TVM-FFI calls."""
        ptr = ptr_type()
        i32 = int_type(32)
        with context(), self._location:
            b, (_, *arguments) = self._begin(f"__tvm_ffi_{name}", [ptr, ptr, i32, ptr], i32)
            self._return_call(b, "call_by_tvm_ffi", arguments, [ptr, i32, ptr])

    def tell_tvm_ffi(self, name: str, words: str) -> None:
        """Add a function that returns a text to TVM-FFI, given its symbol."""
        ptr = ptr_type()
        i32 = int_type(32)
        with context(), self._location:
            b, arguments = self._begin(name, [ptr, ptr, i32, ptr], i32)
            global_(self._module, words, parsed_type("!llvm.array<1 x i8>"), None, linkage="external")
            self._return_call(b, "tell_tvm_ffi", [b.address_of(words), arguments[3]], [ptr, ptr])

    def add_torch(self, name: str) -> None:
        """Add the kernels that PyTorch calls and functions that register the operator, on loading and when called."""
        ptr = ptr_type()
        i32 = int_type(32)
        i64 = int_type(64)
        self._passing(f"kiln_torch_register_{name}", "register_torch", [])
        with context(), self._location:
            b, _ = self._begin(START, [], None)
            self._called(b, "register_torch", [], [], i32)
            b.op("func.return", (), ())
            declare(self._module, entry.prefix + "raise_in_torch", [ptr], [])
            for symbol, runs in ((KERNEL, 1), (META, 0)):
                b, arguments = self._begin(symbol, [ptr, i64, i64], None)
                words = self._called(b, "call_by_torch", [arguments[0], b.i32(runs)], [ptr, i32], ptr)
                b.call(entry.prefix + "raise_in_torch", [], words)
                b.op("func.return", (), ())

    def add_xla(self, name: str) -> None:
        """Add the function that XLA calls."""
        self._passing(f"kiln_xla_{name}", "call_by_xla", [ptr_type()], ptr_type())

    def object(self, processor: Processor) -> Object:
        """Compile the functions to an object."""
        text = lower_library(self._module, "thunks", [*self.names, *self._hidden])
        return read(jit.emit_object(jit.optimize(text, 1, processor), 1, processor))

    def _passing(self, name: str, callee: str, inputs: list[ir.Type], result: ir.Type | None = None) -> None:
        with context(), self._location:
            result = result or int_type(32)
            b, arguments = self._begin(name, inputs, result)
            self._return_call(b, callee, arguments, inputs, result)

    def _begin(self, name: str, inputs: list[ir.Type], result: ir.Type | None) -> tuple[Builder, list[ir.Value]]:
        (self._hidden if name in (KERNEL, META, START) else self.names).append(name)
        block = function(self._module, name, inputs, [result] if result else []).regions[0].blocks[0]
        return Builder(ir.InsertionPoint(block), self._location), list(block.arguments)

    def _return_call(
        self, b: Builder, name: str, arguments: list[ir.Value], inputs: list[ir.Type], result: ir.Type | None = None
    ) -> None:
        b.op("func.return", (), self._called(b, name, arguments, inputs, result or int_type(32)))

    def _called(
        self, b: Builder, name: str, arguments: list[ir.Value], inputs: list[ir.Type], result: ir.Type
    ) -> list[ir.Value]:
        """Call a shared function with the record."""
        callee = entry.prefix + name
        if callee not in self._declared:
            self._declared.add(callee)
            declare(self._module, callee, [ptr_type(), *inputs], [result])
        return list(b.call(callee, [result], [b.address_of(self._record), *arguments]).results)


def _take(
    b: Builder, signature: Signature, passed: Sequence[Parameter], arguments: Sequence[ir.Value], slots: ir.Value
) -> ir.Value:
    """Put arguments into the slots. Returns bits that are 0 if all match, so that one branch decides.

    `entry.call` takes the other calls: it says what is wrong, and reads tuples.
    """
    if any(each.kind == "tuple" for each in passed):
        return b.i64(1)
    i64 = int_type(64)
    slot = b.alloca(int_type(64))
    absent = b.i64(0)
    for each, value in zip(passed, arguments, strict=True):
        if each.kind == "tensor":
            null = b.compare("eq", b.value("llvm.ptrtoint", i64, (value,)), b.i64(0))
            absent = b.binary("ori", absent, b.value("arith.extui", i64, (null,)))
    b.store(absent, slot)
    there = b.if_(b.compare("eq", absent, b.i64(0)))
    wrong = there.i64(0)
    for record in signature.ambient:
        there.store(there.i64(0), there.byte_gep(slots, plan.Record.from_buffer_copy(record).slot))
    for each, value in zip(passed, arguments, strict=True):
        place = there.byte_gep(slots, plan.Record.from_buffer_copy(each.record).slot)
        if each.kind == "number":
            there.store(there.i64(0), place)
            there.store(value, place)
        elif each.kind == "stream":
            there.store(value, place)
        else:
            wrong = there.binary("ori", wrong, _take_tensor(there, each, value, place))
    there.store(wrong, slot)
    return b.load(i64, slot)


def _take_tensor(b: Builder, parameter: Parameter, value: ir.Value, place: ir.Value) -> ir.Value:
    """Read the address, dynamic extents and strides from a tensor's structure, as `entry.take_struct` does; of a
    pointer its address."""
    i64 = int_type(64)
    wrong = b.i64(0)
    offset = 8

    def forbid(number: ir.Value, bits: int) -> None:
        nonlocal wrong
        wrong = b.binary("ori", wrong, b.binary("andi", number, b.i64(bits)))

    data = b.value("llvm.ptrtoint", i64, (value,)) if parameter.kind == "pointer" else b.load(i64, value)
    forbid(data, plan.ArrayRecord.from_buffer_copy(parameter.record).alignment)
    b.store(data, place)
    for dynamic in plan.leaves_of(parameter.record):
        kind = dynamic.kind
        divisor = dynamic.number
        if kind == plan.STATIC:
            continue
        size = 8 if kind == plan.DYNAMIC64 else 4
        offset = -(-offset // size) * size
        leaf = b.load(int_type(8 * size), b.byte_gep(value, offset))
        leaf = leaf if size == 8 else b.value("arith.extsi", i64, (leaf,))
        offset = offset + size
        place = b.byte_gep(place, 8)
        b.store(leaf, place)
        forbid(leaf, -1 << 63)
        is_power = divisor & (divisor - 1) == 0
        forbid(leaf if is_power else b.binary("remui", leaf, b.i64(divisor)), divisor - 1 if is_power else -1)
    return wrong


def _c_type(parameter: Parameter) -> ir.Type:
    """Return the type in which C passes a parameter."""
    if parameter.kind != "number":
        return ptr_type()
    name = c_number(parameter.about["type"])
    return parsed_type(_TYPES[name]) if name in _TYPES else int_type(8 * _bytes(name))


def _bytes(name: str) -> int:
    return int("".join(filter(str.isdigit, name))) // 8
