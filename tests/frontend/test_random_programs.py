"""Random programs with nested control flow: the same results as Python.

60 programs by default; KILN_LONG_TESTS=1 runs 3000.
"""

from __future__ import annotations

import os

import random_programs
from differential import check_text
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

INPUTS = [(0, 0, 0), (1, 2, 3), (5, 3, 1), (4, 4, 9), (7, 0, 2), (2, 9, 6)]
EXAMPLES = 3000 if os.environ.get("KILN_LONG_TESTS") else 60


@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=not os.environ.get("KILN_LONG_TESTS"), database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(st.randoms(use_true_random=False), st.integers(4, 14))
def test_random_programs_give_what_python_gives(random, size):
    text = random_programs.program(random.randrange, size)
    note(text[text.index("def f(") :])
    check_text(text, *INPUTS, K=3)
