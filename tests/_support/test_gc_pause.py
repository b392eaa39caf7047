"""Garbage is not collected while a function is compiled, and is again afterwards."""

from __future__ import annotations

import gc

import pytest

import kiln
from kiln import Int32, cute


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_collection_is_as_it_was(enabled, fails):
    seen = []

    @cute.jit
    def f(n: Int32):
        seen.append(gc.isenabled())
        if kiln.const_expr(fails):
            raise ValueError("on purpose")

    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        if fails:
            with pytest.raises(ValueError, match="on purpose"):
                cute.compile(f, Int32(1))
        else:
            cute.compile(f, Int32(1))
        assert seen == [False]
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was else gc.disable)()
