"""Launches that are checked by default: accesses out of bounds, and reads of shared memory that nobody has written.

The first call of an executable, and the first with each new set of extents, runs a build that the sanitizer has
instrumented for these two alone (`ReportFacts.plain`). So do all calls after one with an access out of bounds. The
build is compiled when it is first called, from the module as it was traced, and kept on disk. `KILN_CHECKS` and the
compile option `--checks` choose which calls are checked; `off` keeps accesses out of bounds away without a word.
"""

from __future__ import annotations

import ctypes
import math
import re
import threading
from collections.abc import Callable
from ctypes import string_at
from typing import NamedTuple

from ...base_dsl import sanitizing
from ...base_dsl.dsl import compile_lock
from ...base_dsl.log import logger
from ...base_dsl.target import Executable, slot_layout
from ...dialects import cute
from ...mlir import ir

Call = Callable[[int], None]
Place = tuple[int, int]
_WRAPPER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_RECORDS = 2048
"""What native code gets in place of the address of a record where a checked run failed is below this."""
_MOST_EXTENTS = 256
"""The most sets of extents of an executable that are checked."""
MOST_ELEMENTS = 1 << 25
"""The most elements that the arrays of a checked call have together: an element-wise kernel takes a second for them."""


class Array(NamedTuple):
    """Where the extents and strides of an array lie in the slots of a call."""

    offset: int
    size: int
    static: int
    """The number of threads along the extents that are known when compiling."""
    extents: tuple[Place, ...]
    """Offset and size of each of the others."""

    def elements(self, address: int) -> int:
        """Return how many elements the array of a call has."""
        read = [int.from_bytes(string_at(address + at, size), "little", signed=True) for at, size in self.extents]
        return math.prod(read, start=self.static)


def arrays(module: ir.Module, entry: str) -> list[Array]:
    """Return the arrays among the arguments of a function."""
    for op in module.body.operations:
        func = op.operation
        if func.name != "func.func" or func.attributes["sym_name"].value != entry or "arg_attrs" not in func.attributes:
            continue
        offsets, end = slot_layout(func.attributes["function_type"].value.inputs)
        offsets.append(end)
        return [
            _array(described[cute.LAYOUT].value.removeprefix("const "), offsets[number + 1 :])
            for number, described in enumerate(func.attributes["arg_attrs"])
            if cute.LAYOUT in described
        ]
    return []


def _array(layout: str, offsets: list[int]) -> Array:
    """Return the array of a layout whose dynamic leaves lie at some offsets."""
    widths = cute.leaf_widths(layout)
    shape = layout.partition(":")[0]
    extents = zip(offsets, cute.leaf_widths(shape), strict=False)
    static = math.prod(int(extent) for extent in re.findall(r"\d+", re.sub(r"\{.*?\}", "", shape)))
    return Array(offsets[0], offsets[len(widths)] - offsets[0], static, tuple((at, bits // 8) for at, bits in extents))


def install(executable: Executable, build: Callable[[], Call], arrays: list[Array], always: Callable[[], bool]) -> None:
    """Let an executable run the checked build: at calls for which `always` holds, else where extents are new."""
    plain = executable.call
    report = executable.report
    seen: set[bytes] = set()
    installed: list[Call] = []

    def is_checked(address: int) -> bool:
        if not always():
            key = b"".join([string_at(address + array.offset, array.size) for array in arrays])
            if key in seen or len(seen) >= _MOST_EXTENTS or sanitizing.is_timed():
                return False
            seen.add(key)
        return not sanitizing.is_timed() and sum([array.elements(address) for array in arrays]) <= MOST_ELEMENTS

    def run(address: int) -> None:
        if not installed:
            with compile_lock:
                if not installed:
                    installed.append(_built(build, plain))
        installed[0](address)

    def call(address: int) -> None:
        (run if is_checked(address) else plain)(address)

    # Native code calls it at an address, too. What a checked run raises there is kept until it is reported.
    failures: dict[int, BaseException] = {}
    wrapper = _WRAPPER(executable.address)

    def entry(address: int) -> int | None:
        if not is_checked(address):
            return wrapper(address)
        try:
            run(address)
        except BaseException as failure:
            failures[threading.get_ident() % _RECORDS + 1] = failure
            return threading.get_ident() % _RECORDS + 1
        return None

    def reported(record: int) -> None:
        failure = failures.pop(record, None)
        if failure is not None:
            raise failure
        assert report is not None
        report(record)

    native = _WRAPPER(entry)
    call.__dict__.update(plain=plain, native=native)  # their code must outlive whoever holds this function
    executable.call = call
    if report is not None:
        executable.address = ctypes.cast(native, ctypes.c_void_p).value or 0
        executable.report = reported


def _built(build: Callable[[], Call], plain: Call) -> Call:
    """Return the checked build; the plain one where there is none, for a check is no reason to fail."""
    try:
        return build()
    except Exception as reason:
        logger().warning("default checks are left out, for their build fails: %s", reason)
        return plain
