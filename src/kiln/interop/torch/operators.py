"""Kernels as operators of PyTorch, for `torch.compile`, `torch.export` and autograd.

    rms_norm = kiln.torch.op("mylib::rms_norm", launch, outputs={"y": "x"})
    y = rms_norm(x, weight, 1e-6)  # torch.ops.mylib.rms_norm; schema (Tensor x, Tensor weight, float eps) -> Tensor

The schema comes from the function's parameters: outputs and streams are not passed. Tensors on the host run on the CPU
target, CUDA tensors on the GPU, on torch's current stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import re
import types
import typing
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import torch

from ...base_dsl import packages
from ...base_dsl.arguments import AMBIENT_STREAM
from ...base_dsl.diagnostics import DSLBaseError, DSLUserCodeRuntimeError, Span, call_chain, type_error
from ...base_dsl.function import JitFunction
from ...base_dsl.parameters import Parameters
from ...base_dsl.target import target, target_name
from ...base_dsl.typing import Boolean, Constexpr, Numeric
from ...cute.host.arguments import is_tensor_annotation
from ...cute.host.stream import current_stream
from ..arguments import plan
from ..arguments.program import version
from . import reader
from .dispatch import Kernel, OutputRule, dispatcher, keep_text, text_of
from .schema import EXTENT_RULE, Extent, Input, extents, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_P = ParamSpec("_P")
_R_co = TypeVar("_R_co", covariant=True)
_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*\Z")
_PLAIN = {int: "SymInt", float: "float", bool: "bool", str: "str"}
_DEVICES = ("CPU", "CUDA")
_is_compiling = torch.compiler.is_dynamo_compiling
"""Dynamo replaces it by True, and so sees only the operator. Other tracers show in tensors and modes."""
_CALL = """
def make(kiln_compiles, kiln_direct, kiln_with_gradients):
    def __call__(kiln_self{names}):
        if kiln_compiles():
            return kiln_self.default({passed})
        found = kiln_direct({passed})
        if found is NotImplemented:
            found = kiln_with_gradients({passed})
        return kiln_self.default({passed}) if found is NotImplemented else found
    return __call__
"""
_kept: list[Any] = []
"""Libraries: an operator is removed with its library."""
_made_at: dict[str, Span | None] = {}
"""The place in the program where each operator was made."""


class Operator(Generic[_P, _R_co]):
    """An operator of PyTorch, made from a function of the language. Calling it calls the operator.

    `outputs` says how each output is made, by parameter: the name of an input, for a tensor like it; a tuple of
    extents, `("x.0", "w.1", 64)`, each that of an input's axis, the value of an input, or a number, with the type last
    if it is not that of the first input; or a function of the inputs, which may be fake tensors, that makes it. Outputs
    that are no parameters are what the function returns. `mutates` names inputs that the kernel writes to: autograd
    learns of it, tensors that PyTorch's own operators would not write to are refused, and the operator has no gradient.
    `backward(*saved, *gradients)` returns the gradients of the tensor inputs in order, None for those without; `save`
    names the inputs and outputs it needs. `vmap="leading"`: the kernel takes one more axis in front of all its tensors;
    by default it is called for each element. `autocast`: the type of floating-point inputs under autocast; True for the
    one that autocast uses. `tags` are further tags of torch, such as `torch.Tag.cudagraph_unsafe` for a kernel that
    prints.
    """

    def __init__(
        self,
        name: str,
        function: Callable[_P, _R_co],
        *,
        outputs: Mapping[str, str | tuple[Any, ...] | Callable[..., Any]] | None = None,
        mutates: Sequence[str] = (),
        backward: Callable[..., Any] | None = None,
        save: Sequence[str] = (),
        vmap: str | None = None,
        autocast: torch.dtype | bool | None = None,
        tags: Sequence[torch.Tag] = (),
    ) -> None:
        if not _NAME.match(name):
            raise type_error(f"an operator is called namespace::name, not {name!r}")
        if vmap not in (None, "leading"):
            raise type_error(f"op() got vmap={vmap!r}", 'pass vmap="leading", or leave it out')
        self.name = name
        self._function: Any = function
        if text := getattr(function, "function", function).__doc__:
            self.__doc__ = text
        self._outputs = dict(outputs or {})
        self._mutates = tuple(mutates)
        self._backward = backward
        self._save = tuple(save)
        self._tags = tuple(tags)
        self._refuse_another(name)
        self._read_parameters()
        self.schema: str = self._make_schema()
        self._kernel = self._native_kernel()
        library = torch.library.Library(name.partition("::")[0], "FRAGMENT")
        _kept.append(library)
        self._library = library
        self._vmap = self._vmap_leading if vmap else self._vmap_each
        self._autocast = autocast
        self.default: Any = self._define(name)
        _made_at[name] = next(iter(call_chain()), None)
        self._defaults = [p.default for p in self._parameters if p.name in self._inputs and p.default is not p.empty]
        self._direct = self._direct_call()
        self._with_gradients = self._call_with_gradients()
        self._name_parameters()
        if not self._mutates:
            torch.library.register_autograd(name, self._gradient, setup_context=self._keep_for_gradient, lib=library)
        if self._kernel is not None:
            hidden = self._beside("python").partition("::")[2]
            library.define(hidden + self.schema.replace("(", "(int failed, " if self._inputs else "(int failed", 1))
            for device in _DEVICES:
                library.impl(hidden, self._run_for_native, device)

    def _refuse_another(self, name: str) -> None:
        """Refuse the name of an existing operator, and say where that was made."""
        namespace, _, short = name.partition("::")
        if not hasattr(getattr(torch.ops, namespace), short):
            return
        first = _made_at.get(name)
        raise type_error(
            f"there is an operator {name} already" + ("" if first else ", and kiln.torch.op did not make it"),
            "choose another name: PyTorch keeps one operator of a name as long as the process lives",
            notes=((first, f"{name} was made here"),) if first else (),
        )

    def _beside(self, what: str) -> str:
        """Return the name of a helper operator of this one."""
        namespace, _, short = self.name.partition("::")
        return f"{namespace}::_{short}_{what}"

    def _define(self, name: str) -> Any:
        namespace, _, short = name.partition("::")
        library = self._library
        autocast = self._autocast
        exact = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)  # torch 2.8 has the first
        tags = (torch.Tag.pt2_compliant_tag, exact, *self._tags)
        library.define(short + self.schema, tags=tags)
        for device in _DEVICES:
            if self._kernel is not None:
                self._kernel.register(name, device)
            else:
                library.impl(short, self._run_plainly, device)
        torch.library.register_fake(name, self._make_outputs, lib=library)
        torch.library.register_vmap(name, self._vmap, lib=library)
        made = getattr(getattr(torch.ops, namespace), short).default
        if autocast:
            kept = [place for place, name in enumerate(self._inputs) if name in self._mutates]
            for device in _DEVICES:
                cast = functools.partial(_casting, made, device.lower(), autocast, kept)
                library.impl(short, cast, f"Autocast{device}")
        return made

    def _native_kernel(self) -> Kernel | None:
        """Return the native kernel, or None if Python takes all calls."""
        if not isinstance(self._function, JitFunction) or (self._returns and self._outputs):
            return None
        known = {name: (reader.INPUT, place) for place, name in enumerate(self._inputs)}
        known |= {name: (reader.OUTPUT, place) for place, name in enumerate(self._outputs)}
        known |= dict.fromkeys(self._streams, (reader.STREAM, 0))
        sources = [known[p.name] for p in self._parameters]
        if not self._streams:
            sources.append((reader.STREAM, 0))
        try:
            inputs = [self._kinds[name] for name in self._inputs]
            written = [name in self._mutates for name in self._inputs]
            return Kernel(self._function, self._beside("python"), inputs, sources, len(self._outputs), written)
        except RuntimeError:
            return None

    def _direct_call(self) -> Callable[..., Any]:
        """Return a function that calls the kernel directly; NotImplemented where the dispatcher would do more."""
        found = dispatcher()
        defaults = self._defaults
        if self._kernel is not None:
            return self._kernel.direct(defaults) or _through_the_dispatcher
        if found is None or found.is_direct is None:
            return _through_the_dispatcher
        is_direct = found.is_direct
        return lambda *args: self._run_plainly(*args) if is_direct(*args) else NotImplemented

    def _call_with_gradients(self) -> Callable[..., Any]:
        """Return a function for calls to which the dispatcher would only add autograd.

        It takes half the time of torch's own way.
        """
        found = dispatcher()
        has_lists = "Tensor[]" in (self._kinds[name] for name in self._inputs)
        needs_gradients = None if found is None or self._mutates or has_lists else found.needs_gradients
        if needs_gradients is None:
            return _through_the_dispatcher
        function = type(
            self.name.replace("::", "_"),
            (torch.autograd.Function,),
            {"forward": staticmethod(self._forward), "backward": staticmethod(self._gradient)},
        )
        count = len(self._inputs)
        defaults = self._defaults

        def call(*args: Any) -> Any:
            missing = count - len(args)
            if not 0 <= missing <= len(defaults) or not needs_gradients(*args):
                return NotImplemented
            return function.apply(*args, *defaults[len(defaults) - missing :])

        return call

    def _forward(self, ctx: Any, *args: Any) -> Any:
        found = self._direct(*args)
        result = self.default(*args) if found is NotImplemented else found
        self._keep_for_gradient(ctx, args, result)
        return result

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co:
        if not kwargs and not _is_compiling():
            found = self._direct(*args)
            if found is NotImplemented:
                found = self._with_gradients(*args)
            if found is not NotImplemented:
                return found
        return self.default(*args, **kwargs)

    def _name_parameters(self) -> None:
        """Give this operator a `__call__` with its own parameters, so that no tuple of arguments is made.

        That saves a third of the cost of a call beyond its launch.
        """
        inputs = [p for p in self._parameters if p.name in self._inputs]
        optional = [p.default is not p.empty for p in inputs]
        if optional != sorted(optional):
            return  # one of them is passed by name only
        names = "".join(f", {p.name}" for p in inputs)
        scope: dict[str, Any] = {}
        exec(_CALL.format(names=names, passed=names[2:]), scope)
        call = scope["make"](_is_compiling, self._direct, self._with_gradients)
        call.__defaults__ = tuple(self._defaults)
        call.__qualname__ = self.name
        members = {"__call__": call, "__module__": __name__, "__doc__": Operator.__doc__}
        kind: Any = type("Operator", (Operator,), members)
        self.__class__ = kind

    @property
    def for_export(self) -> tuple[Any, str, Mapping[str, Any], Sequence[str]]:
        """What `kiln.export` needs: the function, its name, outputs as native code makes them, inputs written to."""
        if self._returns and self._outputs:
            raise self._wrong("it has outputs that are no parameters", "export a function that writes to its outputs")
        made: dict[str, Any] = {}
        for name, like in self._outputs.items():
            if callable(like):
                hint = 'name the input that it is like, or its extents: ("x.0", "n", 64)'
                raise self._wrong(f"Python makes the output {name!r}", hint)
            extents = tuple(each for each in like if not isinstance(each, torch.dtype))
            made[name] = like if isinstance(like, str) else extents
        return self._function, self.name, made, self._mutates

    def __repr__(self) -> str:
        return f"<operator {self.name}{self.schema}>"

    # -- parameters --------------------------------------------------------------------------------------

    def _read_parameters(self) -> None:
        plain = inspect.unwrap(getattr(self._function, "function", self._function))
        parameters = getattr(self._function, "parameters", None) or Parameters(plain)
        self._parameters = list(parameters.signature.parameters.values())
        names = [parameter.name for parameter in self._parameters]
        launches = hasattr(self._function, "parameters")  # a jit function, which has its outputs as parameters
        self._returns = not any(name in names for name in self._outputs) and not (launches and self._outputs)
        for what, values in (("outputs", () if self._returns else self._outputs), ("mutates", self._mutates)):
            for name in values:
                if name not in names:
                    raise self._wrong(f"{what} names {name!r}", f"it has the parameters {', '.join(names)}")
        for name in set(self._outputs) & set(self._mutates):
            raise self._wrong(
                f"{name!r} is both in outputs and in mutates", "the operator makes its outputs, and writes to inputs"
            )
        self._kinds: dict[str, str] = {}
        self._streams: set[str] = set()
        for parameter in self._parameters:
            kind = _kind(parameter, parameters.annotation(parameter.name))
            if kind == "stream":
                self._streams.add(parameter.name)
            elif kind is None:
                raise self._wrong(
                    f"torch has no type for the parameter {parameter.name!r}",
                    "annotate it: cute.Tensor, a numeric type, int, float, bool, str, or a list of tensors",
                )
            else:
                self._kinds[parameter.name] = kind
        self._inputs = [name for name in self._kinds if name not in self._outputs]
        self._shapes = {name: self._extents(name, x) for name, x in self._outputs.items() if isinstance(x, tuple)}
        for name, like in self._outputs.items():
            if isinstance(like, str) and like not in self._inputs:
                raise self._wrong(
                    f"the output {name!r} is to be like {like!r}", f"inputs are {', '.join(self._inputs)}"
                )
        for name in self._save:
            if name not in self._inputs and name not in self._outputs:
                raise self._wrong(f"save names {name!r}", f"there are {', '.join([*self._inputs, *self._outputs])}")

    def _extents(self, name: str, described: tuple[Any, ...]) -> tuple[list[Extent], torch.dtype | None]:
        """Return the extents of an output, and its type if it is stated."""
        dtype = described[-1] if described and isinstance(described[-1], torch.dtype) else None
        kinds = {name: self._kinds[name] for name in self._inputs}
        found = extents(described[: len(described) - (dtype is not None)], kinds)
        if isinstance(found, str):
            raise self._wrong(f"the output {name!r} {found}", EXTENT_RULE)
        if dtype is None and "Tensor" not in kinds.values():
            raise self._wrong(f"the output {name!r} has no type", "put it after its extents: torch.float32")
        return found, dtype

    def _wrong(self, what: str, hint: str) -> Exception:
        return type_error(f"the operator {self.name}: {what}", hint)

    def _make_schema(self) -> str:
        defaults = {p.name: _literal(p.default) for p in self._parameters if p.default is not p.empty}
        inputs = [Input(self._kinds[name], name, name in self._mutates, defaults.get(name)) for name in self._inputs]
        return schema(inputs, len(self._outputs))

    # -- running -----------------------------------------------------------------------------------------

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self._bound(args, kwargs)
        devices = {name: t.device for name, value in inputs.items() for t in _tensors(value)}
        kinds = set(devices.values())
        if len(kinds) > 1:
            where = ", ".join(f"{name} on {device}" for name, device in devices.items())
            raise RuntimeError(f"{self.name} got {where}: all tensors of a call are on one device")
        made = None if self._returns else self._make_outputs(*args, **kwargs)
        results = made if isinstance(made, tuple) else (made,)
        outputs = {} if made is None else dict(zip(self._outputs, results))
        written = [(name, t) for name in self._mutates for t in _tensors(inputs[name])]
        for name, tensor in written:
            self._refuse_writing(name, tensor)
        known = [*outputs.values(), *(tensor for _, tensor in written)]
        if known and not (self._returns and self._outputs) and not any(tensor.numel() for tensor in known):
            return made  # all outputs are empty
        versions = [version(tensor) for _, tensor in written]
        with _on(next(iter(kinds), None)):
            passed = inputs | outputs | {name: current_stream() for name in self._streams}
            positional = [passed[p.name] for p in self._parameters if p.kind is not p.KEYWORD_ONLY]
            named = {p.name: passed[p.name] for p in self._parameters if p.kind is p.KEYWORD_ONLY}
            if not self._streams and isinstance(self._function, JitFunction):
                named[AMBIENT_STREAM] = current_stream()
            if self._kernel is None:
                returned = self._function(*positional, **named)
            else:
                returned = self._function._run_in_python(*positional, **named)
                self._kernel.learn([self._output_rule(name, x) for name, x in outputs.items()])
        for (_, tensor), before in zip(written, versions):
            if version(tensor) == before:  # the call did not tell: only the program knows that it writes there
                torch.autograd.graph.increment_version(tensor)
        return returned if self._returns and self._outputs else made

    def _refuse_writing(self, name: str, x: torch.Tensor) -> None:
        """Refuse to write to a tensor to which PyTorch's own operators would not, as `may_write` in native code."""
        if x.numel() and any(extent > 1 and not step for extent, step in zip(x.shape, x.stride())):
            why = reader.REPEATED
        elif x.is_inference() and not torch.is_inference_mode_enabled():
            why = reader.INFERENCE
        elif x.requires_grad and torch.is_grad_enabled():
            why = reader.WITH_GRADIENT
        else:
            return
        raise RuntimeError(f"{self.name}: argument {name!r}: {why}")

    def _output_rule(self, name: str, made: torch.Tensor) -> OutputRule | None:
        """Return how native code makes an output, or None if it cannot."""
        like = self._outputs[name]
        if isinstance(like, str):
            return OutputRule(self._inputs.index(like), None, made.dtype)
        return OutputRule(0, self._shapes[name][0], made.dtype) if name in self._shapes else None

    def _run_plainly(self, *args: Any, **kwargs: Any) -> Any:
        """Run in Python; errors have the class that native code raises."""
        try:
            return self._run(*args, **kwargs)
        except DSLBaseError as failure:
            raise DSLUserCodeRuntimeError(text_of(failure)) from None
        except Exception as failure:
            raise RuntimeError(text_of(failure)) from failure

    def _run_for_native(self, failed: int, *args: Any) -> Any:
        """Take a call from native code, which raises an error with the text that is stored at `failed`."""
        try:
            return self._run(*args)
        except BaseException as failure:
            ctypes.c_uint64.from_address(failed).value = plan.address_of(keep_text(failure))
            nothing = tuple(torch.empty(0) for _ in self._outputs)
            return nothing[0] if len(nothing) == 1 else nothing or None

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        values = dict(zip(self._inputs, args)) | dict(kwargs)
        for parameter in self._parameters:
            if parameter.name in self._inputs and parameter.name not in values:
                values[parameter.name] = parameter.default
        return values

    def _make_outputs(self, *args: Any, **kwargs: Any) -> Any:
        """Make the outputs of a call, also for fake tensors and those of the device meta."""
        values = self._bound(args, kwargs)
        made = tuple(self._make_output(name, values) for name in self._outputs)
        return made[0] if len(made) == 1 else made or None

    def _make_output(self, name: str, values: Mapping[str, Any]) -> torch.Tensor:
        like = self._outputs[name]
        inputs = [values[name] for name in self._inputs]
        if isinstance(like, str):
            return torch.empty_like(values[like])
        if callable(like):
            return like(*inputs)
        extents, dtype = self._shapes[name]
        first = next((x for x in inputs if isinstance(x, torch.Tensor)), None)
        shape = [n if i < 0 else inputs[i] if n < 0 else inputs[i].shape[n] for i, n in extents]
        device = None if first is None else first.device
        return torch.empty(shape, dtype=dtype or (None if first is None else first.dtype), device=device)

    # -- gradients ---------------------------------------------------------------------------------------

    def _keep_for_gradient(self, ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        known = dict(zip(self._inputs, inputs)) | dict(zip(self._outputs, outputs))
        saved = [known[name] for name in self._save]
        ctx.save_for_backward(*(x for x in saved if isinstance(x, torch.Tensor)))
        ctx.others = [None if isinstance(x, torch.Tensor) else x for x in saved]
        ctx.are_tensors = [isinstance(x, torch.Tensor) for x in saved]

    def _gradient(self, ctx: Any, *gradients: Any) -> Any:
        if self._backward is None:
            hint = "give it one, op(..., backward=..., save=...), or call it under torch.no_grad()"
            raise RuntimeError(f"the operator {self.name} has no gradient: {hint}")
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if is_tensor else other for is_tensor, other in zip(ctx.are_tensors, ctx.others)]
        found = self._backward(*saved, *gradients)
        found = iter(found if isinstance(found, (tuple, list)) else (found,))
        return tuple(next(found, None) if self._kinds[name].startswith("Tensor") else None for name in self._inputs)

    # -- vmap --------------------------------------------------------------------------------------------

    def _vmap_each(self, info: Any, axes: Any, *args: Any) -> Any:
        """Make a call for each element."""
        results: list[Any] = []
        for number in range(info.batch_size):
            picked = [_picked(value, axis, number) for value, axis in zip(args, axes)]
            result = self.default(*picked)
            results.append(result if isinstance(result, tuple) else (result,))
        if not self._outputs:
            return None, None
        stacked = tuple(torch.stack(each) for each in zip(*results))
        return (stacked[0], 0) if len(stacked) == 1 else (stacked, (0,) * len(stacked))

    def _vmap_leading(self, info: Any, axes: Any, *args: Any) -> Any:
        """Make one call, with the axis in front of every tensor."""
        moved = [_moved(value, axis, info.batch_size) for value, axis in zip(args, axes)]
        result = self.default(*moved)
        return result, (0,) * len(result) if isinstance(result, tuple) else 0


def _casting(operator: Any, device: str, autocast: torch.dtype | bool, kept: Sequence[int], *args: Any) -> Any:
    """Call an operator under autocast.

    As in torch's own operators, tensors of 64 bits and on other devices stay as they are, and so do those that are
    written to, at the places `kept`.
    """
    kind = torch.get_autocast_dtype(device) if autocast is True else autocast

    def cast(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [cast(each) for each in value]
        wanted = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(kind) if wanted and value.device.type == device else value

    with _without_autocast()():
        return operator(*(value if place in kept else cast(value) for place, value in enumerate(args)))


@functools.lru_cache(maxsize=1)
def _without_autocast() -> Callable[[], Any]:
    """Return a function that makes a context without autocast."""
    with packages.leaning_on("torch autocast"):
        of = torch._C.DispatchKeySet
        keys = torch._C.DispatchKey
        guard = torch._C._ExcludeDispatchKeyGuard
        both = of(keys.AutocastCPU) | of(keys.AutocastCUDA)
        return lambda: guard(both)

    def turned_off() -> Any:
        stack = contextlib.ExitStack()
        for device in _DEVICES:
            stack.enter_context(torch.autocast(device.lower(), enabled=False))
        return stack

    return turned_off


@contextlib.contextmanager
def _on(device: torch.device | None) -> Iterator[None]:
    """Launch kernels on the device of a call's tensors."""
    if device is not None and device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            yield
    elif device is not None and device.type == "cpu" and target_name() != "cpu":
        with target("cpu"):
            yield
    else:
        yield


def _through_the_dispatcher(*_: Any) -> Any:
    return NotImplemented


def _kind(parameter: inspect.Parameter, annotation: Any) -> str | None:
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
        found = _kind(parameter, rest[0]) if len(rest) == 1 else None
        return found and found + "?"
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


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for t in value if isinstance(t, torch.Tensor)] if isinstance(value, (list, tuple)) else []


def _picked(value: Any, axis: Any, number: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [_picked(x, a, number) for x, a in zip(value, axis)]
    return value.select(axis, number) if axis is not None else value


def _moved(value: Any, axis: Any, size: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [_moved(x, a, size) for x, a in zip(value, axis)]
    if not isinstance(value, torch.Tensor):
        return value
    return value.movedim(axis, 0) if axis is not None else value.expand(size, *value.shape)
