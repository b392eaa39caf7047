"""Instructions on the bits of words."""

from __future__ import annotations

from typing import TypeVar

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Float32, Int32, Integer, Uint32
from .inline_assembly import instruction
from .values import kernel_only, number

__all__ = ["add_sat_int", "bfe", "bfi", "bfind", "brev", "cvt_f32_tf32", "mad24", "mul24", "shf", "sub_sat_int"]

N = TypeVar("N", bound=Integer)


def _word(what: str, value: N | int, widths: tuple[int, ...] = (32, 64)) -> N:
    """Return an operand as an integer of one of some widths."""
    kernel_only(what)
    word = number(value)
    kind = type(word)
    if not isinstance(word, Integer) or kind.width not in widths:
        raise type_error(f"{what}() takes integers of {' or '.join(map(str, widths))} bits, not {kind.__name__}")
    return word  # pyright: ignore[reportReturnType]


def _typed(word: Integer, letter: str = "") -> str:
    """Return the PTX type of an integer, such as u32; with a letter, of that kind."""
    kind = type(word)
    return f"{letter or ('s' if kind.signed else 'u')}{kind.width}"


def brev(value: N, *, loc: object = None, ip: object = None) -> N:
    """Return `value`, an integer of 32 or 64 bits, with its bits in reverse order."""
    word = _word("brev", value)
    return instruction(f"brev.{_typed(word, 'b')}", type(word), word)


def bfind(value: Integer, *, shiftamt: bool = False, loc: object = None, ip: object = None) -> Uint32:
    """Return the position of the highest bit of `value` that is set, or of a signed number that differs from its sign.

    If there is none it is 0xffffffff.

    Args:
        value: an integer of 32 or 64 bits.
        shiftamt: return how far left that bit has to be shifted to become the highest one.
    """
    word = _word("bfind", value)
    return instruction(f"bfind{'.shiftamt' * shiftamt}.{_typed(word)}", Uint32, word)


def bfe(value: N, pos: object, length: object, *, loc: object = None, ip: object = None) -> N:
    """Return the field of `length` bits of `value` that begins at bit `pos`; that of a signed number has its sign.

    Args:
        value: an integer of 32 or 64 bits.
        pos: where the field begins, 0 to 255; bits beyond the highest are 0, or copies of the sign.
        length: how many bits the field has, 0 to 255.
    """
    word = _word("bfe", value)
    return instruction(f"bfe.{_typed(word)}", type(word), word, Int32(pos), Int32(length))


def bfi(value: object, into: N, pos: object, length: object, *, loc: object = None, ip: object = None) -> N:
    """Return `into` with its field of `length` bits from bit `pos` on replaced by the lowest bits of `value`.

    Args:
        value: an integer, converted to the type of `into`.
        into: an integer of 32 or 64 bits.
        pos: where the field begins, 0 to 255.
        length: how many bits the field has, 0 to 255.
    """
    word = _word("bfi", into)
    kind = type(word)
    return instruction(f"bfi.{_typed(word, 'b')}", kind, kind(value), word, Int32(pos), Int32(length))


def shf(
    lo: N, hi: object, shift: object, *, direction: str = "l", mode: str = "wrap", loc: object = None, ip: object = None
) -> N:
    """Return a word of the 64 bits of `lo` and `hi` shifted: the upper one to the left, the lower one to the right.

    Args:
        lo: the lower word.
        hi: the upper word.
        shift: by how many bits.
        direction: "l" or "r".
        mode: "wrap" takes the shift modulo 32, "clamp" takes 32 at most.
    """
    word = _word("shf", lo, (32,))
    if direction not in ("l", "r") or mode not in ("wrap", "clamp"):
        raise type_error(f"shf() with direction={direction!r}, mode={mode!r}", '"l" or "r", "wrap" or "clamp"')
    kind = type(word)
    return instruction(f"shf.{direction}.{mode}.b32", kind, word, kind(hi), Int32(shift))


def mul24(a: N, b: object, *, hi: bool = False, loc: object = None, ip: object = None) -> N:
    """Multiply the lower 24 bits of `a` and `b`, and return bits 0 to 31, or (`hi`) bits 16 to 47, of the 48.

    Args:
        a: an integer of 32 bits.
        b: an integer, converted to the type of `a`.
        hi: return the upper bits.
    """
    word = _word("mul24", a, (32,))
    return instruction(f"mul24.{'hi' if hi else 'lo'}.{_typed(word)}", type(word), word, type(word)(b))


def mad24(a: N, b: object, c: object, *, hi: bool = False, loc: object = None, ip: object = None) -> N:
    """Return `mul24` of `a` and `b` plus `c`.

    Args:
        a: an integer of 32 bits.
        b: an integer, converted to the type of `a`.
        c: an integer, converted to the type of `a`.
        hi: add to bits 16 to 47.
    """
    word = _word("mad24", a, (32,))
    kind = type(word)
    return instruction(f"mad24.{'hi' if hi else 'lo'}.{_typed(word)}", kind, word, kind(b), kind(c))


def add_sat_int(a: object, b: object, *, loc: object = None, ip: object = None) -> Int32:
    """Return `a` + `b`, two Int32, clamped to the numbers of an Int32."""
    kernel_only("add_sat_int")
    return instruction("add.sat.s32", Int32, Int32(a), Int32(b))


def sub_sat_int(a: object, b: object, *, loc: object = None, ip: object = None) -> Int32:
    """Return `a` - `b`, two Int32, clamped to the numbers of an Int32."""
    kernel_only("sub_sat_int")
    return instruction("sub.sat.s32", Int32, Int32(a), Int32(b))


def cvt_f32_tf32(
    value: object, *, rnd: str = "rna", relu: bool = False, loc: object = None, ip: object = None
) -> Int32:
    """Return `value`, a Float32, rounded to TFloat32, as a word.

    Args:
        value: a Float32.
        rnd: how to round: "rna" (to nearest, ties away from zero), "rn" (ties to even) or "rz" (sm_90).
        relu: make negative numbers zero; not with "rna".
    """
    kernel_only("cvt_f32_tf32")
    if rnd not in ("rna", "rn", "rz") or (relu and rnd == "rna"):
        raise type_error(f"cvt_f32_tf32() rounded by {rnd!r}{' with relu' * relu}", '"rna", "rn" or "rz"')
    return instruction(f"cvt.{rnd}{'.relu' * relu}.tf32.f32", Int32, Float32(value))
