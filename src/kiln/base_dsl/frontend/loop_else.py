"""Variables that a loop sets right before it breaks, and its `else` sets otherwise:

    for i in range(n):
        if x[i] == key:
            found = i
            break
    else:
        found = -1

After the statement such a variable has a value on every path, although neither the loop nor its `else` gives it one on
all of theirs.
"""

from __future__ import annotations

import ast

from . import nodes
from .jumps import _blocks
from .liveness import names_of


def bound_by_break_or_else(body: list[ast.stmt]) -> frozenset[str]:
    """Return the names in a function's body for which that holds: nothing else in the function binds them."""
    module = ast.Module(body, [])
    names: set[str] = set()
    for loop in nodes.walk(module):
        if isinstance(loop, (ast.For, ast.While)) and loop.orelse:
            candidates = _bound_for_certain(loop.orelse) - names_of(*loop.orelse)[0]
            names |= {
                name
                for name in candidates
                if _only_before_break(name, loop.body)
                and _stores(name, module) == _stores(name, ast.Module([*loop.body, *loop.orelse], []))
            }
    return frozenset(names)


def _bound_for_certain(block: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    for statement in block:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            names |= names_of(statement)[1]
    return names


def _stores(name: str, tree: ast.AST) -> int:
    return sum(
        isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
        for node in nodes.walk(tree)
    )


def _only_before_break(name: str, block: list[ast.stmt]) -> bool:
    """Return whether a block mentions a name only where it goes on to set it and then to break out of its loop."""
    for index, statement in enumerate(block):
        loads, stores = names_of(statement)
        if name not in loads and name not in stores:
            continue
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and name not in loads:
            return any(isinstance(later, ast.Break) for later in block[index + 1 :])
        if not isinstance(statement, (ast.If, ast.With)) or name in names_of(*_heads(statement))[0]:
            return False
        if not all(_only_before_break(name, part) for part in _blocks(statement)):
            return False
    return True


def _heads(statement: ast.If | ast.With) -> list[ast.AST]:
    return [statement.test] if isinstance(statement, ast.If) else list(statement.items)
