"""What a function refuses, read from its source: the errors that it and the functions it calls raise, with their texts.

A text has `…` for what only a call knows. Branches that a call cannot take, `written=False`, are left out, and so are
calls that cannot be told from the source, those of methods of arguments.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import re
import textwrap
import types
from typing import Any, NamedTuple

LEVELS = 2
"""How many calls are followed: a function, its check, and what that asks; more only where nothing is found."""
HOLE = object()
"""A value that is only known when the function is called."""
_PLAIN = (
    str,
    int,
    float,
    bool,
    type(None),
    tuple,
    list,
    dict,
    type,
    types.FunctionType,
    types.ModuleType,
)  # a `Made` is a tuple
_SAFE = {name: getattr(builtins, name) for name in ("len", "sorted", "str", "repr", "range", "min", "max", "tuple")}
_MACHINERY = ("kiln.base_dsl.trace", "kiln.base_dsl.bindings", "kiln.base_dsl.numeric", "kiln._support")
"""Modules whose errors any operation can raise. What names the function, `require("load()")`, counts nevertheless."""


class Refusal(NamedTuple):
    """An error: its class, its message with `…` for values, and what to write instead."""

    kind: type[BaseException]
    message: str
    hint: str


class Made(NamedTuple):
    """An object of a class of Kiln; `fields` are those whose values are known."""

    kind: type
    fields: dict[str, Any]


class Shown(str):
    """A text with `…` in it."""


@functools.cache
def refusals(function: Any) -> tuple[Refusal, ...]:
    """Return what a function raises itself and by the functions it calls, in the order of its source."""
    if type(function).__name__ == "Operator":  # of PyTorch, which raises its errors as RuntimeError
        return tuple(x._replace(kind=RuntimeError) for x in refusals(function._function))
    found = dict[Refusal, None]()
    for levels in range(LEVELS, LEVELS + 3):
        for each in _wrappers(function)[:-1]:
            known = {} if isinstance(each, types.FunctionType) else {"self": Made(type(each), vars(each))}
            _Reader(type(each).__call__ if known else each, known, found, 1 if known else 0).read()
        _Reader(inspect.unwrap(function), {}, found, levels).read()
        if found:
            break
    told = (Refusal(*x[:1], *(re.sub("…[.…]*…|…", "…", " ".join(text.split())) for text in x[1:])) for x in found)
    return tuple(dict.fromkeys(x for x in told if re.search(r"\w", x.message)))


def _wrappers(function: Any) -> list[Any]:
    """Return a function and what decorators have wrapped, the outermost first."""
    chain = list[Any]()
    inspect.unwrap(function, stop=chain.append)  # which gives None: go on
    return [*chain, inspect.unwrap(function)]


def fields(function: Any) -> list[str]:
    """Return the errors of a function as fields of a docstring in reStructuredText."""
    lines = list[str]()
    for kind, message, hint in refusals(function):
        text = message + (f"; help: {hint}" if re.search(r"\w", hint) else "")
        lines.append(f":raises {kind.__name__}: " + re.sub(r"([^A-Za-z0-9\s.,;…])", r"\\\1", text))
    return [*lines, ""] if lines else []


def _is_wrapper(found: Any) -> bool:
    return type(found).__name__ == "Operator" or inspect.getattr_static(found, "__wrapped__", None) is not None


_signature = functools.cache(inspect.signature)


@functools.cache
def _nodes(tree: ast.FunctionDef) -> tuple[set[str], list[str], list[ast.Assign]]:
    """Return the parameters of a function, the names it stores to, and its assignments."""
    nodes = list(ast.walk(tree))
    stored = [x.id for x in nodes if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]
    return {x.arg for x in nodes if isinstance(x, ast.arg)}, stored, [x for x in nodes if isinstance(x, ast.Assign)]


@functools.cache
def _source(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function.__code__))).body[0]
    except (OSError, AttributeError, SyntaxError):
        return None
    return tree if isinstance(tree, ast.FunctionDef) and isinstance(function, types.FunctionType) else None


_found: dict[Any, tuple[Refusal, ...]] = {}
"""What calls raise, by function, known arguments and levels: most checks are called many times."""


def _called(function: Any, known: dict[str, Any], levels: float) -> tuple[Refusal, ...]:
    key = function, repr(known), levels
    if key not in _found:
        inner = _Reader(function, known, {}, levels)
        inner.read()
        _found[key] = tuple(inner.found)
    return _found[key]


class _Reader(ast.NodeVisitor):
    """Reads a function, whose parameters have the values `known`."""

    def __init__(self, function: Any, known: dict[str, Any], found: dict[Refusal, None], levels: float) -> None:
        self.function = function
        self.found, self.levels, self.tree = found, levels, _source(function)
        self.ended = False
        self.known, self.assigned, self.returned = dict(known), dict[str, list[ast.expr]](), list[ast.expr]()
        if self.tree is None:
            return
        local, stored, assignments = _nodes(self.tree)
        self.known = dict.fromkeys((*local, *stored), HOLE) | {n: x for n, x in known.items() if n not in stored}
        for x in assignments:
            if isinstance(x.targets[0], ast.Name) and x.targets[0].id not in local:
                self.assigned.setdefault(x.targets[0].id, []).append(x.value)
        self.assigned = {name: x for name, x in self.assigned.items() if len(x) == stored.count(name)}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.known.setdefault(name, cell.cell_contents)

    def read(self) -> None:
        self.block(self.tree.body if self.tree else [])

    def block(self, statements: list[ast.stmt]) -> None:
        """Read statements up to one that leaves the function in every call."""
        self.ended = False
        for each in statements:
            self.visit(each)
            self.ended = self.ended and isinstance(each, (ast.If, ast.Return, ast.Raise))
            if self.ended:
                break

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        test = self.truth(node.test)
        self.visit(node.test)
        for part, taken in ((node.body, True), (node.orelse, False)):
            if test in (taken, None):
                self.block(part) if isinstance(part, list) else self.visit(part)
        self.ended = self.ended and test is not None

    visit_IfExp = visit_If

    def visit_Try(self, node: ast.Try) -> None:
        inside, self.found = self.found, {}
        for each in node.body:
            self.visit(each)
        inside, self.found = self.found, inside
        caught = [self.value(each.type) if each.type else BaseException for each in node.handlers]
        kinds = tuple(x for each in caught for x in (each if isinstance(each, tuple) else (each,)))
        if all(isinstance(x, type) for x in kinds):
            self.found.update({each: None for each in inside if not issubclass(each.kind, kinds)})
        for each in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(each)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.ended = True
        if node.exc is not None:
            self.found.update(dict.fromkeys(self.errors(node.exc)))

    def visit_Return(self, node: ast.Return) -> None:
        self.generic_visit(node)
        self.ended = True
        self.returned += [node.value] if node.value else []

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        says = any(isinstance(x, ast.JoinedStr) or isinstance(self.value(x), str) for x in node.args)
        levels = self.levels - (0.25 if says else 1)  # what is told a text is a check, and is followed at any level
        if type(operator := self.value(node.func)).__name__ == "Operator":
            self.found.update(dict.fromkeys(refusals(operator)))
        for callee in self.callees(node) if levels > (-1 if says else -0.01) else ():
            inside = self.function.__module__.startswith(_MACHINERY)
            if inside or not callee.__module__.startswith(_MACHINERY) or callee.__name__ == "require":
                self.found.update(dict.fromkeys(_called(callee, self.arguments(node, callee), levels)))

    def callees(self, node: ast.Call) -> list[Any]:
        """Return the functions of Kiln that a call calls: one, or those that make an object of a class."""
        called = self.value(node.func)
        if isinstance(called, type):
            made = [called.__dict__.get(name) for name in ("__init__", "__post_init__")]
        else:
            made = [inspect.unwrap(called)] if callable(called) else []
        return [x for x in made if isinstance(x, types.FunctionType) and x.__module__.startswith("kiln")]

    def arguments(self, node: ast.Call, callee: Any) -> dict[str, Any]:
        """Return what is known of the parameters of a function that is called."""
        if any(isinstance(x, ast.Starred) for x in node.args):
            return {}
        signature = _signature(callee)
        of = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else HOLE
        own = [of] if next(iter(signature.parameters), "") == "self" else []
        named = {x.arg: self.value(x.value) for x in node.keywords if x.arg is not None}
        try:
            bound = signature.bind(*own, *(self.value(x) for x in node.args), **named)
        except TypeError:
            return {}
        if all(x.arg is not None for x in node.keywords):
            bound.apply_defaults()
        return {name: x for name, x in bound.arguments.items() if isinstance(x, _PLAIN)}

    def errors(self, node: ast.expr, levels: int = 4) -> list[Refusal]:
        """Return the errors that an expression makes."""
        if isinstance(node, ast.Name) and node.id in self.assigned:
            return [each for x in self.assigned[node.id] if levels for each in self.errors(x, levels - 1)]
        kind = self.value(node.func if isinstance(node, ast.Call) else node)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            named = {x.arg: x.value for x in node.keywords} if isinstance(node, ast.Call) else {}
            first = node.args[0] if isinstance(node, ast.Call) and node.args else named.get("message")
            return [Refusal(kind, self.text(first), self.text(named.get("hint")))]
        found = list[Refusal]()
        if not isinstance(node, ast.Call):
            return found
        for callee in self.callees(node) if levels else ():
            inner = _Reader(callee, self.arguments(node, callee), {}, 0)
            inner.read()
            found += [each for x in inner.returned for each in inner.errors(x, levels - 1)]
        return found

    def truth(self, node: ast.expr) -> bool | None:
        """Return whether a condition holds; None where only a call knows."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return None if (inner := self.truth(node.operand)) is None else not inner
        if isinstance(node, ast.BoolOp):
            decides, parts = isinstance(node.op, ast.Or), [self.truth(x) for x in node.values]
            return decides if decides in parts else None if None in parts else not decides
        value = self.value(node)
        return None if value is HOLE or isinstance(value, Shown) else bool(value)

    def text(self, node: ast.expr | None) -> str:
        value = "" if node is None else self.value(node)
        return value if isinstance(value, str) else "…"

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression as far as the source says it."""
        found: Any = HOLE
        if isinstance(node, ast.JoinedStr):
            parts = [self.value(x) for x in node.values]
            return (Shown if any(isinstance(x, Shown) for x in parts) else str)("".join(parts))
        if isinstance(node, ast.FormattedValue):
            found = self.value(node.value)
            if found is HOLE or node.format_spec is not None:
                return Shown("…")
            shown = f"{found!r}" if node.conversion == ord("r") else f"{found}"
            return Shown(shown) if isinstance(found, Shown) else shown
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [self.value(x) for x in (node.left, node.right)]
            if any(isinstance(x, str) for x in parts) and any(x is HOLE or isinstance(x, Shown) for x in parts):
                return Shown("".join(x if isinstance(x, str) else "…" for x in parts))
        if isinstance(node, ast.BoolOp):
            for x in node.values:
                found = self.value(x)
                if found is HOLE or isinstance(found, Shown) or bool(found) is isinstance(node.op, ast.Or):
                    break
            return found
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return HOLE if (truth := self.truth(node)) is None else truth
        if isinstance(node, ast.IfExp) and (test := self.truth(node.test)) is not None:
            return self.value(node.body if test else node.orelse)
        if isinstance(node, ast.Name) and len(self.assigned.get(node.id, ())) == 1:
            (assigned,) = self.assigned.pop(node.id)  # what it is made of is not it
            found = self.value(assigned)
            self.assigned[node.id] = [assigned]
        elif isinstance(node, ast.Name):
            outer = self.function.__globals__.get(node.id, getattr(builtins, node.id, HOLE))
            found = self.known.get(node.id, outer)
        elif isinstance(node, ast.Attribute):
            of = self.value(node.value)
            if isinstance(of, Made):
                found = of.fields.get(node.attr, getattr(of.kind, node.attr, HOLE))
                constant = isinstance(found, str) and node.attr not in inspect.get_annotations(of.kind)
                known = node.attr in of.fields or not node.attr.startswith("__")
                return found if isinstance(found, types.FunctionType) or (constant and known) else HOLE
            found = getattr(of, node.attr, HOLE) if isinstance(of, (types.ModuleType, type)) else HOLE
        elif isinstance(node, ast.Call) and isinstance(kind := self.value(node.func), type):
            found = Made(kind, {}) if kind.__module__.startswith("kiln") else HOLE
        else:
            found = self._computed(node)
        return found if isinstance(found, _PLAIN) or _is_wrapper(found) else HOLE

    def _computed(self, node: ast.expr) -> Any:
        """Return the value of an expression of constants, `", ".join(known)`."""
        calls = [x.func for x in ast.walk(node) if isinstance(x, ast.Call)]
        if any(not isinstance(x, ast.Attribute) and not (isinstance(x, ast.Name) and x.id in _SAFE) for x in calls):
            return HOLE
        names = [x for x in ast.walk(node) if isinstance(x, ast.Name)]
        made = {x.id for x in names if isinstance(x.ctx, ast.Store)} | {*_SAFE}
        values = {x.id: self.value(x) for x in names if x.id not in made}
        if not all(type(x) in (str, int, float, bool, type(None), tuple, list, dict) for x in values.values()):
            return HOLE
        try:
            return eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": _SAFE} | values)
        except Exception:
            return HOLE
