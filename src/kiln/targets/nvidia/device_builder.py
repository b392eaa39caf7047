"""Builder of device code: address spaces, inline PTX, values as registers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...dialects.declaration import OpView
from ...dialects.definition import constant
from ...hardware.features import Feature
from ...mlir import context, ir
from ...ptx.form import Form, Place
from ..lowering.arithmetic import element_of
from ..lowering.builder import Builder, constant_value, gep_parts, int_type, parsed_type, ptr_type, struct_type
from ..lowering.expansion import Handlers
from ..lowering.memory import carrier_type, from_carrier, to_carrier
from .inline_ptx import Literal, Result, Written, inline_ptx

if TYPE_CHECKING:
    from .expand import Expander


def pointer_type(space: int) -> ir.Type:
    """Return the LLVM pointer of an address space."""
    return parsed_type(f"!llvm.ptr<{space}>") if space else ptr_type()


class DeviceBuilder(Builder):
    """A builder whose pointers keep their address space."""

    def gep(self, pointer: ir.Value, element: ir.Type, offset: ir.Value | int) -> ir.Value:
        operands, attributes = gep_parts(pointer, element, offset)
        return self.value("llvm.getelementptr", pointer.type, operands, attributes)

    def field(self, pointer: ir.Value, struct: ir.Type, index: int) -> ir.Value:
        address = super().field(pointer, struct, index)
        address.set_type(pointer.type)
        return address

    def address_in(self, symbol: str, space: int) -> ir.Value:
        """Return the address of a global variable of an address space."""
        name = ir.FlatSymbolRefAttr.get(symbol, context())
        return self.value("llvm.mlir.addressof", pointer_type(space), (), {"global_name": name})

    def hidden(self, address: ir.Value) -> ir.Value:
        """Return an address as a value that is opaque to LLVM.

        LLVM adds constants last, also addresses. ptxas prefers values that are uniform over threads (the start and the
        offset of a buffer) to be added first: their sum is then a uniform register, which the access itself adds.
        """
        number = self.value("llvm.ptrtoint", int_type(32), (address,))
        (hidden,) = self.asm("mov.b32 $0, $1;", "=r,r", [number], [int_type(32)], pure=True)
        return self.value("llvm.inttoptr", pointer_type(3), (hidden,))

    def cast_space(self, pointer: ir.Value, type_: ir.Type) -> ir.Value:
        """Return a pointer as one of another address space."""
        if pointer.type == type_:
            return pointer
        if "<" in str(pointer.type) and "<" in str(type_):  # from one space to another: by way of the generic one
            pointer = self.value("llvm.addrspacecast", ptr_type(), (pointer,))
        return self.value("llvm.addrspacecast", type_, (pointer,))

    def asm(
        self,
        code: str,
        constraints: str,
        operands: Sequence[ir.Value] = (),
        results: Sequence[ir.Type] = (),
        *,
        pure: bool = False,
    ) -> list[ir.Value]:
        """Emit inline PTX; `$0` is the first result. Unless pure it may access memory, and is never moved or
        removed."""
        attributes = _asm_attributes(code, constraints, pure)
        if len(results) < 2:
            assembly = self.op("llvm.inline_asm", results, operands, attributes)
            return list(assembly.results)
        struct = self.op("llvm.inline_asm", [struct_type(results)], operands, attributes).result
        return [self.extract(struct, type_, number) for number, type_ in enumerate(results)]

    def ptx(
        self, form: Form, results: Sequence[ir.Type] = (), *, pure: bool = False, around: str = "%s", **parts: object
    ) -> list[ir.Value]:
        """Emit an instruction, and return its destinations.

        `parts` are the fields and operands of its form by name. An operand is a value, or a number or a name that is
        written as it is; a list for a vector. Destinations that are not among them are the results; a predicate becomes
        an i32. `around` is the text around the instruction, with `%s` in its place.
        """
        assert form.names >= parts.keys(), f"{form} has no {parts.keys() - form.names}"
        values: list[ir.Value] = []
        written = tuple(self._written(form, place, parts.get(place.name), values) for place in form.places)
        fields = tuple((name, parts.get(name)) for name in form.fields if name not in form.place_names)
        letters = tuple(_letter(type_) for type_ in results)
        return self.asm(*inline_ptx(form, fields, written, letters, around), values, results, pure=pure)

    def _written(self, form: Form, place: Place, value: object, values: list[ir.Value]) -> Written:
        """Return how an operand is written, and add its registers to `values`."""
        if value is None or value is False:
            return Result() if place.out else None
        if place not in form.lists and isinstance(value, (list, tuple)):  # operands of which there is none or one
            value = next(iter(value), None)
            return None if value is None else self._register(place, value, values)
        if isinstance(value, (list, tuple)):
            return tuple(self._register(place, each, values) for each in value)
        return self._register(place, value, values)

    def _register(self, place: Place, value: Any, values: list[ir.Value]) -> str | Literal:
        if isinstance(value, (int, str)):
            return Literal(str(value))
        if place.type == "pred":
            number = constant(value)
            if number is not None:
                return Literal(str(int(bool(number))))
            value = self.value("arith.extui", int_type(32), (value,))
        elif place.type in _ADDRESSES and not isinstance(value.type, ir.IntegerType):
            value = _ADDRESSES[place.type](self, value)
        values.append(value)
        return _letter(value.type)


@functools.lru_cache(maxsize=1024)
def _asm_attributes(code: str, constraints: str, pure: bool) -> dict[str, ir.Attribute]:
    constraints = constraints if pure else f"{constraints},~{{memory}}".lstrip(",")
    attributes: dict[str, ir.Attribute] = {
        "asm_string": ir.StringAttr.get(code, context()),
        "constraints": ir.StringAttr.get(constraints, context()),
    }
    if not pure:
        attributes["has_side_effects"] = ir.UnitAttr.get(context())
    return attributes


def prints(
    handlers: Handlers,
    forms: Mapping[type[OpView], Form],
    feature: Feature | None = None,
    what: str = "",
    **fixed: object,
) -> None:
    """Enter handlers of operations that are one instruction, whose fields and operands have the operation's names.

    `fixed` are fields that the operation does not have. `feature` and `what` are as in `Expander.require`.
    """

    def expand(x: Any, op: OpView, b: DeviceBuilder) -> list[ir.Value]:
        if feature is not None:
            x.require(op, feature, what)
        form = forms[type(op)]
        results = [result.type for result in op.operation.results]
        return b.ptx(form, results, **fixed, **parts_of(op, form))

    handlers.expands(*forms)(expand)


def printed(operations: Iterable[type[OpView]]) -> Handlers:
    """Return handlers of the operations that state their instruction themselves. Vectors are taken apart."""
    handlers = Handlers()

    def expand(x: Expander, op: OpView, b: DeviceBuilder) -> list[ir.Value]:
        x.require_needs(op)
        form = op.PTX[0] if len(op.PTX) == 1 else next(form for form in op.PTX if _takes_operands(form, op))
        parts = parts_of(op, form)
        for place in form.lists:
            if isinstance(value := parts.get(place.name), ir.Value):
                parts[place.name] = x.elements(b, value)
        return b.ptx(form, [result.type for result in op.operation.results], **parts)

    handlers.expands(*(operation for operation in operations if operation.PTX))(expand)
    return handlers


def _takes_operands(form: Form, op: OpView) -> bool:
    """Return whether a form has registers of the widths that the operation's integers have."""
    for place in form.places:
        if place.name in op.OPERANDS:
            type_: ir.Type = getattr(op, place.name).type
            if isinstance(type_, ir.IntegerType) and (type_.width == 64) != place.type.endswith("64"):
                return False
    return True


def literal(value: ir.Value) -> ir.Value | int:
    """Return a constant as the number that it is."""
    return constant_value(value, value)


_SWITCHES = {"mask": "multicast", "policy": "hint"}
"""Attributes that say whether an operand counts."""


def parts_of(op: OpView, form: Form) -> dict[str, Any]:
    """Return the fields and operands of a form that an operation has by the same names."""
    kind = vars(type(op))
    parts: dict[str, Any] = {}
    for name in form.names:
        if name in kind:
            switch = _SWITCHES.get(name, "")
            parts[name] = getattr(op, name) if switch not in kind or getattr(op, switch) else None
    return parts


@functools.lru_cache(maxsize=64)
def _letter(type_: ir.Type) -> str:
    """Return the constraint letter of a register that holds a value of a type."""
    return {"i16": "h", "i32": "r", "f32": "f", "f64": "d", "!llvm.ptr<3>": "r"}.get(str(type_), "l")


def f32() -> ir.Type:
    """Return the type of floats of 32 bits."""
    return ir.F32Type.get(context())


REGISTER = {16: "h", 32: "r", 64: "l"}
"""Constraint letters of integer registers."""


def is_float(type_: ir.Type) -> bool:
    """Return whether a type is a float, or a vector of them."""
    return isinstance(element_of(type_), ir.FloatType)


def bits_of(type_: ir.Type) -> int:
    """Return the bits of a number or a vector."""
    element = element_of(type_)
    count = type_.shape[0] if isinstance(type_, ir.VectorType) else 1
    return count * element.width


def as_bits(b: DeviceBuilder, value: ir.Value) -> ir.Value:
    """Return a value as an integer of its width."""
    value = to_carrier(b, value)
    want = int_type(bits_of(value.type))
    return value if value.type == want else b.value("llvm.bitcast", want, (value,))


def from_bits(b: DeviceBuilder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Return the inverse of `as_bits`."""
    carrier = carrier_type(type_)
    if value.type != carrier:
        value = b.value("llvm.bitcast", carrier, (value,))
    return from_carrier(b, value, type_)


def shared_address(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    """Return a shared-memory pointer as its address of 32 bits."""
    return b.value("llvm.ptrtoint", int_type(32), (b.cast_space(pointer, pointer_type(3)),))


def cluster_address(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    """Return the 32-bit address of a pointer into the shared memory of any block of the cluster, also the own one."""
    if pointer.type != ptr_type():
        return shared_address(b, pointer)
    code = "{ .reg .b64 t; cvta.to.shared::cluster.u64 t, $1; cvt.u32.u64 $0, t; }"
    return b.asm(code, "=r,l", [b.value("llvm.ptrtoint", int_type(64), (pointer,))], [int_type(32)], pure=True)[0]


_ADDRESSES = {
    "shared": shared_address,
    "cluster": cluster_address,
    "global": lambda b, pointer: b.cast_space(pointer, pointer_type(1)),
    "generic": lambda b, pointer: b.cast_space(pointer, ptr_type()),
}
"""How a pointer becomes an address of a state space, by the type of an operand."""


def special_register(b: Builder, name: str) -> ir.Value:
    """Return a 32-bit special register by its PTX name."""
    return b.value(f"nvvm.read.ptx.sreg.{name}", int_type(32))


def l2_policy(b: DeviceBuilder, name: str) -> ir.Value:
    """Return the policy of the L2 cache that a hint such as `L2::evict_last` stands for."""
    (policy,) = b.asm(f"createpolicy.fractional.{name}.b64 $0, 1.0;", "=l", [], [int_type(64)], pure=True)
    return policy
