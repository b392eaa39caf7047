"""Random programs with nested control flow: the same results as Python.

20 programs by default; KILN_LONG_TESTS=1 runs 3000.
"""

from __future__ import annotations

import os
import random

import pytest
import random_programs
from differential import check_text

INPUTS = [(0, 0, 0), (1, 2, 3), (5, 3, 1), (4, 4, 9), (7, 0, 2), (2, 9, 6)]
PROGRAMS = 3000 if os.environ.get("KILN_LONG_TESTS") else 20


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs_give_what_python_gives(seed):
    numbers = random.Random(seed)
    size = numbers.randint(4, 14)
    text = random_programs.program(numbers.randrange, size)
    print(text[text.index("def f(") :])  # shown if it fails
    check_text(text, *INPUTS, K=3)
