"""Calls of builtins that ask for concrete values: `min`, `max`, `any`, `all`, `bool`, `int`, `float`; and `super()`."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING, Any

from .. import tree
from ..typing import Boolean, Float32, Int32, Int64, Integer, Numeric, maximum, minimum
from .boolean import run_boolean

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rewriter import Rewriter

_NAMES = {"min", "max", "any", "all", "bool", "int", "float", "divmod", "pow"}


def rewrite(rw: Rewriter, node: ast.Call) -> ast.expr:
    """The callee goes through a hook that knows which builtins have a dynamic form."""
    if not isinstance(node.func, ast.Name):
        return node
    if node.func.id in _NAMES:
        node.func = ast.copy_location(rw.hook("builtin", [node.func]), node.func)
        return node
    if node.func.id == "super" and not node.args and not node.keywords and rw.first_parameter:
        # Inside a region's function, super() would not find the method's class and first argument.
        node.args = [ast.Name("__class__", ast.Load()), ast.Name(rw.first_parameter, ast.Load())]
        return node
    return node


def _extreme(pick: Callable[[Any, Any], Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        items = list(args[0]) if len(args) == 1 else list(args)
        if kwargs or not any(tree.is_dynamic(i) for i in items):
            return plain(items, **kwargs) if len(args) == 1 else plain(*items, **kwargs)
        result = items[0]
        for item in items[1:]:
            result = pick(result, item)
        return result

    return run


def _quantifier(is_all: bool) -> Callable[[Any], Any]:
    def run(items: Any) -> Any:
        result: Any = is_all
        for item in items:
            if not tree.is_dynamic(item) and not tree.is_dynamic(result):
                if bool(item) != is_all:
                    return not is_all
                continue
            result = run_boolean(is_all, result, (lambda item=item: item,))
            if not tree.is_dynamic(result):
                return bool(result)
        from .regions import as_condition

        return as_condition(result) if tree.is_dynamic(result) else bool(result)

    return run


def _to_bool(*args: Any) -> Any:
    if len(args) == 1 and tree.is_dynamic(args[0]):
        from .regions import as_condition

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


_DYNAMIC: dict[Any, Any] = {
    builtins.min: _extreme(minimum, min),
    builtins.max: _extreme(maximum, max),
    builtins.any: _quantifier(False),
    builtins.all: _quantifier(True),
    builtins.bool: _to_bool,
    builtins.int: _to_int,
    builtins.float: _to_float,
}


def dynamic_form(function: Any) -> Any:
    """What to call in place of a builtin; any other callee as it is."""
    try:
        return _DYNAMIC.get(function, function)
    except TypeError:  # unhashable callee
        return function
