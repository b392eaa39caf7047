"""`while`: a loop of the program, unless everything its test depends on is a Python value."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .. import tree
from . import nodes
from .carry import Snapshot
from .for_ import UNROLL_LIMIT, refuse_endless, run_rest
from .liveness import names_of
from .loops import StaticTest, dynamic_while
from .nodes import mark_test

if TYPE_CHECKING:
    from collections.abc import Callable

    from .carry import Scope
    from .construct import Construct
    from .jumps import Loop
    from .rewriter import Rewriter

# Builtins whose result is a Python value if their arguments are.
_STATIC_CALLS = {
    "len",
    "int",
    "float",
    "bool",
    "abs",
    "min",
    "max",
    "isinstance",
    "const_expr",
    "range",
    "divmod",
    "round",
}


def rewrite(rw: Rewriter, loop: Loop) -> list[ast.stmt]:
    """Rewrite a `while`: test and body become functions."""
    node = loop.node
    assert isinstance(node, ast.While)
    mark_test(node.test)
    constant = isinstance(node.test, ast.Constant)
    decisive = [node.test] if not constant else _exit_tests(node.body, set(loop.exits))
    index = rw.construct(
        "while",
        node,
        node.test,
        loop,
        [node.test, *node.body],
        exits=loop.exits,
        static_names=frozenset(_decided_by(decisive, node.body)),
        constant_test=constant,
        test_writes=frozenset(names_of(node.test)[1]),
    )
    test_return = ast.copy_location(ast.Return(node.test), node.test)
    test = rw.region(rw.fresh("test"), [test_return], node.test)
    body = rw.region(rw.fresh("body"), node.body, node)
    call = rw.hook("while_", [index, rw.scope(), ast.Name(test.name, ast.Load()), ast.Name(body.name, ast.Load())])
    run = ast.copy_location(ast.Expr(ast.copy_location(call, node.test)), node.test)
    return [test, body, run]


def _exit_tests(statements: list[ast.stmt], flags: set[str]) -> list[ast.expr]:
    """Return the conditions under which statements set one of the flags."""
    tests: list[ast.expr] = []

    def sets_flag(stmts: list[ast.stmt]) -> bool:
        return any(
            isinstance(t, ast.Name) and t.id in flags
            for s in stmts
            for n in nodes.walk(s)
            if isinstance(n, ast.Assign)
            for t in n.targets
        )

    for stmt in statements:
        for node in nodes.walk(stmt):
            if isinstance(node, ast.If) and (sets_flag(node.body) or sets_flag(node.orelse)):
                tests.append(node.test)
    return tests


def _decided_by(tests: list[ast.expr], body: list[ast.stmt]) -> set[str]:
    """Return names the tests depend on, also through the body's assignments; '()' is a call that may give anything."""
    names: set[str] = set()

    def use(node: ast.AST) -> None:
        names.update(names_of(node)[0])
        for inner in nodes.walk(node):
            if isinstance(inner, ast.Call):
                name = inner.func.id if isinstance(inner.func, ast.Name) else getattr(inner.func, "attr", "")
                if name not in _STATIC_CALLS:
                    names.add("()")

    for test in tests:
        use(test)
    size = -1
    while size != len(names):
        size = len(names)
        for stmt in body:
            for node in nodes.walk(stmt):
                if isinstance(node, (ast.Assign, ast.AugAssign, ast.NamedExpr, ast.For)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if names_of(*targets)[1] & names:
                        use(node.iter if isinstance(node, ast.For) else node.value)
    return names


def run_while(rec: Construct, scope: Scope, test: Callable[[bool], object], body: Callable[[bool], None]) -> None:
    """Run the loop in Python while its test is a Python value; build it as soon as it is not."""

    def in_python(left: int) -> None:
        while True:
            if not _is_decided_now(rec, scope):
                outcome = dynamic_while(rec, scope, lambda: test(True), lambda: body(True))
                if not isinstance(outcome, StaticTest):
                    return
                value = outcome.value
            else:
                snapshot = Snapshot(scope.roots(sorted(rec.flow.reads | rec.flow.writes)))
                before = {name: scope.get(name) for name in rec.test_writes}
                value = test(False)
                if tree.is_dynamic(value):  # not foreseen: undo the test, and trace it again inside the loop
                    scope.restore(before)
                    snapshot.undo()
                    dynamic_while(rec, scope, lambda: test(True), lambda: body(True))
                    return
            if not value:
                return
            refuse_endless(rec, left)
            left -= 1
            body(False)
            if run_rest(rec, scope, lambda left=left: in_python(left)):
                return

    in_python(UNROLL_LIMIT)


def _is_decided_now(rec: Construct, scope: Scope) -> bool:
    """Return whether Python values alone decide if the loop goes on."""
    if "()" in rec.static_names:
        return False
    for name in rec.static_names:
        value = scope.get(name)
        if value is not tree.UNDEFINED and tree.has_dynamic(value):
            return False
    if rec.constant_test and not rec.static_names:
        return not rec.exits
    return True
