"""Ahead-of-time compilation: functions as object files, and loading them again. `kiln/interop/aot` implements it."""

from typing import TYPE_CHECKING

from ._support import lazy

__all__ = ["export_to_c", "load_module", "read_metadata"]

if TYPE_CHECKING:  # what loads when it is first used
    from .interop.aot.exporting import export_to_c
    from .interop.aot.loading import load_module, read_metadata
else:
    __getattr__ = lazy.names(
        __name__,
        {
            "export_to_c": ".interop.aot.exporting",
            "load_module": ".interop.aot.loading",
            "read_metadata": ".interop.aot.loading",
        },
    )
