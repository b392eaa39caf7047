"""PTX written by the user. NVIDIA target only."""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Numeric
from ..deferred_dialects import cute
from ..tensor.pointer import Pointer, from_ir
from .values import i1, kernel_only, number

__all__ = ["inline_ptx"]

N = TypeVar("N", bound=Numeric)

_LETTERS = {(16, False): "h", (32, False): "r", (64, False): "l", (16, True): "h", (32, True): "f", (64, True): "d"}


def _letter(kind: type[Numeric]) -> str:
    letter = _LETTERS.get((kind.width, bool(kind.is_float)))
    if letter is None:
        raise type_error(f"inline_ptx() has no register for {kind.__name__}", "numbers of 16, 32 or 64 bits")
    return letter


def inline_ptx(
    ptx_code: str,
    *,
    write_only_types: Any = None,
    read_only_args: Any = None,
    read_write_args: Any = None,
    predicate: object = None,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Emit PTX, and return what it wrote, if anything: a number, or a tuple of them.

    The code names operands `{$w0}` (written), `{$r0}` (read) and `{$rw0}` (both); `$0`, `$1`, ... also work, first the
    written ones, then those read and written, then those read. Operands have 16, 32 or 64 bits. A pointer that is read stands
    for its address: 32 bits in shared memory, of this CTA or the cluster, and in tensor memory, else 64.

    Args:
        ptx_code: the instructions, each with its semicolon.
        write_only_types: the types of the operands that it writes.
        read_only_args: the values that it reads.
        read_write_args: the values that it reads and replaces; the new ones are returned.
        predicate: a Boolean; threads where it is false skip the code.
    """
    kernel_only("inline_ptx")
    both = [number(v) for v in read_write_args or []]
    reads = [_read(v) for v in read_only_args or []]
    return _assembly(ptx_code, list(write_only_types or []), both, reads, predicate)


def _read(value: object) -> Numeric:
    type_ = getattr(value, "type", None)
    if type_ is not None and cute.is_ptr(type_):
        value = from_ir(cast("ir.Value", value))
    return value.toint() if isinstance(value, Pointer) else number(value)


def instruction(opcode: str, result: type[N], *operands: Numeric) -> N:
    """Return what a PTX instruction computes from its operands alone, as a number of the type `result`."""
    places = "".join(f", {{$r{n}}}" for n in range(len(operands)))
    return assembly(f"{opcode} {{$w0}}{places};", result, *operands)


def assembly(ptx_code: str, result: type[N], *operands: Numeric) -> N:
    """Return what PTX computes from its operands alone: LLVM may move it, and drops it where nothing uses the result."""
    return _assembly(ptx_code, [result], [], list(operands), None, pure=True)


def _assembly(
    ptx_code: str,
    writes: list[type[Numeric]],
    both: list[Numeric],
    reads: list[Numeric],
    predicate: object,
    pure: bool = False,
) -> Any:
    results = [*writes, *(type(v) for v in both)]
    count = len(results)

    # read-write operands are results, tied to inputs that come first among the inputs
    names = {f"w{n}": n for n in range(len(writes))} | {f"rw{n}": len(writes) + n for n in range(len(both))}
    names |= {f"r{n}": count + len(both) + n for n in range(len(reads))}

    def place(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in names:
            raise type_error(f"inline_ptx() has no operand {{${name}}}", f"operands: {', '.join(names)}")
        return f"${names[name]}"

    code = re.sub(r"\{\$(\w+)\}", place, ptx_code)
    constraints = [f"={_letter(kind)}" for kind in results]
    constraints += [str(len(writes) + n) for n in range(len(both))] + [_letter(type(v)) for v in reads]
    operands = [v.ir_value() for v in (*both, *reads)]
    if predicate is not None:
        operands.append(i1(predicate))
        constraints.append("b")
        code = f"@${count + len(operands) - 1} {code}"
    types = [kind.mlir_type for kind in results]
    attributes: dict[str, ir.Attribute] = {"asm_string": ir.StringAttr.get(code)}
    if not pure:
        constraints.append("~{memory}")
        attributes["has_side_effects"] = ir.UnitAttr.get()
    attributes["constraints"] = ir.StringAttr.get(",".join(constraints))
    if not types:
        tracing.emit("llvm.inline_asm", (), operands, attributes)
        return None
    if len(types) == 1:
        return results[0]._make(tracing.emit_value("llvm.inline_asm", types[0], operands, attributes))
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(map(str, types))})>")
    struct_ = tracing.emit_value("llvm.inline_asm", struct, operands, attributes)
    return tuple(
        kind._make(
            tracing.emit_value("llvm.extractvalue", type_, (struct_,), {"position": ir.DenseI64ArrayAttr.get([n])})
        )
        for n, (kind, type_) in enumerate(zip(results, types, strict=True))
    )
