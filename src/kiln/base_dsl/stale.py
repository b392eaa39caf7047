"""`KILN_CHECK_STALE`: checks that compiled code is still what its function would be compiled to.

A jit function is traced at every call, and the module is compared with the one that the code in use was made of. They
differ where the trace has read something that `dependencies` does not see.
"""

from __future__ import annotations

import os
import re
from typing import Any

from . import settings
from .bindings import ir
from .diagnostics import DSLRuntimeError, Span

_environment: Any = getattr(os.environ, "_data", None)


def checks_stale() -> bool:
    """Return whether every call is to be checked."""
    if _environment is not None and b"KILN_CHECK_STALE" not in _environment:
        return False  # asked at every call
    return settings.get("KILN_CHECK_STALE")


def check(name: str, before: str, module: ir.Module) -> None:
    """Raise an error that shows the first difference of a module from the text of an earlier one, if there is one."""
    now = str(module)
    if now.strip() == before.strip():
        return
    old = before.strip().split("\n")
    new = now.strip().split("\n")
    at = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    then_line, now_line = ("".join(lines[at : at + 1]).strip() or "(nothing)" for lines in (old, new))
    raise DSLRuntimeError(
        f"{name} is in use as it was traced before, and a trace gives something else now\n"
        f"  then: {then_line}\n  now:  {now_line}",
        hint=f"what has changed was read where that is not seen, for example by a function of an installed package, or from "
        f"a file: pass it as a Constexpr argument, or call {name}.retrace() when it changes",
        span=_place(module, at, now_line),
    )


def _place(module: ir.Module, at: int, line: str) -> Span | None:
    """Return the source line of a line of a module: of the first that uses it if it has none, as constants have not."""
    located = module.operation.get_asm(enable_debug_info=True, use_local_scope=True).strip().split("\n")
    candidates = located[at : at + 1]
    value = re.match(r"(%[\w.]+) = ", line)
    if value is not None:
        candidates += [other for other in located if re.search(re.escape(value[1]) + r"(?![\w.])", other)]
    for candidate in candidates:
        place = re.search(r'loc\([^"]*"([^"]+)":(\d+):(\d+)', candidate)
        if place is not None:
            return Span(place[1], int(place[2]), int(place[3]) - 1)
    return None
