"""The MLIR bindings, imported here and nowhere else.

Everything else takes `ir`, `passmanager` and the dialect packages from this module, so another build of
the upstream bindings can be swapped in by changing `PACKAGE`. Importing this module loads native code
(about 0.1 s): modules that must stay light import it inside functions.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterable
from typing import Any

from . import forks, thread_stack

PACKAGE = "torch_mlir"
"""The importable package of the bindings."""


class _Numpy:
    """numpy, imported when a name in it is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("numpy"), name)


class _WithoutNumpy(importlib.machinery.SourceFileLoader):
    """Loads `ir`, which imports numpy for builders of four kinds of attributes (60 ms), and gets it when one is used."""

    def exec_module(self, module: types.ModuleType) -> None:
        def import_(name: str, *rest: Any) -> Any:
            return _Numpy() if name == "numpy" else __import__(name, *rest)

        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_}
        super().exec_module(module)

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """As a finder: of that module alone."""
        if name != f"{PACKAGE}.ir":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _WithoutNumpy(spec.loader.name, spec.loader.path)
        return spec


thread_stack.check()
if "numpy" not in sys.modules:
    sys.meta_path.insert(0, _WithoutNumpy)
try:
    from torch_mlir import ir, passmanager, rewrite
    from torch_mlir.dialects import ext
finally:
    if _WithoutNumpy in sys.meta_path:
        sys.meta_path.remove(_WithoutNumpy)

__all__ = [
    "PACKAGE",
    "context",
    "dialect_module",
    "ext",
    "find",
    "ir",
    "only_has",
    "passmanager",
    "require_dialect",
    "rewrite",
]

_lock = forks.lock()


class _Deferred(types.ModuleType):
    """A generated dialect module that runs when a name in it is first used.

    The bindings import the module of every operation they meet, to look for its class; those of `llvm` and `nvvm` take
    50 and 30 ms. Without its class an operation is a plain `OpView`.
    """

    def _run(self) -> None:
        spec = self.__spec__
        with _deferred_lock:  # other threads wait until all names are there; the module itself may look at them before
            if spec is not None and spec.loader is not None and "_begun" not in self.__dict__:
                self.__dict__["_begun"] = True
                spec.loader.exec_module(self)

    def __getattr__(self, name: str) -> object:
        self._run()
        if name not in self.__dict__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self.__dict__[name]

    def __dir__(self) -> list[str]:
        self._run()
        return list(self.__dict__)


_deferred_lock = forks.rlock()


def _defer(dialect: str) -> None:
    name = f"{PACKAGE}.dialects.{dialect}"
    spec = importlib.util.find_spec(name)
    if name not in sys.modules and spec is not None:
        module = _Deferred(name)
        module.__spec__ = spec
        module.__file__ = spec.origin
        module.__package__ = spec.parent
        module.__loader__ = spec.loader
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        sys.modules[name] = module


for _dialect in ("arith", "cf", "gpu", "llvm", "math", "memref", "nvvm", "scf", "ub", "vector"):
    _defer(_dialect)


def _take_values_of_the_language() -> None:
    """Let operations that programs make themselves (`arith.addf(x, y)`) take objects that stand for one value each.

    Tried only where the bindings refuse an operand, so that nothing else pays for it.
    """
    plain = ir.OpView.__init__

    def as_value(x: object) -> object:
        if isinstance(x, (list, tuple)):
            return [as_value(element) for element in x]
        extract = getattr(type(x), "__extract_mlir_values__", None)
        values = [] if extract is None or isinstance(x, ir.Value) else extract(x)
        return values[0] if len(values) == 1 else x

    def init(self: ir.OpView, *args: object, operands: object = None, **kwargs: object) -> None:
        given = {} if operands is None else {"operands": operands}
        try:
            plain(self, *args, **given, **kwargs)
        except ValueError:
            if not isinstance(operands, (list, tuple)):
                raise
            taken = as_value(operands)
            if all(new is old for new, old in zip(taken, operands)):  # pyright: ignore
                raise
            plain(self, *args, operands=taken, **kwargs)

    ir.OpView.__init__ = init


_take_values_of_the_language()


@functools.lru_cache(maxsize=1)
def context() -> ir.Context:
    """The process-wide context. The bindings hold the GIL throughout, so threads may share it.

    Its own multithreading is off: passes call back into Python, and worker threads would deadlock on the GIL.
    """
    made = ir.Context()
    made.enable_multithreading(False)
    return made


def require_dialect(dialect: type[ext.Dialect]) -> None:
    """Make a Python-defined dialect known to the context. Cheap when it already is; safe from several threads."""
    name: str = dialect.DIALECT_NAMESPACE
    with _lock:  # Dialect.load keeps state on the class while it works
        if context().is_dialect_loaded(name):
            return
        # Without a module of that name, every look-up of one of its ops retries a failing import (41 us each).
        sys.modules.setdefault(f"{PACKAGE}.dialects.{name}", types.ModuleType(f"{PACKAGE}.dialects.{name}"))
        with context():
            dialect.load()


def dialect_module(name: str) -> types.ModuleType:
    """The generated Python module of an upstream dialect, for example `dialect_module("llvm")`."""
    return importlib.import_module(f"{PACKAGE}.dialects.{name}")


def find(root: ir.Operation, names: Iterable[str]) -> list[ir.Operation]:
    """The operations below one that have some names, in order; those inside an operation come before it.

    Python is not called for all the others: a walk costs 2 us for every operation.
    """
    found: list[ir.Operation] = []

    def visit(op: Any, _: Any) -> bool:
        found.append(op.operation)
        return True  # not rewritten

    patterns = rewrite.RewritePatternSet(context())
    for name in names:
        patterns.add(name, visit)
    rewrite.walk_and_apply_patterns(root, patterns.freeze())
    return found


def only_has(root: ir.Operation, dialects: Iterable[str], besides: Iterable[str], never: Iterable[str]) -> bool:
    """Whether all operations below one are of some dialects, or have names `besides`; and none is one of those `never`."""
    target = rewrite.ConversionTarget(context())
    for dialect in dialects:
        target.add_legal_dialect(dialect)
    for name in besides:
        target.add_legal_op(name)
    for name in never:
        target.add_illegal_op(name)
    try:
        rewrite.apply_full_conversion(root, target, rewrite.RewritePatternSet(context()).freeze())
    except ir.MLIRError:
        return False
    return True


def __getattr__(name: str) -> Any:
    if name == "T":  # the bindings' shorthand for types
        return importlib.import_module(f"{PACKAGE}.extras.types")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
