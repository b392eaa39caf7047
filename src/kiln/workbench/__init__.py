"""The workbench: cases of kernels, checked, timed, tuned and profiled; and the `kiln` command.

    from kiln import workbench as wb

    case = wb.load("kernel.py")
    case.verify()

A verb is a module or a package of its name, with `main`; `main.VERBS` lists them. `core` has what they share.
"""

from __future__ import annotations

from kiln._support import lazy

_PLACES = {
    "CuteKernel": ".kernel_plan", "Fit": ".kernel_plan", "KernelPlan": ".kernel_plan", "Tiling": ".kernel_plan",
    "load": ".core.loading", "Case": ".core.cases", "ContractError": ".core.contracts", "Journal": ".core.records",
    "Record": ".core.records", "Job": ".core.runners", "Local": ".core.runners", "Inline": ".core.runners",
    "Ray": ".core.ray_runner", "Tuning": ".tune.tuned_file", "static_profile": ".profile.static_profile",
    **dict.fromkeys(("Measurement", "measure"), "..measure.measurement"),
    **dict.fromkeys(("Comparison", "compare"), "..measure.comparison"),
}  # fmt: skip

__getattr__ = lazy.names(__name__, _PLACES, None)
