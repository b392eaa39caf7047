"""Small random programs with nested control flow, as source text that plain Python and Kiln both run.

`program(pick)` writes a function `f(a, b, c)` of three ints. `pick(n)` chooses one of n possibilities, so that a
property-testing library or a plain random generator can drive it. Loops are bounded, numbers stay small, and no
division can fail unless laziness is broken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PRELUDE = """\
class Box:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def bump(self, by):
        self.x = (self.x + by) % 101
        return self.x

    def swap_if(self, condition):
        if condition:
            self.x, self.y = self.y, self.x


Box.swap_if = jit(Box.swap_if)


@jit
def helper(p, q):
    if p > q:
        return p - q
    for i in range(q % 3):
        if i == p:
            return i
        p += 1
    return p % 53


def plain(p, q):
    return (p * 3 + q) % 71


@jit
def touch(box, p):
    if p > 4:
        box.bump(p)
    else:
        box.y = (box.y + p) % 89
"""

VARIABLES = ("a", "b", "c", "u", "v", "w")


class Writer:
    """Writes one program."""

    def __init__(self, pick: Callable[[int], int], size: int = 12) -> None:
        self.pick = pick
        self.left = size
        self.lines: list[str] = []
        self.indent = 1
        self.loops: list[bool] = []
        self.fresh = 0
        self.readable: list[str] = [*VARIABLES]
        self.in_finally = 0

    def choose(self, *items: str) -> str:
        return items[self.pick(len(items))]

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    # -- expressions -----------------------------------------------------------------------------------

    def atom(self) -> str:
        kind = self.pick(8)
        if kind < 4:
            return self.choose(*self.readable)
        if kind == 4:
            return str(self.pick(10))
        if kind == 5:
            return self.choose("box.x", "box.y", "other.x")
        if kind == 6:
            return self.choose("pair[0]", "pair[1]", "row[0]", "row[1]", "table['k']")
        return self.choose("K", "2", "7")

    def value(self, depth: int = 0) -> str:
        """An int expression; results stay below about 10,000 in size."""
        kind = self.pick(14) if depth < 2 else self.pick(3)
        if kind < 3:
            return self.atom()
        x, y = self.atom(), self.atom()
        if kind == 3:
            return f"({x} + {y}) % 97"
        if kind == 4:
            return f"({x} - {y}) % 31"
        if kind == 5:
            return f"({x} * {y}) % 61"
        if kind == 6:
            return f"({self.value(depth + 1)} if {self.test(depth + 1)} else {self.value(depth + 1)})"
        if kind == 7:
            return f"({x} // {y} if {y} != 0 else {self.atom()})"
        if kind == 8:
            return f"({y} and {x} % {y})"
        if kind == 9:
            return f"({x} or {y})"
        if kind == 10:
            return f"{self.choose('min', 'max')}({x}, {y})"
        if kind == 11:
            return f"{self.choose('helper', 'plain')}({x}, {y})"
        if kind == 12:
            return f"abs({x} - {y})"
        return f"sum([e + {x} for e in ({y}, 1)]) % 37"

    def test(self, depth: int = 0) -> str:
        kind = self.pick(10) if depth < 2 else self.pick(3)
        x, y = self.atom(), self.atom()
        if kind < 3:
            return f"{x} {self.choose('<', '<=', '==', '!=', '>', '>=')} {y}"
        if kind == 3:
            return f"{x} < {y} <= {self.atom()}"
        if kind == 4:
            return f"(not {self.test(depth + 1)})"
        if kind == 5:
            return f"({self.test(depth + 1)} and {self.test(depth + 1)})"
        if kind == 6:
            return f"({self.test(depth + 1)} or {self.test(depth + 1)})"
        if kind == 7:
            return f"{x} in ({y}, 3, {self.atom()})"
        if kind == 8:
            return f"({y} != 0 and {x} // {y} > 1)"
        return self.choose("K > 2", "K == 3", "True", "False")

    # -- statements ------------------------------------------------------------------------------------

    def block(self, most: int = 3) -> None:
        start = len(self.lines)
        self.indent += 1
        for _ in range(1 + self.pick(most)):
            if self.left <= 0 and len(self.lines) > start:
                break
            if not self.statement():
                break
        if len(self.lines) == start:
            self.emit("pass")
        self.indent -= 1

    def statement(self) -> bool:
        """Write a statement; False after one that ends its block."""
        self.left -= 1
        compound = self.left > 0 and self.indent < 6
        kind = self.pick(26 if compound else 14)
        target = self.choose(*VARIABLES)
        if kind < 3:
            self.emit(f"{target} = {self.value()}")
        elif kind == 3:
            self.emit(f"{target} {self.choose('+=', '-=', '^=', '|=')} {self.atom()} % 13")
            self.emit(f"{target} = {target} % 1009")
        elif kind == 4:
            self.emit(f"{self.choose('box.x', 'box.y', 'other.y')} = {self.value()}")
        elif kind == 5:
            self.emit(f"{target} = box.bump({self.atom()})")
        elif kind == 6:
            self.emit(f"pair = ({self.value()}, {self.value()})")
        elif kind == 7:
            place = self.choose("row[0]", "row[1]", "table['k']")
            self.emit(f"{place} = {self.value()}")
        elif kind == 8:
            other = self.choose(*VARIABLES)
            if other != target:
                self.emit(f"{target}, {other} = {other}, {target}")
            else:
                self.emit(f"touch({self.choose('box', 'other')}, {self.atom()})")
        elif kind == 9:
            self.emit(
                self.choose(f"box.swap_if({self.test()})", f"touch(box, {self.atom()})", "box = Box(box.y, box.x)")
            )
        elif kind == 10 and self.loops and not self.in_finally:
            self.emit(f"if {self.test()}:")
            self.emit(f"    {self.choose('break', 'continue', 'break')}")
        elif kind == 11 and not self.in_finally:
            self.emit(f"if {self.test()}:")
            self.emit(f"    return {self.returned()}")
        elif kind == 12 and self.loops and not self.in_finally and self.pick(3) == 0:
            self.emit(self.choose("break", "continue"))
            return False
        elif kind == 13 and not self.in_finally and self.indent > 1 and self.pick(3) == 0:
            self.emit(f"return {self.returned()}")
            return False
        elif kind < 18:
            self.if_()
        elif kind < 21:
            self.for_()
        elif kind < 23:
            self.while_()
        elif kind == 23:
            self.try_()
        elif kind == 24:
            self.emit(f"if ({target} := {self.value()}) > {self.atom()}:")
            self.block()
        elif kind == 25:
            self.match_()
        else:
            self.emit(f"{target} = ({target} + {self.atom()}) % 500")
        return True

    def if_(self) -> None:
        self.emit(f"if {self.test()}:")
        self.block()
        if self.pick(3) == 0:
            self.emit(f"elif {self.test()}:")
            self.block()
        if self.pick(2):
            self.emit("else:")
            self.block()

    def for_(self) -> None:
        self.fresh += 1
        item = self.choose(f"i{self.fresh}", "u", "_")
        n = self.atom()
        iterable = [
            f"range({n} % 5)",
            f"range({n} % 4, 6)",
            f"range({n} % 7, -1, -2)",
            f"range(0, {n} % 9, {self.atom()} % 3 + 1)",
            "range(3)",
            "range_constexpr(3)",
            f"(1, {self.atom()}, 5)",
            f"crange({n} % 5, unroll=2)",
            f"range({n} % 5, {self.atom()} % 5, 1 - 2 * (1 if {self.test()} else 0))",
        ][self.pick(9)]
        before = list(self.readable)
        if self.pick(8) == 0:
            self.emit(f"for j{self.fresh}, {item} in enumerate((4, {self.atom()})):")
            self.readable.append(f"j{self.fresh}")
        else:
            self.emit(f"for {item} in {iterable}:")
        if item != "_" and item not in self.readable:
            self.readable.append(item)
        self.loops.append(True)
        self.block()
        self.loops.pop()
        self.readable = before
        self.loop_else()

    def while_(self) -> None:
        self.fresh += 1
        k = f"n{self.fresh}"
        shape = self.pick(4)
        self.emit(f"{k} = {self.atom()} % 5" if shape != 2 else f"{k} = 3")
        self.loops.append(True)
        self.readable.append(k)
        if shape == 1:
            self.emit("while True:")
            self.emit(f"    if {k} <= 0:")
            self.emit(
                f"        {self.choose('break', f'return {self.returned()}') if not self.in_finally else 'break'}"
            )
        elif shape == 3:
            self.emit(f"while {k} > 0 and {self.test(1)}:")
        else:
            self.emit(f"while {k} > 0:")
        self.emit(f"    {k} -= 1")
        self.block()
        self.loops.pop()
        self.readable.remove(k)
        if shape != 1:
            self.loop_else()

    def loop_else(self) -> None:
        if self.pick(4) == 0:
            self.emit("else:")
            self.block(2)

    def try_(self) -> None:
        if self.pick(2):
            self.emit("with nullcontext():")
            self.block()
            return
        self.emit("try:")
        self.block()
        if self.pick(2):
            self.emit("except KeyError:")
            self.emit("    pass")
            if self.pick(2):
                self.emit("else:")
                self.block(2)
        else:
            self.emit("finally:")
            self.in_finally += 1
            self.block(1)
            self.in_finally -= 1

    def match_(self) -> None:
        self.emit(f"match {self.atom()}:")
        self.indent += 1
        self.emit(f"case {self.pick(4)}:")
        self.block(2)
        self.emit(f"case {self.pick(4)} | {4 + self.pick(4)}:")
        self.block(2)
        last = self.pick(3)
        if last == 0:
            self.emit("case _:")
            self.block(2)
        elif last == 1:
            self.emit(f"case w if {self.test()}:")
            self.block(2)
        self.indent -= 1

    def returned(self) -> str:
        if self.scalar_result:
            return self.atom()
        return f"({self.atom()}, {self.choose(*VARIABLES)}, box.x)"

    def program(self) -> str:
        self.scalar_result = self.pick(2) == 0
        self.emit("u, v, w = 1, 2, 3")
        self.emit("box, other = Box(a, 5), Box(b, c)")
        self.emit("pair = (b, 4)")
        self.emit("row = [c, 6]")
        self.emit("table = {'k': 8}")
        while self.left > 0:
            if not self.statement():
                break
        result = "(a + b + c + u + v + w + box.x + box.y + other.x + other.y + pair[0] + pair[1] + row[0] + row[1] + table['k'])"
        self.emit(
            f"return {result}"
            if self.scalar_result
            else "return (a + b + c, u + v + w + sum(pair) + row[0] + row[1], box.x + other.y + table['k'])"
        )
        return "\n".join([PRELUDE, "", "@jit", "def f(a, b, c):", *self.lines, ""])


def program(pick: Callable[[int], int], size: int = 12) -> str:
    """The text of one program: functions decorated with `@jit`, the main one called `f`."""
    return Writer(pick, size).program()
