"""Backward liveness over structured code: which variables a construct reads, writes and must carry.

The input has gone through `jumps`: control only flows forward or around a loop, so one backward walk
(a few rounds for each loop) is exact, flow-sensitive liveness.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from . import nodes as syntax
from .jumps import RETURN_FLAG, RETURN_VALUE, Guard, Loop


@dataclasses.dataclass
class Flow:
    """The liveness of one construct."""

    reads: frozenset[str] = frozenset()
    """Names read anywhere inside, also by functions defined inside."""
    writes: frozenset[str] = frozenset()
    """Names (re)bound inside."""
    live_out: frozenset[str] = frozenset()
    """Names whose value after the construct may be read."""
    live_head: frozenset[str] = frozenset()
    """Loops: names whose value at the start of a further iteration may be read."""


def names_of(*nodes: ast.AST) -> tuple[set[str], set[str]]:
    """Return (names loaded, names stored) by some nodes. Functions defined inside load what they capture."""
    loads: set[str] = set()
    stores: set[str] = set()
    todo: list[Any] = list(nodes)
    name = ast.Name
    constant = ast.Constant
    load = ast.Load
    add_children = syntax.add_children
    for node in todo:  # the list grows in the loop
        kind = node.__class__
        if kind is name:
            (loads if node.ctx.__class__ is load else stores).add(node.id)
        elif kind in _KINDS:
            _KINDS[kind](node, loads, stores, todo)
        elif kind is not constant:
            add_children(node, todo)
    return loads, stores


def _function(node: Any, loads: set[str], stores: set[str], todo: list[Any]) -> None:
    stores.add(node.name)
    todo += node.decorator_list
    _lambda(node, loads, stores, todo)


def _lambda(node: Any, loads: set[str], stores: set[str], todo: list[Any]) -> None:
    todo += [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
    loads |= captured(node)


def _class(node: ast.ClassDef, loads: set[str], stores: set[str], todo: Sequence[object]) -> None:
    stores.add(node.name)
    loads |= names_of(*node.bases, *node.keywords, *node.decorator_list, *node.body)[0]


def _comprehension(node: ast.AST, loads: set[str], stores: set[str], todo: Sequence[object]) -> None:
    parts: list[Any] = []
    syntax.add_children(node, parts)
    inner_loads, inner_stores = names_of(*parts)
    walrus = {n.target.id for n in syntax.walk(node) if isinstance(n, ast.NamedExpr)}
    stores |= walrus
    loads |= inner_loads - (inner_stores - walrus)


def _named(node: Any, loads: set[str], stores: set[str], todo: list[Any]) -> None:
    if node.name:
        stores.add(node.name)
    syntax.add_children(node, todo)


def _mapping(node: ast.MatchMapping, loads: set[str], stores: set[str], todo: list[Any]) -> None:
    if node.rest:
        stores.add(node.rest)
    syntax.add_children(node, todo)


def _alias(node: ast.alias, loads: set[str], stores: set[str], todo: Sequence[object]) -> None:
    stores.add((node.asname or node.name).split(".")[0])


def _loop_node(node: Loop, loads: set[str], stores: set[str], todo: list[Any]) -> None:
    loads |= set(node.exits)
    syntax.add_children(node, todo)


def _guard_node(node: Guard, loads: set[str], stores: set[str], todo: list[Any]) -> None:
    loads |= set(node.flags)
    stores |= set(node.flags)
    syntax.add_children(node, todo)


_KINDS: dict[type, Callable[[Any, set[str], set[str], list[Any]], None]] = {
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.Lambda: _lambda,
    ast.ClassDef: _class,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.DictComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.ExceptHandler: _named,
    ast.MatchAs: _named,
    ast.MatchStar: _named,
    ast.MatchMapping: _mapping,
    ast.alias: _alias,
    Loop: _loop_node,
    Guard: _guard_node,
}
"""The nodes that bind names or open a scope: each adds its names, and the nodes still to be looked at."""


def parameter_names(arguments: ast.arguments) -> set[str]:
    """Return the parameters of a function."""
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    return {a.arg for a in every if a is not None}


def declared_outside(body: list[ast.stmt]) -> set[str]:
    """Return the names a function declares `nonlocal` or `global`."""
    names: set[str] = set()
    for stmt in body:
        for node in syntax.walk_scope(stmt):
            if isinstance(node, (ast.Nonlocal, ast.Global)):
                names |= set(node.names)
    return names


def captured(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    """Return the names an inner function takes from the scopes around it (globals included)."""
    statements = function.body if not isinstance(function, ast.Lambda) else []
    loads, stores = names_of(*statements) if not isinstance(function, ast.Lambda) else names_of(function.body)
    outside = declared_outside(statements)
    return (loads | outside) - (stores - outside) - parameter_names(function.args)


def rebound_by_inner(body: list[ast.stmt]) -> set[str]:
    """Return the names of this scope that functions defined in it rebind through `nonlocal`."""
    rebound: set[str] = set()
    for stmt in body:
        for node in syntax.walk(stmt):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                rebound |= {
                    n
                    for inner in node.body
                    for d in syntax.walk_scope(inner)
                    if isinstance(d, ast.Nonlocal)
                    for n in d.names
                }
    return rebound


def lazy_parts(node: ast.AST) -> list[ast.expr]:
    """Return the parts of an expression that may not be evaluated, or not once."""
    if isinstance(node, ast.BoolOp):
        return node.values[1:]
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Compare):
        return node.comparators[1:]
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return [node]
    return []


def _bound_perhaps(node: ast.AST) -> frozenset[str]:
    """Return the names that `:=` binds in parts of a node that may not be evaluated."""
    walruses = [n for n in syntax.walk(node) if isinstance(n, ast.NamedExpr)]
    if not walruses:
        return frozenset()
    lazy = [part for n in syntax.walk(node) for part in lazy_parts(n)]
    return frozenset(n.target.id for part in lazy for n in syntax.walk(part) if isinstance(n, ast.NamedExpr))


def _frozen(names: tuple[set[str], set[str]]) -> tuple[frozenset[str], frozenset[str]]:
    return frozenset(names[0]), frozenset(names[1])


class Liveness:
    """Liveness of one function body. `flow` has an entry for each If, Guard and Loop node."""

    def __init__(self, body: list[ast.stmt], has_scopes: bool = True) -> None:
        """Analyse a body. `has_scopes`: whether functions, classes, `nonlocal` or `global` are in it."""
        self.flow: dict[ast.AST, Flow] = {}
        self._names: dict[ast.AST, tuple[frozenset[str], frozenset[str]]] = {}
        self._perhaps: dict[ast.AST, frozenset[str]] = {}
        self.flag_targets: dict[str, frozenset[str]] = {RETURN_FLAG: frozenset({RETURN_FLAG, RETURN_VALUE})}
        # What inner functions capture, or rebind from here, may be read at any time.
        self._always: frozenset[str] = frozenset()
        self._rebound: set[str] = set()
        # What is read after a return or raise: by the `try` statements around it, and behind those.
        self._at_exit: frozenset[str] = frozenset()
        if has_scopes:
            self._always = frozenset(self._captured_by_inner(body) | declared_outside(body))
            self._rebound = rebound_by_inner(body)
        self.block(body, self._always)

    def names(self, *nodes: ast.AST) -> tuple[frozenset[str], frozenset[str]]:
        """Return `names_of`, cached: statements are walked for each construct around them, in loops several times."""
        names_by_node = [
            self._names.get(node) or self._names.setdefault(node, _frozen(names_of(node))) for node in nodes
        ]
        if len(names_by_node) == 1:
            return names_by_node[0]
        return frozenset().union(*(loads for loads, _ in names_by_node)), frozenset().union(
            *(stores for _, stores in names_by_node)
        )

    def killed(self, *nodes: ast.AST) -> frozenset[str]:
        """Return the names that some nodes bind for certain, so that their earlier values are dead."""
        stores = self.names(*nodes)[1]
        if not stores:
            return stores
        for node in nodes:
            if node not in self._perhaps:
                self._perhaps[node] = _bound_perhaps(node)
            stores -= self._perhaps[node]
        return stores

    @staticmethod
    def _captured_by_inner(body: list[ast.stmt]) -> set[str]:
        names: set[str] = set()
        for stmt in body:
            for node in syntax.walk_scope(stmt):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                    names |= captured(node)
                elif isinstance(node, ast.ClassDef):
                    names |= names_of(node)[0]
        return names

    def block(self, stmts: list[ast.stmt], after: frozenset[str]) -> frozenset[str]:
        live = after | self._always
        for stmt in reversed(stmts):
            live = self.statement(stmt, live) | self._always
        return live

    def _note(
        self, node: ast.AST, parts: list[ast.AST], after: frozenset[str], head: frozenset[str] = frozenset()
    ) -> None:
        loads, stores = self.names(*parts)
        if self._rebound and any(isinstance(n, ast.Call) for part in parts for n in syntax.walk(part)):
            stores |= self._rebound
        self.flow[node] = Flow(loads, stores, after, head)

    def statement(self, stmt: ast.stmt, after: frozenset[str]) -> frozenset[str]:
        if isinstance(stmt, ast.If):
            self._note(stmt, [*stmt.body, *stmt.orelse], after)
            arms = self.block(stmt.body, after) | self.block(stmt.orelse, after)
            return (arms - self.killed(stmt.test)) | self.names(stmt.test)[0]
        if isinstance(stmt, Guard):
            self._note(stmt, [stmt], after)
            return self.block(stmt.body, after) | after | frozenset(stmt.flags)
        if isinstance(stmt, Loop):
            return self._loop(stmt, after)
        if isinstance(stmt, (ast.With, ast.AsyncWith)):
            live = self.block(stmt.body, after)
            return (live - self.killed(*stmt.items)) | self.names(*stmt.items)[0]
        if isinstance(stmt, (ast.Try, getattr(ast, "TryStar", ast.Try))):
            return self._try(stmt, after)  # pyright: ignore[reportArgumentType]
        if isinstance(stmt, ast.Match):
            live = after
            for case in stmt.cases:
                body = self.block(case.body, after)
                loads, stores = self.names(case.pattern, *([case.guard] if case.guard else []))
                live |= (body - stores) | loads
            return live | self.names(stmt.subject)[0]
        loads = self.names(stmt)[0]
        if isinstance(stmt, ast.AugAssign) and isinstance(stmt.target, ast.Name):
            loads |= {stmt.target.id}
        if isinstance(stmt, (ast.Return, ast.Raise)):
            after = self._at_exit
        return (after - self.killed(stmt)) | loads

    def _loop(self, stmt: Loop, after: frozenset[str]) -> frozenset[str]:
        node = stmt.node
        head = after
        for flag in stmt.exits:
            if flag != RETURN_FLAG:
                self.flag_targets[flag] = after
        while True:  # the set only grows, and names are few
            for flag in stmt.resets:
                self.flag_targets[flag] = head
            body = self.block(node.body, head | frozenset(stmt.exits))
            if isinstance(node, ast.For):
                body -= self.names(node.target)[1]
                start = body
            else:
                start = (body - self.killed(node.test)) | self.names(node.test)[0]
            if start <= head:
                break
            head |= start
        start -= frozenset(stmt.exits)
        parts: list[ast.AST] = [*node.body]
        parts.append(node.target if isinstance(node, ast.For) else node.test)
        self._note(stmt, parts, after, start)
        before = start | after
        if isinstance(node, ast.For):
            before |= self.names(node.iter)[0]
        return before

    def _try(self, stmt: ast.Try, after: frozenset[str]) -> frozenset[str]:
        # Any statement of the body may jump to a handler: nothing is killed inside.
        parts: list[ast.AST] = [*stmt.body, *stmt.handlers, *stmt.orelse, *stmt.finalbody]
        everything = after | self.names(*parts)[0]
        outer = self._at_exit
        self._at_exit = outer | everything
        for block in (stmt.body, *(h.body for h in stmt.handlers), stmt.orelse, stmt.finalbody):
            self.block(block, everything)
        self._at_exit = outer
        return everything
