"""Rewritten functions in the disk cache, for later processes.

An entry is named by everything that rewriting depends on: the text of the function's file, the function's code object,
and Kiln's own sources. It holds marshalled code, as `.pyc` files do, and the records of the constructs.
"""

from __future__ import annotations

import functools
import importlib.util
import linecache
import marshal
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from .. import cache, settings
from ..diagnostics import Span
from .construct import Construct, FunctionFacts
from .liveness import Flow
from .source import identity

Made = tuple[types.CodeType, list[Construct]]
"""The result of rewriting: code, and its constructs."""


def kept(code: types.CodeType, make: Callable[[], Made]) -> Made:
    """Return the rewritten function, from the cache if it is there; functions without a file are rewritten again."""
    if settings.get("CUTE_DSL_DISABLE_FILE_CACHING") or not os.path.isfile(code.co_filename):
        return make()
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename)).encode(errors="surrogatepass")
    python = (importlib.util.MAGIC_NUMBER, sys.flags.optimize, code.co_filename, getattr(code, "co_qualname", ""))
    facts = (*python, code.co_freevars, code.co_flags, identity(code), cache.blake2b(text).digest())
    return cache.keeping(
        "rewritten function", repr(facts), lambda: lambda: _packed(make()), _unpacked, _sources_changed
    )()


@functools.lru_cache(maxsize=1)
def _sources_changed() -> bool:
    """Return whether Kiln's sources changed, looked up once: by then the rewriter is loaded."""
    return cache.sources_changed()


def _packed(rewritten: Made) -> bytes:
    code, constructs = rewritten
    functions = {id(x.function): x.function for x in constructs}
    places = {at: place for place, at in enumerate(functions)}
    of_functions = [
        {**vars(x), "assigned": _all_tuples(x.assigned), "returns": _tuples(x.returns)} for x in functions.values()
    ]
    of_constructs = [
        {
            **vars(x),
            "span": _values(x.span),
            "flow": _values(x.flow),
            "function": places[id(x.function)],
            "assigned": _all_tuples(x.assigned),
        }
        for x in constructs
    ]
    return marshal.dumps((code, of_functions, of_constructs))


def _unpacked(data: bytes) -> Made:
    code, of_functions, of_constructs = marshal.loads(data)
    for x in of_functions:
        x |= {"assigned": _all_spans(x["assigned"]), "returns": _spans(x["returns"])}
    functions = [FunctionFacts(**x) for x in of_functions]
    for x in of_constructs:
        x |= {"span": Span(*x["span"]), "flow": Flow(*x["flow"]), "function": functions[x["function"]]}
        x["assigned"] = _all_spans(x["assigned"])
    return code, [Construct(**x) for x in of_constructs]


def _values(x: Span | Flow) -> tuple[Any, ...]:
    return tuple(vars(x).values())


def _tuples(spans: list[Span]) -> list[Any]:
    return [_values(span) for span in spans]


def _spans(tuples: list[Any]) -> list[Span]:
    return [Span(*x) for x in tuples]


def _all_tuples(assigned: dict[str, list[Span]]) -> dict[str, list[Any]]:
    return {name: _tuples(spans) for name, spans in assigned.items()}


def _all_spans(assigned: dict[str, list[Any]]) -> dict[str, list[Span]]:
    return {name: _spans(tuples) for name, tuples in assigned.items()}
