"""Reads how a Python file uses `cutlass`, from its syntax alone: imports, names, calls, patches, versions and architectures.

A name is followed through `import ... as`, `from ... import`, plain assignments of modules, the scopes of functions, and
`super()` of a class with one base. Members of objects (`pipe.producer_acquire`) are not: their classes are known when the
program runs.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kiln._support.gc_pause import gc_paused

PACKAGE = "cutlass"
DISTRIBUTION = "nvidia-cutlass-dsl"
REQUIREMENT = re.compile(
    r"nvidia[-_]cutlass[-_]dsl\s*(?:\[[^\]]*\])?\s*\(?((?:\s*,?\s*(?:[<>=!~]=?|===)\s*[\w.*+]+)*)", re.I
)
"""A requirement of the package in any text; the group is its versions, "" if it names none."""
_ARCHITECTURE = re.compile(r"(?<![A-Za-z0-9_])sm_?(\d{2,3}[af]?)(?![A-Za-z0-9_])")
_GUARDS = frozenset({"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException", "TypeError"})


class Use(NamedTuple):
    """A way in which a file uses a name below `cutlass`."""

    kind: str
    """"module", which `import` has to find, "name", "call" or "patch"."""
    name: str
    optional: bool = False
    """Whether the program goes on without it: in a `try` that catches the error, or for type checkers."""
    keywords: tuple[str, ...] = ()
    positional: int = 0
    """The number of positional arguments of a call, 0 if it has `*args`."""


@dataclass
class Uses:
    """All that a file says about `cutlass`."""

    uses: dict[Use, list[int]] = field(default_factory=dict)
    """In the order of the file, with the lines."""
    optional: set[str] = field(default_factory=set)
    """Names that the file asks for with `hasattr` or `getattr`, or imports in a `try`."""
    versions: list[tuple[int, str]] = field(default_factory=list)
    """Lines that ask for a version, with the specifier such as ">=4.5,<5"; "" where the code compares it by itself."""
    architectures: list[tuple[int, str]] = field(default_factory=list)
    """Lines with the name of an architecture, such as "sm_100a"."""


def read(source: str) -> Uses:
    """Return the uses of a module; SyntaxError if it is not Python."""
    reader = _Reader()
    with gc_paused:
        tree = ast.parse(source)
        reader.scope({}, tree.body, tree.body)
    return reader.result


_Scope = dict[str, "str | None"]
"""What names of a scope stand for: a dotted name below `cutlass`, or None for anything else."""


class _Reader:
    """Walks a tree once; code bases have millions of nodes, so that this is not `ast.NodeVisitor`."""

    def __init__(self) -> None:
        self.result = Uses()
        self.scopes: list[_Scope] = []
        self.bases: list[str | None] = []
        self.guards = 0

    def visit(self, node: ast.AST) -> None:
        """Read a node and those below it."""
        own = _VISITORS.get(type(node))
        if own is None:
            self.children(node)
        else:
            own(self, node)

    def children(self, node: ast.AST) -> None:
        """Read the nodes below a node."""
        for name in _fields(type(node)):
            value: object = getattr(node, name, None)
            if isinstance(value, list):
                for one in value:
                    if isinstance(one, ast.AST):
                        self.visit(one)
            elif isinstance(value, ast.AST):
                self.visit(value)

    # ---- scopes

    def scope(self, names: _Scope, statements: Sequence[ast.stmt], body: Sequence[ast.AST]) -> None:
        """Read the body of a module, a function or a comprehension: what its statements import holds in all of it."""
        self.scopes.append(names)
        inside = len(self.scopes) > 1
        for one in _statements(statements):
            if inside:
                names.update((name, None) for name in _bound(one) if name not in names)
            self._bind(one, names)
        for one in body:
            self.visit(one)
        self.scopes.pop()

    def _bind(self, node: ast.AST, names: _Scope) -> None:
        if isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] == PACKAGE:
                    names[one.asname or PACKAGE] = one.name if one.asname else PACKAGE
        elif isinstance(node, ast.ImportFrom) and _is_ours(node):
            names.update((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names if one.name != "*")
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            if names.get(node.targets[0].id) is None and (value := self._dotted(node.value)) is not None:
                names[node.targets[0].id] = value

    def _dotted(self, node: ast.AST) -> str | None:
        """Return the name below `cutlass` that an expression stands for."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super" and not node.args and self.bases:
            return ".".join([self.bases[-1], *reversed(attributes)]) if self.bases[-1] and attributes else None
        if not isinstance(node, ast.Name):
            return None
        for scope in reversed(self.scopes):
            if node.id in scope:
                base = scope[node.id]
                return None if base is None else ".".join([base, *reversed(attributes)])
        return None

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for one in [*node.decorator_list, *filter(None, [node.returns])]:
            self.visit(one)
        self.children(node.args)
        guards = self.guards
        self.guards = 0  # it runs when it is called
        self.scope(_parameters(node.args), node.body, node.body)
        self.guards = guards

    def _class(self, node: ast.ClassDef) -> None:
        base = self._dotted(node.bases[0]) if len(node.bases) == 1 else None
        for one in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(one)
        self.bases.append(base)
        for one in node.body:
            self.visit(one)
        self.bases.pop()

    def _lambda(self, node: ast.Lambda) -> None:
        self.children(node.args)
        self.scope(_parameters(node.args), (), (node.body,))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        targets = (name for one in node.generators for name in _targets(one.target))
        self.scopes.append(dict.fromkeys(targets))
        self.children(node)
        self.scopes.pop()

    # ---- what need not be there

    def _guarded(self, body: Sequence[ast.AST], guarded: bool) -> None:
        self.guards += guarded
        for one in body:
            self.visit(one)
        self.guards -= guarded

    def _try(self, node: ast.Try) -> None:
        caught = {name for handler in node.handlers for name in _caught(handler)}
        self._guarded(node.body, bool(caught & _GUARDS))
        self._guarded([*node.handlers, *node.orelse, *node.finalbody], False)

    def _if(self, node: ast.If) -> None:
        named = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
        self.visit(node.test)
        self._guarded(node.body, named == "TYPE_CHECKING")
        self._guarded(node.orelse, False)

    # ---- uses

    def _use(self, kind: str, name: str, node: ast.AST, keywords: tuple[str, ...] = (), positional: int = 0) -> None:
        optional = self.guards > 0
        use = Use(kind, name, optional, keywords, positional)
        self.result.uses.setdefault(use, []).append(getattr(node, "lineno", 0))
        if optional:
            self.result.optional.add(name)

    def _import(self, node: ast.Import) -> None:
        for one in node.names:
            if one.name.partition(".")[0] == PACKAGE:
                self._use("module", one.name, node)

    def _import_from(self, node: ast.ImportFrom) -> None:
        if _is_ours(node):
            self._use("module", str(node.module), node)
            for one in node.names:
                if one.name != "*":
                    self._use("name", f"{node.module}.{one.name}", node)

    def _attribute(self, node: ast.Attribute) -> None:
        if node.attr.startswith("sm") and _ARCHITECTURE.fullmatch(node.attr):
            self.result.architectures.append((node.lineno, node.attr))
        name = self._dotted(node)
        if name is None:
            self.visit(node.value)
            return
        self._use("name" if isinstance(node.ctx, ast.Load) else "patch", name, node)
        if name == f"{PACKAGE}.__version__":
            self.result.versions.append((node.lineno, ""))

    def _subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load) and (name := _our_text(node.slice)) is not None:
            if ast.unparse(node.value) == "sys.modules":
                self._use("patch", name, node)
        self.children(node)

    def _call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        name = self._dotted(node.func)
        if name is not None:
            keywords = tuple(one.arg for one in node.keywords if one.arg is not None)
            starred = any(isinstance(one, ast.Starred) for one in node.args)
            self._use("call", name, node, keywords, 0 if starred else len(node.args))
        elif called in ("hasattr", "getattr") and (asked := self._attribute_named(node)) is not None:
            self.result.optional.add(asked)
        elif (called in ("setattr", "delattr", "object") and (patched := self._attribute_named(node)) is not None) or (
            called in ("patch", "setattr") and node.args and (patched := _our_text(node.args[0])) is not None
        ):
            self._use("patch", patched, node)
        elif called in ("import_module", "__import__", "find_spec") and node.args and (path := _our_text(node.args[0])):
            if called == "find_spec":
                self.result.optional.add(path)
            else:
                self._use("module", path, node)
        elif called in ("version", "distribution") and node.args and _is_distribution(node.args[0]):
            self.result.versions.append((node.lineno, ""))
        self.children(node)

    def _attribute_named(self, call: ast.Call) -> str | None:
        """Return the name of `getattr(cutlass.cute, "name")`."""
        if len(call.args) < 2 or not isinstance(call.args[1], ast.Constant) or not isinstance(call.args[1].value, str):
            return None
        base = self._dotted(call.args[0])
        return None if base is None else f"{base}.{call.args[1].value}"

    def _expression(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a string of its own is a comment
            self.visit(node.value)

    def _constant(self, node: ast.Constant) -> None:
        text = node.value
        if not isinstance(text, str):
            return
        if "sm" in text:
            for match in _ARCHITECTURE.finditer(text):
                self.result.architectures.append((node.lineno, f"sm_{match[1]}"))
        if "cutlass" in text:
            for match in REQUIREMENT.finditer(text):
                if match[1]:
                    self.result.versions.append((node.lineno, "".join(match[1].split())))

    def _nothing(self, node: ast.AST) -> None:
        pass


_VISITORS: dict[type, Callable[..., None]] = {
    ast.FunctionDef: _Reader._function,
    ast.AsyncFunctionDef: _Reader._function,
    ast.ClassDef: _Reader._class,
    ast.Lambda: _Reader._lambda,
    ast.ListComp: _Reader._comprehension,
    ast.SetComp: _Reader._comprehension,
    ast.GeneratorExp: _Reader._comprehension,
    ast.DictComp: _Reader._comprehension,
    ast.Try: _Reader._try,
    ast.If: _Reader._if,
    ast.Import: _Reader._import,
    ast.ImportFrom: _Reader._import_from,
    ast.Attribute: _Reader._attribute,
    ast.Subscript: _Reader._subscript,
    ast.Call: _Reader._call,
    ast.Expr: _Reader._expression,
    ast.Constant: _Reader._constant,
    ast.Name: _Reader._nothing,
}
if sys.version_info >= (3, 11):
    _VISITORS[ast.TryStar] = _Reader._try


@functools.cache
def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a kind of node that may hold nodes with anything to read."""
    return tuple(name for name in kind._fields if name not in ("ctx", "op", "ops", "id", "attr", "arg", "type_comment"))


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements of a scope, also those in branches, loops and classes, without those of functions in it."""
    for one in body:
        yield one
        if not isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for name in ("body", "handlers", "cases", "orelse", "finalbody"):
                if (inner := getattr(one, name, None)) is not None:
                    yield from _statements(inner)


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement binds, without those of imports."""
    if isinstance(node, ast.Assign):
        for one in node.targets:
            yield from _targets(one)
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.AugAssign, ast.AnnAssign)):
        yield from _targets(node.target)
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            if item.optional_vars is not None:
                yield from _targets(item.optional_vars)


def _targets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _targets(one)
    elif isinstance(node, ast.Starred):
        yield from _targets(node.value)


def _parameters(arguments: ast.arguments) -> _Scope:
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {one.arg: None for one in every if one is not None}


def _is_ours(node: ast.ImportFrom) -> bool:
    return node.level == 0 and (node.module or "").partition(".")[0] == PACKAGE


def _caught(handler: ast.ExceptHandler) -> set[str]:
    if handler.type is None:
        return {"BaseException"}
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(one).rpartition(".")[2] for one in types}


def _our_text(node: ast.AST) -> str | None:
    """Return a string constant that names something below `cutlass`."""
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) and value.partition(".")[0] == PACKAGE else None


def _is_distribution(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and str(node.value).lower().replace("_", "-") == DISTRIBUTION
