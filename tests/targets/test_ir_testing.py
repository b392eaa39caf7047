"""The checker of lines finds what is there, and sees what is not."""

from __future__ import annotations

import pytest
from ir_testing import check

TEXT = """
%0 = a.make : i32
%1 = a.make : i32
%2 = a.add %0, %1 : i32
a.end %2
"""


@pytest.mark.parametrize(
    "expected",
    [
        "a.end",
        "%x = a.make\n%y = a.make\n%z = a.add %x, %y\na.end %z",
        "%z = a.add\nnot: a.make\na.end %z",
        "a.end\nnot: a.add",
    ],
)
def test_found(expected: str) -> None:
    check(TEXT, expected)


@pytest.mark.parametrize(
    "expected",
    ["a.sub", "a.end\na.add", "%x = a.make\na.add %x, %x", "%x = a.make\nnot: a.make\na.end", "a.add\nnot: a.end"],
)
def test_not_found(expected: str) -> None:
    with pytest.raises(AssertionError):
        check(TEXT, expected)
