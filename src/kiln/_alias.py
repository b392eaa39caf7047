"""Serves the package name `cutlass` with Kiln's own modules.

Once `install()` has run, `cutlass` *is* the module `kiln` and `cutlass.X` *is* `kiln.X`: one module object under two
names in `sys.modules`, so classes, registries and patched attributes are shared. Programs also reach below the
interface, to the MLIR bindings, and those names are redirected:

    cutlass._mlir.X                 the bindings' X (ir, passmanager, extras.types, ...)
    cutlass._mlir.dialects.X        the bindings' dialect X (llvm, nvvm, arith, ...)
    cutlass._mlir.dialects.cute     kiln.cute.nvgpu.cute_dialect: kiln.dialects.cute and names that programs use;
                                    cute_nvgpu is kiln.cute.nvgpu.cute_nvgpu_dialect
    cutlass._mlir.dialects.math     kiln.cute.arch.math_dialect: the bindings' math for numbers of the language
    cutlass._mlir.dialects.nvvm     kiln.cute.arch.nvvm_dialect: the bindings' nvvm with what they lack
    cutlass.base_dsl.runtime.cuda   kiln.cuda
    cutlass.base_dsl.arch           kiln.hardware.architectures, and likewise enums

Only the standard library is imported here, and nothing of Kiln until a module is loaded. Finders import nothing: Python
calls them with the lock of all imports, so that a thread that waited for another's import there would wait for ever.
Nor does a module of the alias's own ever stand in for the real one, since another thread would keep it.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from types import CodeType, ModuleType

TYPE_CHECKING = False  # `typing` and `dataclasses` together take longer to import than all the rest of this
if TYPE_CHECKING:
    from importlib.abc import Loader
    from typing import Any
else:
    Loader = object

ALIAS = "cutlass"
REAL = "kiln"
BINDINGS = "torch_mlir"
"""The importable package of the MLIR bindings; `kiln.mlir` imports it."""
DISTRIBUTION = "nvidia-cutlass-dsl"
"""The distribution in which others serve `cutlass`."""

_MLIR = "_mlir"

# Package names with children of more than one origin. Each is a module of the alias's own, so that importing a child
# leaves no attribute behind in the bindings.
_JUNCTIONS = frozenset(
    {
        "_mlir_helpers",
        "base_dsl.runtime",
        _MLIR,
        f"{_MLIR}.dialects",
        f"{_MLIR}._mlir_libs",
        f"{_MLIR}._mlir_libs._cutlass_ir",
        f"{_MLIR}._mlir_libs._cutlass_ir._mlir",
    }
)

# Names below the alias whose place in Kiln is another one.
_MOVED = {
    "_mlir_helpers.arith": "kiln.cute.arch.mlir_helpers",
    "_mlir_helpers.dialect_proxy": "kiln.cute.arch.mlir_helpers",
    "_mlir_helpers.math": "kiln.cute.arch.mlir_helpers",
    "base_dsl.arch": "kiln.hardware.architectures",
    "base_dsl.enums": "kiln.hardware.architectures",
    "base_dsl.runtime.cuda": "kiln.cuda",
    "cute.nvgpu.cpasync.copy": "kiln.cute.nvgpu.cpasync",
    "cute.nvgpu.cpasync.helpers": "kiln.cute.nvgpu.cpasync",
    "utils.grouped_gemm_tile_scheduler": "kiln.utils.schedulers.grouped_gemm",
    "utils.static_persistent_tile_scheduler": "kiln.utils.schedulers.static_persistent",
    f"{_MLIR}.dialects.cute": "kiln.cute.nvgpu.cute_dialect",
    f"{_MLIR}.dialects.math": "kiln.cute.arch.math_dialect",
    f"{_MLIR}.dialects.nvvm": "kiln.cute.arch.nvvm_dialect",
    f"{_MLIR}.dialects.cute_nvgpu": "kiln.cute.nvgpu.cute_nvgpu_dialect",
    f"{_MLIR}._mlir_libs._cutlass_ir._mlir": BINDINGS,
}


def junction(package: str, name: str) -> ModuleType:
    """Return a module that only the alias has, as an attribute of its parent; AttributeError for others."""
    below = f"{package}.{name}"[len(REAL) + 1 :]
    if below in _MOVED:
        return importlib.import_module(real_name(f"{ALIAS}.{below}"))
    if below not in _JUNCTIONS:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(f"{ALIAS}.{below}")


def real_name(name: str) -> str:
    """Return the module that the alias name stands for: `cutlass.cute` gives `kiln.cute`. The module need not exist."""
    below = name[len(ALIAS) + 1 :]
    if not below:
        return REAL
    # The longest redirected prefix decides; whatever follows it is kept.
    prefix = below
    rest = ""
    while prefix:
        if prefix in _MOVED:
            return _MOVED[prefix] + rest
        prefix, _, last = prefix.rpartition(".")
        rest = f".{last}{rest}"
    if below == _MLIR or below.startswith(f"{_MLIR}."):
        return BINDINGS + below[len(_MLIR) :]
    return f"{REAL}.{below}"


class AliasFinder:
    """A meta-path finder that answers for `cutlass` and everything below it, and for nothing else."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        alias = f"{ALIAS}{name[len(REAL) :]}" if name.startswith(f"{REAL}.") else name
        if alias != ALIAS and not alias.startswith(f"{ALIAS}."):
            return None
        below = alias[len(ALIAS) + 1 :]
        if alias != name and below not in _MOVED:  # `from` looks below the name that the module has
            return None
        if below in _JUNCTIONS:
            return ModuleSpec(name, _JunctionLoader(), is_package=True)
        real = _find_spec(real_name(alias))
        return None if real is None else _AliasSpec(name, real)

    def find_distributions(self, context: object = None) -> Any:
        """Report Kiln's version to programs that ask `importlib.metadata` for the version of `cutlass`."""
        if (getattr(context, "name", None) or "").lower().replace("_", "-") != DISTRIBUTION:
            return iter(())
        from importlib.metadata import Distribution

        class Served(Distribution):
            def read_text(self, filename: str) -> str | None:
                version = importlib.import_module(REAL).__version__
                text = f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: {version}\nSummary: served by Kiln\n"
                return text if filename == "METADATA" else None

            def locate_file(self, path: object) -> Any:
                return path

        return iter((Served(),))


class _AliasSpec(ModuleSpec):
    """The spec of an alias. Python makes it the real module's own for the moment in which it places the alias."""

    def __init__(self, name: str, real: ModuleSpec) -> None:
        super().__init__(name, _AliasLoader(real), origin=real.origin)
        self.submodule_search_locations = real.submodule_search_locations
        self.real = real
        self._placing = False

    @property
    def _initializing(self) -> bool:
        """Whether threads that import the real module have to wait."""
        return self._placing or getattr(self.real, "_initializing", False)

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self._placing = value


class _AliasLoader(Loader):
    """Loads an alias by importing the real module, which goes into `sys.modules` under the alias's name.

    The real module's own `__name__` and `__spec__` stay as they are, so pickling, `inspect` and `importlib.reload`
    see one ordinary module. The remaining methods are what `python -m` and `inspect` ask of a loader.
    """

    def __init__(self, real: ModuleSpec) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        real = _load(self.real.name)
        self.real = _own_spec(real) or self.real
        below = f"{spec.name.partition('.')[2]}."
        if not hasattr(real, "__path__") and any(moved.startswith(below) for moved in _MOVED):
            real.__path__ = []  # a module here, a package in the programs
        return real

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.real

    def is_package(self, name: str) -> bool:
        return self.real.submodule_search_locations is not None

    def get_code(self, name: str) -> CodeType | None:
        return self._ask("get_code")

    def get_source(self, name: str) -> str | None:
        return self._ask("get_source")

    def get_filename(self, name: str) -> str:
        filename = self._ask("get_filename")
        if filename is None:
            raise ImportError(f"{self.real.name} has no file", name=name)
        return filename

    def _ask(self, method: str) -> Any:
        answer = getattr(self.real.loader, method, None)
        return None if answer is None else answer(self.real.name)


class _Junction(ModuleType):
    """A package whose children come from several places; children load when they are first used."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r}")
        child = f"{self.__name__}.{attribute}"
        try:
            return importlib.import_module(child)
        except ModuleNotFoundError as error:
            # The bindings may lack generated modules of dialects that Kiln does not use: others ask whether they exist.
            if error.name != child and not (error.name or "").startswith(f"{BINDINGS}.dialects."):
                raise
        if (real := _find_spec(real_name(self.__name__))) is not None:
            return getattr(importlib.import_module(real.name), attribute)
        raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r}")


class _JunctionLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name == f"{ALIAS}.{_MLIR}":
            _load("kiln.mlir")  # has a say in how the bindings load
        return _Junction(spec.name, f"Part of the alias `{ALIAS}`: see kiln._alias.")

    def exec_module(self, module: ModuleType) -> None:
        pass


def _find_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module by its real name; None when it, or a parent of it, does not exist. Imports nothing."""
    spec = None
    path = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        whole = ".".join(parts[:count])
        if (module := sys.modules.get(whole)) is not None:
            spec = _own_spec(module)
            path = getattr(module, "__path__", None)
        else:
            finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
            spec = next(filter(None, (finder.find_spec(whole, path) for finder in finders)), None)
            path = spec and spec.submodule_search_locations
        if spec is None or (path is None and count < len(parts)):
            return None
    return spec


def _load(name: str) -> ModuleType:
    """Import a module of Kiln, or of the bindings, while no other thread does."""
    importlib.import_module(REAL)  # Kiln first: whoever waits for it here holds up nobody
    with importlib.import_module("kiln._support.one_import").at_a_time():
        return importlib.import_module(name)


def _own_spec(module: ModuleType) -> ModuleSpec | None:
    """Return the spec of a module, also while an alias of it is put into place."""
    spec = getattr(module, "__spec__", None)
    return spec.real if isinstance(spec, _AliasSpec) else spec


_finder = AliasFinder()


def install() -> None:
    """Make `import cutlass` give Kiln in this process, even if nvidia-cutlass-dsl is installed. Calling it again changes nothing."""
    # First, since the path finder would load `kiln/cute` a second time under the name `cutlass.cute`.
    if _finder not in sys.meta_path:
        from ._support import unavailable  # not above: tools copy this file alone

        sys.meta_path.insert(0, _finder)  # pyright: ignore[reportArgumentType]
        sys.meta_path.append(unavailable.finder)


def take_over() -> None:
    """Run `install()`, and drop any other `cutlass` that was already imported."""
    install()
    if sys.modules.get(ALIAS) is not sys.modules.get(REAL):
        for name in [n for n in sys.modules if n == ALIAS or n.startswith(f"{ALIAS}.")]:
            del sys.modules[name]


class Rival:
    """Another provider of the package `cutlass` in this environment.

    `path` is its file or folder; `distributions` the installed distributions that own it, each as "name version"
    (none, when nobody claims it); `wins` whether a plain `import cutlass` finds it rather than Kiln's.
    """

    def __init__(self, path: str, wins: bool) -> None:
        self.path = path
        self.distributions = _owners(path)
        self.wins = wins

    def __str__(self) -> str:
        owner = " and ".join(self.distributions) or "no installed distribution owns it"
        return f"{self.path} ({owner})"


def own_package() -> str:
    """Return the folder of Kiln's `cutlass` package, which lies beside the package `kiln`."""
    return os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), ALIAS)


def rivals() -> list[Rival]:
    """Return every other provider of `cutlass` that this process could import, in search order.

    Costs a few file look-ups per entry of `sys.path`; distributions are read only when there is a rival to name.
    """
    own = own_package()
    packages: list[Rival] = []
    seen: set[str] = set()
    wins = True
    for entry in sys.path:
        base = os.path.join(os.path.realpath(entry or os.curdir), ALIAS)
        for path, init in ((base, os.path.join(base, "__init__.py")), (f"{base}.py", f"{base}.py")):
            if path not in seen and os.path.isfile(init):
                seen.add(path)
                if is_ours(init):  # another copy of Kiln, say an installed one beside a checkout, is no rival
                    wins = False
                else:
                    packages.append(Rival(path, wins))
    for finder in sys.meta_path:  # editable installs of other packages may answer through a finder of their own
        if finder in (PathFinder, BuiltinImporter, FrozenImporter, _finder) or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(ALIAS, None)
        if spec is not None and spec.origin and (path := os.path.realpath(os.path.dirname(spec.origin))) not in seen:
            seen.add(path)
            packages.append(Rival(path, False))
    # Another wheel may have written into our own folder before us: its leftovers show that.
    init = os.path.join(own, "__init__.py")
    if os.path.isfile(init) and is_ours(init):
        for leftover in sorted(set(os.listdir(own)) - {"__init__.py", "__pycache__"}):
            rival = Rival(os.path.join(own, leftover), wins=False)
            if rival.distributions:
                packages.append(rival)
                break
    return packages


def is_ours(init: str) -> bool:
    """Return whether an `__init__.py` of `cutlass` is Kiln's, by its imports."""
    with open(init, encoding="utf-8", errors="replace") as file:
        return "kiln._alias" in file.read()


def _owners(path: str) -> tuple[str, ...]:
    from importlib import metadata

    owners: dict[str, None] = {}
    for distribution in metadata.distributions():
        record = distribution.read_text("RECORD") or ""
        if ALIAS not in record:
            continue
        root = os.path.realpath(str(distribution.locate_file("")))
        for line in record.splitlines():
            if ALIAS in line:
                file = os.path.normpath(os.path.join(root, line.split(",")[0].strip('"')))
                if file == path or file.startswith(path + os.sep):
                    name = distribution.metadata["Name"]
                    if name != "kiln-dsl":
                        owners[f"{name} {distribution.version}"] = None
                    break
    return tuple(owners)


def warn_of_rivals(stacklevel: int = 2) -> None:
    """Issue a `RuntimeWarning` that names every other provider of `cutlass`, if there is one."""
    if others := rivals():
        import warnings

        warnings.warn(
            f"`import {ALIAS}` gives Kiln, but this environment has another `{ALIAS}`: "
            + "; ".join(map(str, others))
            + ". Which of them a program gets depends on the order of sys.path: keep one of the two in this environment, "
            "or start programs with `kiln run`, which always serves Kiln's.",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )
