"""Ahead-of-time compilation: functions as object files, and loading them again. `kiln/interop/aot` implements it."""

from ._support import lazy

__getattr__ = lazy.names(
    __name__,
    {
        "export_to_c": ".interop.aot.exporting",
        "load_module": ".interop.aot.loading",
        "read_metadata": ".interop.aot.loading",
    },
)
