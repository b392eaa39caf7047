"""`range`, `range_constexpr` and `const_expr`: whether a loop or condition is part of the compiled program."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, TypeVar

from . import trace, tree
from .diagnostics import runtime_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .numeric.scalar import Integer
    from .numeric.types import Int32

T = TypeVar("T")


class Range:
    """A loop of the object program: `range(stop)`, `range(start, stop, step)` and hints for the optimizer.

    `unroll` copies the body that many times, `unroll_full` removes the loop if its trip count is known, `vectorize`
    asks for vector code, `prefetch_stages` for software pipelining; the NVIDIA target does neither, and a remark says
    so. `at_least_once` promises an iteration. None changes the result.
    """

    __slots__ = ("hints", "start", "step", "stop")

    def __init__(
        self,
        *bounds: Integer | int,
        unroll: int | None = None,
        unroll_full: bool = False,
        vectorize: bool | None = None,
        prefetch_stages: int | None = None,
        pipelining: int | None = None,
        at_least_once: bool = False,
        loc: object = None,
        ip: object = None,
    ) -> None:
        if not 1 <= len(bounds) <= 3:
            raise runtime_error(f"range() takes one to three bounds, not {len(bounds)}", "range(start, stop, step)")
        self.start: Any
        self.stop: Any
        self.step: Any
        self.start, self.stop, self.step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
        self.hints: dict[str, Any] = {}
        if unroll is not None:
            self.hints["unroll"] = int(unroll)
        if unroll_full:
            self.hints["unroll_full"] = True
        if vectorize is not None:
            self.hints["vectorize"] = bool(vectorize)
        stages = prefetch_stages if prefetch_stages is not None else pipelining
        if stages is not None:
            self.hints["prefetch_stages"] = int(stages)

    def __iter__(self) -> Iterator[Int32]:
        """Iterate as Python's own range, outside a rewritten `for` statement. Bounds must be Python values there."""
        return iter(builtins.range(self.start, self.stop, self.step))  # pyright: ignore[reportReturnType]


class DynamicIterator(Generic[T]):
    """An iterator whose end may only be known when the program runs: a `for` over it is a loop of the program.

    `for item in iterator` stands for

        while iterator.has_item():
            item = iterator.item()
            ...
            iterator.advance()

    so `item` may begin to fetch what `advance` waits for. `continue` goes to `advance`; `break` leaves it out.
    """

    def has_item(self) -> object:
        """Return whether there is an item: a Boolean of the program, or a Python value, for a loop that is unrolled.

        It changes nothing.
        """
        raise NotImplementedError

    def item(self) -> T:
        """Return the item; called once, when an iteration begins."""
        raise NotImplementedError

    def advance(self) -> None:
        """Go to the next item, when an iteration ends."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T]:
        """Refuse to iterate outside a rewritten `for` statement, as in a comprehension."""
        raise runtime_error(
            f"{type(self).__name__} is iterated while tracing, and its end is only known when the program runs",
            "write `for item in ...:` as a statement of a @jit function or a kernel",
        )


def range_constexpr(*bounds: SupportsIndex, unroll: int = -1, unroll_full: bool = True) -> builtins.range | list[int]:
    """Return a loop that Python runs while tracing: its body appears once for each item. Takes Python integers only.

    There is nothing left to be unrolled; `unroll` and `unroll_full` are accepted for programs that say so.
    """
    for value in bounds:
        if type(value) is not int and not hasattr(value, "__index__"):
            raise TypeError(f"range_constexpr() takes Python integers, not {type(value).__name__}")
    return list(builtins.range(*(int(b.__index__()) for b in bounds)))


def const_expr(expression: T) -> T:
    """Return `expression`, which must be known while tracing: for conditions that choose code instead of branching."""
    if trace.current() is not None and tree.is_dynamic(expression):
        raise runtime_error(
            f"const_expr() got a value of type {tree.describe(expression)} that is only known when the program runs",
            "drop const_expr() to branch at run time, or pass the value as a Constexpr argument",
        )
    return expression


def dynamic_expr(expression: T) -> T:
    """Return `expression`: accepted for programs that mark run-time conditions."""
    return expression


def range_dynamic(*args: Any, **kwargs: Any) -> Range:
    """Return `range`, for programs that spell it so."""
    return Range(*args, **kwargs)
