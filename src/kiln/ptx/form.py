"""Forms of PTX instructions, each a line of syntax as in the PTX manual: one target prints them, another reads them.

    MMA = Form(
        "mma", ".sync.aligned.m16n8k<k>.row.col.f32.<element>.<element>.f32 {d: out}, {a: b32}, {b: b32}, {c}",
        k=(8, 16), element="f16 bf16",
    )

After the opcode come modifiers: words, and fields in `<>` whose choices are named. `{.<field>}` may be missing, and
so may the end of `.shared{::cta}`. Choices are words (`"f16 bf16"`), numbers (`(8, 16)`) or words with what they mean
(`{"b6x16_p32": 6}`); of several words with one meaning the first is printed. A field with one word is a flag, True or False. What has no field is always printed, as short as it
can be.

Operands have a name and a type: a type of PTX, `imm` for a number in the text, or the state space of an address. `out` is a
destination. `[a]` is an address, `{a}` a vector, `{a, b}` a vector of two, `[a, {b}]` a box of a tensor, `d|p` a pair of
which the second may be missing, `{, a}` an operand that may be missing. An operand with the name of a field is there
exactly where the field is. Numbers and `_` are written as they are. `counts` says how many registers vectors have,
`rule` which values of fields and operands do not go together.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from .syntax import Address, Immediate, Operand, Pair, Register, Statement, Vector

Value = int | str | tuple[str, int] | None
"""The value of a field: a word, a number, both, a flag, or None where it is missing."""
Values = Mapping[str, Value]
Count = int | str | Callable[[Values], int]
"""A number, the name of the field that has it, or a function of the values of fields."""
Rule = Callable[[Mapping[str, object]], str]
"""A function that returns which rule values of fields break, or operands with them."""
Choices = str | tuple[int | str, ...] | Mapping[str, int] | Mapping[str, str] | Mapping[str, tuple[str, int]]
Spelled = Value | Sequence[str]
"""A part of an instruction as it is printed: the value of a field, an operand, the operands of a vector."""
Operands = dict[str, Operand | tuple[Operand, ...]]
"""Operands as they are read, by their names in the form; tuples for vectors."""

_WORD = r"\.(?:[\w:]|<\w+>|\{::\w+\})+"
_GROUP = re.compile(rf"\{{(?P<optional>(?:{_WORD})+)\}}|{_WORD}")
_OPERAND = re.compile(r"(?P<start>^|,\s*|\{,\s*)(?P<body>\[[^\]]*\]|\{[^}]*\}|[^,{}]+)(?P<end>\}?)(?=$|,|\{)", re.ASCII)
_PART = re.compile(r"(\w+)(?:\s*:\s*(out\b)?\s*([\w:<>]*))?")
_ORDERED = ({"global", "shared::cta", "shared::cluster", "shared"}, {"row", "col"})
"""Modifiers whose order matters: state spaces and layouts."""


class UnknownForm(ValueError):
    """An instruction that has none of the forms of its opcode."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A register, a number or an address in the operands of a form."""

    name: str
    type: str = ""
    out: bool = False

    @property
    def is_literal(self) -> bool:
        """Whether it is always written so: a number, or `_`."""
        return self.name.isdigit() or self.name == "_"


@dataclasses.dataclass(frozen=True)
class Slot:
    """An operand of a form."""

    places: tuple[Place, ...]
    brackets: str
    """"" for a register or a number, `[]`, `{}`, `[{}]` for a box, `|` for a pair."""
    optional: bool

    @property
    def is_list(self) -> bool:
        """Whether the last place has any number of registers."""
        return self.brackets == "[{}]" or (self.brackets == "{}" and len(self.places) == 1)


@dataclasses.dataclass(frozen=True)
class Alternative:
    """One spelling of a group of modifiers, and the values of its fields."""

    words: tuple[str, ...]
    values: dict[str, Value]


@dataclasses.dataclass(frozen=True)
class Group:
    """Modifiers that stand together."""

    alternatives: tuple[Alternative, ...]
    optional: bool

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.alternatives[0].values)

    def take(self, words: list[str]) -> Alternative | None:
        """Remove from `words` the first that are an alternative, the longest one."""
        for word in words:
            fitting = [a for a in self.alternatives if a.words[0] == word and set(a.words) <= set(words)]
            if fitting:
                best = max(fitting, key=lambda alternative: len(alternative.words))
                for taken in best.words:
                    words.remove(taken)
                return best
        return None

    def of(self, fields: Mapping[str, Spelled]) -> Alternative | None:
        """Return the alternative with values; None if it is to be left out."""
        values = [fields.get(name) for name in self.fields]
        if self.optional and values and all(value is None or value is False for value in values):
            return None
        for alternative in self.alternatives:
            if all(_is(meant, value) for meant, value in zip(alternative.values.values(), values, strict=True)):
                return alternative
        stated = ", ".join(f"{name}={value!r}" for name, value in zip(self.fields, values, strict=True))
        raise ValueError(f"{stated} where there is {self}")

    def __str__(self) -> str:
        listed = list(dict.fromkeys("." + ".".join(alternative.words) for alternative in self.alternatives))
        if len(listed) > _MOST_LISTED:
            return f"one of {', '.join(listed[:_MOST_LISTED])}, ..."
        return " or ".join(filter(None, [", ".join(listed[:-1]), listed[-1]]))


_MOST_LISTED = 12


def number(fields: Mapping[str, object], name: str) -> int:
    """Return the value of a field whose choices are numbers."""
    value = fields[name]
    assert isinstance(value, int)
    return value


def _is(meant: Value, value: Spelled) -> bool:
    """Return whether a value of a field is the one that a word means; of a flag it is anything but None and False."""
    return value is not None and value is not False if meant is True else meant == value


def _none(_parts: Mapping[str, object]) -> str:
    return ""


class Form:
    """An instruction: its opcode, and the syntax of its modifiers and operands."""

    def __init__(
        self,
        opcode: str,
        syntax: str,
        counts: Mapping[str, Count] | None = None,
        rule: Rule | None = None,
        /,
        **choices: Choices,
    ) -> None:
        self.opcode = tuple(opcode.split("."))
        self.line = f"{opcode}{syntax}"
        self.modifier_syntax, _, operands = syntax.partition(" ")
        self.operands = operands.strip()
        self.choices_of = choices
        self.counts = counts or {}
        """How many registers vectors have."""
        self.rule = rule or _none

    # What the syntax says is read when it is first asked for: a process uses few of the forms.

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        return tuple(_groups(self.modifier_syntax, self.choices_of))

    @functools.cached_property
    def ordered(self) -> tuple[set[str], ...]:
        """Modifiers of which those of a set have an order, also because they may stand in two places."""
        words = [{word for each in group.alternatives for word in each.words} for group in self.groups]
        return *_ORDERED, {word for one, other in itertools.combinations(words, 2) for word in one & other}

    @functools.cached_property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(_slots(self.operands))

    @functools.cached_property
    def places(self) -> tuple[Place, ...]:
        return tuple(place for slot in self.slots for place in slot.places)

    @functools.cached_property
    def place_names(self) -> frozenset[str]:
        return frozenset(place.name for place in self.places)

    @functools.cached_property
    def written(self) -> dict[str, str]:
        """Operands that are always written so."""
        return {place.name: place.name for place in self.places if place.is_literal}

    @functools.cached_property
    def lists(self) -> frozenset[Place]:
        """Operands that are vectors of any number of registers."""
        return frozenset(slot.places[-1] for slot in self.slots if slot.is_list)

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        fields = tuple(dict.fromkeys(name for group in self.groups for name in group.fields))
        unused = self.choices_of.keys() - set(fields)
        assert not unused, f"{self.line} has no {unused}"
        return fields

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names of fields and operands."""
        return self.place_names.union(self.fields)

    def __str__(self) -> str:
        return self.line

    # --- printing -----------------------------------------------------------------------------------------------------

    def name(self, fields: Mapping[str, Spelled]) -> str:
        """Return the opcode with the modifiers that stand for values of fields."""
        words = list(self.opcode)
        for group in self.groups:
            alternative = group.of(fields)
            if alternative is not None:
                words += alternative.words
        return ".".join(words)

    def text(self, parts: Mapping[str, Spelled]) -> str:
        """Return the instruction, without a semicolon. `parts` are fields, and operands as they are written, vectors as lists."""
        parts = {**parts, **self.written}
        written = [_written(slot, parts) for slot in self.slots]
        return f"{self.name(parts)} {', '.join(text for text in written if text)}".rstrip()

    def choices(self) -> Iterator[dict[str, Value]]:
        """Yield the values of fields of every spelling; those of absent optional fields are left out."""
        groups = [[a.values for a in group.alternatives] + [{}] * group.optional for group in self.groups]
        for values in itertools.product(*groups):
            merged = {name: value for part in values for name, value in part.items()}
            consistent = all(merged.get(name) == value for part in values for name, value in part.items())
            if consistent and not self.rule(dict.fromkeys(self.fields) | merged):
                yield merged

    # --- reading ------------------------------------------------------------------------------------------------------

    def modifiers(self, words: Sequence[str]) -> tuple[dict[str, Value], list[str], list[Group]]:
        """Return the values of fields, the modifiers that are not of this form, and the groups that are missing.

        Modifiers may have any order, except that those in `ordered` have that of the form.
        """
        left = list(words)
        values: dict[str, Value] = {}
        missing: list[Group] = []
        taken: list[str] = []
        for group in self.groups:
            alternative = group.take(left)
            if alternative is None:
                if not group.optional:
                    missing.append(group)
                values.update(dict.fromkeys((name for name in group.fields if name not in values), None))
                continue
            taken += alternative.words
            values.update(alternative.values)
        for kind in () if left or missing else self.ordered:
            stated = [word for word in words if word in kind]
            places = zip(stated, (word for word in taken if word in kind), strict=True)
            left += stated[next((n for n, (one, other) in enumerate(places) if one != other), len(stated)) :]
        return values, left, missing

    def count(self, name: str, values: Values) -> int | None:
        """Return how many registers a vector has; None if any number."""
        count = self.counts.get(name)
        if isinstance(count, str):
            return number(values, count)
        return count(values) if callable(count) else count

    def match(self, values: Values, operands: Sequence[Operand]) -> Operands | None:
        """Return operands by their names, tuples of them for vectors; None if they are not of this form."""
        counts = {name: self.count(name, values) for name in self.counts}
        return _match(self.slots, operands, values, counts)

    def wrong_count(self, values: Values, operands: Sequence[Operand]) -> str:
        """Return which vector has another number of registers than this form; empty if something else is wrong."""
        parts = _match(self.slots, operands, values, {}) or {}
        for name in self.counts:
            count = self.count(name, values)
            registers = parts.get(name)
            if isinstance(registers, tuple) and len(registers) != count:
                return f"{len(registers)} registers of {name} where there are {count}"
        return ""


# --- the grammar -----------------------------------------------------------------------------------------------------


def _groups(text: str, choices: Mapping[str, Choices]) -> Iterator[Group]:
    assert _GROUP.sub("", text) == "", f"modifiers {text}"
    for match in _GROUP.finditer(text):
        optional = match["optional"]
        yield Group(tuple(_alternatives(optional or match[0], choices)), bool(optional))


def _alternatives(template: str, choices: Mapping[str, Choices]) -> Iterator[Alternative]:
    short = re.sub(r"\{::\w+\}", "", template)
    spelled: list[tuple[str, dict[str, Value]]] = [(short, {})]
    if short != template:
        spelled.append((re.sub(r"[{}]", "", template), {}))
    for name in dict.fromkeys(re.findall(r"<(\w+)>", template)):
        meanings = _meanings(choices[name])
        spelled = [
            (text.replace(f"<{name}>", word), {**values, name: value})
            for text, values in spelled
            for word, value in meanings.items()
        ]
    for text, values in spelled:
        yield Alternative(tuple(text.removeprefix(".").split(".")), values)


def _meanings(choices: Choices) -> Values:
    if isinstance(choices, Mapping):
        return choices
    if isinstance(choices, tuple):
        return {str(choice): choice for choice in choices}
    words = choices.split()
    return {words[0]: True} if len(words) == 1 else {word: word for word in words}


def _slots(text: str) -> Iterator[Slot]:
    assert _OPERAND.sub("", text) == "", f"operands {text}"
    for match in _OPERAND.finditer(text):
        body = match["body"].strip()
        box = body.startswith("[") and "{" in body
        brackets = "[{}]" if box else body[0] + body[-1] if body[0] in "[{" else "|" if "|" in body else ""
        places = tuple(
            Place(part[1], part[3] or "", bool(part[2])) for part in _PART.finditer(re.sub(r"[\[\]{}]", "", body))
        )
        yield Slot(places, brackets, match["start"].startswith("{"))


# --- printing --------------------------------------------------------------------------------------------------------


def _written(slot: Slot, named: Mapping[str, Spelled]) -> str:
    """Return an operand as PTX, empty if it is missing."""
    values = [named.get(place.name) for place in slot.places]
    if values[0] is None or (slot.is_list and slot.optional and not values[-1]):
        assert slot.optional, f"no {slot.places[0].name}"
        return ""
    parts = [", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value for value in values]
    if slot.brackets == "[{}]":
        return f"[{parts[0]}, {{{parts[1]}}}]"
    if slot.brackets == "|":
        return "|".join(str(part) for part in parts if part is not None)
    return f"{slot.brackets[:1]}{', '.join(map(str, parts))}{slot.brackets[1:]}"


# --- reading ---------------------------------------------------------------------------------------------------------


def _match(
    slots: Sequence[Slot], operands: Sequence[Operand], values: Values, counts: Mapping[str, int | None]
) -> Operands | None:
    if not slots:
        return None if operands else {}
    slot, *rest = slots
    name = slot.places[0].name
    tied = slot.optional and name in values
    absent = slot.optional and (not tied or not values[name])
    present = not tied or bool(values[name])
    if present and operands:
        parts = _parts(slot, operands[0])
        if parts is not None and all(_has(registers, counts.get(part)) for part, registers in parts.items()):
            others = _match(rest, operands[1:], values, counts)
            if others is not None:
                return {**parts, **others}
    return _match(rest, operands, values, counts) if absent else None


def _has(registers: Operand | tuple[Operand, ...], count: int | None) -> bool:
    return count is None or (isinstance(registers, tuple) and len(registers) == count)


def _parts(slot: Slot, operand: Operand) -> Operands | None:
    """Return what an operand gives for the places of a slot; None if it is not written like that."""
    names = [place.name for place in slot.places]
    if slot.brackets == "[]":
        return {names[0]: operand} if isinstance(operand, Address) and not isinstance(operand.base, Vector) else None
    if slot.brackets == "[{}]":
        parts = operand.base.parts if isinstance(operand, Address) and isinstance(operand.base, Vector) else ()
        if len(parts) != 2:
            return None
        return {names[0]: Address(parts[0]), names[1]: _registers(parts[1])}
    if isinstance(operand, Address):
        return None
    if slot.brackets == "{}":
        parts = _registers(operand)
        if len(names) == 1:
            return {names[0]: parts}
        return dict(zip(names, parts, strict=True)) if len(parts) == len(names) else None
    if slot.brackets == "|":
        parts = (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)
        return dict(zip(names, parts))
    place = slot.places[0]
    if place.is_literal:
        literal = Register("_") if place.name == "_" else Immediate(int(place.name))
        return {} if operand == literal else None
    plain = isinstance(operand, Immediate if place.type == "imm" else Register | Immediate)
    return {names[0]: operand} if plain else None


def _registers(operand: Operand) -> tuple[Operand, ...]:
    return operand.parts if isinstance(operand, Vector) else (operand,)


@dataclasses.dataclass(frozen=True)
class Reading:
    """An instruction as one of the forms: values of fields (None if they are missing), and operands by name."""

    form: Form
    fields: Values
    operands: Operands


class Forms:
    """The forms of all opcodes."""

    def __init__(self, forms: Sequence[Form]) -> None:
        self._forms: dict[str, dict[tuple[str, ...], list[Form]]] = {}
        self._names: dict[str, frozenset[str]] = {}
        for form in forms:
            self._forms.setdefault(form.opcode[0], {}).setdefault(form.opcode, []).append(form)

    def __iter__(self) -> Iterator[Form]:
        for opcodes in self._forms.values():
            for forms in opcodes.values():
                yield from forms

    def read(self, statement: Statement) -> Reading | None:
        """Return an instruction as one of the forms; None if its opcode is not in the table.

        Raises `UnknownForm` for one that has none of the forms of its opcode.
        """
        forms, words = self._candidates(statement.name, statement.modifiers)
        if not forms:
            return None
        fitting = [
            (form, values) for form, (values, left, missing) in _matches(forms, words) if not left and not missing
        ]
        for form, values in fitting:
            operands = form.match(values, statement.operands)
            if operands is not None:
                if rule := form.rule({**values, **operands}):
                    raise UnknownForm(rule)
                return Reading(form, values, operands)
        for form, values in fitting:
            if wrong := form.rule(dict(values)) or form.wrong_count(values, statement.operands):
                raise UnknownForm(wrong)
        if fitting:
            raise UnknownForm("its operands are " + " or ".join(f"`{form.operands}`" for form, _ in fitting))
        raise UnknownForm(_difference(forms, words))

    def _candidates(self, name: str, modifiers: tuple[str, ...]) -> tuple[tuple[Form, ...], tuple[str, ...]]:
        """Return the forms of the longest opcode that an instruction begins with, and its modifiers."""
        whole = (name, *modifiers)
        opcodes = self._forms.get(name, {})
        for length in range(len(whole), 0, -1):
            if whole[:length] in opcodes:
                return tuple(opcodes[whole[:length]]), whole[length:]
        return (), ()

    def names(self, name: str) -> frozenset[str]:
        """Return the fields and operands of all forms whose opcode begins with a word."""
        if name not in self._names:
            every = (form for forms in self._forms[name].values() for form in forms)
            self._names[name] = frozenset[str]().union(*(form.names for form in every))
        return self._names[name]

    def opcodes(self, name: str) -> list[str]:
        """Return the opcodes that begin with a word."""
        return [".".join(opcode) for opcode in self._forms.get(name, ())]


@functools.lru_cache(maxsize=256)
def _matches(
    forms: tuple[Form, ...], words: tuple[str, ...]
) -> list[tuple[Form, tuple[dict[str, Value], list[str], list[Group]]]]:
    return [(form, form.modifiers(words)) for form in forms]


def _difference(forms: tuple[Form, ...], words: tuple[str, ...]) -> str:
    """Return how modifiers differ from the form that is nearest to them."""
    form, (values, left, missing) = min(_matches(forms, words), key=lambda match: len(match[1][1]) + len(match[1][2]))
    if left and missing:
        return f"the modifier .{left[0]} where {missing[0]} is expected"
    if missing:
        return f"{missing[0]} is missing"
    free = [str(group) for group in form.groups if group.optional and all(not values[name] for name in group.fields)]
    return f"the modifier .{left[0]}{': there may be ' + ', '.join(free) if free else ''}"
