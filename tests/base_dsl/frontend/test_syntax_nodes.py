"""The quick functions on syntax trees do what Python's own do, but for contexts and operators."""

from __future__ import annotations

import ast
import copy

import pytest

import kiln.base_dsl.frontend as frontend
from kiln.base_dsl.frontend import nodes

PROGRAM = """
import a.b as c
@decorated(x := 1)
def f(a, /, b: int = 2, *args, c, d=[*args], **kw) -> None:
    global g
    match a:
        case {"k": 1, **rest}: pass
        case Point(x=0, y=[_, *others]) | None as bound: return {**kw, 1: 2}
    try:
        with open(a) as h, b: yield f"{a!r:>{b}}", (lambda q, *, r=1: -q)
    except* ValueError as e: raise
    finally: del a.b[1:2, ::3]
    async def inner(): await [i async for i in x if not 1 < i <= 2 if i and b or c]
    class C(Base, metaclass=M): x: int
    while a: a += 1 if b else {i: j for i, j in k}
    else: print(*a, **b, sep="")
"""
SIMPLE = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


def programs():
    yield PROGRAM.replace("except*", "except") if not hasattr(ast, "TryStar") else PROGRAM
    for name in ("rewriter", "source", "carry"):
        with open(f"{frontend.__path__[0]}/{name}.py") as file:
            yield file.read()


@pytest.mark.parametrize("text", list(programs()))
class TestLikePython:
    def test_walk(self, text):
        tree = ast.parse(text)
        assert nodes.walk(tree) == [node for node in ast.walk(tree) if not isinstance(node, SIMPLE)]

    def test_clone(self, text):
        tree = ast.parse(text)
        made = nodes.clone(tree)
        assert ast.dump(made, include_attributes=True) == ast.dump(tree, include_attributes=True)
        assert not set(map(id, nodes.walk(made))) & set(map(id, nodes.walk(tree)))

    def test_locations(self, text):
        tree = ast.parse(text)
        for number, node in enumerate(ast.walk(tree)):
            if number % 3 and "lineno" in node._attributes:
                for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")[number % 2 :]:
                    delattr(node, name)
        expected = ast.fix_missing_locations(copy.deepcopy(tree))
        assert ast.dump(nodes.fix_locations(tree), include_attributes=True) == ast.dump(
            expected, include_attributes=True
        )


def test_scopes_are_not_entered():
    tree = ast.parse("def f(a=b):\n    x\nclass C: y\nz = lambda: w\n[u for v in t]")
    assert {node.id for node in nodes.walk_scope(tree) if isinstance(node, ast.Name)} == {"z", "u", "v", "t"}


class Renamed(nodes.Transformer):
    def visit_Name(self, node):
        return ast.copy_location(ast.Name(node.id.upper(), node.ctx), node)

    def visit_Pass(self, node):
        return None

    def visit_Expr(self, node):
        self.generic_visit(node)
        return [node, node]


def test_transformer():
    made = Renamed().visit(ast.parse("if a:\n    pass\n    b(c)\nelse:\n    d"))
    assert ast.unparse(made) == "if A:\n    B(C)\n    B(C)\nelse:\n    D\n    D"
