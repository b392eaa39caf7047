"""tcgen05 and cluster launch control, which the CPU target has no engine for yet."""

from __future__ import annotations

from typing import NoReturn

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import DSLNotImplemented
from ....dialects import nvgpu
from ....dialects.declaration import OpView
from ...lowering.builder import Builder
from ...lowering.expansion import Handlers
from ..expand import Expander

HANDLERS = Handlers()
_UNITS = {nvgpu.tcgen05.__name__: "tcgen05", nvgpu.launch_control.__name__: "cluster launch control"}


def _refuse(_x: Expander, op: OpView, _b: Builder) -> NoReturn:
    message = f"{_UNITS[type(op).__module__]} runs on the NVIDIA target only so far ({op.operation.name})"
    hint = 'compile for a GPU: cute.compile(..., target="nvidia", options="--gpu-arch sm_100a")'
    raise report_at(op.location, DSLNotImplemented, message, hint=hint)


HANDLERS.expands(*(kind for kind in nvgpu.OPERATIONS if kind.__module__ in _UNITS))(_refuse)
