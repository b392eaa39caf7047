"""Help for programs that build operations themselves."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from . import merging, tree, value_trees
from . import trace as tracing
from .bindings import context, ir


def dsl_user_op(opFunc: Any) -> Any:
    """Decorate `opFunc`, a function that emits operations, so that its `loc` is the caller's line unless it is passed."""
    takes_loc = "loc" in inspect.signature(opFunc).parameters

    @functools.wraps(opFunc)
    def run(*args: Any, **kwargs: Any) -> Any:
        active = tracing.current()
        if active is not None and takes_loc and kwargs.get("loc") is None:
            kwargs["loc"] = active.location(1)
        return opFunc(*args, **kwargs)

    return run


def extract_mlir_values(obj: object, *, structured: bool = False) -> Any:
    """Return the MLIR values a value is made of; `structured`: as a tree of dicts and lists, a number as its value."""
    if structured:
        return value_trees.structure(obj)
    return list(tree.values_of(obj)) if tree.is_protocol(obj) else merging.open_value(obj, promote=False)[1]


def extract_mlir_attributes(obj: object) -> list[ir.Attribute]:
    """Return the attributes that a kernel's parameter gets for each MLIR value that an object is made of.

    Libraries define `__extract_mlir_attributes__` on their classes, and call this function for their parts.
    """
    extract = getattr(obj, "__extract_mlir_attributes__", None)
    if extract is not None:
        return list(extract())
    return [ir.DictAttr.get({}, context=context())] * len(extract_mlir_values(obj))


def is_dynamic_expression(value: object) -> bool:
    """Return whether a value, or a part of it, is only known when the program runs."""
    return tree.has_dynamic(value)


def new_from_mlir_values(obj: Any, values: Any, *, structured: bool = False) -> Any:
    """Return a value like `obj` made of other MLIR values; `structured`: of a tree of them."""
    if structured:
        return value_trees.from_structure(obj, values)
    if hasattr(type(obj), "__new_from_mlir_values__"):
        return tree.rebuilt(obj, list(values))
    active = tracing.current()
    if active is None:
        return merging.open_value(obj, promote=False)[2](iter(values))
    with active.detached():  # the values of `obj` may belong to another function
        rebuild = merging.open_value(obj, promote=False)[2]
    return rebuild(iter(values))
