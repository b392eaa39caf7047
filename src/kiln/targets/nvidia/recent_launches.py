"""Recent launches: when a kernel fails, the driver reports it at a later call, and these are the suspects.

Host code records each launch in a ring in memory (`launch.py`): four words, a few nanoseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...mlir import context, ir
from ..lowering.builder import Builder, function, int_type

if TYPE_CHECKING:
    from .runtime import Kernels

ENTRIES = 64
"""A power of two."""
WORDS = 4
"""Words of an entry: number from 1, executable, kernel and site, time in ticks. The first entry counts launches."""
_SHOWN = 4

_ring = (ctypes.c_uint64 * (WORDS * (ENTRIES + 1)))()
_owners: weakref.WeakValueDictionary[int, Kernels] = weakref.WeakValueDictionary()
_gone: dict[int, Callable[[int, int], str]] = {}
"""Descriptions of launches of freed executables, for the latest of these."""
_MOST_GONE = 256
_registered = 0


def address() -> int:
    """Return the address of the ring."""
    return ctypes.addressof(_ring)


def count() -> int:
    """Return how many launches there were."""
    return _ring[0]


def register(kernels: Kernels) -> int:
    """Return the number of an executable in the ring."""
    global _registered
    _registered += 1
    _owners[_registered] = kernels
    weakref.finalize(kernels, _keep, _registered, kernels.describer()).atexit = False
    return _registered


def _keep(number: int, describe: Callable[[int, int], str]) -> None:
    _gone[number] = describe
    while len(_gone) > _MOST_GONE:
        del _gone[next(iter(_gone))]


HAS_COUNTER = platform.machine() in ("x86_64", "AMD64")
"""Whether host code reads the time from a register (5 ns); else it calls `clock_gettime` (30 ns)."""


def counter(b: Builder) -> ir.Value:
    """Return the register that counts time, in host code."""
    attributes = {
        "intrin": ir.StringAttr.get("llvm.readcyclecounter", context()),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([], context()),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 0], context()),
    }
    return b.value("llvm.call_intrinsic", int_type(64), (), attributes)


@functools.lru_cache(maxsize=1)
def _clock() -> Callable[[], int]:
    """Return a function that reads the clock of the ring's entries."""
    if not HAS_COUNTER:
        return time.monotonic_ns
    from ...base_dsl.compiler import Compilation
    from ...mlir import dialect_module
    from ..host import jit

    symbol = "kiln_ticks"
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        func = function(module, symbol, [], [int_type(64)])
        del func.attributes["sym_visibility"]
        b = Builder(ir.InsertionPoint(func.regions[0].blocks[0]), ir.Location.unknown())
        b.op("func.return", (), (counter(b),))
        Compilation(module, symbol).run(
            "llvm-conversion", "convert-func-to-llvm,convert-arith-to-llvm,reconcile-unrealized-casts"
        )
        text = dialect_module("llvm").translate_module_to_llvmir(module.operation)
    library = jit.Library(jit.emit_object(jit.optimize(text, 1), 1), (symbol,))
    native = ctypes.CFUNCTYPE(ctypes.c_uint64)(library.addresses[symbol])

    def read() -> int:
        assert library  # keeps the code alive
        return native()

    return read


def _seconds_since() -> Callable[[int], float]:
    """Return a function from a time in ticks to how many seconds ago that was."""
    clock = _clock()
    first = clock()
    start = time.perf_counter()
    time.sleep(0.01)
    rate = (clock() - first) / (time.perf_counter() - start)
    return lambda then: (first - then) / rate


def suspects() -> str:
    """Return the launches made last, newest first, for people; empty if there were none."""
    entries = [tuple(_ring[WORDS * n : WORDS * (n + 1)]) for n in range(1, ENTRIES + 1)]
    newest = sorted((entry for entry in entries if entry[0]), reverse=True)
    ago = None
    with contextlib.suppress(Exception):
        ago = _seconds_since()
    lines: list[str] = []
    for _, owner, which, then in newest:
        kernels = _owners.get(owner)
        describe = kernels.describer() if kernels else _gone.get(owner)
        text = describe(which >> 32, which & 0xFFFFFFFF) if describe else "a kernel that is no longer there"
        if any(line.startswith(text) for line in lines):  # say a loop's launch once, the last
            continue
        lines.append(f"{text}, {_span(ago(then))} ago" if ago and then else text)
        if len(lines) == _SHOWN:
            break
    return "\n".join(f"  {line}" for line in lines)


def _span(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(seconds, 0.0) / 1e-6:.0f} us"
