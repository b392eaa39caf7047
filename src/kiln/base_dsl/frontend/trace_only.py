"""What a kernel would do once, while it is traced, and never in a launch: change globals, draw random numbers, read clocks.

Python code of a kernel runs when the kernel is traced. A counter in a global, a list that collects values and
`random.random()` look as if every launch or every thread did them, and results are wrong without a word. Functions
without a decorator are not rewritten and may do all this, for programs that mean it.
"""

from __future__ import annotations

import ast
import random
import re
import sys
import time
import types
from collections import deque
from typing import TYPE_CHECKING

from .. import trace as tracing
from ..diagnostics import runtime_error
from .liveness import names_of

if TYPE_CHECKING:
    from .rewriter import Rewriter

_CONTAINERS = (list, dict, set, deque, bytearray)
_CHANGING = frozenset(
    name
    for name in {name for kind in _CONTAINERS for name in dir(kind)}.difference(
        *map(dir, (tuple, bytes, frozenset, types.MappingProxyType))
    )
    if not name.startswith("_")
)
"""Methods that change a container: those that the immutable kinds lack."""
_RANDOM = frozenset(
    {name for name in dir(random.Random) if not name.startswith("_")}
    | {"rand", "randn", "integers", "normal", "standard_normal", "permutation", "poisson", "bernoulli", "bytes"}
    | {"rand_like", "randn_like", "randint_like", "randperm"}
    | {"urandom", "uuid1", "uuid4", "randbelow", "randbits", "token_bytes", "token_hex"}
)
_CLOCKS = frozenset(
    {name for name in dir(time) if "time" in name or "counter" in name or "monotonic" in name}
    | {"now", "today", "utcnow"}
)
_RANDOM_MODULES = ("random", "numpy.random", "torch", "os", "uuid", "secrets")
_CLOCK_MODULES = ("time",)

_ONCE = "this happens once, while the kernel is traced, and in no launch"


def rewrite_stores(rw: Rewriter, stmt: ast.Assign | ast.AugAssign | ast.Delete, names: set[str]) -> list[ast.stmt]:
    """Return checks that stand before an assignment, where it stores to globals or to parts of them.

    Args:
        rw: The rewriter of the function.
        stmt: The assignment, not yet rewritten.
        names: The names that the function declares `global`.
    """
    checks: list[ast.expr] = []
    targets = [stmt.target] if isinstance(stmt, ast.AugAssign) else stmt.targets
    bound: set[str] = set()
    for target in targets:
        bound |= names_of(target)[1]
        for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else (target,):
            root = _global_root(rw, part) if isinstance(part, (ast.Subscript, ast.Attribute)) else None
            if root is not None and isinstance(part, (ast.Subscript, ast.Attribute)):
                owner = ast.copy_location(ast.Name(root, ast.Load()), part)
                checks.append(rw.hook("sets_global", [ast.Constant(ast.unparse(part)), ast.Constant(root), owner]))
    checks += [rw.hook("binds_global", [ast.Constant(name)]) for name in sorted(bound & names)]
    return [ast.copy_location(ast.Expr(ast.copy_location(check, stmt)), stmt) for check in checks]


def rewrite_call(rw: Rewriter, node: ast.Call) -> None:
    """Put the callee behind a hook if its name is that of a method that changes a container, or draws a number."""
    callee = node.func
    if isinstance(callee, ast.Attribute):
        name = callee.attr
        changing = name in _CHANGING
    elif isinstance(callee, ast.Name):
        name = callee.id
        changing = False
    else:
        return
    if not (changing or name in _RANDOM or name in _CLOCKS) or _global_root(rw, callee) is None:
        return
    hook = "changes_global" if changing else "drawn"
    node.func = ast.copy_location(rw.hook(hook, [callee, ast.Constant(ast.unparse(callee))]), callee)


def _global_root(rw: Rewriter, node: ast.expr) -> str | None:
    """Return the global that an expression such as `a.b[0].c` begins with."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) and rw.is_global(node.id) else None


def _kernel() -> bool:
    trace = tracing.current()
    return trace is not None and bool(trace.functions) and trace.function.kind == "kernel"


def binds_global(name: str) -> None:
    """Refuse the assignment of a name that a kernel declares `global`."""
    if _kernel():
        raise runtime_error(f"a kernel assigns the global {name!r}: {_ONCE}", _HINT)


def sets_global(written: str, root: str, owner: object) -> None:
    """Refuse `NAMES[0] = x` and `SETTINGS.x = y` of a global in a kernel; elements of tensors are what kernels write."""
    plain = isinstance(owner, (*_CONTAINERS, type, types.ModuleType)) or type(owner).__module__ == "numpy"
    if plain and _kernel():
        raise runtime_error(f"a kernel sets {written}, and {root!r} is a global: {_ONCE}", _HINT)


def changes_global(method: object, written: str) -> object:
    """Return a method, unless it changes a container that a kernel reaches by a global."""
    if isinstance(getattr(method, "__self__", None), _CONTAINERS) and _kernel():
        root = re.split(r"[.\[]", written, maxsplit=1)[0]
        raise runtime_error(f"a kernel calls {written}(), which changes the global {root!r}: {_ONCE}", _HINT)
    return method


_HINT = "write to a tensor, where cute.arch.atomic_add counts; what is meant for the trace goes to a function without a decorator"


def drawn(function: object, written: str) -> object:
    """Return a function, unless it draws a random number or reads a clock while a kernel is traced."""
    if not _kernel():
        return function
    name = getattr(function, "__name__", "")
    owner = getattr(function, "__self__", None)
    package = type(owner).__module__
    if (
        isinstance(owner, random.Random)
        or package.startswith("numpy.random")
        or _is_of(function, name, _RANDOM_MODULES)
    ):
        raise runtime_error(
            f"{written}() draws one number while the kernel is traced: the same for all threads and launches",
            "pass an array of random numbers, or compute them from a seed and the index of the thread",
        )
    if _is_of(function, name, _CLOCK_MODULES) or (isinstance(owner, type) and owner.__module__ == "datetime"):
        raise runtime_error(
            f"{written}() reads the clock while the kernel is traced: the same for all threads and launches",
            "cute.arch.clock64() reads the clock of an SM, cute.arch.globaltimer() that of the GPU",
        )
    return function


def _is_of(function: object, name: str, modules: tuple[str, ...]) -> bool:
    """Return whether a function is the one that a module has under its name."""
    return any(getattr(sys.modules.get(module), name, None) is function for module in modules if name)
