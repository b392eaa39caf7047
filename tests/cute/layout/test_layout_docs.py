"""The examples in the guide to layouts."""

import doctest
from pathlib import Path

from layout_testing import SymInt

from kiln.cute.layout import make_layout, zipped_divide

GUIDE = Path(__file__).parents[3] / "docs" / "layouts.md"


def test_the_examples_of_the_guide_run():
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried > 30 and failed == 0


def test_the_dynamic_example_of_the_guide():
    columns = SymInt(128, 64)
    layout = make_layout((SymInt(100), columns), stride=(columns, 1))
    for text in (str(layout), str(zipped_divide(layout, (32, 16)))):
        assert f"`{text}`" in GUIDE.read_text()
