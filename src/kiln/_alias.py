"""Serves the package name `cutlass` with Kiln's own modules.

Once `install()` has run, `cutlass` has the names of the module `kiln`, and `cutlass.X` *is* `kiln.X`: one module object
under two names in `sys.modules`, so classes, registries and patched attributes are shared. The package itself is another
module, since it differs in two things: its `__version__` is that of the interface, and other distributions install
packages into it (`cutlass.operators`), which come before Kiln's own (`cutlass.kernels`).

Programs know other module paths than Kiln has. `PATHS` has a row for each: the modules of Kiln whose names are found
there. Those below the interface are redirected to the MLIR bindings:

    cutlass._mlir.X                 the bindings' X (ir, passmanager, extras.types, ...)
    cutlass._mlir.dialects.X        the bindings' dialect X (llvm, nvvm, arith, ...), or what `PATHS` says

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
    from collections.abc import Iterator
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

_INTERFACE = "cute"
"""The package by which one knows a folder `cutlass` that provides the interface, rather than a package for it."""

_MLIR = "cutlass._mlir"
_CUTLASS_IR = f"{_MLIR}._mlir_libs._cutlass_ir"

PATHS = {
    "cutlass._mlir_helpers": "",
    "cutlass._mlir_helpers.arith": "kiln.cute.arch.mlir_helpers",
    "cutlass._mlir_helpers.dialect_proxy": "kiln.cute.arch.mlir_helpers",
    "cutlass._mlir_helpers.math": "kiln.cute.arch.mlir_helpers",
    "cutlass._mlir_helpers.op": "kiln.cutlass_dsl",
    "cutlass._mlir_helpers.vector": "kiln.vector kiln.cute.tensor.tensor_ssa kiln.cute.program.wrapped_values",
    "cutlass.base_dsl": "kiln.base_dsl kiln.cutlass_dsl kiln.base_dsl.diagnostics kiln.base_dsl.compiler kiln.base_dsl.value_trees kiln.base_dsl.ir_files kiln.cute.program.compiling kiln.cute.tensor.raw_pointer",
    "cutlass.base_dsl.arch": "kiln.hardware.architectures",
    "cutlass.base_dsl.array": "kiln.cute.tensor.array",
    "cutlass.base_dsl.ast_helpers": "kiln.cutlass_dsl kiln.cute.program.control",
    "cutlass.base_dsl._mlir_helpers": "",
    "cutlass.base_dsl._mlir_helpers.op": "kiln.cutlass_dsl",
    "cutlass.base_dsl.cache_helpers": "kiln.base_dsl.ir_files",
    "cutlass.base_dsl.cuda": "kiln.cuda",
    "cutlass.base_dsl.common": "kiln.base_dsl.diagnostics",
    "cutlass.base_dsl.compiler": "kiln.base_dsl.compiler kiln.cute.program.compiling kiln.base_dsl.options",
    "cutlass.base_dsl.dynamic_debug": "kiln.base_dsl.value_trees",
    "cutlass.base_dsl.enums": "kiln.hardware.architectures",
    "cutlass.base_dsl.export": "kiln.cute.export",
    "cutlass.base_dsl.export.external_binary_module": "kiln.cute.host.runtime",
    "cutlass.base_dsl.ffi": "kiln.cute.ffi",
    "cutlass.base_dsl.jit_executor": "kiln.cutlass_dsl",
    "cutlass.base_dsl.native_struct": "kiln.base_dsl.native_struct",
    "cutlass.base_dsl.pointer": "kiln.cute.tensor.raw_pointer kiln.cute.program.wrapped_values",
    "cutlass.base_dsl.runtime": "",
    "cutlass.base_dsl.runtime.cuda": "kiln.cuda",
    "cutlass.base_dsl.runtime.jit_arg_adapters": "kiln.base_dsl.arguments",
    "cutlass.base_dsl.swizzle": "kiln.cute.layout.swizzle",
    "cutlass.base_dsl.t": "kiln.base_dsl.typing",
    "cutlass.base_dsl.vector": "kiln.vector kiln.cute.program.wrapped_values",
    "cutlass.base_dsl.version_info": "kiln.cuda",
    "cutlass.block": "kiln.utils.block_copies",
    "cutlass.compiler": "kiln.cute.program.stages",
    "cutlass.cute.algorithm": "kiln.cute",
    "cutlass.cute.arch.clc": "kiln.cute.arch.launch_control",
    "cutlass.cute.arch.constants": "kiln.cute.arch",
    "cutlass.cute.arch.elect": "kiln.cute.arch.warp",
    "cutlass.cute.arch.mbar": "kiln.cute.arch.mbarrier",
    "cutlass.cute.arch.numeric_conversion": "kiln.cute.arch",
    "cutlass.cute.arch.nvvm": "kiln.experimental.nvvm_dialect",
    "cutlass.cute.arch.tmem": "kiln.cute.arch.tensor_memory",
    "cutlass.cute.iket": "kiln.cute.experimental.iket",
    "cutlass.cute.experimental.core": "kiln.cute.experimental",
    "cutlass.cute.experimental.iket.iket": "kiln.cute.experimental.iket",
    "cutlass.cute.experimental.memory": "kiln.cute.experimental.buffers",
    "cutlass.cute.experimental.pipeline": "kiln.cute.experimental.pipelines",
    "cutlass.cute.nvgpu.cpasync.copy": "kiln.cute.nvgpu.cpasync",
    "cutlass.cute.nvgpu.cpasync.helpers": "kiln.cute.nvgpu.cpasync",
    "cutlass.cute.nvgpu.helpers": "kiln.cute.nvgpu.tma_atom kiln.cute.nvgpu.im2col",
    "cutlass.cute.nvgpu.tcgen05.helpers": "kiln.cute.nvgpu.tcgen05",
    "cutlass.cute.nvgpu.warpgroup.helpers": "kiln.cute.nvgpu.warpgroup",
    "cutlass.cute.nvgpu.warpgroup.mma": "kiln.cute.nvgpu.warpgroup",
    "cutlass.cute.tuple": "kiln.cute.layout.int_tuple kiln.cute.layout",
    "cutlass.cute.viz": "kiln.cute.pictures.draw",
    "cutlass.cutlass_dsl.cuda_jit_executor": "kiln.cutlass_dsl",
    "cutlass.cutlass_dsl.cutlass": "kiln.cutlass_dsl",
    "cutlass.cutlass_dsl.cutlass_ast_decorators": "kiln.cute.program.control",
    "cutlass.experimental.cuda.tensor_map": "kiln.experimental.cuda",
    "cutlass.experimental.primitives.descriptors": "kiln.experimental.primitives",
    "cutlass.experimental.primitives.gpu_ops": "kiln.experimental.primitives",
    "cutlass.experimental.primitives.hybrid_ops": "kiln.experimental.primitives",
    "cutlass.experimental.primitives.nvvm_wrapper": "kiln.experimental.primitives",
    "cutlass.experimental.task_scheduling.pipeline": "kiln.experimental.task_scheduling.pipelines",
    "cutlass.experimental.task_scheduling.pipeline_group": "kiln.experimental.task_scheduling.resources",
    "cutlass.jax.compile": "kiln.interop.jax.call",
    "cutlass.jax.primitive": "kiln.interop.jax.call",
    "cutlass.jax.types": "kiln.interop.jax.spec",
    "cutlass.memory": "cutlass.memory.smem cutlass.memory.tmem",
    "cutlass.memory.smem": "kiln.utils.smem_allocator kiln.utils.smem_capacity",
    "cutlass.memory.tmem": "kiln.utils.tmem_allocator kiln.utils.tmem_columns",
    "cutlass.pipeline.helpers": "kiln.pipeline",
    "cutlass.pipeline.sm100": "kiln.pipeline",
    "cutlass.pipeline.sm90": "kiln.pipeline",
    "cutlass.primitives": "kiln.experimental.primitives",
    "cutlass.runtime": "kiln.cute.runtime",
    "cutlass.tensor_utils": "cutlass.tensor_utils.layout cutlass.tensor_utils.tensormap",
    "cutlass.tensor_utils.layout": "kiln.utils.layout_enum",
    "cutlass.tensor_utils.tensormap": "kiln.utils.tensor_map_manager",
    "cutlass.testing": "kiln.testing kiln.cute.testing",
    "cutlass.utils.block": "kiln.utils.block_copies",
    "cutlass.utils.dynamic_persistent_tile_scheduler": "kiln.utils.schedulers.clc",
    "cutlass.utils.grouped_gemm_persistent_tile_scheduler": "kiln.utils.schedulers.grouped_gemm",
    "cutlass.utils.grouped_gemm_tile_scheduler": "kiln.utils.schedulers.grouped_gemm",
    "cutlass.utils.ampere_helpers": "kiln.utils.smem_capacity",
    "cutlass.utils.layout": "kiln.utils.layout_enum",
    "cutlass.utils.print_latex": "kiln.cute.pictures.draw",
    "cutlass.utils.static_persistent_tile_scheduler": "kiln.utils.schedulers.static_persistent",
    "cutlass.utils.tensormap_manager": "kiln.utils.tensor_map_manager",
    _MLIR: "",
    f"{_MLIR}.dialects": "",
    f"{_MLIR}.dialects.cuda": "kiln.cute.nvgpu.cuda_dialect",
    f"{_MLIR}.dialects.cute": "kiln.cute.nvgpu.cute_dialect",
    f"{_MLIR}.dialects.cute_nvgpu": "kiln.cute.nvgpu.cute_nvgpu_dialect",
    f"{_MLIR}.dialects.math": "kiln.cute.arch.math_dialect",
    f"{_MLIR}.dialects.nvvm": "kiln.experimental.nvvm_dialect",
    f"{_MLIR}._mlir_libs": "",
    _CUTLASS_IR: "",
    f"{_CUTLASS_IR}._mlir": "",
}
"""Module paths below `cutlass` that Kiln does not have, or not so, and the paths whose names are found there.

One path: both are the same module. Several, the first of them the same path in Kiln: that module, with the names of
the others besides. Other several, or none: a module of the alias's own, whose children come from several places, and
which looks for names in all of them. Those of none look in the bindings.
"""


_PARENTS = frozenset(path.rpartition(".")[0] for path in PATHS)


def name_beside(package: str, name: str) -> object:
    """Return a name that the interface has in a module of Kiln besides the module's own; AttributeError for others."""
    path = f"{ALIAS}{package[len(REAL) :]}"
    if f"{path}.{name}" in PATHS:
        return importlib.import_module(f"{path}.{name}")
    homes = PATHS.get(path, "").split()[1:]
    if homes and not name.startswith("__") and _find_spec(f"{package}.{name}") is None:
        for home in homes:
            if hasattr(module := _load(home), name):
                return getattr(module, name)
    from ._support import unavailable  # not above: tools copy this file alone

    raise AttributeError(f"module {package!r} has no attribute {name!r}{unavailable.why(path, name)}")


def real_name(name: str) -> str:
    """Return the module that the alias name stands for: `cutlass.cute` gives `kiln.cute`. The module need not exist."""
    # The longest redirected prefix decides; whatever follows it is kept.
    prefix = name
    rest = ""
    while prefix:
        if len(PATHS.get(prefix, "").split()) == 1:
            return real_name(PATHS[prefix]) + rest
        if prefix in (_MLIR, f"{_CUTLASS_IR}._mlir"):
            return BINDINGS + rest
        prefix, _, last = prefix.rpartition(".")
        rest = f".{last}{rest}"
    return f"{REAL}{name[len(ALIAS) :]}" if name.startswith(ALIAS) else name


def _is_own(path: str) -> bool:
    """Return whether a path of the alias is a module of its own."""
    homes = PATHS.get(path, path).split()
    return len(homes) != 1 and f"{REAL}{path[len(ALIAS) :]}" not in homes


class AliasFinder:
    """A meta-path finder that answers for `cutlass`, everything below it, and the wheels in which others serve it."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == ALIAS:
            return ModuleSpec(ALIAS, _PackageLoader(), origin=__file__, is_package=True)
        if name == DISTRIBUTION.replace("-", "_"):
            return _wheels().spec()
        alias = f"{ALIAS}{name[len(REAL) :]}" if name.startswith(f"{REAL}.") else name
        if not alias.startswith(f"{ALIAS}."):
            return None
        if alias != name and (alias not in PATHS or real_name(alias) == name):
            return None  # `from` looks below the name that the module has
        if _of_others(alias.split(".")[1]):
            return None  # the path finder goes on with the paths of the package
        if _is_own(alias):
            return ModuleSpec(name, _JunctionLoader(), is_package=True)
        real = _find_spec(real_name(alias))
        return None if real is None else _AliasSpec(name, real)

    def find_distributions(self, context: object = None) -> Iterator[object]:
        """Report the version of the interface to programs that ask `importlib.metadata` for that of `cutlass`."""
        name = (getattr(context, "name", None) or "").lower().replace("_", "-")
        if not name.startswith(DISTRIBUTION):
            return iter(())
        return iter([_wheels().Served(name, _version)] if name in _wheels().DISTRIBUTIONS else [])


def _wheels() -> ModuleType:
    """Return the module that serves what build systems ask of the wheels; without native code, which it loads when asked."""
    return importlib.import_module(f"{REAL}.interop.aot.served_wheels")


def _version() -> str:
    """Return the version of the interface that programs are told."""
    return importlib.import_module(f"{REAL}.base_dsl.settings").get("KILN_CUTLASS_VERSION")


def _portions() -> list[str]:
    """Return the folders `cutlass` in which other distributions have installed packages."""
    folders = [os.path.join(os.path.realpath(entry or os.curdir), ALIAS) for entry in sys.path]
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder) and not _provides(folder)]


def _provides(folder: str) -> bool:
    """Return whether a folder `cutlass` is another implementation of the interface."""
    init = os.path.join(folder, "__init__.py")
    return os.path.exists(os.path.join(folder, _INTERFACE)) or (os.path.isfile(init) and not is_ours(init))


def _of_others(name: str) -> bool:
    """Return whether another distribution has installed a module of this name into the package."""
    folders = vars(sys.modules.get(ALIAS, sys)).get("portions")
    return bool(folders) and PathFinder.find_spec(f"{ALIAS}.{name}", folders) is not None


class _Package(ModuleType):
    """The package `cutlass`: the names of `kiln`, and the packages that other distributions have installed into it."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        is_own = name.startswith("__") or (isinstance(value, ModuleType) and value.__name__.startswith(f"{ALIAS}."))
        if not is_own:
            setattr(sys.modules[REAL], name, value)

    def __delattr__(self, name: str) -> None:
        vars(self).pop(name, None)
        delattr(sys.modules[REAL], name)

    def __dir__(self) -> list[str]:
        return dir(sys.modules[REAL])


def _name_of_package(name: str) -> object:
    """Return a name of `cutlass`, and keep it: the module's `__getattr__`."""
    real = sys.modules[REAL]
    if name == "__version__":
        return _version()
    if name == "__all__":
        return [public for public in vars(real) if not public.startswith("_")]
    if _of_others(name):
        return importlib.import_module(f"{ALIAS}.{name}")
    return vars(sys.modules[ALIAS]).setdefault(name, getattr(real, name))


def serve(package: ModuleType) -> None:
    """Make a module the package `cutlass`. Calling it again changes nothing."""
    if not isinstance(package, _Package):
        real = importlib.import_module(REAL)
        own = vars(package)
        own["portions"] = _portions()
        own["__path__"] = [*own["portions"], *real.__path__]
        own["__file__"] = real.__file__
        own["__getattr__"] = _name_of_package
        package.__class__ = _Package


class _PackageLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        package = sys.modules.get(ALIAS) or ModuleType(ALIAS, f"Kiln under the name `{ALIAS}`: see kiln._alias.")
        serve(package)
        return package

    def exec_module(self, module: ModuleType) -> None:
        pass


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
        if not hasattr(real, "__path__") and spec.name in _PARENTS:
            real.__path__ = []  # a module here, a package in the programs
        if real.__name__.startswith(f"{REAL}."):
            vars(real).setdefault("__getattr__", lambda name: name_beside(real.__name__, name))
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
    """A module whose names and children come from several places, loaded when they are first used."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "__all__":
            return dir(self)
        if attribute.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r}")
        child = f"{self.__name__}.{attribute}"
        if not PATHS[self.__name__] or child in PATHS:
            try:
                return importlib.import_module(child)
            except ModuleNotFoundError as error:
                # The bindings may lack generated modules of dialects that Kiln does not use: others ask whether they exist.
                if error.name != child and not (error.name or "").startswith(f"{BINDINGS}.dialects."):
                    raise
        for home in self._modules():
            if hasattr(home, attribute):
                vars(self)[attribute] = getattr(home, attribute)
                return vars(self)[attribute]
        from ._support import unavailable

        why = unavailable.why(self.__name__, attribute)
        raise AttributeError(f"module {self.__name__!r} has no attribute {attribute!r}{why}")

    def __dir__(self) -> list[str]:
        return sorted({name for home in self._modules() for name in dir(home) if not name.startswith("_")})

    def _modules(self) -> Iterator[ModuleType]:
        for path in PATHS[self.__name__].split() or [self.__name__]:
            real = real_name(path)
            if path != self.__name__ and _is_own(path):
                yield importlib.import_module(path)
            elif _find_spec(real) is not None:
                yield _load(real)


class _JunctionLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = f"{ALIAS}.{spec.name.partition('.')[2]}"
        if name != spec.name:
            return importlib.import_module(name)
        if name == _MLIR:
            _load("kiln.mlir")  # has a say in how the bindings load
        module = _Junction(name, f"Part of the alias `{ALIAS}`: see kiln._alias.")
        module.__file__ = __file__
        return module

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
    if not isinstance(sys.modules.get(ALIAS), _Package):
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
    leftover = os.path.join(own, _INTERFACE)
    if os.path.isfile(init) and os.path.exists(leftover) and is_ours(init):
        packages.append(Rival(leftover, wins=False))
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
