"""Random programs give what Python gives, or are refused with a reason; and the fuzzer sees what it is there to see.

300 programs by default, `KILN_FUZZ_PROGRAMS` says how many. `python tests/helpers/fuzz.py` runs more of them, in shards.
"""

from __future__ import annotations

import os

import fuzz
import program_checks
import program_minimizer
import program_numbers
import program_verdicts
import pytest
import random_programs
from program_productions import PRODUCTIONS

import kiln

PROGRAMS = int(os.environ.get("KILN_FUZZ_PROGRAMS", "300"))
SHARDS = 3
LONG = os.environ.get("KILN_LONG_TESTS", "") not in ("", "0")
OPTIONS = {"only": [], "without": [], "without_check": []}

NEEDED = [
    ("deques", "deques", 4),
    ("bytearrays", "bytearrays", 4),
    ("arrays", "arrays", 3),
    ("numpy arrays", "numpy_arrays", 4),
    ("ctypes", "ctypes", 1),
    ("context variables", "context_variables", 4),
    ("streams", "streams", 4),
    ("random numbers", "random_numbers", 1),
    ("generators", "generators", 50),
    ("iterators", "iterators", 4),
    ("iterators", "counts", 4),
    ("names of modules", "module_names", 4),
    ("names of modules", "globals_call", 4),
    ("attributes of modules", "module_attributes", 4),
    ("attributes of classes", "class_attributes", 1),
    ("attributes of functions", "function_attributes", 1),
    ("environment", "environment", 4),
    ("objects of modules", "module_objects", 1),
    ("mutable defaults", "mutable_defaults", 5),
    ("closures", "factories", 1),
    ("closures", "nonlocals", 0),
    ("partials", "partials", 7),
    ("weak references", "weak_references", 62),
    ("far objects", "two_away", 37),
    ("deep lists", "deep_lists", 17),
    ("class defaults", "class_defaults", 1),
    ("lengths and keys", "lists", 4),
    ("lengths and keys", "dicts", 13),
    ("lengths and keys", "sets", 4),
    ("gained attributes", "gained_attributes", 4),
    ("chosen objects", "chosen", 30),
    ("chosen objects", "swapped", 11),
    ("cached properties", "cached_property", 12),
    ("parts in common", "common_part", 307),
    ("objects with two names", "iadd", 21),
    ("objects with two names", "fluent", 12),
    ("parts of expressions", "properties", 15),
    ("parts of expressions", "nonlocals", 16),
    ("any and all", "any_all", 2),
    ("messages of assert", "assertions", 1),
    ("exceptions", "exceptions", 1),
    ("texts", "texts", 1),
    ("identity", "identity", 3),
]
"""Checks, a production that needs each, and a seed whose program of that production alone shows it."""


def program(text: str) -> random_programs.Program:
    return random_programs.Program(0, text, (), False, False)


def judge(text: str) -> program_verdicts.Verdict:
    return program_verdicts.judge(program(text), [(0, 0, 0), (1, 2, 3)])


@pytest.mark.quick(1)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_programs_give_what_python_gives(shard):
    seeds = range(PROGRAMS * shard // SHARDS, PROGRAMS * (shard + 1) // SHARDS)
    summary = fuzz.sweep(seeds, OPTIONS, 1, None, print)
    summary.show(print)
    assert summary.bad == []
    assert summary.verdicts.total() == len(seeds)
    assert summary.run >= 80


@pytest.mark.quick(20)
@pytest.mark.parametrize(("check", "production", "seed"), NEEDED)
def test_without_its_check_a_program_is_wrong(check, production, seed):
    made, inputs = random_programs.program(seed, [production]), random_programs.inputs(seed)
    assert program_verdicts.judge(made, inputs).verdict in (program_verdicts.RIGHT, program_verdicts.REFUSED)
    with program_checks.switched_off([check]):
        assert program_verdicts.judge(made, inputs).verdict == program_verdicts.WRONG


@pytest.mark.skipif(not LONG, reason="up to 2000 programs for each; set KILN_LONG_TESTS=1")
@pytest.mark.parametrize("check", program_checks.CHECKS)
def test_each_check_is_missed_within_2000_programs(check):
    of_its_productions = {**OPTIONS, "only": list(program_checks.CHECKS[check].productions)}
    assert any(fuzz.found_without(check, options, range(2000), 1) for options in (OPTIONS, of_its_productions))


def test_every_check_has_a_program():
    assert {check for check, _, _ in NEEDED} == set(program_checks.CHECKS)
    assert {name for check in program_checks.CHECKS.values() for name in check.productions} <= set(PRODUCTIONS)


def test_wrong_programs_become_small():
    made, inputs = random_programs.program(4, ["deques"]), random_programs.inputs(4)
    with program_checks.switched_off(["deques"]):

        def is_wrong(candidate: random_programs.Program) -> bool:
            return program_verdicts.judge(candidate, inputs, alone=True).verdict == program_verdicts.WRONG

        small = program_minimizer.minimized(made, is_wrong)
        assert is_wrong(small)
    assert "queue" in small.text
    assert len(small.text) < len(made.text) / 2
    assert program_verdicts.judge(small, inputs).verdict == program_verdicts.REFUSED


def test_verdicts():
    assert judge("@jit\ndef f(a, b, c):\n    return (a, b + c, K)\n").verdict == "right"
    differs = "def f(a, b, c):\n    return (1 if narrow is Int32 else 2, 0, 0)\n"
    assert judge("@jit\n" + differs).verdict == "wrong"
    refused = "@jit\ndef f(a, b, c):\n    if a > 0:\n        y = [1]\n    else:\n        y = [1, 2]\n    return (a, b, len(y))\n"
    assert judge(refused).verdict == "refused"
    assert (
        judge(
            "@jit\ndef f(a, b, c):\n    if narrow is Int32:\n        raise ValueError\n    return (a, b, c)\n"
        ).verdict
        == "unclear"
    )
    assert judge("@jit\ndef f(a, b, c):\n    return 1 / 0\n").verdict == "invalid"
    assert not program_verdicts.is_clear(kiln.DSLRuntimeError("no line"))


def test_processes_that_end_or_hang_are_seen():
    bench = fuzz.Bench(OPTIONS, 20)
    try:
        assert bench.kind(program("import os\n@jit\ndef f(a, b, c):\n    os._exit(3)\n")) == "crash"
        assert bench.kind(program("@jit\ndef f(a, b, c):\n    return (a, b, c)\n")) == "right"
    finally:
        bench.close()
    impatient = fuzz.Bench(OPTIONS, 0.5)
    assert impatient.kind(program("@jit\ndef f(a, b, c):\n    while narrow:\n        pass\n")) == "hang"


def test_recorded_seeds_are_not_run_again(tmp_path):
    record = str(tmp_path / "record.jsonl")
    fuzz.sweep(range(2), OPTIONS, 1, record, print)
    lines = (tmp_path / "record.jsonl").read_text()
    assert len(lines.splitlines()) == 2
    again = fuzz.sweep(range(2), OPTIONS, 1, record, print)
    assert again.verdicts.total() == 2
    assert (tmp_path / "record.jsonl").read_text() == lines


@pytest.mark.parametrize("first", program_numbers.TYPES)
def test_types_of_plain_numbers_are_those_of_kiln(first):
    for second, kind in program_numbers.TYPES.items():
        for operation in ("__add__", "__truediv__", "__floordiv__"):
            plain = getattr(program_numbers.TYPES[first](3), operation)(kind(2))
            typed = getattr(getattr(kiln, first)(3), operation)(getattr(kiln, second)(2))
            assert type(plain).__name__ == type(typed).__name__
            assert float(plain) == float(typed)
