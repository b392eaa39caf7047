"""Times of calls: timers, statistics, measurements, comparisons; timing.py is the interface of CuTe programs."""

from .._support import lazy

__getattr__ = lazy.names(
    __name__,
    {
        **dict.fromkeys(
            ("BURST", "FLAGS", "NORMAL", "QUICK", "SUSTAINED", "Effort", "Measurement", "measure", "sustained"),
            ".measurement",
        ),
        **dict.fromkeys(("Comparison", "Pace", "compare", "paces"), ".comparison"),
    },
    ("statistics", "timers", "clocks", "timing", "measurement", "comparison"),
)
