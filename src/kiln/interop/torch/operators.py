"""Kernels as operators of PyTorch, for `torch.compile`, `torch.export` and autograd.

    rms_norm = kiln.torch.op("mylib::rms_norm", launch, outputs={"y": "x"})
    y = rms_norm(x, weight, 1e-6)  # torch.ops.mylib.rms_norm; schema (Tensor x, Tensor weight, float eps) -> Tensor

The schema comes from the function's parameters: outputs and streams are not passed. Tensors on the host run on the CPU
target, CUDA tensors on the GPU, on torch's current stream.

A call of an operator takes the first of three ways that is possible:

1. Directly, where PyTorch's dispatcher would do nothing but call the kernel: plain tensors that need no gradients, and
   no mode, transform, autocast, tracer or profiler (`direct_calls.py`, in native code).
2. Through an `autograd.Function` of the operator, where the dispatcher would only add autograd: forward goes the
   first way, and takes half the time of PyTorch's own way.
3. Through the dispatcher: `torch.ops`, `torch.compile`, and all the rest.

On the first and the last way, native code runs the kernel of a jit function when it knows a plan for such arguments
(`operator_calls.py`). Python runs it otherwise (`Operator._run`), also where PyTorch is not as native code expects.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import torch

from ...base_dsl import packages
from ...base_dsl.arguments import AMBIENT_STREAM
from ...base_dsl.diagnostics import DSLBaseError, DSLUserCodeRuntimeError, Span, call_chain, type_error
from ...base_dsl.function import JitFunction
from ...base_dsl.target import target, target_name
from ...cute.host.stream import current_stream
from ..arguments import plan
from ..arguments.program import version
from . import reader
from .dispatch import Kernel, OutputRule, dispatcher, keep_text, text_of
from .parameters import OperatorParameters, OutputLike

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_P = ParamSpec("_P")
_R_co = TypeVar("_R_co", covariant=True)
_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*\Z")
_DEVICES = ("CPU", "CUDA")
_is_compiling = torch.compiler.is_dynamo_compiling
"""Dynamo replaces it by True, and so sees only the operator. Other tracers show in tensors and modes."""
_kept: list[Any] = []
"""Libraries: an operator is removed with its library."""
_places_of_definitions: dict[str, Span | None] = {}
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

    name: str
    _parameters: OperatorParameters

    def __new__(
        cls,
        name: str,
        function: Callable[_P, _R_co],
        *,
        outputs: Mapping[str, OutputLike] | None = None,
        mutates: Sequence[str] = (),
        **_: object,
    ) -> Operator[_P, _R_co]:
        """Make an operator of a class of its own, whose `__call__` has the parameters of the function."""
        if not _NAME.match(name):
            raise type_error(f"an operator is called namespace::name, not {name!r}")
        _refuse_another(name)
        parameters = OperatorParameters(name, function, outputs or {}, mutates)
        members: dict[str, object] = {"__module__": __name__, "__doc__": cls.__doc__}
        if parameters.are_positional:
            members["__call__"] = _call_by_name(parameters)
        kind: Any = type("Operator", (cls,), members)
        operator = object.__new__(kind)
        operator.name = name
        operator._parameters = parameters
        return operator

    def __init__(
        self,
        name: str,
        function: Callable[_P, _R_co],
        *,
        outputs: Mapping[str, OutputLike] | None = None,
        mutates: Sequence[str] = (),
        backward: Callable[..., Any] | None = None,
        save: Sequence[str] = (),
        vmap: str | None = None,
        autocast: torch.dtype | bool | None = None,
        tags: Sequence[torch.Tag] = (),
    ) -> None:
        if vmap not in (None, "leading"):
            raise type_error(f"op() got vmap={vmap!r}", 'pass vmap="leading", or leave it out')
        self._function: Any = function
        if text := getattr(function, "function", function).__doc__:
            self.__doc__ = text
        self._backward = backward
        self._save = tuple(save)
        for each in self._save:
            names = [*self._parameters.inputs, *self._parameters.outputs]
            if each not in names:
                raise self._parameters.wrong(f"save names {each!r}", f"there are {', '.join(names)}")
        self._tags = tuple(tags)
        self.schema: str = self._parameters.schema
        self._kernel = self._native_kernel()
        library = torch.library.Library(name.partition("::")[0], "FRAGMENT")
        _kept.append(library)
        self._library = library
        self._vmap = self._vmap_leading if vmap else self._vmap_each
        self._autocast = autocast
        self.default: Any = self._define(name)
        _places_of_definitions[name] = next(iter(call_chain()), None)
        self._needs_gradients = self._gradient_test()
        self._differentiated = type(
            name.replace("::", "_"),
            (torch.autograd.Function,),
            {"forward": staticmethod(self._forward), "backward": staticmethod(self._gradient)},
        )
        self._call = self._direct_call()
        if not self._parameters.mutates:
            torch.library.register_autograd(name, self._gradient, setup_context=self._keep_for_gradient, lib=library)
        if self._kernel is not None:
            hidden = self._beside("python").partition("::")[2]
            failed = "(int failed, " if self._parameters.inputs else "(int failed"
            library.define(hidden + self.schema.replace("(", failed, 1))
            for device in _DEVICES:
                library.impl(hidden, self._run_for_native, device)

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
        torch.library.register_fake(name, self._parameters.make_outputs, lib=library)
        torch.library.register_vmap(name, self._vmap, lib=library)
        operator = getattr(getattr(torch.ops, namespace), short).default
        if autocast:
            kept = [place for place, name in enumerate(self._parameters.inputs) if name in self._parameters.mutates]
            for device in _DEVICES:
                cast = functools.partial(_casting, operator, device.lower(), autocast, kept)
                library.impl(short, cast, f"Autocast{device}")
        return operator

    def _native_kernel(self) -> Kernel | None:
        """Return the native kernel, or None if Python takes all calls."""
        if not isinstance(self._function, JitFunction) or self._parameters.returns:
            return None
        sources_by_name = {name: (reader.INPUT, place) for place, name in enumerate(self._parameters.inputs)}
        sources_by_name |= {name: (reader.OUTPUT, place) for place, name in enumerate(self._parameters.outputs)}
        sources_by_name |= dict.fromkeys(self._parameters.streams, (reader.STREAM, 0))
        sources = [sources_by_name[p.name] for p in self._parameters.all]
        if not self._parameters.streams:
            sources.append((reader.STREAM, 0))
        try:
            inputs = [self._parameters.kinds[name] for name in self._parameters.inputs]
            written = [name in self._parameters.mutates for name in self._parameters.inputs]
            return Kernel(
                self._function, self._beside("python"), inputs, sources, len(self._parameters.outputs), written
            )
        except RuntimeError:
            return None

    def _gradient_test(self) -> Callable[..., bool] | None:
        """Return whether the dispatcher would only add autograd to a call, as a function; None where nothing can say."""
        native = dispatcher()
        has_lists = "Tensor[]" in (self._parameters.kinds[name] for name in self._parameters.inputs)
        return None if native is None or self._parameters.mutates or has_lists else native.needs_gradients

    def _direct_call(self) -> Callable[..., Any]:
        """Return the function that takes calls: directly if that is right, and by `_indirectly` if not."""
        native = dispatcher()
        is_direct = None if native is None else native.is_direct
        if is_direct is None:
            return self._indirectly
        if self._kernel is not None:
            return self._kernel.direct(self._parameters.defaults, self._indirectly)
        return lambda *args: self._run_plainly(*args) if is_direct(*args) else self._indirectly(*args)

    def _indirectly(self, *args: object) -> Any:
        """Take a call to which the dispatcher adds something: autograd by a shorter way, the rest by its own."""
        defaults = self._parameters.defaults
        missing = len(self._parameters.inputs) - len(args)
        if self._needs_gradients is not None and 0 <= missing <= len(defaults) and self._needs_gradients(*args):
            return self._differentiated.apply(*args, *defaults[len(defaults) - missing :])
        return self.default(*args)

    def _forward(self, ctx: object, *args: object) -> Any:
        result = self._call(*args)
        self._keep_for_gradient(ctx, args, result)
        return result

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co:
        if kwargs or _is_compiling():
            return self.default(*args, **kwargs)
        return self._call(*args)

    @property
    def for_export(self) -> tuple[Any, str, Mapping[str, Any], Sequence[str]]:
        """What `kiln.export` needs: the function, its name, outputs as native code makes them, inputs written to."""
        if self._parameters.returns:
            raise self._parameters.wrong(
                "it has outputs that are no parameters", "export a function that writes to its outputs"
            )
        shapes: dict[str, Any] = {}
        for name, like in self._parameters.outputs.items():
            if callable(like):
                hint = 'name the input that it is like, or its extents: ("x.0", "n", 64)'
                raise self._parameters.wrong(f"Python makes the output {name!r}", hint)
            extents = tuple(each for each in like if not isinstance(each, torch.dtype))
            shapes[name] = like if isinstance(like, str) else extents
        return self._function, self.name, shapes, self._parameters.mutates

    def __repr__(self) -> str:
        return f"<operator {self.name}{self.schema}>"

    # -- running -----------------------------------------------------------------------------------------

    def _run(self, *args: object, **kwargs: object) -> Any:
        inputs = self._parameters.bound(args, kwargs)
        devices = {name: t.device for name, value in inputs.items() for t in _tensors(value)}
        kinds = set(devices.values())
        if len(kinds) > 1:
            where = ", ".join(f"{name} on {device}" for name, device in devices.items())
            raise RuntimeError(f"{self.name} got {where}: all tensors of a call are on one device")
        created = None if self._parameters.returns else self._parameters.make_outputs(*args, **kwargs)
        results = created if isinstance(created, tuple) else (created,)
        outputs = {} if created is None else dict(zip(self._parameters.outputs, results))
        written = [(name, t) for name in self._parameters.mutates for t in _tensors(inputs[name])]
        for name, tensor in written:
            self._refuse_writing(name, tensor)
        tensors = [*outputs.values(), *(tensor for _, tensor in written)]
        if tensors and not self._parameters.returns and not any(tensor.numel() for tensor in tensors):
            return created  # all outputs are empty
        versions = [version(tensor) for _, tensor in written]
        with _on(next(iter(kinds), None)):
            passed = inputs | outputs | {name: current_stream() for name in self._parameters.streams}
            positional = [passed[p.name] for p in self._parameters.all if p.kind is not p.KEYWORD_ONLY]
            named = {p.name: passed[p.name] for p in self._parameters.all if p.kind is p.KEYWORD_ONLY}
            if not self._parameters.streams and isinstance(self._function, JitFunction):
                named[AMBIENT_STREAM] = current_stream()
            if self._kernel is None:
                returned = self._function(*positional, **named)
            else:
                returned = self._function._run_in_python(*positional, **named)
                self._kernel.learn([self._output_rule(name, x) for name, x in outputs.items()])
        for (_, tensor), before in zip(written, versions):
            if version(tensor) == before:  # the call did not tell: only the program knows that it writes there
                torch.autograd.graph.increment_version(tensor)
        return returned if self._parameters.returns else created

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

    def _output_rule(self, name: str, output: torch.Tensor) -> OutputRule | None:
        """Return how native code makes an output, or None if it cannot."""
        like = self._parameters.outputs[name]
        if isinstance(like, str):
            return OutputRule(self._parameters.inputs.index(like), None, output.dtype)
        return (
            OutputRule(0, self._parameters.shapes[name][0], output.dtype) if name in self._parameters.shapes else None
        )

    def _run_plainly(self, *args: object, **kwargs: object) -> Any:
        """Run in Python; errors have the class that native code raises."""
        try:
            return self._run(*args, **kwargs)
        except DSLBaseError as failure:
            raise DSLUserCodeRuntimeError(text_of(failure)) from None
        except Exception as failure:
            raise RuntimeError(text_of(failure)) from failure

    def _run_for_native(self, failed: int, *args: object) -> Any:
        """Take a call from native code, which raises an error with the text that is stored at `failed`."""
        try:
            return self._run(*args)
        except BaseException as failure:
            ctypes.c_uint64.from_address(failed).value = plan.address_of(keep_text(failure))
            nothing = tuple(torch.empty(0) for _ in self._parameters.outputs)
            return nothing[0] if len(nothing) == 1 else nothing or None

    # -- gradients ---------------------------------------------------------------------------------------

    def _keep_for_gradient(self, ctx: Any, inputs: Sequence[object], output: object) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        tensors = dict(zip(self._parameters.inputs, inputs)) | dict(zip(self._parameters.outputs, outputs))
        saved = [tensors[name] for name in self._save]
        ctx.save_for_backward(*(x for x in saved if isinstance(x, torch.Tensor)))
        ctx.others = [None if isinstance(x, torch.Tensor) else x for x in saved]
        ctx.are_tensors = [isinstance(x, torch.Tensor) for x in saved]

    def _gradient(self, ctx: Any, *gradients: object) -> Any:
        if self._backward is None:
            hint = "give it one, op(..., backward=..., save=...), or call it under torch.no_grad()"
            raise RuntimeError(f"the operator {self.name} has no gradient: {hint}")
        tensors = iter(ctx.saved_tensors)
        saved = [next(tensors) if is_tensor else other for is_tensor, other in zip(ctx.are_tensors, ctx.others)]
        results = self._backward(*saved, *gradients)
        results = iter(results if isinstance(results, (tuple, list)) else (results,))
        return tuple(
            next(results, None) if self._parameters.kinds[name].startswith("Tensor") else None
            for name in self._parameters.inputs
        )

    # -- vmap --------------------------------------------------------------------------------------------

    def _vmap_each(self, info: Any, axes: Any, *args: Any) -> Any:
        """Make a call for each element."""
        results: list[Any] = []
        for number in range(info.batch_size):
            picked = [_picked(value, axis, number) for value, axis in zip(args, axes)]
            result = self.default(*picked)
            results.append(result if isinstance(result, tuple) else (result,))
        if not self._parameters.outputs:
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
        is_cast = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(kind) if is_cast and value.device.type == device else value

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

    def turned_off() -> contextlib.ExitStack:
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


def _refuse_another(name: str) -> None:
    """Refuse the name of an existing operator, and say where that was made."""
    namespace, _, short = name.partition("::")
    if not hasattr(getattr(torch.ops, namespace), short):
        return
    first = _places_of_definitions.get(name)
    raise type_error(
        f"there is an operator {name} already" + ("" if first else ", and kiln.torch.op did not make it"),
        "choose another name: PyTorch keeps one operator of a name as long as the process lives",
        notes=((first, f"{name} was made here"),) if first else (),
    )


def _call_by_name(parameters: OperatorParameters) -> Callable[..., Any]:
    """Return a `__call__` that has the inputs as its parameters, written as `collections.namedtuple` writes `__new__`.

    One with `*args` and `**kwargs` makes a tuple and a dict of them in each call, which costs 0.15 us of about 5.
    """
    names = ", ".join(parameters.inputs)
    scope: dict[str, object] = {"is_compiling": _is_compiling}
    text = f"lambda kiln_self, {names}: (kiln_self.default if is_compiling() else kiln_self._call)({names})"
    call = eval(text, scope)
    call.__defaults__ = tuple(parameters.defaults)
    call.__name__ = "__call__"
    call.__qualname__ = parameters.name
    return call


def _tensors(value: object) -> list[torch.Tensor]:
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
