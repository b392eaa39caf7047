"""What was made of functions is given back when they go."""

from __future__ import annotations

import gc
import linecache
import weakref
from typing import Any

from kiln import Constexpr, Int32, cute
from kiln.base_dsl import code_reads, diagnostics
from kiln.base_dsl.frontend import rewriter

SOURCE = """
@cute.jit
def f(n: Int32, by: Constexpr):
    total = Int32(0)
    for i in range(n):
        total += i * by if i > 1 else {number}
    return total
"""


def sizes() -> list[int]:
    gc.collect()
    return [
        len(x) for x in (rewriter._cache, rewriter._already, diagnostics.generated_names, code_reads.code_reads.cache)
    ]


def use(number: int) -> list[weakref.ref]:
    """Make a function of a text and call it; what must not be there any more when it has gone."""
    name, text = f"<given back {number}>", SOURCE.format(number=number)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"cute": cute, "Int32": Int32, "Constexpr": Constexpr}
    exec(compile(text, name, "exec"), space)
    function = space["f"]
    for by in range(3):
        function(4, by)
    del linecache.cache[name]
    compiled = function._specializations.codes()
    return [weakref.ref(x) for x in (function.function, function.function.__code__, *compiled)]


def test_functions_made_by_exec():
    use(0)
    before = sizes()
    left = [reference for number in range(1, 6) for reference in use(number)]
    assert sizes() == before
    assert [reference() for reference in left] == [None] * 25
