"""Names of CuTe DSL that Kiln does not implement: programs can import them, and get an error where they use one.

A library with a kernel for each generation of GPUs imports all of them at its top. A placeholder can stand in an
annotation, as a default argument, as a base class and in a comparison; a call of it raises `DSLNotImplemented`.
"""

from __future__ import annotations

import functools
import os
from importlib.machinery import ModuleSpec
from types import ModuleType

TYPE_CHECKING = False  # as in `lazy.py`: importing `kiln` stays quick
if TYPE_CHECKING:
    from importlib.abc import Loader
    from typing import Any
else:
    Loader = object

_INTERNAL = "it is an internal of another implementation of the interface"

MODULES = {"base_dsl.ast_preprocessor": _INTERNAL, "base_dsl.tvm_ffi_builder": _INTERNAL}
"""Modules below `kiln` that have placeholders only, and so do their submodules; with the reason."""

NAMES = {
    "base_dsl": (_INTERNAL, "DSLPreprocessor"),
    "cute.nvgpu.cpasync": (
        _INTERNAL,
        "CopyBulkTensorTileG2SMulticastNonExecTrait",
        "CopyBulkTensorTileG2SMulticastTrait",
        "CopyBulkTensorTileS2GNonExecTrait",
        "CopyReduceBulkTensorTileS2GNonExecTrait",
    ),
    "cuda": (_INTERNAL, "load_cubin_module_data"),
    "cute.nvgpu.cuda_dialect": ("launches are operations of Kiln's own dialect",),
    "cute": ("integers are no values of types of the IR", "IntValue"),
    "experimental.task_scheduling.pipelines": (_INTERNAL, "TSPipelineAsyncUmma", "TSPipelineUmmaUmma"),
}
"""Placeholders in modules that exist: the reason, then the names; all that a module lacks if there are none."""


error: type[Exception] = NotImplementedError
"""What a use of a placeholder raises; the package puts its own class here."""


class Unavailable(type):
    """The class of placeholders. A placeholder's attributes are placeholders, and so are classes derived from it."""

    __kiln_reason__: str

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        here = next(base for base in cls.__mro__ if "__kiln_reason__" in vars(base))
        raise error(f"{here.__module__}.{here.__qualname__} is not available: {here.__kiln_reason__}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__qualname__!r} has no attribute {name!r}")
        return _placeholder(cls.__module__, f"{cls.__qualname__}.{name}", cls.__kiln_reason__)

    def __getitem__(cls, item: object) -> Any:
        return cls

    def __repr__(cls) -> str:
        return f"<{cls.__module__}.{cls.__qualname__}: not available>"


@functools.cache  # one object for a name; its class does not change when a program asks for an attribute
def _placeholder(module: str, qualname: str, reason: str) -> Any:
    body = {"__module__": module, "__qualname__": qualname, "__kiln_reason__": reason}
    return Unavailable(qualname.rpartition(".")[2], (), body)


def name(module: str, name: str) -> Any:
    """Return a placeholder of a module, as an attribute of it; AttributeError for other names."""
    reason, *names = NAMES.get(module.partition(".")[2], ("",))
    if name not in names and (names or not reason or name.startswith("__")):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return _placeholder(module, name, reason)


_SURFACE = os.path.join(os.path.dirname(__file__), "surface_lacking.txt")
"""What Kiln lacks of the recorded interface, a line each: `kind name`. The list only shrinks (tools/surface.py)."""

_REASONS = {"cutlass.base_dsl": f": {_INTERNAL}"}
"""Why modules of the interface lack names; others are not done yet."""


@functools.cache
def _lacking() -> frozenset[str]:
    if not os.path.exists(_SURFACE):  # as in the site's playground, which has modules only
        return frozenset()
    with open(_SURFACE, encoding="utf-8") as file:
        return frozenset(line.split(" ", 1)[1].rstrip() for line in file if not line.startswith("#"))


def why(module: str, name: str) -> str:
    """Return what an error says besides of a name that a module of the interface has and Kiln lacks, or an empty text."""
    if name.startswith("_") or f"{module}.{name}" not in _lacking():
        return ""
    return f": CuTe DSL has {module}.{name}, and Kiln does not{_REASONS.get(module, '')}"


class _Module(ModuleType):
    """A module of placeholders."""

    __kiln_reason__: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return _placeholder(self.__name__, name, self.__kiln_reason__)


class Finder(Loader):
    """A meta-path finder and loader of the modules that have placeholders only."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        below = name.partition(".")[2]
        if not name.startswith("kiln.") or not any(
            f"{below}.".startswith(f"{unavailable}.") for unavailable in MODULES
        ):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _Module(spec.name, "Names that Kiln does not implement: see kiln._support.unavailable.")
        below = spec.name.partition(".")[2]
        module.__kiln_reason__ = next(
            why for unavailable, why in MODULES.items() if f"{below}.".startswith(f"{unavailable}.")
        )
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


finder = Finder()
