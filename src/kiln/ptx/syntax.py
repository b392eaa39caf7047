"""Reading the text of inline PTX: statements, operands, register declarations. No meaning, no target."""

from __future__ import annotations

import dataclasses
import re


class PtxSyntaxError(ValueError):
    """Text that is no PTX."""


@dataclasses.dataclass(frozen=True)
class Register:
    """A register by its name: `p1`, `%tid.x`, `$0` for an operand of the inline assembly. `negated`: `!p`."""

    name: str
    negated: bool = False


@dataclasses.dataclass(frozen=True)
class Immediate:
    """A number in the text. `bits` are those of a float written as one (`0f3F800000`, `1.5`), with its width."""

    value: int | float
    width: int = 0
    """0: an integer, as wide as the instruction; 32 or 64: bits of a float; -1: a decimal float."""


@dataclasses.dataclass(frozen=True)
class Vector:
    """`{a, b}`."""

    parts: tuple[Operand, ...]


@dataclasses.dataclass(frozen=True)
class Address:
    """`[base + offset]`."""

    base: Operand
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Pair:
    """`d|p`: two destinations."""

    first: Operand
    second: Operand


Operand = Register | Immediate | Vector | Address | Pair


@dataclasses.dataclass(frozen=True)
class Statement:
    """One instruction: `@guard name.modifier.modifier operand, ...`, and its text."""

    text: str
    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None = None

    def one_of(self, *modifiers: str) -> str:
        """Return the first modifier that is one of some; empty if none is."""
        return next((part for part in self.modifiers if part in modifiers), "")

    def starts(self, *prefixes: str) -> str:
        """Return the first modifier that begins with one of some prefixes; empty if none does."""
        return next((part for part in self.modifiers if part.startswith(prefixes)), "")


@dataclasses.dataclass(frozen=True)
class Label:
    """`name:`"""

    name: str


@dataclasses.dataclass
class Program:
    """The statements of inline PTX, and the declared registers with their types (`b32`, `pred`)."""

    statements: list[Statement | Label]
    registers: dict[str, str]
    vectors: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """The elements of declared vectors, which are registers as well."""
    outside: set[str] = dataclasses.field(default_factory=set)
    """The registers declared outside of braces, which all later inline PTX of the function has, too."""


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NAME = re.compile(r"(?:%|\$|[A-Za-z_])[\w$%.]*(?:::\w+)*$")
_GUARD = re.compile(r"@(!?)\s*([%$\w.]+)\s+")
_REG = re.compile(r"\.reg\s+(?:\.v([24])\s+)?\.(\w+)\s+(.*)", re.DOTALL)
_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$%{}:]*?)\s*:(?!:)\s*")


def parse(text: str) -> Program:
    """Read inline PTX. Raises `PtxSyntaxError`."""
    text = _COMMENT.sub(" ", text).replace("$$", "$")
    program = Program([], {})
    for piece, scopes in _pieces(text):
        before = set(program.registers)
        _read(piece, program)
        if scopes == 0:
            program.outside |= program.registers.keys() - before
    return program


def _pieces(text: str) -> list[tuple[str, int]]:
    """Cut at semicolons; braces that open and close scopes are left out, those of vectors stay.

    With each piece comes the number of scopes around it.
    """
    pieces: list[tuple[str, int]] = []
    start = depth = scopes = 0
    for index, char in enumerate(text):
        if char == "{":
            # a scope opens where a statement would start
            if not text[start:index].strip() and depth == 0:
                start = index + 1
                scopes += 1
            else:
                depth += 1
        elif char == "}":
            if depth:
                depth -= 1
            else:
                before = text[start:index].strip()
                if before.endswith(":"):  # a label at the end of a scope
                    pieces.append((before, scopes))
                elif before:
                    raise PtxSyntaxError(f"expected ';' after {before!r}")
                start = index + 1
                scopes -= 1
        elif char == ";" and depth == 0:
            pieces.append((text[start:index].strip(), scopes))
            start = index + 1
    pieces.append((text[start:].strip(), scopes))
    return [piece for piece in pieces if piece[0]]


def _read(piece: str, program: Program) -> None:
    label = _LABEL.match(piece)
    while label:
        program.statements.append(Label(label.group(1)))
        piece = piece[label.end() :]
        label = _LABEL.match(piece)
    if not piece:
        return
    declared = _REG.match(piece)
    if declared:
        count, kind, names = declared.groups()
        for name in _split(names):
            if count:  # a vector: its elements are registers, `v.x` to `v.w`
                program.vectors[name] = tuple(f"{name}.{axis}" for axis in "xyzw"[: int(count)])
                program.registers.update(dict.fromkeys(program.vectors[name], kind))
                continue
            many = re.fullmatch(r"([%\w]+)<(\d+)>", name)
            if many:
                for number in range(int(many.group(2))):
                    program.registers[f"{many.group(1)}{number}"] = kind
            else:
                program.registers[name] = kind
        return
    guard = None
    text = piece
    guarded = _GUARD.match(piece)
    if guarded:
        guard = Register(guarded.group(2), bool(guarded.group(1)))
        piece = piece[guarded.end() :]
    name, _, rest = piece.partition(" ") if " " in piece.split("\n")[0] else _first_word(piece)
    root, *modifiers = name.strip().split(".")
    if not re.fullmatch(r"[a-z]\w*", root):
        raise PtxSyntaxError(f"{text!r} does not start with an instruction")
    operands = tuple(_whole_vector(_operand(part), program.vectors) for part in _split(rest))
    program.statements.append(Statement(" ".join(text.split()), root, tuple(modifiers), operands, guard))


def _whole_vector(operand: Operand, vectors: dict[str, tuple[str, ...]]) -> Operand:
    """Return the elements of a vector register, where an operand is one."""
    if isinstance(operand, Register) and operand.name in vectors:
        return Vector(tuple(map(Register, vectors[operand.name])))
    return operand


def _first_word(piece: str) -> tuple[str, str, str]:
    parts = piece.split(None, 1)
    return parts[0], " ", parts[1] if len(parts) > 1 else ""


def _split(text: str) -> list[str]:
    """Cut at commas outside of braces and brackets."""
    parts: list[str] = []
    depth = 0
    current = ""
    for char in text:
        if char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    if depth:
        raise PtxSyntaxError(f"brackets do not match in {text!r}")
    if current.strip():
        parts.append(current.strip())
    return parts


def _operand(text: str) -> Operand:
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        return Vector(tuple(_operand(part) for part in _split(text[1:-1])))
    if text.startswith("["):
        inside = text[1:-1].strip()
        parts = _split(inside)
        if len(parts) > 1:
            return Address(Vector(tuple(_operand(part) for part in parts)))
        base, sign, offset = inside.partition("+")
        return Address(_operand(base), int(offset.strip(), 0) if sign else 0)
    if "|" in text:
        first, _, second = text.partition("|")
        return Pair(_operand(first), _operand(second))
    if text.startswith("!"):
        return Register(text[1:].strip(), True)
    number = _number(text)
    if number is not None:
        return number
    braced = re.fullmatch(r"\$\{(\d+)(?::\w+)?\}", text)
    if braced:
        return Register(f"${braced.group(1)}")
    if not _NAME.match(text):
        raise PtxSyntaxError(f"{text!r} is no operand")
    return Register(text)


def _number(text: str) -> Immediate | None:
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        return Immediate(int(text[2:], 16), 32)
    if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", text):
        return Immediate(int(text[2:], 16), 64)
    if re.fullmatch(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?", text):
        return Immediate(
            int(text.rstrip("U"), 0) if not re.fullmatch(r"[+-]?0\d+U?", text) else int(text.rstrip("U"), 8)
        )
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?", text):
        return Immediate(float(text), -1)
    return None
