"""The detector, compiled and loaded."""

from __future__ import annotations

import functools

from .... import forks
from ....base_dsl import cache
from ....base_dsl.compiler import Compilation
from ....mlir import context
from ...host import jit
from ...host.lower import TO_LLVM
from ...lowering.builder import translate
from ...lowering.llvm_text import fix_float_literals
from ..runtime.parts import PARTS
from . import detector
from .state import STATE, State

lock = forks.rlock()
"""Held from the start of an instrumented call until its findings have been read: there is one detector."""


def _object() -> bytes:
    module = detector.build()
    compilation = Compilation(module, "kiln_cpu_sanitizer")
    with context():
        module.operation.verify()
        compilation.run("to-llvm", TO_LLVM)
        text = fix_float_literals(translate(module))
    return jit.emit_object(jit.optimize(text, 2), 2)


@functools.lru_cache(maxsize=1)
def library() -> jit.Library:
    """Loaded once per process."""
    with lock:
        exports = (*detector.exports(), STATE)
        return cache.keep(
            "sanitizer", "/".join(jit.host()), _object, lambda data: jit.Library(data, exports, parts=PARTS)
        )


def state() -> State:
    """The detector's memory."""
    return State.from_address(library().addresses[STATE])
