"""Lowerings that upstream MLIR does not have, for targets without instructions for them.

`expand_narrow_floats` rewrites conversions from and to narrow floats into integer arithmetic on bit patterns.
`saturate_float_to_int` gives `arith.fptosi` and `arith.fptoui` the meaning of the language: out of range saturates,
NaN is 0 (upstream leaves both undefined).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...mlir import ir


def expand_narrow_floats(module: ir.Module) -> None: ...


def saturate_float_to_int(module: ir.Module) -> None: ...
