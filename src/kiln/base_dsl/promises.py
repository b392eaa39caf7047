"""Annotations of parameters, checked for every argument.

Values and annotations are sorted into a few kinds: numbers, text, sequences, functions, ...; a language adds its own.
An argument of a kind that the annotation excludes is refused. Values and annotations of no known kind (objects of the
program, annotations that mean nothing here) are not checked.
"""

from __future__ import annotations

import collections.abc
import enum
import inspect
import re
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Annotated, Any

from .cells import contents
from .diagnostics import DSLBaseError, Span, type_error
from .tree import is_mlir_value
from .typing import Constexpr, Numeric

NUMBER = "number"
TEXT = "text"
NONE = "None"
SEQUENCE = "sequence"
MAPPING = "dict"
TYPE = "type"
FUNCTION = "function"
Kinds = frozenset[str]

_CLASSES: dict[Any, Kinds] = {
    int: frozenset((NUMBER,)),
    float: frozenset((NUMBER,)),
    bool: frozenset((NUMBER,)),
    str: frozenset((TEXT,)),
    bytes: frozenset((TEXT,)),
    tuple: frozenset((SEQUENCE,)),
    list: frozenset((SEQUENCE,)),
    dict: frozenset((MAPPING,)),
    type: frozenset((TYPE,)),
    type(None): frozenset((NONE,)),
    None: frozenset((NONE,)),
    collections.abc.Callable: frozenset((FUNCTION, TYPE)),
    typing.Callable: frozenset((FUNCTION, TYPE)),
    collections.abc.Sequence: frozenset((SEQUENCE, TEXT)),
    collections.abc.Mapping: frozenset((MAPPING,)),
}


def kind_of(value: object) -> str:
    """Return the kind of a value, empty if it is of none of these."""
    if isinstance(value, enum.Enum):
        return ""
    if isinstance(value, (int, float, Numeric)) or is_mlir_value(value):
        return NUMBER
    if isinstance(value, (str, bytes)):
        return TEXT
    if value is None:
        return NONE
    if isinstance(value, (tuple, list)):
        return SEQUENCE
    if isinstance(value, dict):
        return MAPPING
    if isinstance(value, type):
        return TYPE
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return FUNCTION
    return ""


def kinds_promised(annotation: object, own: Callable[[Any], Kinds | None]) -> Kinds | None:
    """Return the kinds that an annotation allows; None if it excludes nothing. `own` knows a language's annotations."""
    kinds = own(annotation)
    if kinds is not None:
        return kinds
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Annotated or origin is Constexpr:
        return kinds_promised(arguments[0], own)
    if isinstance(annotation, types.UnionType) or origin is typing.Union:
        return union_of([kinds_promised(member, own) for member in arguments])
    if origin is typing.Literal:
        return union_of([frozenset((kind_of(value),)) if kind_of(value) else None for value in arguments])
    if isinstance(annotation, typing.NewType):
        return kinds_promised(annotation.__supertype__, own)
    if isinstance(annotation, typing.TypeVar):
        bounds = annotation.__constraints__ or (annotation.__bound__ or Any,)
        return union_of([kinds_promised(bound, own) for bound in bounds])
    if isinstance(annotation, type) and issubclass(annotation, Numeric):
        return _CLASSES[int]
    try:
        return _CLASSES.get(origin or annotation)
    except TypeError:  # an annotation that cannot be a key
        return None


def union_of(members: list[Kinds | None]) -> Kinds | None:
    """Return the kinds that one of several annotations allows; None if one of them excludes nothing."""
    return None if any(member is None for member in members) else frozenset[str]().union(*filter(None, members))


def judge_of(annotation: object, own: Callable[[Any], Kinds | None]) -> Callable[[Any], bool] | None:
    """Return a function that tells whether an annotation excludes a value of an allowed kind; None if it cannot."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Constexpr and arguments[0] is int:
        return lambda value: isinstance(value, float)
    if origin is Annotated or origin is Constexpr:
        return judge_of(arguments[0], own)
    if origin is typing.Literal:
        allowed = {(type(value), value) for value in arguments}
        return lambda value: type(value) in _OF_LITERALS and (type(value), value) not in allowed
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return lambda value: isinstance(value, (tuple, list)) and len(value) != len(arguments)
    if isinstance(annotation, types.UnionType) or origin is typing.Union:
        members = [(kinds_promised(member, own), judge_of(member, own)) for member in arguments]
        if any(judge for _, judge in members):
            return lambda value: all(
                (kinds is not None and kind_of(value) not in ("", *kinds)) or (judge is not None and judge(value))
                for kinds, judge in members
            )
    return None


_OF_LITERALS = (int, bool, str, bytes, type(None))


def without_none(annotation: object) -> tuple[Any, bool]:
    """Return the annotation of an argument that is not left out (`T` of `Optional[T]`), and whether it may be."""
    if not isinstance(annotation, types.UnionType) and typing.get_origin(annotation) is not typing.Union:
        return annotation, False
    members = typing.get_args(annotation)
    others = [member for member in members if member is not type(None)]
    return others[0] if len(others) == 1 else annotation, len(others) < len(members)


def broken(value: object, annotation: object, path: str, owner: str = "") -> Exception:
    """Return the error for an argument that its annotation excludes."""
    where = f" of {owner}" if owner else ""
    takes = name_of(annotation)
    hint = f"pass what the annotation says, or change it: {path}: {takes} is a promise"
    if value is None:
        hint = f"an argument that may be left out says so: {path}: Optional[{takes}], or {path}: {takes} = None"
    elif takes == "Tensor" and isinstance(value, (list, tuple)):
        hint = "pass an array: np.array(values, np.float32), or a tensor of torch"
    return type_error(f"argument {path!r}{where} takes {takes} and got {_shown(value)}", hint)


def name_of(annotation: object) -> str:
    """Return an annotation as programs write it."""
    return _MODULES.sub("", inspect.formatannotation(annotation))


_MODULES = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")
"""What stands before the name of a class."""


def _shown(value: object) -> str:
    if value is None:
        return "None"
    kind = type(value)
    if kind in (int, float, bool, str):
        text = repr(value)
        return f"the {kind.__name__} {text if len(text) < 40 else text[:36] + '...'}"
    if isinstance(value, (tuple, list)):
        return f"a {kind.__name__} of {len(value)}"
    name = _MODULES.sub("", f"{kind.__module__}.{kind.__qualname__}").removeprefix("builtins.")
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def annotations_of(owner: Any) -> dict[str, Any]:
    """Return the evaluated annotations of a function or class.

    One that cannot be evaluated is left out, or is Constexpr if its text names that. Those of a class are cached if
    all of them can be evaluated.
    """
    if isinstance(owner, type):
        if owner in _of_classes:
            return _of_classes[owner]
        annotations: dict[str, Any] = {}
        for base in reversed(owner.__mro__):
            annotations.update(_raw_annotations(base))
        namespace = vars(sys.modules.get(owner.__module__, types.ModuleType("empty")))
        local: dict[str, Any] = dict(vars(owner))
    else:
        annotations = dict(_raw_annotations(owner))
        namespace = owner.__globals__
        cells = zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=True)
        local = {name: value for name, cell in cells if (value := contents(cell, _EMPTY)) is not _EMPTY}
    result: dict[str, Any] = {}
    for name, annotation in annotations.items():
        if isinstance(annotation, typing.ForwardRef):  # texts in named tuples
            annotation = annotation.__forward_arg__
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, namespace, local)
            except DSLBaseError as wrong:  # it is Kiln's, and wrong
                if not isinstance(owner, type):
                    wrong.span = Span(
                        owner.__code__.co_filename, owner.__code__.co_firstlineno, function=owner.__name__
                    )
                raise
            except Exception:
                if "Constexpr" not in annotation:
                    continue
                annotation = Constexpr
        result[name] = annotation
    if isinstance(owner, type) and len(result) == len(annotations):
        _of_classes[owner] = result
    return result


_EMPTY: Any = object()
_of_classes: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()


def _raw_annotations(owner: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib  # type: ignore[import-not-found]

        annotations = annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
        return {
            k: (v.__forward_arg__ if isinstance(v, annotationlib.ForwardRef) else v) for k, v in annotations.items()
        }
    return inspect.get_annotations(owner)
