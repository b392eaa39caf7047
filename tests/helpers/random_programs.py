"""Random programs, as source text that plain Python and Kiln both run.

`program(seed)` writes a function `f(a, b, c)` of three ints, with nested control flow, and with what a few of the
productions of `program_productions` bring along: objects, containers, closures, state of modules. Loops are bounded,
numbers stay small, and no division can fail unless laziness is broken.

What a dynamic region may not change is mostly changed outside of one, so that most programs run. A program that is
`daring` changes it anywhere: Kiln has to refuse it, or to be right.
"""

from __future__ import annotations

import dataclasses
import random
import re
from typing import TYPE_CHECKING

from program_productions import PRODUCTIONS, Production

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

VARIABLES = ("a", "b", "c", "u", "v", "w")
INTEGERS = ("Int8", "Int16", "Int32", "Int64", "Uint8", "Uint16", "Uint32", "Uint64")
FLOATS = ("Float16", "BFloat16", "Float32", "Float64")
INDENT = "    "

PRELUDE = """\
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
"""

KERNEL = """\


@kernel
def f_kernel(out, a: Int32, b: Int32, c: Int32):
    found = body(a, b, c)
    for place, value in enumerate(found):
        out[place] = Int32(value)


@jit
def f(out, a: Int32, b: Int32, c: Int32):
    f_kernel(out, a, b, c).launch(grid=(1, 1, 1), block=(1, 1, 1))
"""


@dataclasses.dataclass(frozen=True)
class Program:
    """A program and how it came about."""

    seed: int
    text: str
    productions: tuple[str, ...]
    daring: bool
    in_kernel: bool

    @property
    def documented(self) -> bool:
        """Whether Kiln may give the answers it documents instead of Python's."""
        return any(PRODUCTIONS[name].documented for name in self.productions)


class Writer:
    """Writes the body of one program. Whatever is random comes from `numbers`."""

    def __init__(self, numbers: random.Random, productions: Sequence[Production], size: int, daring: bool) -> None:
        self.numbers = numbers
        self.pick = numbers.randrange
        self.productions = productions
        self.left = size
        self.daring = daring
        self.lines: list[str] = []
        self.indent = 1
        self.loops: list[bool] = []
        self.fresh = 0
        self.readable: list[str] = [*VARIABLES]
        self.in_finally = 0
        self.regions = 0
        self.jumped = False
        """Whether what follows runs only if a dynamic condition let it."""

    def choose(self, *items: str) -> str:
        return items[self.pick(len(items))]

    def emit(self, text: str) -> None:
        self.lines.append(INDENT * self.indent + text)

    def may_hide(self) -> bool:
        """Whether state that cannot be carried may change here."""
        return self.daring or not (self.regions or self.jumped)

    # -- templates -------------------------------------------------------------------------------------

    def fill(self, template: str) -> str:
        """A template of a production with its places filled: see `Production`."""
        chosen: dict[str, str] = {}
        kinds: dict[str, Callable[[], str]] = {
            "v": self.value,
            "a": self.atom,
            "t": self.test,
            "k": lambda: str(self.pick(10)),
            "p": lambda: str(1 + self.pick(5)),
        }
        named: dict[str, Callable[[], str]] = {
            "x": lambda: self.choose(*VARIABLES),
            "y": lambda: self.choose(*VARIABLES),
            "I": lambda: self.choose(*INTEGERS),
            "J": lambda: self.choose(*INTEGERS),
            "F": lambda: self.choose(*FLOATS),
            "G": lambda: self.choose(*FLOATS),
        }

        def filled(match: re.Match[str]) -> str:
            key = match.group(1)
            if key in kinds:
                return kinds[key]()
            if key not in chosen:
                chosen[key] = named[key]()
            return chosen[key]

        return re.sub(r"\$([a-zA-Z])\b", filled, template)

    def emit_template(self, template: str) -> None:
        """Emit the lines of a template; `$block` is a block of statements, `$region` one in a dynamic region."""
        for line in self.fill(template).splitlines():
            text = line.strip()
            depth = (len(line) - len(line.lstrip())) // len(INDENT)
            if text in ("$block", "$region"):
                self.indent += depth - 1
                self.regions += text == "$region"
                self.block(2)
                self.regions -= text == "$region"
                self.indent -= depth - 1
            else:
                self.lines.append(INDENT * (self.indent + depth) + text)

    def offered(self, field: str) -> list[str]:
        """What the productions of this program offer of one kind."""
        return [text for production in self.productions for text in getattr(production, field)]

    def hidden(self, field: str) -> list[str]:
        """The same of what may be refused, as far as it may stand here."""
        if not self.may_hide():
            return []
        return [text for p in self.productions if self.daring or not p.always for text in getattr(p, field)]

    # -- expressions -----------------------------------------------------------------------------------

    def atom(self) -> str:
        kind = self.pick(8)
        reads = self.offered("reads")
        if kind >= 5 and reads:
            return self.fill(self.choose(*reads))
        if kind == 4:
            return str(self.pick(10))
        if kind == 7:
            return self.choose("K", "2", "7")
        return self.choose(*self.readable)

    def call(self) -> str:
        """An expression that changes something, if there is one that may stand here; else any."""
        calls = self.offered("calls") + self.hidden("hidden_calls")
        return self.fill(self.choose(*calls)) if calls else self.atom()

    def lazily(self, make: Callable[[], str]) -> str:
        """A part of an expression that may not be evaluated."""
        self.regions += 1
        text = make()
        self.regions -= 1
        return text

    def value(self, depth: int = 0) -> str:
        """An int expression; results stay below about 10,000 in size."""
        kind = self.pick(16) if depth < 2 else self.pick(3)
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
            test = self.test(depth + 1)
            return f"({self.lazily(lambda: self.value(depth + 1))} if {test} else {self.lazily(lambda: self.value(depth + 1))})"
        if kind == 7:
            return (
                f"({x} // {y} if {y} != 0 else {self.atom()})"
                if x.isidentifier() and y.isidentifier()
                else f"({x} + {y}) % 91"
            )
        if kind == 8:
            return f"({y} and {x} % {y})" if y.isidentifier() else f"({x} and {y})"
        if kind == 9:
            return f"({x} or {self.lazily(self.call)})"
        if kind == 10:
            return f"{self.choose('min', 'max')}({x}, {y})"
        if kind == 11:
            return f"{self.choose('helper', 'plain')}({x}, {y})"
        if kind == 12:
            return f"abs({x} - {y})"
        if kind == 13:
            return f"sum([e + {x} for e in ({y}, 1)]) % 37"
        return f"({x} + {self.call()}) % 83"

    def test(self, depth: int = 0) -> str:
        """A truth value."""
        kind = self.pick(12) if depth < 2 else self.pick(3)
        x, y = self.atom(), self.atom()
        if kind < 3:
            return f"{x} {self.choose('<', '<=', '==', '!=', '>', '>=')} {y}"
        if kind == 3:
            return f"{x} < {y} <= {self.lazily(self.call)}"
        if kind == 4:
            return f"(not {self.test(depth + 1)})"
        if kind == 5:
            return f"({self.test(depth + 1)} and {self.lazily(lambda: self.test(depth + 1))})"
        if kind == 6:
            return f"({self.test(depth + 1)} or {self.lazily(lambda: self.test(depth + 1))})"
        if kind == 7:
            return f"{x} in ({y}, 3, {self.atom()})"
        if kind == 8 and y.isidentifier():
            return f"({y} != 0 and {x} // {y} > 1)"
        if kind == 9:
            return self.choose("K > 2", "K == 3", "True", "False")
        tests = self.offered("tests") + self.hidden("hidden_tests") * (2 if self.daring else 1)
        return f"({self.fill(self.choose(*tests))})" if tests else f"{x} != {y}"

    # -- statements ------------------------------------------------------------------------------------

    def block(self, most: int = 3, dynamic: bool = False) -> None:
        start = len(self.lines)
        self.indent += 1
        self.regions += dynamic
        for _ in range(1 + self.pick(most)):
            if self.left <= 0 and len(self.lines) > start:
                break
            if not self.statement():
                break
        if len(self.lines) == start:
            self.emit("pass")
        self.regions -= dynamic
        self.indent -= 1

    def change(self) -> None:
        """A statement of one of the productions."""
        changes = self.offered("changes") + self.hidden("hidden") * (3 if self.daring else 1)
        if changes:
            self.emit_template(self.choose(*changes))
        else:
            target = self.choose(*VARIABLES)
            self.emit(f"{target} = ({target} + {self.atom()}) % 500")

    def statement(self) -> bool:
        """Write a statement; False after one that ends its block."""
        self.left -= 1
        compound = self.left > 0 and self.indent < 6
        kind = self.pick(30 if compound else 16)
        target = self.choose(*VARIABLES)
        if kind < 3:
            self.emit(f"{target} = {self.value()}")
        elif kind == 3:
            self.emit(f"{target} {self.choose('+=', '-=', '^=', '|=')} {self.atom()} % 13")
            self.emit(f"{target} = {target} % 1009")
        elif kind == 4:
            other = self.choose(*VARIABLES)
            self.emit(f"{target}, {other} = {other}, {target}" if other != target else f"{target} = {self.value()}")
        elif kind == 5:
            self.emit(f"{target} = ({target} + {self.call()}) % 500")
        elif kind < 12:
            self.change()
        elif kind == 12 and self.loops and not self.in_finally:
            self.emit(f"if {self.test()}:")
            self.emit(f"    {self.choose('break', 'continue', 'break')}")
            self.jumped = True
        elif kind == 13 and not self.in_finally and self.pick(4 if self.daring else 2) == 0:
            self.emit(f"if {self.test()}:")
            self.emit(f"    return {self.returned()}")
            self.jumped = True
        elif kind == 14 and self.loops and not self.in_finally and self.pick(3) == 0:
            self.emit(self.choose("break", "continue"))
            self.jumped = True
            return False
        elif kind == 15 and not self.in_finally and self.indent > 1 and self.pick(3) == 0:
            self.emit(f"return {self.returned()}")
            self.jumped = True
            return False
        elif kind < 16:
            self.change()
        elif kind < 21:
            self.if_()
        elif kind < 24:
            self.for_()
        elif kind < 26:
            self.while_()
        elif kind == 26:
            self.try_()
        elif kind == 27:
            self.emit(f"if ({target} := {self.value()}) > {self.atom()}:")
            self.block(dynamic=True)
        elif kind == 28:
            self.match_()
        else:
            self.emit(f"if {self.test()}:")
            self.indent += 1
            self.regions += 1
            self.change()
            self.regions -= 1
            self.indent -= 1
        return True

    def if_(self) -> None:
        test = self.test()
        static = test.startswith(("K", "True", "False"))
        self.emit(f"if {test}:")
        self.block(dynamic=not static)
        if self.pick(3) == 0:
            self.emit(f"elif {self.test()}:")
            self.block(dynamic=True)
            static = False
        if self.pick(2):
            self.emit("else:")
            self.block(dynamic=not static)

    def for_(self) -> None:
        self.fresh += 1
        item = self.choose(f"i{self.fresh}", "u", "_")
        n = self.atom()
        step = f"1 - 2 * (1 if {self.test()} else 0)"
        kind = self.pick(10)
        iterable = [
            f"range({n} % 5)",
            f"range({n} % 4, 6)",
            f"range({n} % 7, -1, -2)",
            f"range(0, {n} % 9, {self.atom()} % 3 + 1)",
            "range(3)",
            f"range({n} % 5, {self.atom()} % 5, {step})",
            f"crange({n} % 5, unroll=2)",
            "range_constexpr(3)",
            f"(1, {self.atom()}, 5)",
            f"enumerate((4, {self.atom()}))",
        ][kind]
        before = list(self.readable)
        if kind == 9:
            self.emit(f"for j{self.fresh}, {item} in {iterable}:")
            self.readable.append(f"j{self.fresh}")
        else:
            self.emit(f"for {item} in {iterable}:")
        if item != "_" and item not in self.readable:
            self.readable.append(item)
        self.loop(dynamic=kind < 7)
        self.readable = before
        self.loop_else()

    def loop(self, dynamic: bool = True) -> None:
        """The body of a loop. A dynamic jump in a static one makes a region of the rest."""
        self.loops.append(True)
        self.block(dynamic=dynamic)
        self.loops.pop()

    def while_(self) -> None:
        self.fresh += 1
        k = f"n{self.fresh}"
        shape = self.pick(4)
        self.emit(f"{k} = {self.atom()} % 5" if shape != 2 else f"{k} = 3")
        self.readable.append(k)
        if shape == 1:
            self.emit("while True:")
            self.emit(f"    if {k} <= 0:")
            left = self.choose("break", f"return {self.returned()}") if not self.in_finally else "break"
            self.emit(f"        {left}")
            self.jumped = True
        elif shape == 3:
            self.emit(f"while {k} > 0 and {self.lazily(lambda: self.test(1))}:")
        else:
            self.emit(f"while {k} > 0:")
        self.emit(f"    {k} -= 1")
        self.loop()
        self.readable.remove(k)
        if shape != 1:
            self.loop_else()

    def loop_else(self) -> None:
        if self.pick(4) == 0:
            self.emit("else:")
            self.block(2, dynamic=True)

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
        self.block(2, dynamic=True)
        self.emit(f"case {self.pick(4)} | {4 + self.pick(4)}:")
        self.block(2, dynamic=True)
        last = self.pick(3)
        if last == 0:
            self.emit("case _:")
            self.block(2, dynamic=True)
        elif last == 1:
            self.emit(f"case w if {self.test()}:")
            self.block(2, dynamic=True)
        self.indent -= 1

    def returned(self) -> str:
        return f"({self.choose(*VARIABLES)}, {self.choose(*VARIABLES)}, {self.atom()})"

    def body(self) -> list[str]:
        """The lines of the function."""
        self.emit("u, v, w = 1, 2, 3")
        for template in self.offered("setup"):
            self.emit_template(template)
        while self.left > 0:
            if not self.statement():
                break
        found = self.offered("result")
        total = " + ".join(self.fill(text) for text in found) or "0"
        self.emit(f"return ((a + b * 3 + c * 7) % 10007, (u + v * 3 + w * 7) % 10007, ({total}) % 10007)")
        return self.lines


def program(seed: int, only: Iterable[str] = (), without: Iterable[str] = ()) -> Program:
    """The program of a seed. `only` and `without` name productions; with `only` each program has at least one of them."""
    numbers = random.Random(seed)
    pool = [p for p in PRODUCTIONS.values() if p.name not in set(without)]
    wanted = [PRODUCTIONS[name] for name in only]
    daring = numbers.random() < (0.5 if wanted else 0.3)
    count = 1 + numbers.randrange(2 if daring else 4)
    chosen: list[Production] = [numbers.choice(wanted)] if wanted else []
    while len(chosen) < count and not wanted:
        more = numbers.choices(pool, [p.weight for p in pool])[0]
        if more not in chosen:
            chosen.append(more)
    in_kernel = numbers.random() < 0.08
    writer = Writer(numbers, chosen, 3 + numbers.randrange(10), daring)
    lines = writer.body()
    name = "body" if in_kernel else "f"
    prelude = [p.prelude.strip("\n") + "\n" for p in chosen if p.prelude]
    parts = [*prelude, PRELUDE, "\n".join(["@jit", f"def {name}(a, b, c):", *lines]) + "\n"]
    text = "\n\n".join(parts) + (KERNEL if in_kernel else "")
    return Program(seed, text, tuple(p.name for p in chosen), daring, in_kernel)


def inputs(seed: int) -> list[tuple[int, int, int]]:
    """Arguments for the program of a seed: ones that are small, equal or zero now and then."""
    numbers = random.Random(~seed)
    return [(0, 0, 0), *(tuple(numbers.randrange(10) for _ in range(3)) for _ in range(3))]  # type: ignore[list-item]
