"""What random programs are made of besides control flow: one production for each kind of state that a program can have.

A production is a few templates. In them `$v` is an expression, `$a` a simple one, `$t` a truth value, `$x` and `$y` are
variables, `$k` is a digit and `$p` a digit from 1 to 5, `$I`, `$J` are integer types and `$F`, `$G` float types; letters
for variables and types stand for the same one in all of a template. All numbers stay small ints.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Production:
    """One kind of state, and how programs use it."""

    name: str
    prelude: str = ""
    """Definitions at the top of the module."""
    setup: tuple[str, ...] = ()
    """Statements at the beginning of the function. State of the module starts anew there."""
    reads: tuple[str, ...] = ()
    """Expressions, ints, without effects."""
    tests: tuple[str, ...] = ()
    """Truth values without effects."""
    calls: tuple[str, ...] = ()
    """Expressions, ints, that change state which Kiln carries."""
    changes: tuple[str, ...] = ()
    """Statements that change state which Kiln carries."""
    hidden: tuple[str, ...] = ()
    """Statements that Kiln may refuse in a dynamic region: outside of one it has to take them."""
    hidden_calls: tuple[str, ...] = ()
    """Expressions, ints, of that kind."""
    hidden_tests: tuple[str, ...] = ()
    """Truth values of that kind."""
    result: tuple[str, ...] = ()
    """What is added to the result, beside the reads."""
    weight: float = 1.0
    """How often programs have it; 0: only where it is asked for by name."""
    always: bool = False
    """Whether Kiln may refuse the hidden ones anywhere: then only daring programs have them."""
    documented: bool = False
    """Whether Kiln may give the answer that it documents instead of Python's."""


def _table(*productions: Production) -> dict[str, Production]:
    return {
        p.name: dataclasses.replace(p, result=p.result or tuple(r for r in p.reads if "$" not in r))
        for p in productions
    }


_OBJECTS = (
    Production(
        "objects",
        prelude="""
class Box:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def bump(self, by):
        self.x = (self.x + by) % 101
        return self.x

    @jit
    def swap_if(self, condition):
        if condition:
            self.x, self.y = self.y, self.x


@jit
def touch(box, p):
    if p > 4:
        box.bump(p)
    else:
        box.y = (box.y + p) % 89
""",
        setup=("box, other = Box(a, 5), Box(b, c)",),
        reads=("box.x", "box.y", "other.x", "other.y"),
        calls=("box.bump($a)", "other.bump($a)"),
        changes=(
            "box.x = $v",
            "other.y = $v",
            "box.swap_if($t)",
            "touch(box, $a)",
            "touch(other, $a)",
            "box = Box(box.y, box.x)",
        ),
        weight=3,
    ),
    Production(
        "aliases",
        prelude="""
class Twin:
    def __init__(self, n):
        self.n = n
""",
        setup=("twin = Twin(a)", "same = twin", "pair_of = [twin, Twin(b)]"),
        reads=("twin.n", "same.n", "pair_of[0].n", "pair_of[1].n"),
        changes=(
            "twin.n = $v",
            "same.n = (same.n + $a) % 103",
            "pair_of[0].n = $v",
            "pair_of[1].n = $v",
            "for each in pair_of:\n    each.n = (each.n + $a) % 59",
            "$x = twin.n + same.n",
        ),
        weight=2,
    ),
    Production(
        "properties",
        prelude="""
class Metre:
    def __init__(self, n):
        self._n = n
        self.reads = 0

    @property
    def n(self):
        return self._n * 2

    @n.setter
    def n(self, value):
        self._n = (value + 1) % 211

    @property
    def counted(self):
        self.reads = (self.reads + 1) % 50
        return self.reads
""",
        setup=("metre = Metre(b)",),
        reads=("metre.n", "metre.reads"),
        calls=("metre.counted",),
        changes=("metre.n = $v", "metre.n += $a % 7"),
    ),
    Production(
        "class_defaults",
        prelude="""
class Preset:
    level = 3
    limit = 8

    def raise_level(self, by):
        self.level = (self.level + by) % 71
        return self.level
""",
        setup=("preset = Preset()",),
        reads=("preset.level", "preset.limit"),
        calls=("preset.raise_level($a)",),
        changes=("preset.level = $v", "preset.limit = (preset.limit + $a) % 47", "preset.level += 1"),
    ),
    Production(
        "slots",
        prelude="""
class Slotted:
    __slots__ = ("low", "high")

    def __init__(self, low, high):
        self.low = low
        self.high = high

    def push(self, n):
        self.low, self.high = self.high, (self.low + n) % 67
        return self.high
""",
        setup=("slotted = Slotted(a, 4)",),
        reads=("slotted.low", "slotted.high"),
        calls=("slotted.push($a)",),
        changes=("slotted.low = $v", "slotted.high += 1\nslotted.high %= 90"),
    ),
    Production(
        "private",
        prelude="""
class Account:
    def __init__(self, n):
        self.__n = n

    def add(self, n):
        self.__n = (self.__n + n) % 113
        return self.__n

    def get(self):
        return self.__n
""",
        setup=("account = Account(c)",),
        reads=("account.get()",),
        calls=("account.add($a)",),
        changes=("account.add($v)",),
    ),
    Production(
        "inheritance",
        prelude="""
class Base:
    step = 2

    def __init__(self, n):
        self.n = n

    def move(self, by):
        self.n = (self.n + by * self.step) % 127
        return self.n


class Derived(Base):
    step = 3

    def __init__(self, n):
        super().__init__(n)
        self.moves = 0

    def move(self, by):
        self.moves = (self.moves + 1) % 40
        return super().move(by + 1)
""",
        setup=("derived = Derived(a)", "base = Base(b)"),
        reads=("derived.n", "derived.moves", "base.n"),
        calls=("derived.move($a)", "base.move($a)"),
        changes=("derived.move($v)", "base.n = derived.n", "derived.step = $p"),
    ),
    Production(
        "iadd",
        prelude="""
class Total:
    def __init__(self, n):
        self.n = n

    def __iadd__(self, by):
        self.n = (self.n + by) % 131
        return self
""",
        setup=("total = Total(a)", "kept = total"),
        reads=("total.n", "kept.n"),
        changes=("total += $a", "total += $v", "kept.n = $v", "kept += $a"),
    ),
    Production(
        "fluent",
        prelude="""
class Builder:
    def __init__(self, n):
        self.n = n
        self.calls = 0

    def add(self, by):
        self.n = (self.n + by) % 137
        self.calls = (self.calls + 1) % 60
        return self
""",
        setup=("builder = Builder(b)", "made = builder"),
        reads=("builder.n", "made.n", "made.calls"),
        changes=("builder = builder.add($a)", "builder.add($a).add(1)", "made.add($v)", "builder = made"),
    ),
    Production(
        "dataclasses",
        prelude="""
import dataclasses


@dataclasses.dataclass
class Point:
    x: object
    y: object = 4


@dataclasses.dataclass(frozen=True)
class Fixed:
    x: object
    y: object = 2


@dataclasses.dataclass
class Pair:
    first: object
    second: object
""",
        setup=("point, fixed = Point(a), Fixed(b)", "points = Pair(point, Point(c, 1))"),
        reads=("point.x", "point.y", "fixed.x", "fixed.y", "points.first.x", "points.second.y"),
        changes=(
            "point.x = $v",
            "point.y = (point.y + $a) % 51",
            "fixed = Fixed($v, fixed.x)",
            "fixed = dataclasses.replace(fixed, y=$v)",
            "points.first.x = $v",
            "points.second.y = $v",
        ),
        weight=2,
    ),
    Production(
        "cached_property",
        weight=4,
        prelude="""
import functools


class Lazy:
    def __init__(self, n):
        self.n = n

    @functools.cached_property
    def twice(self):
        return (self.n * 2) % 73
""",
        setup=("lazy = Lazy(a)", "early = Lazy(b)", "early.twice"),
        reads=("lazy.n", "early.twice", "early.n"),
        calls=("early.twice",),
        changes=("early.n = $v",),
        hidden=("lazy.n = $v",),
        hidden_calls=("lazy.twice",),
        result=("lazy.n", "early.twice", "lazy.twice"),
    ),
    Production(
        "context_managers",
        prelude="""
import contextlib


class Guard:
    def __init__(self):
        self.depth = 0
        self.seen = 0

    def __enter__(self):
        self.depth += 1
        return self

    def __exit__(self, *failure):
        self.depth -= 1
        self.seen = (self.seen + 1) % 33
        return False


@contextlib.contextmanager
def noted(guard, n):
    guard.seen = (guard.seen + n) % 33
    yield guard
    guard.seen = (guard.seen + 1) % 33
""",
        setup=("guard = Guard()",),
        reads=("guard.depth", "guard.seen"),
        changes=(
            "with guard:\n    $block",
            "with guard as inside:\n    $x = inside.depth",
            "with noted(guard, $a):\n    $block",
        ),
    ),
    Production(
        "gained_attributes",
        prelude="""
class Open:
    pass
""",
        setup=("opened = Open()", "opened.known = b"),
        reads=("opened.known",),
        changes=("opened.known = $v", "if $t:\n    opened.both = $v\nelse:\n    opened.both = $a\n$x = opened.both"),
        hidden=("opened.gained = $v", "opened.known = $v\nif $t:\n    opened.gained = $a"),
        hidden_calls=("getattr(opened, 'gained', 4)",),
        hidden_tests=("hasattr(opened, 'gained')",),
        result=("opened.known", "getattr(opened, 'gained', 4)"),
    ),
    Production(
        "two_away",
        prelude="""
class Leaf:
    def __init__(self, n):
        self.n = n


class Branch:
    def __init__(self, leaf):
        self.leaf = leaf


class Root:
    def __init__(self, leaf):
        self.branch = Branch(leaf)
        self.table = {"leaf": [leaf]}

    def grow(self, by):
        self.branch.leaf.n = (self.branch.leaf.n + by) % 149
        return self.table["leaf"][0].n
""",
        setup=("leaf = Leaf(c)", "root = Root(leaf)"),
        reads=("leaf.n", "root.branch.leaf.n", "root.table['leaf'][0].n"),
        calls=("root.grow($a)",),
        changes=("root.grow($v)", "leaf.n = $v", "root.branch.leaf.n = $v", "root.table['leaf'][0].n = $v"),
        weight=2,
    ),
    Production(
        "swapped",
        prelude="""
class Side:
    def __init__(self, n):
        self.n = n
""",
        setup=("left, right = Side(a), Side(b)", "kept_side = left"),
        reads=("left.n", "right.n", "kept_side.n"),
        changes=("$x = left.n + right.n * 2",),
        hidden=(
            "left, right = right, left",
            "left.n = $v",
            "kept_side.n = $v",
            "for _ in range($a % 4):\n    left, right = right, left\nleft.n = $v",
        ),
    ),
    Production(
        "chosen",
        prelude="""
class Choice:
    def __init__(self, n):
        self.n = n


@jit
def chosen_of(p, q, condition):
    if condition:
        return p
    return q
""",
        setup=("one, two = Choice(a), Choice(b)", "chosen = one if K > 2 else two"),
        reads=("one.n", "two.n", "chosen.n"),
        changes=(
            "chosen = Choice($v) if $t else Choice($a)",
            "$x = (one if $t else two).n",
            "$x = chosen_of(one, two, $t).n",
        ),
        hidden=("chosen = one if $t else two", "one.n = $v", "chosen.n = $v", "chosen = chosen_of(one, two, $t)"),
    ),
    Production(
        "common_part",
        prelude="""
class Held:
    def __init__(self, k, inner):
        self.k = k
        self.inner = inner
""",
        setup=("inner = [a, 3]", "state = (b, inner)", "held = Held(c, inner)", "by_name = {'k': 1, 'inner': inner}"),
        reads=("inner[0]", "state[0]", "state[1][0]", "held.k", "held.inner[0]", "by_name['k']", "by_name['inner'][1]"),
        changes=(
            "inner[0] = $v",
            "inner[1] = $v",
            "state = ($v, inner)",
            "held = Held($v, inner)",
            "by_name = {'k': $v, 'inner': inner}",
            "state[1][0] = $v",
            "held.inner[1] = $v",
            "if $t:\n    state = ($v, inner)\ninner[0] = $v",
            "if $t:\n    held = Held($v, inner)\nelse:\n    held = Held($a, inner)\ninner[1] = $v",
            "for _ in range($a % 3):\n    state = (state[0] + 1, inner)\nstate[1][1] = $v",
        ),
        weight=4,
    ),
    Production(
        "protocol",
        prelude="""
class Stage:
    def __init__(self, index, count):
        self.index = index
        self.count = count

    def advance(self):
        self.index = (self.index + 1) % 3
        self.count = (self.count + 1) % 500

    def __extract_mlir_values__(self):
        return [Int32(self.index).ir_value(), Int32(self.count).ir_value()]

    def __new_from_mlir_values__(self, values):
        return Stage(Int32(values[0]), Int32(values[1]))


class User:
    def __init__(self, stage):
        self.stage = stage

    def next(self):
        self.stage.advance()
        return self.stage.index
""",
        setup=(
            "stage = Stage(Int32(0), Int32(a))",
            "user = User(stage)",
            "stages = [stage, Stage(Int32(1), Int32(b))]",
        ),
        reads=("narrow(stage.index)", "narrow(user.stage.count)", "narrow(stages[0].index)", "narrow(stages[1].count)"),
        calls=("narrow(user.next())",),
        changes=("stage.advance()", "user.stage.advance()", "stages[1].advance()"),
        weight=1.5,
    ),
    Production(
        "weak_references",
        weight=4,
        prelude="""
import weakref


class Referred:
    def __init__(self, n):
        self.n = n
""",
        setup=("referred = Referred(a)", "weak = weakref.ref(referred)"),
        reads=("referred.n", "weak().n"),
        changes=("referred.n = $v", "weak().n = $v"),
    ),
)

_CONTAINERS = (
    Production(
        "lists",
        setup=("row = [c, 6, [b, 2]]", "same_row = row", "deep = row[2]"),
        reads=("row[0]", "row[1]", "row[2][0]", "same_row[1]", "deep[1]", "sum(deep) % 41"),
        changes=(
            "row[0] = $v",
            "same_row[1] = $v",
            "deep[0] = $v",
            "row[2][1] += 1\nrow[2][1] %= 99",
            "row[0], row[1] = row[1], row[0]",
            "row[:2] = [$v, $a]",
        ),
        hidden=("row.append($a)", "deep.append($a)", "row[2].reverse()", "deep.extend([$a, 1])"),
        weight=2,
    ),
    Production(
        "dicts",
        setup=("table = {'k': 8, 'm': {'n': a}}", "within = table['m']"),
        reads=("table['k']", "table['m']['n']", "within['n']", "table.get('z', 5)", "len(within)"),
        tests=("'k' in table", "'q' in within"),
        changes=("table['k'] = $v", "within['n'] = $v", "table['m']['n'] = $v", "table.update(k=$v)"),
        hidden=("table['z'] = $v", "within.setdefault('q', $a)", "within.pop('q', 0)"),
        result=("table['k']", "within['n']", "table.get('z', 5)", "len(within)"),
        weight=2,
    ),
    Production(
        "sets",
        setup=("members = {1, 5}",),
        reads=("len(members)",),
        tests=("5 in members", "7 in members"),
        hidden=("members.add(7)", "members.discard(5)", "members |= {9}", "members.symmetric_difference_update({1})"),
        result=("len(members)", "(7 in members) * 3"),
    ),
    Production(
        "tuples",
        setup=("pair = (b, 4)", "nested = (a, (b, c))"),
        reads=("pair[0]", "pair[1]", "nested[1][0]", "max(pair)", "sum(pair) % 29"),
        tests=("pair == (1, 4)",),
        changes=(
            "pair = ($v, $v)",
            "nested = ($a, pair)",
            "$x, $y = pair",
            "pair = pair[::-1]",
            "(first, *rest) = pair\npair = (rest[0], first)",
        ),
        result=("pair[0]", "pair[1]", "nested[1][0]", "nested[0]"),
    ),
    Production(
        "named_tuples",
        prelude="""
import collections
import typing

Named = collections.namedtuple("Named", "x y")


class Typed(typing.NamedTuple):
    x: object
    y: object = 3

    def total(self):
        return (self.x + self.y) % 47
""",
        setup=("named, typed = Named(a, 2), Typed(b)",),
        reads=("named.x", "named.y", "typed.x", "typed.total()", "named[1]"),
        changes=(
            "named = Named($v, named.x)",
            "named = named._replace(y=$v)",
            "typed = Typed($v, $a)",
            "typed = typed._replace(x=$v)",
        ),
    ),
    Production(
        "deques",
        prelude="import collections",
        setup=("queue = collections.deque([1, a, 3])",),
        reads=("queue[0]", "queue[-1]", "len(queue)"),
        hidden=(
            "queue.rotate(1)",
            "queue.append($k)",
            "queue[0] = $v",
            "queue.appendleft(queue.pop())",
            "queue.extend([2, 4])",
        ),
    ),
    Production(
        "bytearrays",
        setup=("raw = bytearray(3)", "window = memoryview(raw)"),
        reads=("raw[0]", "raw[1]", "window[0]"),
        hidden=(
            "raw[0] = $k",
            "raw[1] = (raw[1] + $p) % 90",
            "window[0] = (raw[0] + 1) % 90",
            "raw[0:2] = bytes([4, $k])",
        ),
        result=("raw[0]", "raw[1]"),
    ),
    Production(
        "arrays",
        prelude="import array",
        setup=("numbers = array.array('i', [1, 2])",),
        reads=("numbers[0]", "numbers[1]"),
        hidden=("numbers[0] = $k", "numbers[1] = (numbers[1] + $p) % 90", "numbers.reverse()"),
    ),
    Production(
        "numpy_arrays",
        prelude="import numpy as np",
        setup=("grid = np.zeros((2, 2), np.int64)", "line = grid[0]"),
        reads=("int(grid[0, 0])", "int(grid[1, 1])", "int(grid.sum()) % 53"),
        hidden=("grid[0, 0] = $k", "grid[1, 1] += $p", "line[0] += 1", "grid += 1"),
    ),
    Production(
        "ctypes",
        prelude="""
import ctypes


class Record(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int), ("m", ctypes.c_int * 2)]
""",
        setup=("cell = ctypes.c_int(2)", "record = Record(1)"),
        reads=("cell.value", "record.n", "record.m[1]"),
        hidden=("cell.value = $k", "cell.value += 1", "record.n += $p", "record.m[1] = $k"),
    ),
    Production(
        "streams",
        prelude="import io",
        setup=("stream = io.StringIO()",),
        reads=("stream.tell()", "len(stream.getvalue())"),
        hidden=("stream.write('ab')", "stream.write('c')", "stream.write('def')", "stream.seek(1)"),
    ),
    Production(
        "random_numbers",
        prelude="import random",
        setup=("dice = random.Random(3)",),
        hidden_calls=("dice.randrange(6)",),
        hidden=("dice.random()", "dice.seed($k)"),
        result=("dice.randrange(100)",),
    ),
    Production(
        "deep_lists",
        prelude="""
def buried(n):
    top = inner = [n]
    for _ in range(25):
        top = [top]
    return top, inner


def unearthed(top):
    for _ in range(25):
        top = top[0]
    return top
""",
        setup=("top, bottom = buried(b)",),
        reads=("bottom[0]", "unearthed(top)[0]"),
        changes=("unearthed(top)[0] = $v", "bottom[0] = $v"),
        weight=4,
    ),
)

_FUNCTIONS = (
    Production(
        "nonlocals",
        setup=(
            "tally = 0",
            "def inc(by=1):\n    nonlocal tally\n    tally = (tally + by) % 61\n    return tally",
            "def truth(value):\n    nonlocal tally\n    tally = (tally + 2) % 61\n    return value",
        ),
        reads=("tally",),
        calls=("inc()", "inc($a)", "(inc() if $t else $a)"),
        tests=("truth($t)", "$a < inc() < $a", "$t and truth($t)", "$t or truth(True)"),
        changes=("inc()", "tally = $v", "$x = inc() if $t else $a", "apply(inc, $a % 4)"),
        prelude="""
@jit
def apply(function, n):
    for _ in range(n):
        function()
""",
        weight=2,
    ),
    Production(
        "factories",
        prelude="""
def counter(start):
    n = start

    def inc(by=1):
        nonlocal n
        n = (n + by) % 79
        return n

    def get():
        return n

    return inc, get
""",
        setup=("bump, seen = counter(a)", "bump_constant, seen_constant = counter(0)"),
        reads=("seen()", "seen_constant()"),
        calls=("bump()", "bump($a)", "bump_constant()"),
        changes=("bump($v)", "bump_constant(2)", "bump()\nbump_constant()"),
    ),
    Production(
        "partials",
        prelude="""
import functools


class Sum:
    def __init__(self):
        self.n = 0

    def add(self, by, more):
        self.n = (self.n + by + more) % 83
        return self.n


def add_to(where, by):
    where[0] = (where[0] + by) % 83
    return where[0]
""",
        setup=(
            "sum_of = Sum()",
            "add_two = functools.partial(sum_of.add, 2)",
            "cellar = [b]",
            "into = functools.partial(add_to, cellar)",
        ),
        reads=("sum_of.n", "cellar[0]"),
        calls=("add_two($a)", "into($a)", "into(by=1)"),
        changes=("add_two(more=$a)", "into($v)"),
    ),
    Production(
        "lambdas",
        setup=("scale = lambda n, by=3: (n * by) % 43", "ops = {'d': lambda n: (n + a) % 39, 'e': scale}"),
        reads=("scale($a)", "ops['d']($a)", "ops['e']($a, 2)", "(lambda n: n + 1)($a)"),
        result=("scale(u)", "ops['d'](v)"),
    ),
    Production(
        "module_objects",
        prelude="""
LOG = [0, 0]
TABLE = {"n": 0}


class Settings:
    n = 0


SETTINGS = Settings()


def log(by):
    LOG[0] = (LOG[0] + by) % 97
    return LOG[0]


def settle(n):
    SETTINGS.n = n
    TABLE["n"] = (TABLE["n"] + 1) % 90
""",
        setup=("LOG[0] = LOG[1] = 0", "TABLE['n'] = 0", "SETTINGS.n = 0"),
        reads=("LOG[0]", "LOG[1]", "TABLE['n']", "SETTINGS.n"),
        calls=("log($a)", "log(1)"),
        changes=("log($v)", "settle($v)", "LOG[1] = $v", "settle(5)"),
        weight=2,
    ),
    Production(
        "module_names",
        prelude="""
LEVEL = 0


def set_level(n):
    global LEVEL
    LEVEL = n
    return n


def raise_level():
    global LEVEL
    LEVEL += 1
    return LEVEL
""",
        setup=("set_level(0)",),
        reads=("LEVEL",),
        hidden=("set_level($k)", "raise_level()"),
        hidden_calls=("set_level($k)", "raise_level()"),
    ),
    Production(
        "globals_call",
        prelude="""
MARK = 0


def mark(n):
    globals()["MARK"] = n
    return n
""",
        setup=("mark(0)",),
        reads=("MARK", "globals()['MARK']"),
        hidden=("mark($k)", "mark(MARK + 1)", "globals()['MARK'] = $k"),
    ),
    Production(
        "module_attributes",
        prelude="""
import types

CONFIG = types.ModuleType("config")
CONFIG.n = 0


def configure(n):
    CONFIG.n = n
    return n
""",
        setup=("CONFIG.n = 0",),
        reads=("CONFIG.n",),
        hidden=("CONFIG.n = $k", "CONFIG.n += 1", "configure($k)"),
        hidden_calls=("configure($k)",),
    ),
    Production(
        "function_attributes",
        prelude="""
def counted(by):
    counted.calls = (counted.calls + 1) % 60
    return by + counted.calls


counted.calls = 0
""",
        setup=("counted.calls = 0",),
        reads=("counted.calls",),
        hidden=("counted(1)", "counted.calls = $k"),
        hidden_calls=("counted($a)",),
    ),
    Production(
        "mutable_defaults",
        prelude="""
def remember(by, store=[0]):
    store[0] = (store[0] + by) % 57
    return store[0]


def forget(*, store={"n": 0}, n=None):
    if n is not None:
        store["n"] = n
    return store["n"]
""",
        setup=("remember.__defaults__[0][0] = 0", "forget(n=0)"),
        reads=("remember(0)", "forget()"),
        calls=("remember($a)", "remember(1)", "forget(n=$a)"),
        changes=("remember($v)", "forget(n=$v)"),
    ),
    Production(
        "class_attributes",
        prelude="""
class Registry:
    count = 0
    items = [0, 0]

    @classmethod
    def register(cls, by):
        cls.count = (cls.count + 1) % 60
        cls.items[0] = by
        return cls.count

    @staticmethod
    def note(by):
        Registry.items[1] = (Registry.items[1] + by) % 60
        return Registry.items[1]
""",
        setup=("Registry.count = 0", "Registry.items[:] = [0, 0]"),
        reads=("Registry.count", "Registry.items[0]", "Registry.items[1]"),
        calls=("Registry.note($a)",),
        changes=("Registry.items[0] = $v", "Registry.note($v)"),
        hidden=("Registry.count += 1", "Registry.register($a)", "Registry.count = $k"),
        hidden_calls=("Registry.register($a)",),
    ),
    Production(
        "context_variables",
        prelude="""
import contextvars

CURRENT = contextvars.ContextVar("CURRENT", default=0)


def enter(n):
    CURRENT.set(n)
    return n
""",
        setup=("CURRENT.set(0)",),
        reads=("CURRENT.get()",),
        hidden=("CURRENT.set($k)", "enter($k)"),
        hidden_calls=("enter($k)",),
    ),
    Production(
        "environment",
        weight=4,
        prelude="""
import os


def chosen_level():
    return int(os.environ.get("FUZZ_LEVEL", "0"))
""",
        setup=("os.environ['FUZZ_LEVEL'] = '0'",),
        reads=("int(os.environ['FUZZ_LEVEL'])", "chosen_level()"),
        hidden=("os.environ['FUZZ_LEVEL'] = '$k'", "os.environ.pop('FUZZ_LEVEL')\nos.environ['FUZZ_LEVEL'] = '$k'"),
        result=("chosen_level()",),
    ),
    Production(
        "arguments",
        prelude="""
@jit
def gathered(*parts, scale=1, **named):
    total = 0
    for part in parts:
        if part > 3:
            total += part * scale
    for value in named.values():
        total += value
    return total % 67


def unrolled(items, by):
    return [(item + by) % 31 for item in items]
""",
        setup=("items = [a, b, 2]",),
        reads=("gathered($a, $a)", "gathered(*items, scale=2)", "gathered(1, x=$a, y=2)", "items[1]"),
        changes=("items = unrolled(items, $a)", "items[0] = gathered($a, z=$a)", "$x, $y, _ = unrolled(items, $a)"),
        result=("items[0]", "items[2]", "gathered(*items)"),
    ),
    Production(
        "recursion",
        prelude="""
@jit
def power(n, times: Constexpr):
    if const_expr(times == 0):
        return 1
    return (n * power(n, times - 1)) % 91


@jit
def digits(n):
    found = 0
    while n > 0:
        found += 1
        n = n // 10
        if found > 4:
            return found
    return found
""",
        reads=("power($a, 3)", "digits($a)"),
        result=("power(u, 2)",),
    ),
)

_ITERATORS = (
    Production(
        "iterators",
        setup=("items_left = iter([4, 1, 7, 2, 9, 3, 8, 5])",),
        hidden_calls=("next(items_left, 0)",),
        hidden=("next(items_left, 0)", "$x = ($x + next(items_left, 0)) % 70"),
        result=("next(items_left, 0) * 3",),
    ),
    Production(
        "generators",
        prelude="""
def tens(start):
    n = start
    while n < 90:
        yield n
        n += 10
""",
        setup=("produced = tens(3)", "squares = (n * n for n in (1, 2, 3, 4, 5))"),
        hidden_calls=("next(produced, 0)", "next(squares, 0)"),
        hidden=("next(produced, 0)", "$x = next(squares, 0)"),
        changes=("for item in tens(60):\n    $x = ($x + item) % 77",),
        result=("next(produced, 0)", "next(squares, 0) * 3"),
    ),
    Production(
        "counts",
        prelude="import itertools",
        setup=("count = itertools.count(5)", "cycle = itertools.cycle((1, 2, 3))"),
        hidden_calls=("next(count)", "next(cycle)"),
        hidden=("next(count)", "$x = ($x + next(cycle)) % 80"),
        changes=("for first, second in itertools.product((1, $a), (2, 3)):\n    $x = ($x + first * second) % 88",),
        result=("next(count)", "next(cycle) * 5"),
    ),
    Production(
        "own_iterators",
        prelude="""
class Steps:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        self.n = (self.n + 3) % 50
        return self.n
""",
        setup=("steps = Steps(a)",),
        reads=("steps.n",),
        calls=("next(steps)",),
        changes=("next(steps)", "$x = next(steps)"),
    ),
    Production(
        "any_all",
        setup=("looked = [0]", "def above(k, n):\n    looked[0] = (looked[0] + 1) % 90\n    return k > n"),
        reads=("looked[0]",),
        tests=(
            "any(above(k, $a) for k in (1, 4, 7))",
            "all(above(k, $a) for k in (9, 5, $a))",
            "any([$t, $t])",
            "all(k < $a for k in (0, 1))",
        ),
        changes=(
            "$x = 1 if any(above(k, $a) for k in (2, 6)) else 0",
            "$x = 3 if all(above($a, k) for k in (2, 6)) else $a",
        ),
        weight=1.5,
    ),
    Production(
        "comprehensions",
        setup=("squares_of = [n * n for n in (1, 2, 3)]", "mapped = {k: (k + a) % 7 for k in (1, 2)}"),
        reads=(
            "sum(squares_of) % 23",
            "mapped[1]",
            "max([$a, $a, 2])",
            "sorted((3, 1, 2))[0]",
            "len([1 for _ in (1, 2)])",
        ),
        changes=(
            "squares_of = [(n + $a) % 40 for n in squares_of]",
            "mapped = {k: (n + 1) % 50 for k, n in mapped.items()}",
            "for place, n in enumerate(squares_of):\n    $x = ($x + n * place) % 60",
            "for n, m in zip(squares_of, (1, 2)):\n    $x = ($x + n * m) % 60",
        ),
        result=("sum(squares_of) % 23", "mapped[1]", "mapped[2]"),
    ),
)

_VALUES = (
    Production(
        "texts",
        setup=("names = {'3': 30, '5': 50}",),
        reads=("names['3']", "len('abc')", "len(f'{K}')"),
        tests=("f'{K}' == '3'",),
        hidden_tests=(
            "f'{b}' == '3'",
            "str(a) == '5'",
            "f'{a}' == f'{b}'",
            "str(a) in names",
            "f'n{a}'.endswith('4')",
            "str(a) < '5'",
        ),
        hidden_calls=("len(str(a))", "names.get(f'{a}', 1)", "len('x' * len(f'{b}'))"),
        always=True,
    ),
    Production(
        "staticness",
        prelude="""
def doubled(n):
    if isinstance(n, int):
        return n + n
    return n * 2
""",
        setup=("given = a + 0",),
        reads=("doubled(given)", "doubled(3)"),
        tests=("isinstance(given, int)", "given is None", "given is not None"),
        documented=True,
    ),
    Production(
        "identity",
        setup=("nothing = None", "thing = [1]", "same_thing = thing"),
        tests=("nothing is None", "thing is same_thing", "K is not None"),
        hidden_tests=("(a % 4) is (b % 4)", "(a > b) is True", "(a < 3) is not (b < 3)", "(a % 2 == 0) is False"),
        always=True,
    ),
    Production(
        "flags",
        setup=("flag = Boolean(a > b)",),
        tests=("flag", "~flag", "flag & Boolean($t)", "flag | Boolean($t)", "flag ^ Boolean($t)"),
        changes=("flag = Boolean($t)", "flag = ~flag", "$x = 1 if flag else 0"),
        result=("narrow(flag)",),
        documented=True,
    ),
    Production(
        "exceptions",
        prelude="""
def checked(n):
    if n > 5:
        raise ValueError("too large")
    return n


class Quiet:
    def __enter__(self):
        return self

    def __exit__(self, kind, *rest):
        return kind is KeyError
""",
        setup=("known = {'a': 1}", "handled = 0"),
        reads=("handled",),
        changes=(
            "try:\n    handled = known['z']\nexcept KeyError:\n    handled = $v",
            "if $t:\n    try:\n        handled = checked(9)\n    except ValueError:\n        handled = $v",
            "try:\n    $block\nexcept (KeyError, ValueError):\n    handled = 7",
            "with Quiet():\n    handled = $v\n    known['z']",
        ),
        hidden=(
            "try:\n    if $t:\n        handled = known['z']\nexcept KeyError:\n    handled = 4",
            "try:\n    for _ in range($a % 3):\n        handled = checked(9)\nexcept ValueError:\n    handled = (handled + 1) % 20",
            "with Quiet():\n    if $t:\n        handled = known['z']",
            "try:\n    if $t:\n        $x = $v\n        known['z']\nexcept KeyError:\n    handled = $x",
            "try:\n    $x = known['z'] if $t else $a\nexcept KeyError:\n    $x = 3",
        ),
    ),
    Production(
        "assertions",
        setup=("told = [0]", "def message():\n    told[0] = 9\n    return 'told'"),
        reads=("told[0]",),
        changes=("assert a == a, message()", "assert $a >= -100000, message()", "assert K == 3, message()"),
    ),
    Production(
        "typed_integers",
        setup=("small, wide = Int8(a), Uint64(b)", "middle = Uint16(c)"),
        reads=("narrow(small)", "narrow(wide % Uint64(1009))", "narrow(middle) % 1009"),
        tests=("small < middle", "wide >= Uint64(5)", "Int64(small) == Int64(middle)", "$I($a) < $J($a)"),
        changes=(
            "small = small * Int8(3) + Int8($a)",
            "small += Int8($a)",
            "wide = wide * Uint64(6364136223846793005) + Uint64($a)",
            "wide = wide >> Uint64($k)",
            "middle = middle - Uint16($a)",
            "middle = middle << Uint16($p)",
            "middle = ~middle",
            "small = Int8(wide)",
            "wide = Uint64(small)",
            "$x = narrow($I($a) + $J($a) * $I(100)) % 1009",
            "$x = narrow(($I($a) - $J(7)) // $I($p)) % 1009",
            "$x = narrow(($I($a) - $J(9)) % $J($p)) % 1009",
            "$x = narrow(($I($a) ^ $J(90)) & $I(77)) % 1009",
            "$x = narrow($I($J($a) - $J(100))) % 1009",
            "$x = narrow(($I($a) << $I($p)) >> $I(1)) % 1009",
        ),
        weight=3,
    ),
    Production(
        "typed_floats",
        setup=("half, brain = Float16(a), BFloat16(b)", "single, double = Float32(c), Float64(a)"),
        reads=("narrow(half) % 1009", "narrow(brain) % 1009", "narrow(single) % 1009", "narrow(double) % 1009"),
        tests=("half < Float16(3.5)", "single > Float32($a)", "double == Float64(half)", "$F($a) <= $G($a)"),
        changes=(
            "half = half * Float16(0.75) + Float16($a)",
            "brain = brain - BFloat16($a)",
            "single = single / Float32($p) + Float32(0.1)",
            "double = double * Float64(1.25) - Float64($a)",
            "single = Float32(half * half)",
            "half = Float16(brain)",
            "brain = BFloat16(single + half)",
            "double = Float64(brain * Float32(0.3))",
            "$x = narrow(($F($a) + $G(0.5)) * $F(3)) % 1009",
            "$x = narrow($F($a) / $G($p) * $F(10)) % 1009",
            "$x = narrow($F($a) * $I($p)) % 1009",
            "$x = narrow($I($a) / $J($p) * Float32(8)) % 1009",
            "$x = narrow($I($F($a) * $F(30))) % 1009",
        ),
        weight=2,
    ),
    Production(
        "typed_ranges",
        changes=(
            "for n in range($I($a % 5)):\n    $x = ($x + narrow(n)) % 400",
            "for n in range($I($a % 5), $J($a % 6)):\n    $x = ($x + narrow(n) + 1) % 400",
            "for n in range($I($a % 5), $J($a % 9), $J($p)):\n    $x = ($x + narrow(n) + 1) % 400",
            "for n in range(Int32($a % 5 - 3), Uint32($a % 3)):\n    $x = ($x * 2 + narrow(n) + 9) % 400",
            "for n in range(Int16($a % 9), Int8($a % 4), Int32(0 - $p)):\n    $x = ($x * 2 + narrow(n)) % 400",
            "for n in range($I($a % 9), 2, -1):\n    $x = ($x * 2 + narrow(n)) % 400",
        ),
    ),
)

_ODD = (
    Production(
        "attribute_hooks",
        prelude="""
class Hooked:
    def __init__(self, n):
        object.__setattr__(self, "store", {"n": n, "m": 1})

    def __getattr__(self, name):
        return self.store[name]

    def __setattr__(self, name, value):
        self.store[name] = value


class Field:
    def __set_name__(self, owner, name):
        self.place = "_" + name

    def __get__(self, owner, kind=None):
        return getattr(owner, self.place)

    def __set__(self, owner, value):
        setattr(owner, self.place, (value + 1) % 150)


class Described:
    n = Field()

    def __init__(self, n):
        self.n = n
""",
        setup=("hooked, described = Hooked(a), Described(b)",),
        reads=("hooked.n", "hooked.m", "described.n"),
        changes=(
            "hooked.n = $v",
            "hooked.m = (hooked.m + $a) % 90",
            "described.n = $v",
            "described.n += 1",
            "setattr(described, 'n', $v)",
            "vars(described)['_n'] = $v",
            "described.__dict__.update(_n=$v)",
        ),
    ),
    Production(
        "own_containers",
        prelude="""
import collections
import types


class Row:
    def __init__(self, *items):
        self.items = list(items)

    def __getitem__(self, place):
        return self.items[place]

    def __setitem__(self, place, value):
        self.items[place] = value

    def __len__(self):
        return len(self.items)

    def __call__(self, by):
        self.items[0] = (self.items[0] + by) % 95
        return self.items[0]


class Labelled(list):
    def __init__(self, items, label):
        super().__init__(items)
        self.label = label


class Keyed(dict):
    pass
""",
        setup=(
            "cells = Row(a, 2)",
            "labelled = Labelled([b, 1], c)",
            "keyed = Keyed(n=a)",
            "space = types.SimpleNamespace(n=c, m=2)",
            "ordered = collections.OrderedDict(p=1, q=b)",
            "default = collections.defaultdict(int, p=2)",
        ),
        reads=(
            "cells[0]",
            "cells[1]",
            "labelled[0]",
            "labelled.label",
            "keyed['n']",
            "space.n",
            "ordered['p']",
            "default['p']",
        ),
        calls=("cells($a)",),
        changes=(
            "cells[1] = $v",
            "cells[0] += 1",
            "labelled[0] = $v",
            "labelled.label = $v",
            "keyed['n'] = $v",
            "space.n = $v",
            "ordered['p'] = $v",
            "default['p'] += 1",
        ),
        hidden=(
            "ordered.move_to_end('p')",
            "default['r'] += 1",
            "keyed['z'] = $a",
            "labelled.append($a)",
            "space.z = 1",
        ),
        result=(
            "cells[0]",
            "cells[1]",
            "labelled[0] + labelled.label",
            "keyed['n'] + space.n",
            "ordered['p']",
            "default['p']",
            "list(ordered).index('p') * 9",
            "len(default)",
            "len(keyed)",
            "len(labelled)",
        ),
        weight=2,
    ),
    Production(
        "deleted",
        prelude="""
class Erasable:
    n = 4

    def __init__(self, n):
        self.n = n
        self.m = n
""",
        setup=("erasable = Erasable(a)", "entries = {'p': 1, 'q': 2}", "rest_of = [1, 2, 3]"),
        reads=("erasable.n", "len(entries)", "len(rest_of)", "rest_of[0]"),
        changes=("erasable.n = $v", "entries['p'] = $v\nentries.setdefault('p', 1)"),
        hidden=(
            "if 'n' in vars(erasable):\n    del erasable.n",
            "entries.pop('q', 0)",
            "if len(rest_of) > 1:\n    del rest_of[0]",
            "entries.clear()\nentries['p'] = 1",
            "rest_of.sort(reverse=True)",
            "rest_of[:] = [$a, 5, 6]",
        ),
    ),
    Production(
        "classes_changed",
        prelude="""
class Walking:
    speed = 1


class Running:
    speed = 5


class Meta(type):
    made = 0

    @property
    def twice(cls):
        return cls.made * 2


class WithMeta(metaclass=Meta):
    pass
""",
        setup=("mover = Walking()", "WithMeta.made = 0"),
        reads=("mover.speed", "WithMeta.made", "WithMeta.twice"),
        hidden=("mover.__class__ = Running", "WithMeta.made = $k", "WithMeta.made += 1"),
    ),
    Production(
        "bound_methods",
        prelude="""
class Meter:
    def __init__(self, n):
        self.n = n

    def add(self, by):
        self.n = (self.n + by) % 117
        return self.n
""",
        setup=("meter = Meter(a)", "add = meter.add", "adders = {'m': [meter.add, Meter(b).add]}"),
        reads=("meter.n", "add.__self__.n", "adders['m'][1].__self__.n"),
        calls=("add($a)", "adders['m'][0]($a)", "adders['m'][1]($a)", "list(map(add, (1, $a)))[1]"),
        changes=("add($v)", "for each in adders['m']:\n    each($a)", "[add(n) for n in (1, $a)]"),
    ),
    Production(
        "cached_calls",
        prelude="""
import functools

CALLS = [0]


@functools.lru_cache(maxsize=None)
def costly(n):
    CALLS[0] += 1
    return n * 3 + 1
""",
        setup=("CALLS[0] = 0", "costly.cache_clear()"),
        reads=("CALLS[0]",),
        hidden_calls=("costly($k)",),
        hidden=("costly($k)", "costly.cache_clear()"),
        result=("CALLS[0]", "costly(3)", "CALLS[0] * 5"),
    ),
    Production(
        "lazy_iterators",
        setup=(
            "seen_items = [0]",
            "def noticed(n):\n    seen_items[0] = (seen_items[0] + n) % 77\n    return n",
            "mapped_items = map(noticed, [3, 4, 5, 6, 7])",
            "zipped = zip((1, 2, 3, 4), (5, 6, 7, 8))",
            "back = reversed([2, 4, 6, 8])",
        ),
        reads=("seen_items[0]",),
        changes=("$x = sum(map(noticed, ($a, 2))) % 60", "noticed($a)"),
        hidden_calls=("next(mapped_items, 0)", "next(zipped, (0, 0))[1]", "next(back, 0)"),
        hidden=("next(mapped_items, 0)", "for n in mapped_items:\n    $x = n\n    break"),
        result=("seen_items[0]", "next(mapped_items, 0)", "next(zipped, (0, 0))[0]", "next(back, 0)"),
    ),
    Production(
        "sent_generators",
        prelude="""
def running(total):
    while True:
        got = yield total
        total = (total + (got or 1)) % 90
""",
        setup=("adding = running(2)", "next(adding)"),
        hidden_calls=("adding.send($k)", "next(adding)"),
        hidden=("adding.send($p)",),
        result=("next(adding)",),
    ),
    Production(
        "nested_functions",
        setup=(
            "outer_n = 1",
            "def outer(by):\n    inner_n = by\n    def inner(more):\n        nonlocal outer_n, inner_n\n        inner_n = (inner_n + more) % 40\n        outer_n = (outer_n + inner_n) % 70\n        return outer_n\n    inner(1)\n    return inner",
            "stepper = outer(a)",
            "steppers = [stepper, outer(2)]",
        ),
        reads=("outer_n",),
        calls=("stepper($a)", "steppers[1]($a)", "outer($a)(1)"),
        changes=("stepper($v)", "for each in steppers:\n    each($a)", "stepper(1)"),
        hidden=("stepper = outer($a)\nstepper(1)",),
        weight=1.5,
    ),
    Production(
        "shared_graph",
        prelude="""
class Node:
    def __init__(self, n, link=None):
        self.n = n
        self.link = link
        self.links = []


@jit
def spread(node, by):
    if by > 3:
        node.n = (node.n + by) % 99
        node.link.n = node.n
    for each in node.links:
        each.n = (each.n + 1) % 99
""",
        setup=(
            "head = Node(a)",
            "tail = Node(b, head)",
            "head.link = tail",
            "head.links += [tail, head]",
            "tail.links += [head, tail]",
            "ring = {'h': head, 't': [tail]}",
        ),
        reads=("head.n", "tail.n", "head.link.link.n", "ring['t'][0].n", "head.links[0].n"),
        changes=(
            "spread(head, $a)",
            "spread(tail, $v)",
            "head.link.n = $v",
            "ring['h'].link.link.n = $v",
            "for each in head.links:\n    each.n = (each.n + $a) % 99",
        ),
        hidden=(
            "head.link = head",
            "tail.link = tail",
            "ring['t'][0] = head",
            "head.links.reverse()",
            "head, tail = tail, head",
        ),
    ),
    Production(
        "try_paths",
        prelude="""
@jit
def tried(box, n):
    try:
        if n > 4:
            return box[0]
        box[0] = (box[0] + n) % 44
    finally:
        box[1] = (box[1] + 1) % 44
    return box[1]
""",
        setup=("trial = [a, 0]",),
        reads=("trial[0]", "trial[1]"),
        calls=("tried(trial, $a)",),
        changes=(
            "tried(trial, $v)",
            "try:\n    $block\nfinally:\n    trial[1] = (trial[1] + 1) % 55",
            "for _ in range($a % 4):\n    try:\n        if $t:\n            break\n        trial[0] = $v\n    finally:\n        trial[1] = (trial[1] + 1) % 55",
            "while trial[1] < 3:\n    try:\n        if $t:\n            continue\n        trial[0] = $v\n    finally:\n        trial[1] += 1",
        ),
    ),
    Production(
        "walrus",
        setup=("found, taken = 0, 0",),
        reads=("found", "taken"),
        tests=("(found := $a) > $a", "$t and (taken := $a) > 2", "$t or (found := $v) == 1"),
        calls=("(taken := $v)", "((found := $a) if $t else $a)"),
        changes=(
            "$x = [(taken := n) for n in (1, $a)][0]",
            "while (found := found + 1) < $a % 6:\n    taken = (taken + found) % 60",
            "if $t and (taken := $a) > (found := 3):\n    $x = taken",
        ),
    ),
)

PRODUCTIONS = _table(*_OBJECTS, *_CONTAINERS, *_FUNCTIONS, *_ITERATORS, *_VALUES, *_ODD)
"""All productions by name."""
