"""The examples in the guide to layouts."""

import doctest
from pathlib import Path

GUIDE = Path(__file__).parents[3] / "docs" / "layouts.md"


def test_the_examples_of_the_guide_run():
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 30 and failed == 0
