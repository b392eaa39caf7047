"""The MLIR bindings, imported here and nowhere else.

Everything else takes `ir`, `passmanager` and the dialect packages from this module, so another build of
the upstream bindings can be swapped in by changing `BINDINGS` of `_alias.py`. Importing this module loads native code
(about 0.1 s): modules that must stay light import it inside functions.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Iterable
from typing import Any

from ._alias import BINDINGS as PACKAGE
from ._support import deferred, file_names, fork_safe, interpreters, stack_guard


class _Logging:
    """A stand-in for `logging` whose loggers ignore debug messages, and that imports it for others."""

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def getLogger(cls, name: str) -> _Logging:
        return cls(name)

    def debug(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("logging").getLogger(self._name), name)


interpreters.check()
stack_guard.check()
# `ir` imports numpy for builders of four kinds of attributes (60 ms); what loads the libraries, `logging` for words that nobody
# asks for (5 ms).
with (
    deferred.importing(f"{PACKAGE}.ir", {} if "numpy" in sys.modules else {"numpy": deferred.Used("numpy")}),
    deferred.importing(f"{PACKAGE}._mlir_libs", {} if "logging" in sys.modules else {"logging": _Logging}),
):
    from torch_mlir import ir, passmanager, rewrite
bindings: Any = importlib.import_module(f"{PACKAGE}._mlir_libs._mlir")

__all__ = [
    "PACKAGE",
    "context",
    "dialect_module",
    "file_location",
    "find",
    "ir",
    "load_irdl",
    "only_has",
    "passmanager",
    "register_type",
    "require_dialect",
    "rewrite",
    "terminator",
]

_lock = fork_safe.lock()


# The bindings import the module of every operation they meet, to look for its class; those of `llvm` and `nvvm` take 50 and
# 30 ms. Without its class an operation is a plain `OpView`.
for _dialect in ("arith", "builtin", "cf", "func", "gpu", "llvm", "math", "memref", "nvvm", "scf", "ub", "vector"):
    deferred.defer(f"{PACKAGE}.dialects.{_dialect}")


def _take_values_of_the_language() -> None:
    """Let operations that programs build themselves (`arith.addf(x, y)`) take objects that stand for one value each.

    Conversion is tried only where the bindings refuse an operand, so that nothing else pays for it.
    """
    plain = ir.OpView.__init__

    def as_value(x: object) -> object:
        if isinstance(x, (list, tuple)):
            return [as_value(element) for element in x]
        extract = getattr(type(x), "__extract_mlir_values__", None)
        values = [] if extract is None or isinstance(x, ir.Value) else extract(x)
        return values[0] if len(values) == 1 else x

    def init(self: ir.OpView, *args: object, operands: object = None, **kwargs: object) -> None:
        keywords = {} if operands is None else {"operands": operands}
        try:
            plain(self, *args, **keywords, **kwargs)
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
    """Return the process-wide context. The bindings hold the GIL throughout, so threads may share it.

    Its own multithreading is off: passes call back into Python, and worker threads would deadlock on the GIL. It knows
    the dialects that Kiln emits; others come with the parser, with passes, and with their module of the bindings (all
    of them take 15 ms).
    """
    with _making:  # threads that come here first at the same time get the same context
        if not _contexts:
            new = ir.Context(load_on_create_dialects=[])
            new.enable_multithreading(False)
            for dialect in (*_DIALECTS, *_imported):
                new.get_dialect_descriptor(dialect)
            _contexts.append(new)
        return _contexts[0]


_making = fork_safe.rlock()
_contexts: list[ir.Context] = []
_DIALECTS = ("arith", "cf", "func", "gpu", "irdl", "llvm", "math", "memref", "nvvm", "scf", "ub", "vector")
_imported: list[str] = []


def file_location(name: str, line: int, column: int) -> ir.Location:
    """Return the location of a place in a file, whatever bytes its name has; line and column count from 1."""
    return ir.Location.file(file_names.to_utf8(name), line, column)


def _load_with_modules() -> None:
    """Register a dialect with the context when its module of the bindings is imported."""
    register = bindings.register_dialect

    def registering(dialect: Any) -> Any:
        _imported.append(dialect.DIALECT_NAMESPACE)
        if context.cache_info().currsize:
            context().get_dialect_descriptor(dialect.DIALECT_NAMESPACE)
        return register(dialect)

    bindings.register_dialect = registering


_load_with_modules()


def require_dialect(dialect: type[Any]) -> None:
    """Register a dialect defined in Python with the context. Cheap when it already is; safe from several threads."""
    name: str = dialect.DIALECT_NAMESPACE
    with _lock:  # Dialect.load keeps state on the class while it works
        if context().is_dialect_loaded(name):
            return
        # Without a module of that name, every look-up of one of its ops retries a failing import (41 us each).
        sys.modules.setdefault(f"{PACKAGE}.dialects.{name}", types.ModuleType(f"{PACKAGE}.dialects.{name}"))
        with context():
            dialect.load()


def load_irdl(text: str) -> None:
    """Register the dialects that an IRDL text defines with the current context."""
    importlib.import_module(f"{PACKAGE}._mlir_libs._mlirDialectsIRDL").load_dialects(ir.Module.parse(text))


def register_type(name: str, kind: type[ir.DynamicType]) -> None:
    """Give types defined in IRDL a Python class, wherever the bindings return them."""
    bindings.register_type_caster(ir.DynamicType.lookup_typeid(name), replace=True)(kind)


def dialect_module(name: str) -> types.ModuleType:
    """Return the generated Python module of an upstream dialect, for example `dialect_module("llvm")`."""
    return importlib.import_module(f"{PACKAGE}.dialects.{name}")


def find(root: ir.Operation, names: Iterable[str]) -> list[ir.Operation]:
    """Return the operations below `root` with some names, in order; those inside an operation come before it.

    Python is not called for other operations: a walk costs 2 us for every operation.
    """
    operations: list[ir.Operation] = []

    def visit(op: Any, _: object) -> bool:
        operations.append(op.operation)
        return True  # not rewritten

    patterns = rewrite.RewritePatternSet(context())
    for name in names:
        patterns.add(name, visit)
    rewrite.walk_and_apply_patterns(root, patterns.freeze())
    return operations


def terminator(block: ir.Block) -> ir.Operation:
    """Return the last operation of a block."""
    return block.operations[len(block.operations) - 1].operation


def only_has(root: ir.Operation, dialects: Iterable[str], besides: Iterable[str], never: Iterable[str]) -> bool:
    """Return whether all operations below `root` are of `dialects` or named in `besides`, and none is named in `never`."""
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
    if name == "ext":  # dialects defined in Python, with constructors for their operations
        return importlib.import_module(f"{PACKAGE}.dialects.ext")
    if name == "T":  # the bindings' shorthand for types
        return importlib.import_module(f"{PACKAGE}.extras.types")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
