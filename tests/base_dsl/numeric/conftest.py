"""Fixtures of the tests of numeric types."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from numeric_testing import begin_module, function_holder

from kiln.base_dsl import trace
from kiln.mlir import ir


@pytest.fixture
def tracing() -> Iterator[trace.Trace]:
    """A function being traced: `T(x)` is an IR value in the test."""
    made = begin_module()
    with trace.activate(made):
        block = ir.Block.create_at_start(function_holder(made).regions[0], [])
        with trace.inside_function(made, block, "test"):
            yield made
