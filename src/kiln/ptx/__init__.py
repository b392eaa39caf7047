"""PTX: reading its text, and the forms of instructions, one file for each unit. Targets print and read them."""

from __future__ import annotations

from types import ModuleType

from . import control, copies, matrices, mbarrier, memory, mma, multicast, sparse, sync, tcgen05, tma, warp
from .form import Form, Forms


def _forms(*units: ModuleType) -> Forms:
    return Forms([form for unit in units for form in vars(unit).values() if isinstance(form, Form)])


FORMS = _forms(control, copies, matrices, mbarrier, memory, mma, multicast, sparse, sync, tcgen05, tma, warp)
