"""The hooks that rewritten code calls, gathered in one object for each rewritten function."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from .. import tree
from ..diagnostics import runtime_error, type_error
from ..numeric.text import joined
from ..ranges import Range
from . import assert_, boolean, builtin_calls, comparison, conditional, for_, if_, raise_, trace_only, while_
from .carry import Scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from .construct import Construct


class Hooks:
    """`__kiln__` in rewritten code. A construct passes its index and the function's variables."""

    __kiln_static__ = True  # programs reach it through functions they define, and nothing of it is theirs
    UNDEFINED = tree.UNDEFINED
    scope = Scope
    not_ = staticmethod(boolean.run_not)
    ifexp = staticmethod(conditional.run_conditional)
    ifexp_names = staticmethod(conditional.run_names)
    inverted = staticmethod(boolean.run_inverted)
    compare = staticmethod(comparison.run_compare)
    assert_ = staticmethod(assert_.run_assert)
    check_raise = staticmethod(raise_.check_raise)
    builtin = staticmethod(builtin_calls.dynamic_form)
    quantifier = staticmethod(builtin_calls.run_quantifier)
    joined = staticmethod(joined)
    binds_global = staticmethod(trace_only.binds_global)
    sets_global = staticmethod(trace_only.sets_global)
    changes_global = staticmethod(trace_only.changes_global)
    drawn = staticmethod(trace_only.drawn)

    def __init__(self, constructs: list[Construct], result: Callable[[Any], Any] | None = None) -> None:
        self._constructs = constructs
        self.result = result
        """The function that a returned value goes through, where the language asked for one."""

    def if_(self, index: int, scope: Scope, condition: Any, then: Any, orelse: Any) -> None:
        if_.run_if(self._constructs[index], scope, condition, then, orelse)

    def guard(self, index: int, scope: Scope, flags: tuple[str, ...], body: Any) -> None:
        if_.run_guard(self._constructs[index], scope, flags, body)

    def for_(self, index: int, scope: Scope, iterable: Any, body: Any) -> None:
        for_.run_for(self._constructs[index], scope, iterable, body)

    def while_(self, index: int, scope: Scope, test: Any, body: Any) -> None:
        while_.run_while(self._constructs[index], scope, test, body)

    @staticmethod
    def boolean(how: tuple[bool, bool], first: object, *others: Callable[[], object]) -> Any:
        is_and, only_truth = how
        return boolean.run_boolean(is_and, first, others, only_truth)

    @staticmethod
    def bound(value: object) -> bool:
        """Return True: in a condition, it evaluates the binding of a pattern's name."""
        return True

    @staticmethod
    def range(function: object) -> Any:
        """Return the callee for a `for` loop over `range(...)`: the builtin stands for a loop of the program."""
        return Range if function is builtins.range else function

    @staticmethod
    def static_bool(value: object) -> Any:
        """Return the filter of a comprehension, which must be a Python value."""
        if tree.is_dynamic(value):
            raise runtime_error(
                f"the `if` of a comprehension is a {tree.describe(value)} that is only known when the program runs",
                "the length of what a comprehension makes is known when compiling: choose the element instead, "
                "`[a if c else b for ...]`, or write a loop",
            )
        return value

    @staticmethod
    def static_subject(value: object) -> Any:
        """Return the subject of a `match` whose patterns look at classes or structure, which must be a Python value."""
        if tree.is_dynamic(value):
            raise runtime_error(
                f"`match` looks at the class or structure of a {tree.describe(value)} that is only known when the program runs",
                "match it against numbers, `case 1 | 2:`, names and guards only, or write `if` and `elif`",
            )
        return value

    @staticmethod
    def returned(flag: object, value: object) -> Any:
        """Return the value of a function with early returns."""
        if flag is False or value is tree.UNDEFINED:
            return None
        if tree.is_dynamic(flag) and value is not None:
            raise type_error(
                f"the function returns {tree.describe(value)} on some paths and nothing on others",
                "return a value on every path",
            )
        return value
