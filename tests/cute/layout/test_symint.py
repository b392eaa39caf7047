"""The test double itself: it must refuse to be used as a static value."""

import pytest
from layout_testing import SymBool, SymInt, Undecided


def test_a_dynamic_integer_has_no_python_value():
    for use in (bool, int, range, lambda x: [0][x]):
        with pytest.raises(Undecided):
            use(SymInt(3))
    with pytest.raises(Undecided):
        bool(SymInt(3) == 3)


def test_divisibility_follows_arithmetic():
    x = SymInt(24, 8)
    assert (x * 3).divisibility == 24
    assert (x + 4).divisibility == 4
    assert (x // 4).divisibility == 2
    assert isinstance(x < 5, SymBool)
