"""Ahead-of-time compilation: functions as object files, and loading them again. `kiln/interop/aot` implements it."""

from typing import TYPE_CHECKING

from ._support import lazy

if not TYPE_CHECKING:
    __getattr__ = lazy.names(
        __name__,
        {
            "export_to_c": ".interop.aot.exporting",
            "load_module": ".interop.aot.loading",
            "read_metadata": ".interop.aot.loading",
        },
    )
