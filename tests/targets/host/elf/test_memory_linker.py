"""Relocations of the other architecture, decoded as its manual says; those of this one are used in `test_runtime_files.py`."""

from __future__ import annotations

import ctypes
import random

import pytest

import kiln.targets.host.jit  # noqa: F401 - it compiles native functions that Python calls
from kiln.targets.host.elf import memory_linker
from kiln.targets.host.elf.memory_linker import DAMAGED, Module, relocate_symbol

MASK = (1 << 64) - 1


def signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number


@pytest.fixture
def memory() -> ctypes.Array:
    return (ctypes.c_uint64 * 16)()


def test_addresses_in_instructions_of_aarch64(memory: ctypes.Array) -> None:
    place = ctypes.addressof(memory)
    word, generator = ctypes.c_uint32.from_address(place), random.Random(1)
    module = Module(got=place + 64, stubs=place + 80)
    for _ in range(20):
        target = place + generator.randrange(-(1 << 27) // 16, (1 << 27) // 16) * 16
        for kind in (282, 283):  # b, bl: an offset in words
            word.value = 0x94000000
            assert relocate_symbol(module, kind, place, 0, target, 0, True) == 0
            assert place + 4 * signed(word.value & 0x3FFFFFF, 26) == target and word.value >> 26 == 0x25
        word.value = 0x90000005  # adrp x5: pages of 4096 bytes
        assert relocate_symbol(module, 275, place, 0, target, 0, True) == 0
        pages = signed((word.value >> 5 & 0x7FFFF) << 2 | word.value >> 29 & 3, 21)
        assert (place >> 12) + pages == target >> 12 and word.value & 0x9F00001F == 0x90000005
        for kind, first, shift in ((277, 0x91000000, 0), (278, 0x39000000, 0), (284, 0x79000000, 1), (285, 0xB9000000, 2), (286, 0xF9000000, 3), (299, 0x3D800000, 4)):  # fmt: skip
            word.value = first
            assert relocate_symbol(module, kind, place, 0, target, 0, True) == 0
            assert (word.value >> 10 & 0xFFF) << shift == target & 0xFFF
        assert relocate_symbol(module, 257, place, 0, target, 8, True) == 0 and memory[0] == target + 8
    far = (place + (1 << 40)) & MASK
    word.value = 0x94000000
    assert relocate_symbol(module, 283, place, 0, far, 0, True) == 0  # by a jump of its own
    assert place + 4 * signed(word.value & 0x3FFFFFF, 26) == place + 80
    assert (memory[10], memory[11]) == (0xD61F020058000050, far)
    assert relocate_symbol(module, 312, place, 0, far, 0, True) == 0 and memory[8] == far  # by the table of addresses
    assert relocate_symbol(module, 275, place, 0, far, 0, True) == DAMAGED
    assert relocate_symbol(module, 999, place, 0, place, 0, True) == DAMAGED


def test_what_is_too_far_on_x86(memory: ctypes.Array) -> None:
    place = ctypes.addressof(memory)
    module, far = Module(got=place + 64, stubs=place + 80), place + (1 << 40)
    assert relocate_symbol(module, 2, place, 0, far, -4, False) == DAMAGED
    assert relocate_symbol(module, 4, place, 0, far, -4, False) == 0
    assert place + 4 + ctypes.c_int32.from_address(place).value == place + 80
    assert ctypes.string_at(place + 80, 14) == b"\xff\x25\0\0\0\0" + far.to_bytes(8, "little")
    assert relocate_symbol(module, 77, place, 0, place, 0, False) == DAMAGED


def test_errors_have_names_by_their_numbers() -> None:
    assert list(memory_linker.ERRORS)[memory_linker.DAMAGED] == "Damaged"
    assert list(memory_linker.ERRORS)[memory_linker.CALL_FAILED] == "Call_Failed"
