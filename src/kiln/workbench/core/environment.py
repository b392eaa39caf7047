"""What results depend on besides the program: versions, the GPU and its driver, the machine."""

from __future__ import annotations

import functools
import platform
from typing import Any


@functools.lru_cache(maxsize=1)
def _environment() -> dict[str, Any]:
    import kiln
    from kiln.base_dsl import cache
    from kiln.hardware import driver, toolchain

    from . import driver_info

    tool = toolchain.find("ptxas")
    found = driver_info.driver()
    here = found.gpus[0] if found.gpus else None
    return {
        # Between releases the version says too little.
        "kiln": kiln.__version__ + (f"+{cache.sources_hash()[:8]}" if "dev" in kiln.__version__ else ""),
        "python": platform.python_version(),
        "ptxas": tool.version() if tool else None,
        "gpu": here.name if here else None,
        "uuid": driver.uuid(0) if here else None,
        "driver": found.version if here else None,
        "node": platform.node(),
    }


def environment() -> dict[str, Any]:
    """`kiln`, `python`, `ptxas`, `gpu`, `uuid`, `driver`, `node`; None for what is not here. Asked once for a process."""
    return dict(_environment())
