"""`match`: value patterns become comparisons, so that the subject may be dynamic; other patterns stay Python's."""

from __future__ import annotations

import ast
import itertools

from . import nodes

_numbers = itertools.count(1)


def desugar(stmt: ast.stmt) -> list[ast.stmt]:
    """Return every `match` made of value patterns, as a chain of `if`s. Inner functions are not entered."""
    statements = _Desugar().visit(stmt)
    return statements if isinstance(statements, list) else [statements]


class _Desugar(nodes.Transformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Match(self, node: ast.Match) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        if not all(_is_simple(c.pattern) for c in node.cases):
            return node
        subject = f"__kiln_subject_{next(_numbers)}"
        first = ast.Assign([ast.Name(subject, ast.Store())], node.subject)
        chain: list[ast.stmt] = []
        for case in reversed(node.cases):
            tests, binds = _conditions(case.pattern, subject)
            bound: list[ast.stmt] = [
                ast.Assign([ast.Name(n, ast.Store())], ast.Name(subject, ast.Load())) for n in binds
            ]
            if case.guard is not None:
                # Names are bound before the guard is evaluated, and stay bound if it fails.
                tests += [_bind(name, subject) for name in binds]
                tests.append(case.guard)
                bound = []
            if not tests:
                chain = [*bound, *case.body]
                continue
            test = tests[0] if len(tests) == 1 else ast.BoolOp(ast.And(), tests)
            new = ast.If(test, [*bound, *case.body], chain)
            ast.copy_location(new, case.pattern)
            chain = [new]
        for new in (first, *chain):
            if not hasattr(new, "lineno"):
                ast.copy_location(new, node)
            nodes.fix_locations(new)
        return [ast.copy_location(first, node), *chain]


def _bind(name: str, subject: str) -> ast.expr:
    """Return an expression that binds a name and is true."""
    value = ast.NamedExpr(ast.Name(name, ast.Store()), ast.Name(subject, ast.Load()))
    hook = ast.Attribute(ast.Name("__kiln__", ast.Load()), "bound", ast.Load())
    return ast.Call(hook, [value], [])


def _is_simple(pattern: ast.pattern) -> bool:
    if isinstance(pattern, (ast.MatchValue, ast.MatchSingleton)):
        return True
    if isinstance(pattern, ast.MatchOr):
        return all(_is_simple(p) and not _conditions(p, "")[1] for p in pattern.patterns)
    if isinstance(pattern, ast.MatchAs):
        return pattern.pattern is None or _is_simple(pattern.pattern)
    return False


def _conditions(pattern: ast.pattern, subject: str) -> tuple[list[ast.expr], list[str]]:
    """Return the tests that must hold, and the names bound to the subject."""
    name = ast.Name(subject, ast.Load())
    if isinstance(pattern, ast.MatchValue):
        return [ast.copy_location(ast.Compare(name, [ast.Eq()], [pattern.value]), pattern)], []
    if isinstance(pattern, ast.MatchSingleton):
        return [ast.copy_location(ast.Compare(name, [ast.Is()], [ast.Constant(pattern.value)]), pattern)], []
    if isinstance(pattern, ast.MatchOr):
        tests = [t for p in pattern.patterns for t in _conditions(p, subject)[0]]
        if len(tests) < len(pattern.patterns):  # one alternative matches everything
            return [], []
        return [ast.copy_location(ast.BoolOp(ast.Or(), tests), pattern)], []
    assert isinstance(pattern, ast.MatchAs)
    tests, binds = _conditions(pattern.pattern, subject) if pattern.pattern is not None else ([], [])
    return tests, [*binds, *([pattern.name] if pattern.name else [])]
