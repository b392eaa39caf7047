"""Shared libraries that are made without a linker: loaded by the system, and those of the other architecture decoded or emulated."""

from __future__ import annotations

import ctypes
import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from kiln.llvm import binding as llvm
from kiln.targets.host import elf, jit
from kiln.targets.host.elf import shared_library

PROGRAM = """
@words = private constant [5 x i8] c"four\\00"
@table = internal global [2 x ptr] [ptr @words, ptr @twice]
@count = internal global i32 0
declare i64 @strlen(ptr)
declare double @cbrt(double)
declare void @qsort(ptr, i64, i64, ptr)
define void @start() {
  store volatile i32 40, ptr @count
  ret void
}
define i32 @twice(i32 %x) noinline {
  %y = mul i32 %x, 2
  ret i32 %y
}
define i32 @counted() {
  %n = load volatile i32, ptr @count
  %m = add i32 %n, 1
  store volatile i32 %m, ptr @count
  ret i32 %m
}
define i64 @length() {
  %p = load volatile ptr, ptr @table
  %n = call i64 @strlen(ptr %p)
  ret i64 %n
}
define i32 @by_table(i32 %x) {
  %p = getelementptr ptr, ptr @table, i64 1
  %f = load volatile ptr, ptr %p
  %y = call i32 %f(i32 %x)
  %z = call i32 @twice(i32 %y)
  ret i32 %z
}
define double @root(double %x) {
  %y = call double @cbrt(double %x)
  ret double %y
}
define internal i32 @order(ptr %a, ptr %b) {
  %x = load i32, ptr %a
  %y = load i32, ptr %b
  %d = sub i32 %x, %y
  ret i32 %d
}
define void @sort(ptr %p, i64 %n) {
  call void @qsort(ptr %p, i64 %n, i64 4, ptr @order)
  ret void
}
"""
NAMES = {"twice", "counted", "length", "by_table", "root", "sort"}


def library(architecture: str) -> bytes:
    jit.host()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    processor = jit.common_processor(architecture)
    made = elf.read(jit.emit_object(jit.optimize(PROGRAM, 1, processor), 1, processor))
    data = elf.Data(made.machine)
    data.call_at_start(data.symbol("start"))
    return shared_library.written(elf.linked([made, data.object()], NAMES))[0]


def needed(data: bytes) -> list[str]:
    """The libraries that one asks for."""
    file = elf.File(data)
    tables = {name: number for number, name in enumerate(file.names)}
    tags = list(struct.iter_unpack("<QQ", file.contents(tables[".dynamic"])))
    return [file.text(tables[".dynstr"], value) for tag, value in tags if tag == 1]


def test_the_system_loads_it(tmp_path: Path) -> None:
    path = tmp_path / "libparts.so"
    path.write_bytes(library(jit.host()[0].partition("-")[0]))
    made = ctypes.CDLL(str(path))
    assert (made.counted(), made.counted()) == (41, 42)  # it was called at the start
    made.length.restype, made.root.restype, made.root.argtypes = ctypes.c_int64, ctypes.c_double, [ctypes.c_double]
    assert (made.length(), made.by_table(3), made.root(27.0)) == (4, 12, pytest.approx(3))
    numbers = (ctypes.c_int32 * 4)(3, 1, 4, 2)
    made.sort(numbers, ctypes.c_int64(4))
    assert list(numbers) == [1, 2, 3, 4]
    assert not hasattr(made, "order")


@pytest.mark.parametrize("architecture", elf.MACHINES)
def test_tables_are_whole(architecture: str) -> None:
    data = library(architecture)
    file = elf.File(data)
    assert (file.kind, file.machine) == (elf.SHARED, elf.MACHINES[architecture])
    shown = {name for name, _, _, section, _, _ in file.symbols(elf.DYNSYM) if section}
    wanted = {name for name, _, _, section, _, _ in file.symbols(elf.DYNSYM) if name and not section}
    assert (shown, wanted) == (NAMES, {"strlen", "cbrt", "qsort"})
    assert needed(data) == ["libc.so.6", "libm.so.6"]
    segments, (count,) = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)
    loads = [s for s in (struct.unpack_from("<IIQQQQQQ", data, segments + 56 * n) for n in range(count)) if s[0] == 1]
    for _, rights, offset, address, _, size, memory, page in loads:
        assert offset % page == address % page and size <= memory
        assert rights != 7  # nothing is written to and run
    assert all(a[3] + a[6] <= b[3] // b[7] * b[7] for a, b in zip(loads, loads[1:]))  # no page is in two of them


def signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number


def test_addresses_in_instructions_of_aarch64() -> None:
    generator = random.Random(2)
    for _ in range(50):
        place, target = generator.randrange(0, 1 << 27, 4), generator.randrange(0, 1 << 27, 16)
        for kind, first in (
            (283, 0x94000000),
            (275, 0x90000005),
            (277, 0x91000000),
            (286, 0xF9400000),
            (299, 0x3DC00000),
        ):
            code = bytearray(first.to_bytes(4, "little"))
            shared_library.patch(code, 0, kind, target, place)
            word = int.from_bytes(code, "little")
            if kind == 283:
                assert place + 4 * signed(word & 0x3FFFFFF, 26) == target and word >> 26 == first >> 26
            elif kind == 275:
                pages = signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)
                assert (place >> 12) + pages == target >> 12 and word & 0x9F00001F == first
            else:
                assert (word >> 10 & 0xFFF) << {277: 0, 286: 3, 299: 4}[kind] == target & 0xFFF
                assert word & 0xFFC003FF == first


def test_what_cannot_be_placed() -> None:
    with pytest.raises(ValueError, match="does not fit 26 bits"):
        shared_library.patch(bytearray(4), 0, 283, 1 << 30, 0)
    with pytest.raises(ValueError, match="relocation 999 of aarch64 is not known"):
        shared_library.patch(bytearray(4), 0, 999, 0, 0)
    with pytest.raises(ValueError, match="relocation 11 of x86-64 is not known"):
        shared_library.patch(bytearray(4), 0, 11, 0, 0)


COMPILER, QEMU = (
    shutil.which("aarch64-linux-gnu-gcc"),
    shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static"),
)


@pytest.mark.skipif(COMPILER is None or QEMU is None, reason="there is no compiler for aarch64, or no qemu")
def test_it_runs_on_the_other_machine(tmp_path: Path) -> None:
    (tmp_path / "libparts.so").write_bytes(library("aarch64"))
    (tmp_path / "main.c").write_text(
        "#include <stdio.h>\nint counted(void), by_table(int); long length(void); double root(double); void sort(int *, long);\n"
        "int main(void) { int n[3] = {3, 1, 2}; sort(n, 3);\n"
        '  printf("%d %ld %d %g %d\\n", counted(), length(), by_table(3), root(27), n[0]); return 0; }\n'
    )
    words = [COMPILER or "", "main.c", "-L.", "-lparts", "-Wl,-rpath,.", "-o", "main"]
    subprocess.run(words, cwd=tmp_path, check=True)
    told = subprocess.run(
        [QEMU or "", "-L", "/usr/aarch64-linux-gnu", "./main"], cwd=tmp_path, capture_output=True, text=True
    )
    assert told.stdout == "41 4 12 3 1\n", told.stderr
