"""The parameters of an operator's function: which are inputs, what PyTorch calls their types, how outputs are made."""

from __future__ import annotations

import inspect
import types
import typing
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ...base_dsl.diagnostics import type_error
from ...base_dsl.parameters import Parameters
from ...base_dsl.typing import Boolean, Constexpr, Numeric
from ...cute.host.arguments import is_tensor_annotation
from .schema import EXTENT_RULE, Extent, Input, extents, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

OutputLike: TypeAlias = "str | tuple[str | int | torch.dtype, ...] | Callable[..., torch.Tensor]"
"""How an output is made: like an input, with extents and perhaps a type, or by a function."""

_PLAIN = {int: "SymInt", float: "float", bool: "bool", str: "str"}


class OperatorParameters:
    """The parameters of the function of an operator `name`, with its outputs and what it writes to.

    Wrong descriptions of outputs are refused here.
    """

    def __init__(
        self, name: str, function: Callable[..., object], outputs: Mapping[str, OutputLike], mutates: Sequence[str]
    ) -> None:
        self.name = name
        self.outputs = dict(outputs)
        self.mutates = tuple(mutates)
        parameters = getattr(function, "parameters", None)
        launches = parameters is not None  # a jit function, which has its outputs as parameters
        if parameters is None:
            parameters = Parameters(inspect.unwrap(getattr(function, "function", function)))
        self.all: list[inspect.Parameter] = list(parameters.signature.parameters.values())
        names = [parameter.name for parameter in self.all]
        self.returns: bool = bool(self.outputs) and not launches and not any(name in names for name in self.outputs)
        """Whether the outputs are what the function returns."""
        for what, values in (("outputs", () if self.returns else self.outputs), ("mutates", self.mutates)):
            for name in values:
                if name not in names:
                    raise self.wrong(f"{what} names {name!r}", f"it has the parameters {', '.join(names)}")
        for name in set(self.outputs) & set(self.mutates):
            raise self.wrong(
                f"{name!r} is both in outputs and in mutates", "the operator makes its outputs, and writes to inputs"
            )
        self.kinds: dict[str, str] = {}
        """PyTorch's types of inputs and outputs, by parameter."""
        self.streams: set[str] = set()
        """The parameters that are streams, which are not passed."""
        for parameter in self.all:
            kind = _kind(parameter, parameters.annotation(parameter.name))
            if kind == "stream":
                self.streams.add(parameter.name)
            elif kind is None:
                raise self.wrong(
                    f"torch has no type for the parameter {parameter.name!r}",
                    "annotate it: cute.Tensor, a numeric type, int, float, bool, str, or a list of tensors",
                )
            else:
                self.kinds[parameter.name] = kind
        self.inputs: list[str] = [name for name in self.kinds if name not in self.outputs]
        passed = [parameter for parameter in self.all if parameter.name in self.inputs]
        self.defaults: list[Any] = [each.default for each in passed if each.default is not each.empty]
        has_default = [each.default is not each.empty for each in passed]
        self.are_positional: bool = has_default == sorted(has_default)
        """Whether all inputs can be passed by position: none without a default follows one with a default."""
        self.shapes: dict[str, tuple[list[Extent], torch.dtype | None]] = {
            name: self._extents(name, like) for name, like in self.outputs.items() if isinstance(like, tuple)
        }
        """Extents and types of the outputs that have their own."""
        for name, like in self.outputs.items():
            if isinstance(like, str) and like not in self.inputs:
                raise self.wrong(f"the output {name!r} is to be like {like!r}", f"inputs are {', '.join(self.inputs)}")

    @property
    def schema(self) -> str:
        """The operator's schema without its name."""
        defaults = {p.name: _literal(p.default) for p in self.all if p.default is not p.empty}
        inputs = [Input(self.kinds[name], name, name in self.mutates, defaults.get(name)) for name in self.inputs]
        return schema(inputs, len(self.outputs))

    def wrong(self, what: str, hint: str) -> Exception:
        """Return the error of a wrong description."""
        return type_error(f"the operator {self.name}: {what}", hint)

    def bound(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, Any]:
        """Return the inputs of a call by name, with defaults."""
        values = dict(zip(self.inputs, args)) | dict(kwargs)
        for parameter in self.all:
            if parameter.name in self.inputs and parameter.name not in values:
                values[parameter.name] = parameter.default
        return values

    def make_outputs(self, *args: object, **kwargs: object) -> Any:
        """Make the outputs of a call, also for fake tensors and those of the device meta."""
        values = self.bound(args, kwargs)
        outputs = tuple(self._make_output(name, like, values) for name, like in self.outputs.items())
        return outputs[0] if len(outputs) == 1 else outputs or None

    def _make_output(self, name: str, like: OutputLike, values: Mapping[str, Any]) -> torch.Tensor:
        inputs = [values[name] for name in self.inputs]
        if isinstance(like, str):
            return torch.empty_like(values[like])
        if callable(like):
            return like(*inputs)
        extents, dtype = self.shapes[name]
        first = next((x for x in inputs if isinstance(x, torch.Tensor)), None)
        shape = [n if i < 0 else inputs[i] if n < 0 else inputs[i].shape[n] for i, n in extents]
        device = None if first is None else first.device
        return torch.empty(shape, dtype=dtype or (None if first is None else first.dtype), device=device)

    def _extents(
        self, name: str, described: tuple[str | int | torch.dtype, ...]
    ) -> tuple[list[Extent], torch.dtype | None]:
        """Return the extents of an output, and its type if it is stated."""
        dtype = described[-1] if described and isinstance(described[-1], torch.dtype) else None
        kinds = {name: self.kinds[name] for name in self.inputs}
        resolved = extents(described[: len(described) - (dtype is not None)], kinds)
        if isinstance(resolved, str):
            raise self.wrong(f"the output {name!r} {resolved}", EXTENT_RULE)
        if dtype is None and "Tensor" not in kinds.values():
            raise self.wrong(f"the output {name!r} has no type", "put it after its extents: torch.float32")
        return resolved, dtype


def _kind(parameter: inspect.Parameter, annotation: object) -> str | None:
    """Return torch's type of a parameter, "stream" for one that is not passed, or None if there is none."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return None
    name = getattr(annotation, "__name__", "")
    if "CUstream" in name or "Stream" in name or (annotation is None and parameter.name == "stream"):
        return "stream"
    origin = typing.get_origin(annotation)
    inner = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        rest = [part for part in inner if part is not type(None)]
        one = _kind(parameter, rest[0]) if len(rest) == 1 else None
        return one and one + "?"
    if is_tensor_annotation(annotation) or annotation is torch.Tensor:
        return "Tensor" + ("?" if parameter.default is None else "")
    if origin in (list, tuple) and inner and is_tensor_annotation(inner[0]):
        return "Tensor[]"
    has_default = parameter.default is not parameter.empty
    if Constexpr in (annotation, origin) or (annotation is None and has_default):
        kind = inner[0] if inner else type(parameter.default)
        return _PLAIN.get(kind)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Numeric):
        return "bool" if annotation is Boolean else "float" if annotation.is_float else "SymInt"
    return None


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
