"""Times of calls: timers, statistics, measurements, comparisons; timing.py is the interface of CuTe programs.

trace_format.py has traces of what happens inside kernels.
"""

from typing import TYPE_CHECKING

from .._support import lazy

if TYPE_CHECKING:  # what loads when it is first used
    from . import clocks as clocks
    from . import comparison as comparison
    from . import measurement as measurement
    from . import statistics as statistics
    from . import timers as timers
    from . import timing as timing
    from . import trace_format as trace_format
    from .comparison import Comparison as Comparison
    from .comparison import Pace as Pace
    from .comparison import compare as compare
    from .comparison import paces as paces
    from .measurement import BURST as BURST
    from .measurement import FLAGS as FLAGS
    from .measurement import NORMAL as NORMAL
    from .measurement import QUICK as QUICK
    from .measurement import SUSTAINED as SUSTAINED
    from .measurement import Effort as Effort
    from .measurement import Measurement as Measurement
    from .measurement import measure as measure
    from .measurement import sustained as sustained

if not TYPE_CHECKING:
    __getattr__ = lazy.names(
        __name__,
        {
            **dict.fromkeys(
                ("BURST", "FLAGS", "NORMAL", "QUICK", "SUSTAINED", "Effort", "Measurement", "measure", "sustained"),
                ".measurement",
            ),
            **dict.fromkeys(("Comparison", "Pace", "compare", "paces"), ".comparison"),
        },
        ("statistics", "timers", "clocks", "timing", "measurement", "comparison", "trace_format"),
    )
