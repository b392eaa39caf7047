"""Forms of PTX: what is printed is read as the same, and ptxas takes and refuses what the forms do."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ptx_forms import Form as Probe
from ptx_forms import forms as probes
from ptx_forms import refused

from kiln.hardware import toolchain
from kiln.ptx import FORMS
from kiln.ptx.form import Form, Slot, UnknownForm
from kiln.ptx.syntax import Address, Pair, Register, Statement, Vector, parse

LETTERS = {"b8": "h", "b16": "h", "b32": "r", "b64": "d", "f32": "f", "pred": "p", "b128": "q", "": "r"}
ADDRESSES = {"shared": "%s0", "cluster": "%s0", "tmem": "%r0", "global": "%g0", "generic": "%m0"}
NUMBERS = {"size": "16", "ordinal": "1", "value": "1", "scale_input_d": "7", "scale_a": "1", "scale_b": "-1"}
NUMBERS |= {"a_major": "1", "b_major": "0", "selector": "0"}
"""Operands that are numbers in the instruction."""
OWN_SPACE = ("shared", "shared::cta", "shared::cluster", "global")


def statement(text: str) -> Statement:
    (one,) = parse(text).statements
    assert isinstance(one, Statement)
    return one


@functools.cache
def spellings(form: Form) -> list[dict[str, Any]]:
    """Values of fields in which each choice of each field occurs, and each optional one is missing once."""
    chosen: list[dict[str, Any]] = []
    seen: set[tuple[str, Any]] = set()
    for values in (
        form.choices() if math.prod(len(group.alternatives) for group in form.groups) < 20000 else varied(form)
    ):
        parts = {(name, values.get(name)) for name in form.fields}
        if not parts <= seen or not chosen:
            seen |= parts
            chosen.append(values)
    return chosen


def varied(form: Form) -> Iterator[dict[str, Any]]:
    """Values that differ in at most three groups of modifiers from those where optional ones are missing."""
    groups = [[{}] * group.optional + [each.values for each in group.alternatives] for group in form.groups]
    for places in itertools.combinations(range(len(groups)), 3):
        parts = [group if place in places else group[:1] for place, group in enumerate(groups)]
        for each in itertools.product(*parts):
            values = {name: value for part in each for name, value in part.items()}
            if not form.rule(dict.fromkeys(form.fields) | values):
                yield values


def bits_of(element: str) -> int:
    """Return the bits of a type such as f16x2."""
    element = element.replace("e4m3", "b8").replace("e5m2", "b8")
    bits, _, count = element.lstrip("bfsu").partition("x")
    return int(bits) * int(count or 1)


def operands(form: Form, values: dict[str, Any]) -> dict[str, Any]:
    """Operands by name, as they are written; vectors have two registers."""
    spaces = any(word in OWN_SPACE for word in form.name(values).split("."))
    addresses = [slot.places[0] for slot in form.slots if slot.brackets == "[]"]
    written: dict[str, Any] = {}
    for number, place in enumerate(form.places):
        if place.name in form.fields and not values.get(place.name):
            continue
        if place.type == "imm":
            text: str | list[str] = NUMBERS.get(place.name, "64")
        elif place in addresses and not place.type:
            text = {None: "%m0", "global": "%g0"}.get(values.get("space"), "%s0")
        elif place.type in ADDRESSES:
            text = ADDRESSES[place.type] if spaces or place.type != "shared" else "%sx0"
        else:
            element = str(values.get("type") or values.get("reduction", "")).rpartition(".")[2]
            letter = LETTERS[place.type or (element and f"b{bits_of(element)}")]
            text = f"%{letter}{ {'p': 1, 'q': 0, 'h': number % 8}.get(letter, number) }"
            if place in form.lists:
                first = {"r": 20 if number else 30, "h": 0}.get(letter, number)
                text = [f"%{letter}{first + i}" for i in range(form.count(place.name, values) or 2)]
        written[place.name] = text
    if form.rule(dict.fromkeys(form.fields) | values | written):
        for place in (place for slot in form.slots if slot.optional for place in slot.places):
            written.pop(place.name, None)
    return written


def plain(operand: Any, slot: Slot, name: str) -> Any:
    """An operand that was read, as it was written."""
    if isinstance(operand, tuple):
        return [plain(part, slot, name) for part in operand]
    if isinstance(operand, Address):
        operand = operand.base
    assert not isinstance(operand, (Vector, Pair))
    return operand.name if isinstance(operand, Register) else str(operand.value)


@pytest.mark.parametrize("form", list(FORMS), ids=str)
def test_what_is_printed_is_read_as_the_same(form: Form):
    for values in spellings(form):
        given = operands(form, values)
        reading = FORMS.read(statement(form.text({**values, **given}) + ";"))
        assert reading is not None
        assert reading.form is form
        assert reading.fields == {name: values.get(name) for name in form.fields}
        slots = {place.name: slot for slot in form.slots for place in slot.places}
        got = {name: plain(operand, slots[name], name) for name, operand in reading.operands.items()}
        assert got == {name: text for name, text in given.items() if name not in form.written}


FAMILIES = {form.opcode[0] for form in FORMS}
"""What instructions begin with of which all have forms."""
RECORDED = {file.name: file.read_text().splitlines() for file in sorted(Path(__file__).parent.glob("*_forms.txt"))}
"""Further instructions, each with what ptxas does; `{%r1..%r4}` are four registers."""
TARGETS = ("90a", "100a", "103a", "107a", "120a")
"""Targets of which one takes each instruction that has a form."""
REFUSED_VALUES = re.compile(r"setmaxnreg|alloc\S* \S+ \d+;")
"""What ptxas refuses for the value of an operand, which handlers check."""
SPARSE = re.compile(r"mma\S*\.sp(::\w+)?\.\S*block_scale|mma\.ws\.sp\.")
"""Instructions without forms, with an opcode that has some."""


@pytest.mark.parametrize("probe", probes(), ids=lambda probe: probe.text.split(" [")[0].split(" {")[0])
def test_forms_are_those_that_ptxas_takes(probe: Probe):
    statements = parse(probe.text).statements
    for one in statements:
        assert isinstance(one, Statement)
        if SPARSE.search(probe.text):
            continue
        if probe.targets != "-" or REFUSED_VALUES.search(probe.text) or len(statements) > 1:
            assert FORMS.read(one) or one.name not in FAMILIES
        elif one.name in FAMILIES:
            with pytest.raises(UnknownForm):
                assert FORMS.read(one)


def with_all_registers(match: re.Match[str]) -> str:
    letter, first, last = match.groups()
    return ", ".join(f"{letter}{number}" for number in range(int(first), int(last) + 1))


def recorded(line: str) -> tuple[bool, str]:
    """Return whether ptxas takes an instruction, and its text."""
    verdict, text = line.split(None, 1)
    return verdict == "taken", re.sub(r"(%\w)(\d+)\.\.%\w(\d+)", with_all_registers, text)


@pytest.mark.parametrize("file", RECORDED)
def test_forms_are_those_that_were_recorded(file: str):
    wrong: list[str] = []
    for line in RECORDED[file]:
        taken, text = recorded(line)
        try:
            reading = FORMS.read(statement(text))
        except UnknownForm:
            reading = None
        if (reading is not None) != taken and not SPARSE.search(text):
            wrong.append(line)
    assert not wrong


@pytest.mark.skipif(toolchain.find("ptxas") is None, reason="there is no ptxas")
@pytest.mark.parametrize("file", RECORDED)
def test_ptxas_does_what_was_recorded(file: str):
    taken = dict(text[::-1] for text in map(recorded, RECORDED[file][::3]))
    left = [Probe("", "", "", "-", text) for text in taken]
    for target in TARGETS:
        left = refused(target, left)
    assert {probe.text for probe in left} == {text for text, is_taken in taken.items() if not is_taken}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", sorted({form.opcode[0] for form in FORMS}))
@pytest.mark.skipif(toolchain.find("ptxas") is None, reason="there is no ptxas")
def test_ptxas_takes_every_spelling(name: str):
    left = [
        Probe("", "", "", "-", form.text({**values, **operands(form, values)}) + ";")
        for form in FORMS
        if form.opcode[0] == name
        for values in spellings(form)
    ]
    for target in TARGETS:
        left = refused(target, left)
    assert [probe.text for probe in left] == (["fence.proxy.generic;"] if name == "fence" else [])


# --- the grammar -----------------------------------------------------------------------------------------------------

LOAD = Form(
    "load.one", ".x<count>{.<trans>}{.shared{::cta}}.<a>.<b> {d: out}, [p: shared]{, mask}", count=(1, 2), trans="trans",
    a="f16 f32", b={"f16": 2, "f32": 4},
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("load.one.x2.trans.shared.f16.f32 {a, b}, [c];", {"count": 2, "trans": True, "a": "f16", "b": 4}),
        ("load.one.f16.f16.shared::cta.x1 a, [c + 4], m;", {"count": 1, "trans": None, "a": "f16", "b": 2}),
        ("load.one.x1.f32.f16 a, [c];", {"count": 1, "trans": None, "a": "f32", "b": 2}),
    ],
)
def test_modifiers_may_stand_in_any_order(text: str, values: dict[str, Any]):
    fields, left, missing = LOAD.modifiers(statement(text).modifiers[1:])
    assert (fields, left, missing) == (values, [], [])
    assert LOAD.match(fields, statement(text).operands) is not None


@pytest.mark.parametrize(
    "text", ["load.one.x1.f16.f16 a;", "load.one.x1.f16.f16 a, b;", "load.one.x1.f16.f16 a, [b], c, d;"]
)
def test_operands_have_their_places(text: str):
    one = statement(text)
    assert LOAD.match(LOAD.modifiers(one.modifiers[1:])[0], one.operands) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mbarrier.arrive.acquire.cta.shared.b64 _, [a];", r"the modifier .acquire: there may be"),
        ("redux.sync.mul.s32 a, b, c;", r"the modifier .mul where .add.s32, .* or .xor.b32 is expected"),
        ("mbarrier.init.shared [a], b;", r".b64 is missing"),
        ("mbarrier.init.b64 [a];", r"its operands are `\[pointer: shared\], count: b32`"),
        ("fence.acq_rel;", r"is expected|is missing"),
        ("mbarrier.init.b64.shared.global [a], b;", r"the modifier .global"),
        ("ldmatrix.sync.aligned.m8n8.x8.shared.b16 {a}, [b];", r"the modifier .x8 where .x1, .x2 or .x4 is expected"),
        ("stmatrix.sync.aligned.m8n8.x2.b16 [b], {a};", r"1 registers of value where there are 2"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f32.f16 {a}, {b}, {c}, {d};", r"the modifier .f32"),
        ("ld.relaxed.gpu.global.cg.b32 a, [b];", r"\.cg of an access with relaxed\.gpu, to global memory"),
        ("st.global.v4.b128 [b], {a, a, a, a};", r"4 times 128 bits of global memory"),
        ("atom.global.add.f16 a, [b], c;", r"\.noftz is missing for f16"),
        ("red.global.min.f32 [b], c;", r"\.min of f32: u32, s32, u64, s64 have it"),
    ],
)
def test_errors_say_what_is_wrong(text: str, words: str):
    with pytest.raises(UnknownForm, match=words):
        FORMS.read(statement(text))


def test_what_a_form_does_not_have_is_not_printed():
    with pytest.raises(ValueError, match=r"count=3 where there is \.x1 or \.x2"):
        LOAD.name({"count": 3, "a": "f16", "b": 4})
    assert LOAD.text({"count": 1, "a": "f16", "b": 4, "d": ["x"], "p": "y"}) == "load.one.x1.shared.f16.f32 {x}, [y]"


def test_state_spaces_keep_their_order():
    copy = Form("copy", ".shared.global [a: shared], [b: global]")
    assert copy.modifiers(("shared", "global"))[1:] == ([], [])
    assert copy.modifiers(("global", "shared"))[1] == ["global", "shared"]


def test_unused_operand_types_are_none():
    types = {place.type for form in FORMS for place in form.places if not place.is_literal}
    assert types <= LETTERS.keys() | ADDRESSES.keys() | {"imm"}
