"""Annotations as a person writes them, and fewer `Any`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from counted import over, over_by_room
from room_map import modules, room_of
from source_tree import Problem, Tree

MACHINE_MADE = "annotations made by a machine"
ANY = "Any"


def check(tree: Tree) -> Iterator[Problem]:
    """Yield annotations that repeat themselves or stand at a second assignment, and rooms with more `Any` than before."""
    yield from over(tree, MACHINE_MADE, machine_made(tree))
    yield from over_by_room(tree, ANY, any_by_room(tree), "say the type, or a protocol with what is used")


def counts(tree: Tree) -> dict[str, dict[str, int]]:
    """Return how many annotations each file has, and how many `Any` each room."""
    return {MACHINE_MADE: Counter(one.path for one in machine_made(tree)), ANY: any_by_room(tree)}


def any_by_room(tree: Tree) -> dict[str, int]:
    """Return how often each room writes `Any`, imports not counted."""
    rooms: Counter[str] = Counter()
    for module, file in modules(tree).items():
        rooms[room_of(tree, module)] += sum(
            isinstance(node, ast.Name) and node.id == "Any" for node in tree.nodes(file)
        )
    return {room: count for room, count in sorted(rooms.items()) if count}


def machine_made(tree: Tree) -> list[Problem]:
    """Return unions that have a member twice or `Any` among others, and attributes annotated outside `__init__`."""
    return [problem for file in tree.files("src/kiln") for problem in (*_unions(tree, file), *_attributes(tree, file))]


def _unions(tree: Tree, file: Path) -> Iterator[Problem]:
    inner: set[int] = set()
    for node in tree.nodes(file):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and id(node) not in inner:
            members = [*_members(node, inner)]
            if len({*members}) < len(members):
                yield tree.at(file, node.lineno, f"{ast.unparse(node)} has a member twice")
            elif "Any" in members:
                yield tree.at(file, node.lineno, f"{ast.unparse(node)} is Any: say the type, or Any alone")


def _members(node: ast.expr, inner: set[int]) -> Iterator[str]:
    inner.add(id(node))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _members(node.left, inner)
        yield from _members(node.right, inner)
    else:
        yield ast.unparse(node)


def _attributes(tree: Tree, file: Path) -> Iterator[Problem]:
    """Yield attributes annotated in a method although another, or an earlier line, assigns them without an annotation."""
    for node in tree.nodes(file):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            plain = {name for each in methods for name, _ in _of_self(each, ast.Assign)}
            for method in methods:
                for name, line in _of_self(method, ast.AnnAssign) if method.name != "__init__" else ():
                    if name in plain:
                        yield tree.at(file, line, f"self.{name} is annotated here: annotate its first assignment")


def _of_self(method: ast.FunctionDef, kind: type[ast.Assign] | type[ast.AnnAssign]) -> Iterator[tuple[str, int]]:
    for node in ast.walk(method):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node, kind):
            for each in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self":
                    yield each.attr, node.lineno
