"""Errors of Kiln's can be pickled, as pools of processes and parallel tests do with them."""

from __future__ import annotations

import pickle

import pytest

from kiln.base_dsl import diagnostics, sanitizing
from kiln.base_dsl.diagnostics import DSLBaseError, Span
from kiln.targets.cpu.runtime.deadlock_report import DeadlockFault
from kiln.targets.host.faults import AssertionFault

KINDS = [
    kind for kind in vars(diagnostics).values() if isinstance(kind, type) and issubclass(kind, DSLBaseError)
]  # fmt: skip


@pytest.mark.parametrize("kind", [*KINDS, DeadlockFault, AssertionFault], ids=lambda kind: kind.__name__)
def test_errors(kind):
    failure = kind("wrong", hint="write it so", span=Span("a.py", 3, 1, 3, 5, "f"), page="missing-barrier")
    copy = pickle.loads(pickle.dumps(failure))
    assert (type(copy), str(copy), copy.__notes__) == (kind, str(failure), failure.__notes__)


def test_the_sanitizers():
    failure = sanitizing.SanitizerError("wrong", ["a finding"], by_default=True)
    copy = pickle.loads(pickle.dumps(failure))
    assert (str(copy), copy.findings, copy.__notes__) == (str(failure), ["a finding"], failure.__notes__)
