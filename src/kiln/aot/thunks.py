"""The functions of an exported object that have names: each hands a function's record to the code that all share (`entry.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..mlir import context, ir
from ..targets.host import jit
from ..targets.host.elf import Object, read
from ..targets.host.lower import lower_library
from ..targets.lowering.builder import Builder, declare, function, global_, int_type, parsed_type, ptr_type
from .entry import entry
from .signature import c_number

if TYPE_CHECKING:
    from ..targets.host.jit import Processor
    from .signature import Parameter, Signature

KERNEL, META, START = "kiln_torch_kernel", "kiln_torch_meta", "kiln_torch_start"
"""Functions that nobody finds by their names."""
_TYPES = {"float": "f32", "double": "f64"}


class Thunks:
    """Functions for one function's record, whose symbol is `record`, with a field at `error_at` for texts."""

    def __init__(self, record: str, error_at: int) -> None:
        self._record, self._error_at = record, error_at
        self._location = ir.Location.unknown(context())
        self.names: list[str] = []
        """Those that others see."""
        self._hidden: list[str] = []
        with context(), self._location:
            self._module = ir.Module.create()
            global_(self._module, record, parsed_type("!llvm.array<8 x i8>"), None, linkage="external")
            self._declared: set[str] = set()

    def add_c(self, prefix: str, signature: Signature) -> None:
        """What C programs call."""
        ptr, i32 = ptr_type(), int_type(32)
        self._passing(f"{prefix}_Kernel_Module_Load", "load", [ptr])
        self._passing(f"{prefix}_Kernel_Module_Unload", "unload", [ptr])
        self._passing(f"__kiln_packed_{prefix}", "packed", [ptr, i32])
        with context(), self._location:
            b, _ = self._begin(f"{prefix}_Kernel_Module_Error", [ptr], ptr)
            b.op("func.return", (), (b.byte_gep(b.address_of(self._record), self._error_at),))
            passed = [each for each in signature.parameters if each.is_in_c]
            b, (_, *given) = self._begin(f"cute_dsl_{prefix}_wrapper", [ptr, *(_c_type(each) for each in passed)], i32)
            pointers = b.alloca(ptr, max(len(passed), 1))
            for number, (each, value) in enumerate(zip(passed, given, strict=True)):
                place = value
                if each.kind not in ("tensor", "tuple"):
                    place = b.alloca(value.type)
                    b.store(value, place)
                b.store(place, b.gep(pointers, ptr, number))
            self._return_call(b, "call", [pointers, b.i64(len(passed))], [ptr, int_type(64)])

    def add_slots(self, prefix: str) -> None:
        """What Kiln itself calls."""
        self._passing(f"__kiln_slots_{prefix}", "call_slots", [ptr_type()], ptr_type())

    def add_tvm_ffi(self, name: str) -> None:
        """What TVM-FFI calls."""
        ptr, i32 = ptr_type(), int_type(32)
        with context(), self._location:
            b, (_, *given) = self._begin(f"__tvm_ffi_{name}", [ptr, ptr, i32, ptr], i32)
            self._return_call(b, "call_by_tvm_ffi", given, [ptr, i32, ptr])

    def tell_tvm_ffi(self, name: str, words: str) -> None:
        """A function that gives TVM-FFI a text, by the text's symbol."""
        ptr, i32 = ptr_type(), int_type(32)
        with context(), self._location:
            b, given = self._begin(name, [ptr, ptr, i32, ptr], i32)
            global_(self._module, words, parsed_type("!llvm.array<1 x i8>"), None, linkage="external")
            self._return_call(b, "tell_tvm_ffi", [b.address_of(words), given[3]], [ptr, ptr])

    def add_torch(self, name: str) -> None:
        """What PyTorch calls (`KERNEL`, `META`), and what registers the function: where a library is loaded (`START`), or when asked to."""
        ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
        self._passing(f"kiln_torch_register_{name}", "register_torch", [])
        with context(), self._location:
            b, _ = self._begin(START, [], None)
            self._called(b, "register_torch", [], [], i32)
            b.op("func.return", (), ())
            declare(self._module, entry.prefix + "raise_in_torch", [ptr], [])
            for symbol, runs in ((KERNEL, 1), (META, 0)):
                b, given = self._begin(symbol, [ptr, i64, i64], None)
                words = self._called(b, "call_by_torch", [given[0], b.i32(runs)], [ptr, i32], ptr)
                b.call(entry.prefix + "raise_in_torch", [], words)
                b.op("func.return", (), ())

    def add_xla(self, name: str) -> None:
        """What XLA calls."""
        self._passing(f"kiln_xla_{name}", "call_by_xla", [ptr_type()], ptr_type())

    def object(self, processor: Processor) -> Object:
        """All of them."""
        text = lower_library(self._module, "thunks", [*self.names, *self._hidden])
        return read(jit.emit_object(jit.optimize(text, 2, processor), 2, processor))

    def _passing(self, name: str, callee: str, inputs: list[ir.Type], result: ir.Type | None = None) -> None:
        with context(), self._location:
            result = result or int_type(32)
            b, given = self._begin(name, inputs, result)
            self._return_call(b, callee, given, inputs, result)

    def _begin(self, name: str, inputs: list[ir.Type], result: ir.Type | None) -> tuple[Builder, list[ir.Value]]:
        (self._hidden if name in (KERNEL, META, START) else self.names).append(name)
        block = function(self._module, name, inputs, [result] if result else []).regions[0].blocks[0]
        return Builder(ir.InsertionPoint(block), self._location), list(block.arguments)

    def _return_call(
        self, b: Builder, name: str, given: list[ir.Value], inputs: list[ir.Type], result: ir.Type | None = None
    ) -> None:
        b.op("func.return", (), self._called(b, name, given, inputs, result or int_type(32)))

    def _called(
        self, b: Builder, name: str, given: list[ir.Value], inputs: list[ir.Type], result: ir.Type
    ) -> list[ir.Value]:
        """The result of a function that all share, given the record."""
        callee = entry.prefix + name
        if callee not in self._declared:
            self._declared.add(callee)
            declare(self._module, callee, [ptr_type(), *inputs], [result])
        return list(b.call(callee, [result], [b.address_of(self._record), *given]).results)


def _c_type(parameter: Parameter) -> ir.Type:
    """How C passes a parameter."""
    if parameter.kind != "number":
        return ptr_type()
    name = c_number(parameter.about["type"])
    return parsed_type(_TYPES[name]) if name in _TYPES else int_type(8 * _bytes(name))


def _bytes(name: str) -> int:
    return int("".join(filter(str.isdigit, name))) // 8
