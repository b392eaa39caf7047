"""Calls of builtins that need concrete values: `min`, `max`, `any`, `all`, `bool`, `int`, `float`; and `super()`."""

from __future__ import annotations

import ast
import builtins
import sys
from typing import TYPE_CHECKING, Any

from .. import tree
from ..diagnostics import runtime_error
from ..typing import Boolean, Float32, Int32, Int64, Integer, Numeric, maximum, minimum
from . import unset_attributes
from .boolean import run_boolean
from .carry import Snapshot
from .regions import as_condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rewriter import Rewriter

_NAMES = {"min", "max", "any", "all", "bool", "int", "float", "divmod", "pow", "getattr", "hasattr"}


def rewrite(rw: Rewriter, node: ast.Call) -> ast.expr:
    """Rewrite a call: the callee goes through a hook that knows which builtins have a dynamic form."""
    if not isinstance(node.func, ast.Name):
        return node
    if node.func.id in ("any", "all") and _is_lazy(node):
        # `any(f(x) for x in xs)`: each element is handed over unevaluated
        generator: Any = node.args[0]
        thunk = ast.Lambda(ast.arguments([], [], None, [], [], None, []), generator.elt)
        generator.elt = ast.copy_location(thunk, generator.elt)
        return ast.copy_location(rw.hook("quantifier", [node.func, generator]), node)
    if node.func.id in _NAMES:
        node.func = ast.copy_location(rw.hook("builtin", [node.func]), node.func)
        return node
    if node.func.id == "super" and not node.args and not node.keywords and rw.first_parameter:
        # Inside a region's function, super() would not find the method's class and first argument.
        node.args = [ast.Name("__class__", ast.Load()), ast.Name(rw.first_parameter, ast.Load())]
        return node
    return node


def _is_lazy(node: ast.Call) -> bool:
    """Return whether a call is given a generator expression, whose elements bind no variables."""
    return (
        len(node.args) == 1
        and not node.keywords
        and isinstance(node.args[0], ast.GeneratorExp)
        and not any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(node.args[0].elt))
    )


def _extreme(pick: Callable[[Any, Any], Any], plain: Callable[..., object]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: object) -> Any:
        items = list(args[0]) if len(args) == 1 else list(args)
        if kwargs or not any(tree.is_dynamic(i) for i in items):
            return plain(items, **kwargs) if len(args) == 1 else plain(*items, **kwargs)
        result = items[0]
        for item in items[1:]:
            result = pick(result, item)
        return result

    return run


def run_quantifier(function: Any, thunks: Any) -> Any:
    """Return `any` or `all` of a generator expression, whose elements are evaluated until one decides."""
    if function is not builtins.any and function is not builtins.all:
        return function(thunk() for thunk in thunks)
    is_all = function is builtins.all
    result: Any = is_all
    held_elsewhere = _references(thunks) > _references(x for x in ())
    for thunk in thunks:
        if not tree.is_dynamic(result):
            result = _to_bool(thunk())
            if not tree.is_dynamic(result) and result != is_all:
                return result
            continue
        if held_elsewhere:
            raise runtime_error(
                f"how many elements `{function.__name__}` takes from an iterator is only known when the program runs",
                "give it a list or tuple",
            )
        result = run_boolean(is_all, result, (thunk,))
    return _to_bool(result)


def _references(generator: Any) -> int:
    """Return how many references there are to the iterator that a generator expression goes through."""
    return sys.getrefcount(generator.gi_frame.f_locals[".0"])


def _quantifier(is_all: bool) -> Callable[[Any], Any]:
    def run(items: Any) -> Any:
        if not hasattr(items, "__next__"):
            return run_quantifier(all if is_all else any, ((lambda item=item: item) for item in items))
        before = Snapshot([("what is tested", items)])
        result = run_quantifier(all if is_all else any, ((lambda item=item: item) for item in list(items)))
        if tree.is_dynamic(result):  # fewer may be taken when the program runs
            before.check_unchanged(f"`{'all' if is_all else 'any'}`")
            for index in before.changes():
                raise runtime_error(
                    f"{before.slots[index].path} is changed by what `{'all' if is_all else 'any'}` tests, which may end earlier "
                    "when the program runs",
                    "write the generator inside the call, or give it a list or tuple",
                )
        return result

    return run


def _to_bool(*args: object) -> Any:
    if len(args) == 1 and tree.is_dynamic(args[0]):
        return as_condition(args[0])
    return bool(*args)


def _to_int(*args: Any, **kwargs: Any) -> Any:
    x = args[0] if args else None
    if isinstance(x, Numeric) and tree.is_dynamic(x):
        if isinstance(x, Integer) and not isinstance(x, Boolean):
            return x
        return x.to(Int64 if x.width > 32 else Int32)
    return int(*args, **kwargs)


def _to_float(*args: Any) -> Any:
    x = args[0] if args else None
    if isinstance(x, Numeric) and tree.is_dynamic(x):
        return x if not isinstance(x, Integer) else x.to(Float32)
    return float(*args)


def _getattr(owner: object, name: str, *default: object) -> object:
    unset_attributes.check_read(owner, name)
    return getattr(owner, name, *default)


def _hasattr(owner: object, name: str) -> bool:
    unset_attributes.check_read(owner, name)
    return hasattr(owner, name)


_DYNAMIC: dict[Any, Any] = {
    builtins.min: _extreme(minimum, min),
    builtins.max: _extreme(maximum, max),
    builtins.any: _quantifier(False),
    builtins.all: _quantifier(True),
    builtins.bool: _to_bool,
    builtins.int: _to_int,
    builtins.float: _to_float,
    builtins.getattr: _getattr,
    builtins.hasattr: _hasattr,
}


def dynamic_form(function: object) -> Any:
    """Return what to call in place of a builtin; any other callee as it is."""
    try:
        return _DYNAMIC.get(function, function)
    except TypeError:  # unhashable callee
        return function
