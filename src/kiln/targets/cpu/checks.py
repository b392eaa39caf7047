"""Launches that are checked by default: accesses out of bounds, and reads of shared memory that nobody has written.

The first call of an executable, and the first with each new set of extents, runs a build that the sanitizer has
instrumented for these two alone (`sanitizer.Instrumentation.plain`). It is compiled when it is first called, from the
module as it was traced. `KILN_CHECKS` and the compile option `--checks` choose which calls are checked.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from ...base_dsl.dsl import compile_lock
from ...base_dsl.log import logger
from ...base_dsl.target import slot_layout
from ...dialects import cute
from ...mlir import ir

Call = Callable[[int], None]
Place = tuple[int, int]
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


def checked(plain: Call, build: Callable[[], Call], places: list[Place], always: bool) -> Call:
    """Return a call that runs the checked build, if `always`, or where the extents at some places are new."""
    seen: set[bytes] = set()
    made: list[Call] = []

    def call(address: int) -> None:
        key = b"".join([ctypes.string_at(address + offset, size) for offset, size in places])
        if not always and (key in seen or len(seen) >= _MOST_EXTENTS):
            plain(address)
            return
        seen.add(key)
        if not made:
            with compile_lock:
                if not made:
                    made.append(_built(build, plain))
        made[0](address)

    call.__dict__["plain"] = plain  # its code must outlive whoever holds this function
    return call


def _built(build: Callable[[], Call], plain: Call) -> Call:
    """Return the checked build; the plain one where there is none, for a check is no reason to fail."""
    try:
        return build()
    except Exception as reason:
        logger().warning("default checks are left out, for their build fails: %s", reason)
        return plain
