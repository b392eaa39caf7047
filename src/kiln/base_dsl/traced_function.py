"""`TracedFunction`: a function of the language, which is rewritten and run while tracing."""

from __future__ import annotations

import functools
import re
import types
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from .._support import notebook
from . import settings
from . import trace as tracing
from .diagnostics import DSLRuntimeError, Span, runtime_error, type_error
from .parameters import Parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from .call_types import PythonValue
    from .dsl import BaseDSL

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


def _of_function(name: str) -> Any:
    """Return the property of a `TracedFunction` that is an attribute of its function."""
    return property(lambda self: getattr(self.function, name), lambda self, value: setattr(self.function, name, value))


class TracedFunction(notebook.Shown, Generic[P, R_co]):
    """A function of the language: rewritten when first needed.

    Its parts can be replaced, as a function's can: `__code__`, `__defaults__`, `__kwdefaults__`.
    """

    if TYPE_CHECKING:
        # Type checkers compare calls with the function's own signature. A parameter `x: Tensor` also takes arrays and
        # `n: Int32` a Python int, which no annotation can say: a call with such an argument is left to the run.
        @overload
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
        @overload
        def __call__(self, python_value: PythonValue, /, *args: Any, **kwargs: Any) -> R_co: ...
        @overload
        def __call__(self, a: Any, python_value: PythonValue, /, *args: Any, **kwargs: Any) -> R_co: ...
        @overload
        def __call__(self, a: Any, b: Any, python_value: PythonValue, /, *args: Any, **kwargs: Any) -> R_co: ...
        @overload
        def __call__(self, a: Any, b: Any, c: Any, python_value: PythonValue, /, *args: Any, **kwargs: Any) -> R_co: ...
        @overload
        def __call__(
            self, a: Any, b: Any, c: Any, d: Any, python_value: PythonValue, /, *args: Any, **kwargs: Any
        ) -> R_co: ...
        @overload
        def __call__(
            self, a: Any, b: Any, c: Any, d: Any, e: Any, python_value: PythonValue, /, *args: Any, **kwargs: Any
        ) -> R_co: ...
        @overload
        def __call__(
            self,
            a: Any,
            b: Any,
            c: Any,
            d: Any,
            e: Any,
            f: Any,
            python_value: PythonValue,
            /,
            *args: Any,
            **kwargs: Any,
        ) -> R_co: ...
        @overload
        def __call__(self, **python_values: PythonValue) -> R_co: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    __kiln_static__ = True
    __kiln_traced__ = True
    _called = "function"
    """What people call such a function."""

    def __init__(self, dsl: BaseDSL, function: types.FunctionType, preprocess: bool = True) -> None:
        functools.update_wrapper(self, function)  # pyright: ignore[reportArgumentType]
        self.name: str = function.__name__
        self.dsl = dsl
        self.function = function
        self.preprocess = preprocess
        self.name_prefix: str | None = None
        self._parts = _replaceable_parts(function)
        self._parameters = Parameters(function, dsl.read_annotations)
        self._rewritten: types.FunctionType | None = None
        self._own = frozenset((*vars(self), "_own", "_specializations"))

    def __kiln_content__(self) -> Any:
        """Return what keys of static values contain of it."""
        return self.function, self.preprocess, {k: v for k, v in vars(self).items() if k not in self._own}

    def _look_again(self) -> None:
        """Look for other code or defaults of the function, which may have been replaced."""
        function = self.function
        before = self._parts
        if function.__code__ is before[0] and function.__defaults__ is before[1]:
            if function.__kwdefaults__ is before[2] is None:
                return
        now = _replaceable_parts(function)
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            self._parts = now
            self._parameters = Parameters(self.function, self.dsl.read_annotations)
            self._rewritten = None

    @property
    def parameters(self) -> Parameters:
        """The parameters of the function as it is."""
        self._look_again()
        return self._parameters

    @property
    def rewritten(self) -> types.FunctionType:
        """The function that is run while tracing."""
        self._look_again()
        if self._rewritten is None:
            self._rewritten = self._rewrite() if self.preprocess else self.function
        return self._rewritten

    def _rewrite(self) -> types.FunctionType:
        from .frontend.rewriter import rewrite, rewritten_source

        if "python" in settings.kept():
            print(rewritten_source(self.function))
        return rewrite(self.function)

    __code__: types.CodeType = _of_function("__code__")
    __defaults__: tuple[Any, ...] | None = _of_function("__defaults__")
    __kwdefaults__: dict[str, Any] | None = _of_function("__kwdefaults__")

    def _facts(self) -> tuple[str, str, str]:
        """Return the signature, the place and the first line of the docstring."""
        try:
            signature = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(self.parameters.signature)).replace("'", "")
        except Exception:  # an annotation that cannot be resolved is reported when the function is called
            signature = "(...)"
        place = f"{self._called} at {self.span}"
        return f"{self.name}{signature}", place, (self.function.__doc__ or "").strip().partition("\n")[0]

    def __repr__(self) -> str:
        signature, place, _ = self._facts()
        return f"<{signature}, {place}>"

    def __str__(self) -> str:
        return "\n".join(filter(None, self._facts()))

    def _as_html(self) -> str:
        signature, place, about = self._facts()
        return notebook.page(notebook.source(signature), notebook.note(place), notebook.note(about) if about else "")

    def set_name_prefix(self, prefix: str, **_: object) -> Self:
        """Put a prefix before the names of what is compiled from this function."""
        self.name_prefix = prefix
        return self

    if not TYPE_CHECKING:  # type checkers say themselves that there is none

        def __getitem__(self, grid: Any) -> Any:
            """Refuse the launch of other languages, `k[grid](x)`."""
            raise type_error(
                f"{self.name}[...] is Triton's and Numba's way to launch",
                f"call it from a @cute.jit function: {self.name}(...).launch(grid=..., block=...)",
            )

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)  # pyright: ignore[reportArgumentType]

    @property
    def span(self) -> Span:
        """Where it is defined."""
        return Span(self.function.__code__.co_filename, self.function.__code__.co_firstlineno, function=self.name)

    def inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the function as part of the trace of another; arguments are passed by reference."""
        active = tracing.require(f"an inlined call of {self.name}")
        self.parameters.check_inlined(self.dsl, args, kwargs)
        if len(active.inlining) >= _RECURSION_LIMIT:
            raise runtime_error(
                f"{self.name} is called {len(active.inlining)} calls deep while tracing",
                "calls are inlined: a recursion must end by a condition that is a Python value",
            )
        active.inlining.append(self)
        try:
            with active.inlined_call():
                return self.run(args, kwargs)
        finally:
            active.inlining.pop()

    def run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run the rewritten function; lambdas passed in are rewritten too, for they cannot be decorated."""
        args, kwargs = self.parameters.seen(self.dsl, args, kwargs)
        kwargs = {name: _rewritten_lambda(value) for name, value in kwargs.items()}
        return self.rewritten(*map(_rewritten_lambda, args), **kwargs)


def _replaceable_parts(function: types.FunctionType) -> tuple[Any, ...]:
    """Return the replaceable parts of a function."""
    named = function.__kwdefaults__
    parts = (function.__code__, function.__defaults__, named)
    return (*parts, *named, *named.values()) if named else parts


def _rewritten_lambda(value: object) -> Any:
    if type(value) is not types.FunctionType or value.__name__ != "<lambda>":
        return value
    from .frontend.rewriter import rewrite

    try:
        return rewrite(value)
    except DSLRuntimeError:  # without a source it still runs as it is, if it needs no rewriting
        return value


_RECURSION_LIMIT = 60
