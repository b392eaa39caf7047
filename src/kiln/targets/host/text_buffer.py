"""Messages that native code writes into a caller's buffer, truncated at its end."""
# pyright: reportReturnType=false

from __future__ import annotations

from ...native import Ptr, extern, f64, i32, i64, local, native, struct, u8, u64

DECIMAL, UNSIGNED, HEXADECIMAL, REAL = b"duxg"
"""What `%` is followed by in a form."""


@struct
class Text:
    """What is written so far, with a zero after it."""

    memory: Ptr[u8]
    used: u64
    room: u64


@extern
def gcvt(number: f64, digits: i32, text: Ptr) -> Ptr: ...


@native
def begin(text: Ptr[Text], memory: Ptr, room: u64) -> None:
    """An empty text in some bytes of memory."""
    text.memory = Ptr[u8](memory)
    text.used = 0
    text.room = room
    text.memory[0] = 0


@native
def put_byte(text: Ptr[Text], byte: u8) -> None:
    if text.used + 1 < text.room:
        text.memory[text.used] = byte
        text.used += 1
        text.memory[text.used] = 0


@native
def put(text: Ptr[Text], words: Ptr) -> None:
    """Add a text that ends with a zero."""
    bytes_ = Ptr[u8](words)
    number = u64(0)
    if words != None:
        while bytes_[number] != 0:
            put_byte(text, bytes_[number])
            number += 1


@native
def put_digits(text: Ptr[Text], number: u64, base: u64) -> None:
    digits = local(u8, 24)
    count = i32(0)
    rest = number
    while rest != 0 or count == 0:
        digit = rest % base
        digits[count] = u8(digit + 48 if digit < 10 else digit + 87)
        rest = rest // base
        count += 1
    while count > 0:
        count -= 1
        put_byte(text, digits[count])


@native
def put_number(text: Ptr[Text], number: i64) -> None:
    if number < 0:
        put_byte(text, 45)
        put_digits(text, u64(0) - u64(number), 10)
    else:
        put_digits(text, u64(number), 10)


@native
def put_real(text: Ptr[Text], bits: i64) -> None:
    memory = local(u8, 40)
    number = local(i64)
    number[0] = bits
    put(text, gcvt(Ptr[f64](number)[0], 6, memory))


@native
def put_form(text: Ptr[Text], form: Ptr, numbers: Ptr[i64]) -> None:
    """Add a text in which `%d`, `%u`, `%x` and `%g` stand for the numbers, in order, and `%%` for a percent sign."""
    bytes_ = Ptr[u8](form)
    at = u64(0)
    taken = i32(0)
    while bytes_[at] != 0:
        kind = bytes_[at]
        at += 1
        if kind != 37 or bytes_[at] == 0:
            put_byte(text, kind)
        else:
            kind = bytes_[at]
            at += 1
            if kind == 37:
                put_byte(text, kind)
            else:
                number = numbers[taken]
                taken += 1
                if kind == DECIMAL:
                    put_number(text, number)
                elif kind == UNSIGNED:
                    put_digits(text, u64(number), 10)
                elif kind == HEXADECIMAL:
                    put_digits(text, u64(number), 16)
                else:
                    put_real(text, number)
