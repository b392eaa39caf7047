"""The parameters of a function of the language: binding the arguments of a call, and arguments that need no node."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import promises, trace
from .arguments import ArgumentRules, GroupNode, Node, Quick, element_annotations, is_numeric_type
from .diagnostics import type_error
from .typing import Numeric

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Container, Hashable, Sequence


def _is_of_objects(annotation: object) -> bool:
    """Return whether an annotation is a class of the language's objects, such as that of tensors."""
    return isinstance(annotation, type) and annotation not in _PYTHONS and not is_numeric_type(annotation)


def _stands_for_none(value: object, annotation: object) -> bool:
    """Return whether a number is passed for an object that is left out: CuTe DSL takes it in a trace, as it does None."""
    return _is_of_objects(annotation) and isinstance(value, (int, float, Numeric))


_PYTHONS = (bool, int, float, complex, str, bytes, tuple, list, dict, set)


class Parameters:
    """The parameters of a function, to which calls are bound."""

    def __init__(
        self, function: types.FunctionType, read: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    ) -> None:
        self.function: types.FunctionType = function
        self._read = read
        self.signature: inspect.Signature = inspect.signature(function, follow_wrapped=False)
        self._annotations: dict[str, Any] | None = None
        self._may_be_none = {name for name, p in self.signature.parameters.items() if p.default is None}
        self._judged: list[tuple[int, str, Any]] | None = None
        self._views: list[tuple[int, str, Callable[[Any], Any]]] | None = None
        self.simple: bool = all(
            p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in self.signature.parameters.values()
        )
        self.names: list[str] = list(self.signature.parameters)
        self._quick: tuple[list[dict[type, Quick | None]], ...] = ([{} for _ in self.names], [{} for _ in self.names])

    def quick(
        self, rules: ArgumentRules, args: tuple[object, ...], specialize: bool = False
    ) -> tuple[tuple[Hashable, ...], list[Any]] | None:
        """Return (keys, leaves) of positional arguments, if each is of a kind that needs no node; else None.

        With `specialize` the keys are those of specialised nodes.
        """
        if not self.simple or len(args) != len(self.names):
            return None
        keys: list[Hashable] = []
        leaves: list[Any] = []
        for conversions, value in zip(self._quick[specialize], args, strict=True):
            kind = type(value)
            try:
                convert = conversions[kind]
            except KeyError:
                annotation = self._annotation_for(value, self.names[len(keys)])
                broken = annotation is not None and (rules.judges_values(annotation) or rules.breaks(value, annotation))
                convert = conversions[kind] = None if broken else rules.quick(kind, annotation, specialize)
            converted = convert(value) if convert is not None else None
            if converted is None:
                return None
            keys.append(converted[0])
            leaves += converted[1]
        return tuple(keys), leaves

    @property
    def annotations(self) -> dict[str, Any]:
        """Annotations by parameter, evaluated at the first use, without the None of those that may be left out."""
        if self._annotations is None:
            by_name: dict[str, Any] = {}
            for name, annotation in promises.annotations_of(self.function).items():
                by_name[name], optional = promises.without_none(annotation)
                if optional:
                    self._may_be_none.add(name)
            self._annotations = by_name if self._read is None else self._read(by_name)
        return self._annotations

    def _annotation_for(self, value: object, name: str, *, takes_none: bool = False) -> Any:
        """Return the annotation of a parameter for a value; none for None where the argument may be left out, and in a
        trace: what a person passes is judged, functions that call each other pass None for what they switched off."""
        annotation = self.annotations.get(name)
        takes_none = takes_none and not is_numeric_type(annotation)
        left_out = value is None and (takes_none or name in self._may_be_none or trace.current() is not None)
        return None if left_out else annotation

    def check_inlined(self, rules: ArgumentRules, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Raise an error for arguments of a call in a trace that break a promise; they are passed as they are."""
        if self._judged is None:
            self._judged = [
                (position, name, self.annotations[name])
                for position, (name, parameter) in enumerate(self.signature.parameters.items())
                if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
                and name in self.annotations
                and rules.promised(self.annotations[name]) is not None
            ]
        for position, name, annotation in self._judged:
            if position < len(args):
                value = args[position]
            elif name in kwargs:
                value = kwargs[name]
            else:
                continue
            if value is not None and not _stands_for_none(value, annotation):
                self._check_elements(rules, value, annotation, name)

    def seen(
        self, rules: ArgumentRules, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments of a call in a trace as the annotations show them: a tensor as an array, say."""
        if self._views is None:
            views = [(name, rules.seen_as(self.annotations.get(name))) for name in self.names]
            self._views = [(n, name, view) for n, (name, view) in enumerate(views) if view is not None]
        if not self._views:
            return args, kwargs
        args = list(args)
        kwargs = dict(kwargs)
        for position, name, view in self._views:
            if name in kwargs:
                kwargs[name] = view(kwargs[name])
            elif position < len(args):
                args[position] = view(args[position])
        return args, kwargs

    def _check_elements(self, rules: ArgumentRules, value: object, annotation: object, path: str) -> None:
        """Raise an error for a value, or an element of a tuple or list, that breaks a promise."""
        if hasattr(value, "value_type") and isinstance(annotation, type) and annotation not in _PYTHONS:
            return  # a pointer to what the annotation says, or with which the function makes it: CuTe DSL takes it
        if hasattr(annotation, "value_type") and hasattr(value, "subview"):
            return  # an array where a pointer is said: it is loaded, stored and indexed as one
        if isinstance(value, (tuple, list)) and value and _is_of_objects(annotation):
            if not any(rules.breaks(element, annotation) for element in value):
                return  # several where one is said, such as the stages of a tensor: CuTe DSL takes them
        rules.check(value, annotation, path, self.function.__name__)
        if isinstance(value, (tuple, list)):
            for number, (element, inner) in enumerate(zip(value, element_annotations(annotation, value))):
                if inner is not None:
                    self._check_elements(rules, element, inner, f"{path}[{number}]")

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """Return parameter names and values, defaults included."""
        if not kwargs and self.simple and len(args) == len(self.names):
            return dict(zip(self.names, args, strict=True))
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as wrong:
            raise type_error(
                f"{self.function.__name__}{self.signature_text()}: {wrong}", self._binding_hint(args, kwargs)
            ) from None
        bound.apply_defaults()
        return bound.arguments

    def _binding_hint(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Return the help for arguments that do not fit the signature: what came, and the name that was probably meant."""
        import difflib  # start-up: used in errors only

        came = f"it got {len(args)} positional argument{'s' * (len(args) != 1)}"
        for name in kwargs:
            close = difflib.get_close_matches(name, self.names, 1)
            if name not in self.names and close:
                return f"did you mean {close[0]}= in place of {name}=? {came} and {', '.join(kwargs)}"
        return came + (f" and {', '.join(kwargs)}" if kwargs else "")

    def signature_text(self) -> str:
        """Return the signature without its annotations."""
        bare = [p.replace(annotation=inspect.Parameter.empty) for p in self.signature.parameters.values()]
        return str(inspect.Signature(bare))

    def annotation(self, name: str) -> Any:
        """Return the annotation of a parameter, or None."""
        return self.annotations.get(name)

    def _kind(self, name: str) -> Any:
        """Return the kind of a parameter; None for a hidden argument, which calls do not pass."""
        parameter = self.signature.parameters.get(name)
        return parameter.kind if parameter else None

    def nodes(self, rules: ArgumentRules, arguments: dict[str, Any], *, takes_none: Container[str] = ()) -> list[Node]:
        """Return a node for each parameter; `*args` and `**kwargs` are groups.

        For those in `takes_none` None is taken whatever the annotation says, but for numbers: a function may be
        compiled without an argument that it tests for None.
        """
        nodes: list[Node] = []
        for name, value in arguments.items():
            annotation = self._annotation_for(value, name, takes_none=name in takes_none)
            kind = self._kind(name)
            named = kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            if named and annotation is not None:
                rules.check(value, annotation, name, self.function.__name__)
            if kind is inspect.Parameter.VAR_POSITIONAL:
                children = [rules.node(v, annotation, f"{name}[{i}]") for i, v in enumerate(value)]
                nodes.append(GroupNode(tuple, children, tuple))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                keys = list(value)
                children = [rules.node(value[k], annotation, f"{name}[{k!r}]") for k in keys]
                nodes.append(
                    GroupNode((dict, *keys), children, lambda parts, keys=keys: dict(zip(keys, parts, strict=True)))
                )
            else:
                nodes.append(rules.node(value, annotation, name))
        return nodes

    def call_arguments(self, values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments for calling the function with these values."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, value in values.items():
            kind = self._kind(name)
            if kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
        return args, kwargs
