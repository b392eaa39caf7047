"""The workbench: cases of kernels, checked, timed, tuned and profiled; and the `kiln` command.

    from kiln import workbench as wb

    case = wb.load("kernel.py")
    case.verify()

One module per verb; `main.VERBS` lists them.
"""

from __future__ import annotations

from kiln._support import lazy

_PLACES = {
    "CuteKernel": ".plans",
    "Fit": ".plans",
    "KernelPlan": ".plans",
    "Tiling": ".plans",
    "load": ".cases",
    "Case": ".cases",
    "ContractError": ".contracts",
    "Journal": ".records",
    "Record": ".records",
    "Job": ".runners",
    "Local": ".runners",
    "Inline": ".runners",
    "Ray": ".ray_runner",
    "Tuning": ".tuned",
    **dict.fromkeys(("Measurement", "measure"), "..measure.measurement"),
    **dict.fromkeys(("Comparison", "compare"), "..measure.comparison"),
}

__getattr__ = lazy.names(__name__, _PLACES, None)
