"""Making a random program small while it keeps its verdict."""

from __future__ import annotations

import ast
import dataclasses
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from random_programs import Program

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def minimized(program: Program, keeps: Callable[[Program], bool]) -> Program:
    """The smallest program found that `keeps` accepts, by leaving out statements and parts of expressions.

    Every step of a pass that is accepted is kept; passes are repeated until none helps.
    """
    text = ast.unparse(ast.parse(program.text)) + "\n"
    best = dataclasses.replace(program, text=text)
    if not keeps(best):
        return program
    while True:
        smaller = _pass(best, keeps)
        if smaller.text == best.text:
            return best
        best = smaller


def _pass(program: Program, keeps: Callable[[Program], bool]) -> Program:
    """Make every change that is accepted, once."""
    number, best = 0, program
    while True:
        text = _changed(best.text, number)
        if text is None:
            return best
        if text != best.text and len(text) < len(best.text):
            candidate = dataclasses.replace(best, text=text)
            if keeps(candidate):
                best = candidate
                continue  # what comes next has this number now
        number += 1


def _changed(text: str, number: int) -> str | None:
    """The text with its change of this number made; None where there are fewer."""
    tree = ast.parse(text)
    for count, change in enumerate(_changes(tree)):
        if count == number:
            change()
            try:
                return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
            except (ValueError, AttributeError):  # no program any more
                return text
    return None


def _changes(tree: ast.Module) -> Iterator[Callable[[], None]]:
    """What may be left out, large parts first."""
    yield from _of_module(tree)
    nodes = list(_walk(tree))
    for node in nodes:
        for field in _BLOCKS:
            block = getattr(node, field, None)
            if isinstance(block, list) and block:
                yield from _of_block(node, field, block)
    for node in nodes:
        yield from _of_expression(node)


def _kept(tree: ast.Module) -> tuple[str, ...]:
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return ("f", "f_kernel") if "f_kernel" in names else ()


def _of_module(tree: ast.Module) -> Iterator[Callable[[], None]]:
    for node in tree.body:
        if getattr(node, "name", "") not in (*_kept(tree), "f", "body"):
            yield functools.partial(tree.body.remove, node)


def _walk(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes but those of a kernel and its launch, which stay."""
    kept = _kept(tree)
    for node in tree.body:
        if getattr(node, "name", "") not in kept:
            yield from ast.walk(node)


def _of_block(node: ast.AST, field: str, block: list[ast.AST]) -> Iterator[Callable[[], None]]:
    needs_one = field in ("body", "cases")

    def remove(first: int, last: int) -> Callable[[], None]:
        def change() -> None:
            del block[first:last]
            if not block and needs_one:
                block.append(ast.Pass())

        return change

    if len(block) > 3:
        half = len(block) // 2
        yield remove(0, half)
        yield remove(half, len(block))
    for place, statement in enumerate(block):
        if isinstance(statement, ast.Pass):
            continue
        yield remove(place, place + 1)
        for inner in _BLOCKS[:3]:
            inside = getattr(statement, inner, None)
            if isinstance(inside, list) and inside and not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                yield _replacing(block, place, inside)


def _replacing(block: list[ast.AST], place: int, inside: list[ast.AST]) -> Callable[[], None]:
    def change() -> None:
        block[place : place + 1] = inside

    return change


def _of_expression(node: ast.AST) -> Iterator[Callable[[], None]]:
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.expr):
            for simpler in _simpler(value):
                yield _setting(node, field, simpler)
        elif isinstance(value, list) and isinstance(node, (ast.Call, ast.Tuple, ast.List, ast.BoolOp)):
            for place, item in enumerate(value):
                if isinstance(item, ast.expr):
                    for simpler in _simpler(item):
                        yield _replacing(value, place, [simpler])


def _setting(node: ast.AST, field: str, value: ast.expr) -> Callable[[], None]:
    return lambda: setattr(node, field, value)


def _simpler(node: ast.expr) -> list[ast.expr]:
    """Expressions that may stand for one."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        return [ast.Compare(node.left, node.ops[:1], node.comparators[:1])]
    if isinstance(node, ast.Call) and node.args:
        return [*node.args, ast.Constant(1)]
    if isinstance(node, (ast.Call, ast.Compare, ast.Subscript, ast.Attribute)):
        return [ast.Constant(1)]
    return []
