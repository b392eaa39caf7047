"""The workbench: cases of kernels, checked, timed, tuned and profiled; and the `kiln` command.

    from kiln import workbench as wb

    case = wb.load("kernel.py")
    case.verify()

A verb is a module or a package of its name, with `main`; `main.VERBS` lists them. `core` has what they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln._support import lazy

if TYPE_CHECKING:  # what loads when it is first used
    from ..measure.comparison import Comparison as Comparison
    from ..measure.comparison import compare as compare
    from ..measure.measurement import Measurement as Measurement
    from ..measure.measurement import measure as measure
    from .core.cases import Case as Case
    from .core.contracts import ContractError as ContractError
    from .core.loading import load as load
    from .core.ray_runner import Ray as Ray
    from .core.records import Journal as Journal
    from .core.records import Record as Record
    from .core.runners import Inline as Inline
    from .core.runners import Job as Job
    from .core.runners import Local as Local
    from .kernel_plan import CuteKernel as CuteKernel
    from .kernel_plan import Fit as Fit
    from .kernel_plan import KernelPlan as KernelPlan
    from .kernel_plan import Tiling as Tiling
    from .profile.static_profile import static_profile as static_profile
    from .tune.result import Tuning as Tuning

_PLACES = {
    "CuteKernel": ".kernel_plan",
    "Fit": ".kernel_plan",
    "KernelPlan": ".kernel_plan",
    "Tiling": ".kernel_plan",
    "load": ".core.loading",
    "Case": ".core.cases",
    "ContractError": ".core.contracts",
    "Journal": ".core.records",
    "Record": ".core.records",
    "Job": ".core.runners",
    "Local": ".core.runners",
    "Inline": ".core.runners",
    "Ray": ".core.ray_runner",
    "Tuning": ".tune.result",
    "static_profile": ".profile.static_profile",
    **dict.fromkeys(("Measurement", "measure"), "..measure.measurement"),
    **dict.fromkeys(("Comparison", "compare"), "..measure.comparison"),
}

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES, None)
