"""`break`, `continue` and `return` inside constructs that may become regions of the IR.

They are turned into flag variables and nested `if`s, so that what follows sees only structured code:

    for i in r:                    brk = False
        if c: break        =>      for i in r:          (left when brk is set)
        rest                           if c: brk = True
                                       else: rest

A flag that no dynamic condition touches stays a Python bool, and the code runs as plain Python.
Statements after an arm that always jumps move into the other arm; otherwise they are guarded.
"""

from __future__ import annotations

import ast
import itertools
from typing import Any

BREAK = "__kiln_brk"
CONTINUE = "__kiln_cont"
RETURN_FLAG = "__kiln_retf"
RETURN_VALUE = "__kiln_retv"
# Past this depth of nesting, statements after a jump are guarded instead of nested further.
_DEEPEST = 40


def is_internal_name(name: str) -> bool:
    """Return whether a variable was made by the front end."""
    return name.startswith("__kiln")


class Misplaced(Exception):
    """A jump that cannot be lowered: where, what it is, and what to write instead."""

    def __init__(self, node: ast.AST, message: str, hint: str) -> None:
        super().__init__(message)
        self.node = node
        self.message = message
        self.hint = hint


class Loop(ast.stmt):
    """A `for` or `while` whose jumps are gone: `node` is the loop, `exits` the flags that leave it when set."""

    _fields = ("node",)

    def __init__(self, node: ast.For | ast.While, exits: tuple[str, ...], resets: tuple[str, ...]) -> None:
        super().__init__(node=node)  # pyright: ignore[reportCallIssue]
        self.node = node
        self.exits = exits
        self.resets = resets
        ast.copy_location(self, node)


class Guard(ast.stmt):
    """`body` runs unless one of `flags` is set."""

    _fields = ("body",)

    def __init__(self, flags: tuple[str, ...], body: list[ast.stmt], like: ast.AST) -> None:
        super().__init__(body=body)  # pyright: ignore[reportCallIssue]
        self.flags = flags
        self.body = body
        ast.copy_location(self, like)


def escaping(stmts: list[ast.stmt]) -> set[str]:
    """Return which of 'break', 'continue', 'return' may leave this block."""
    jumps: set[str] = set()
    for stmt in stmts:
        if isinstance(stmt, ast.Break):
            jumps.add("break")
        elif isinstance(stmt, ast.Continue):
            jumps.add("continue")
        elif isinstance(stmt, ast.Return):
            jumps.add("return")
        elif isinstance(stmt, (ast.For, ast.While, ast.AsyncFor)):
            jumps |= escaping(stmt.body) & {"return"}
            jumps |= escaping(stmt.orelse)
        elif not isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for block in _blocks(stmt):
                jumps |= escaping(block)
    return jumps


def _blocks(stmt: ast.stmt) -> list[list[ast.stmt]]:
    """Return the statement lists inside a compound statement."""
    if isinstance(stmt, _WITHOUT_BLOCKS):
        return []
    blocks = [
        getattr(stmt, name) for name in ("body", "orelse", "finalbody") if isinstance(getattr(stmt, name, None), list)
    ]
    blocks += [h.body for h in getattr(stmt, "handlers", [])]
    blocks += [c.body for c in getattr(stmt, "cases", [])]
    return blocks


_WITHOUT_BLOCKS = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Pass, ast.Assert)
"""Nearly all statements."""


def _always_jumps(stmts: list[ast.stmt]) -> bool:
    for stmt in stmts:
        if isinstance(stmt, (ast.Break, ast.Continue, ast.Return, ast.Raise)):
            return True
        if isinstance(stmt, ast.If) and stmt.orelse and _always_jumps(stmt.body) and _always_jumps(stmt.orelse):
            return True
        if isinstance(stmt, ast.With) and _always_jumps(stmt.body):
            return True
    return False


def _assign(name: str, value: ast.expr, like: ast.AST) -> ast.stmt:
    return ast.copy_location(ast.Assign([ast.Name(name, ast.Store())], value), like)


class JumpLowering:
    """Lowers the jumps of one function body. `typed`: what it returns goes through the hook `result`."""

    def __init__(self, typed: bool = False) -> None:
        self._numbers = itertools.count(1)
        self._typed = typed

    def function(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the body with no jump left inside a construct; plain `return`s outside constructs stay."""
        if not self._returns_inside_construct(body):
            return self._block(body, None, None, nested=False, depth=0)
        first = body[0]
        start = [_assign(RETURN_FLAG, ast.Constant(False), first), _assign(RETURN_VALUE, _hook("UNDEFINED"), first)]
        lowered = self._block(body, None, None, nested=True, depth=0)
        last = body[-1]
        call = ast.Call(_hook("returned"), [ast.Name(RETURN_FLAG, ast.Load()), ast.Name(RETURN_VALUE, ast.Load())], [])
        end = ast.copy_location(ast.Return(call), last)
        return [*start, *lowered, end]

    def _returns_inside_construct(self, stmts: list[ast.stmt]) -> bool:
        for stmt in stmts:
            if isinstance(stmt, (ast.If, ast.For, ast.While, ast.Match, ast.AsyncFor)):
                if "return" in escaping([stmt]):
                    return True
            elif not isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                if any(self._returns_inside_construct(block) for block in _blocks(stmt)):
                    return True
        return False

    def _block(
        self, stmts: list[ast.stmt], brk: str | None, cont: str | None, nested: bool, depth: int
    ) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for index, stmt in enumerate(stmts):
            rest = stmts[index + 1 :]
            if isinstance(stmt, ast.Break):
                assert brk is not None
                return [*out, _assign(brk, ast.Constant(True), stmt)]
            if isinstance(stmt, ast.Continue):
                assert cont is not None
                return [*out, _assign(cont, ast.Constant(True), stmt)]
            if isinstance(stmt, ast.Return):
                if not nested and not self._typed:
                    return [*out, stmt]
                value = stmt.value if stmt.value is not None else ast.Constant(None)
                if self._typed:
                    value = ast.copy_location(ast.Call(_hook("result"), [value], []), stmt)
                if not nested:
                    return [*out, ast.copy_location(ast.Return(value), stmt)]
                return [*out, _assign(RETURN_VALUE, value, stmt), _assign(RETURN_FLAG, ast.Constant(True), stmt)]
            jumps = escaping([stmt])
            if isinstance(stmt, ast.If):
                then_jumps = _always_jumps(stmt.body)
                else_jumps = _always_jumps(stmt.orelse)
                body = stmt.body
                orelse = stmt.orelse
                if jumps and depth < _DEEPEST and (then_jumps or else_jumps):
                    if not then_jumps:
                        body = [*body, *rest]
                        rest = []
                    elif not else_jumps:
                        orelse = [*orelse, *rest]
                        rest = []
                    else:
                        rest = []
                guard = ast.If(
                    stmt.test,
                    self._block(body, brk, cont, nested, depth + 1) or [ast.copy_location(ast.Pass(), stmt)],
                    self._block(orelse, brk, cont, nested, depth + 1),
                )
                out.append(ast.copy_location(guard, stmt))
                if not rest:
                    return out
            elif isinstance(stmt, (ast.For, ast.While)):
                out += self._loop(stmt, brk, cont, nested, depth)
            elif isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                out.append(stmt)
            else:
                out.append(self._compound(stmt, brk, cont, nested, depth))
            if jumps and rest:
                flags = self._flags_of(jumps, brk, cont)
                if flags:
                    guarded = self._block(rest, brk, cont, nested, depth + 1)
                    out.append(Guard(flags, guarded, rest[0]))
                    return out
        return out

    @staticmethod
    def _flags_of(jumps: set[str], brk: str | None, cont: str | None) -> tuple[str, ...]:
        names = [("break", brk), ("continue", cont), ("return", RETURN_FLAG)]
        return tuple(name for kind, name in names if kind in jumps and name is not None)

    def _loop(
        self, stmt: ast.For | ast.While, brk: str | None, cont: str | None, nested: bool, depth: int
    ) -> list[ast.stmt]:
        inner = escaping(stmt.body)
        number = next(self._numbers)
        my_brk = f"{BREAK}{number}" if "break" in inner else None
        my_cont = f"{CONTINUE}{number}" if "continue" in inner else None
        out: list[ast.stmt] = []
        exits: list[str] = []
        if my_brk:
            exits.append(my_brk)
            out.append(_assign(my_brk, ast.Constant(False), stmt))
        if "return" in inner:
            exits.append(RETURN_FLAG)
        body = self._block(stmt.body, my_brk, my_cont, nested, depth + 1)
        if my_cont:
            body = [_assign(my_cont, ast.Constant(False), stmt), *body]
        copied = (
            ast.For(stmt.target, stmt.iter, body, []) if isinstance(stmt, ast.For) else ast.While(stmt.test, body, [])
        )
        out.append(Loop(ast.copy_location(copied, stmt), tuple(exits), (my_cont,) if my_cont else ()))
        if stmt.orelse:
            orelse = self._block(stmt.orelse, brk, cont, nested, depth + 1)
            out += [Guard(tuple(exits), orelse, stmt.orelse[0])] if exits else orelse
        return out

    def _compound(self, stmt: ast.stmt, brk: str | None, cont: str | None, nested: bool, depth: int) -> ast.stmt:
        """Lower `with`, `try`, `match`: the statement itself stays, its blocks are lowered."""
        if not any(_blocks(stmt)):
            return stmt

        def lower(block: list[ast.stmt]) -> list[ast.stmt]:
            return self._block(block, brk, cont, nested, depth + 1)

        fields = {name: getattr(stmt, name) for name in stmt._fields if hasattr(stmt, name)}
        for name in ("body", "orelse", "finalbody"):
            if isinstance(fields.get(name), list):
                fields[name] = lower(fields[name])
        if isinstance(stmt, (ast.Try, getattr(ast, "TryStar", ast.Try))):
            attempt: Any = stmt
            if escaping(attempt.finalbody):
                raise Misplaced(attempt.finalbody[0], "a jump out of `finally`", "move it behind the `try` statement")
            flags = self._flags_of(escaping(attempt.body), brk, cont)
            if flags and attempt.orelse:  # `else` belongs to a body that was not left by a jump
                fields["orelse"] = [Guard(flags, fields["orelse"], attempt.orelse[0])]
        if "handlers" in fields:
            fields["handlers"] = [
                ast.copy_location(ast.ExceptHandler(h.type, h.name, lower(h.body)), h) for h in fields["handlers"]
            ]
        if "cases" in fields:
            fields["cases"] = [ast.match_case(c.pattern, c.guard, lower(c.body)) for c in fields["cases"]]
        return ast.copy_location(type(stmt)(**fields), stmt)


def _hook(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("__kiln__", ast.Load()), name, ast.Load())
