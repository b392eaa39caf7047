"""Launches that are checked by default: accesses out of bounds, and reads of shared memory that nobody has written.

The first call of an executable, and the first with each new set of extents, runs a build that the sanitizer has
instrumented for these two alone (`ReportFacts.plain`). So do all calls after one with an access out of bounds. The
build is compiled when it is first called, from the module as it was traced, and kept on disk. `KILN_CHECKS` and the
compile option `--checks` choose which calls are checked.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import string_at

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


def extent_places(module: ir.Module, entry: str) -> list[Place]:
    """Return offset and size of the extents and strides of arrays in the slots of a call."""
    for op in module.body.operations:
        func = op.operation
        if func.name != "func.func" or func.attributes["sym_name"].value != entry or "arg_attrs" not in func.attributes:
            continue
        inputs = func.attributes["function_type"].value.inputs
        offsets, end = slot_layout(inputs)
        places: list[Place] = []
        for number, described in enumerate(func.attributes["arg_attrs"]):
            if "cute.layout" in described:
                layout = described["cute.layout"].value.removeprefix("const ")
                first, last = number + 1, number + len(cute.leaf_widths(layout))
                if last >= first:
                    start = offsets[first]
                    places.append((start, (offsets[last + 1] if last + 1 < len(offsets) else end) - start))
        return places
    return []


def install(executable: Executable, build: Callable[[], Call], places: list[Place], always: Callable[[], bool]) -> None:
    """Let an executable run the checked build: at calls for which `always` holds, else where extents are new."""
    plain, report = executable.call, executable.report
    seen: set[bytes] = set()
    made: list[Call] = []

    def is_checked(address: int) -> bool:
        key = b"".join([string_at(address + offset, size) for offset, size in places])
        if always():
            return True
        if key in seen or len(seen) >= _MOST_EXTENTS:
            return False
        seen.add(key)
        return True

    def run(address: int) -> None:
        if not made:
            with compile_lock:
                if not made:
                    made.append(_built(build, plain))
        made[0](address)

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
