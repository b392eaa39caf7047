"""`cutlass_call`: a kernel as a function of arrays, by a JAX primitive that is compiled when it is lowered."""

from __future__ import annotations

import dataclasses
import functools
import struct
from typing import TYPE_CHECKING, Any

import jax
import jax.core
import jax.extend.core
import numpy as np
from jax.interpreters import ad, batching, mlir

from ..._support import fork_safe
from ...base_dsl.diagnostics import type_error, value_error
from ...base_dsl.typing import Numeric
from ...cute import compile as compile_function
from ...cute.host.runtime import as_device_memory, make_fake_stream
from ...cute.host.stream import Stream
from . import handler
from .calls import ARGUMENT, NUMBER, RESULT, STREAM
from .spec import HOST_ALIGNMENT, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_PLATFORMS = {"cpu": "cpu", "cuda": "nvidia"}
_MOST_KEPT = 256


def cutlass_call(
    fn: Callable[..., object],
    *,
    output_shape_dtype: object = None,
    input_spec: object = None,
    output_spec: object = None,
    input_mode: object = None,
    output_mode: object = None,
    input_output_aliases: Mapping[Any, Any] | None = None,
    allow_cuda_graph: bool = True,
    ffi_call_target: str | None = None,
    compile_options: object = None,
    compile_key: object = None,
    use_static_tensors: bool = False,
    vmap_method: str = "sequential",
    **kwargs: object,
) -> Callable[..., Any]:
    """Return a function of arrays that runs `fn(stream, *inputs, *outputs, **kwargs)`.

    `output_shape_dtype` is anything with a shape and a dtype, or a tree with at least one of those; the function
    returns arrays in the same tree. Specs are `TensorSpec`s, one for each input or output, or trees of them; None
    stands for the default. `input_mode` and `output_mode` abbreviate specs with a mode alone. An output that
    `input_output_aliases` identifies with an input, by numbers, is not passed to `fn`. Tensors have dynamic layouts
    unless `use_static_tensors` or their spec says otherwise. Keyword arguments that are numbers are passed in each
    call, so one kernel serves all values; others, and those annotated as Constexpr, are compiled in. `compile_key`
    distinguishes functions that look alike. `vmap_method`: "sequential" makes a call for each element, "broadcast_all"
    one call with one more axis in front, for kernels that take that.
    """
    if vmap_method not in ("sequential", "broadcast_all"):
        raise value_error(f"cutlass_call() got vmap_method={vmap_method!r}", 'pass "sequential" or "broadcast_all"')
    for name, value in kwargs.items():
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
            raise type_error(
                f"cutlass_call() got a tracer of JAX as {name}=, and keyword arguments are known when tracing",
                f"pass it as an array, among the inputs; or tell jax.jit: static_argnames={name!r}",
            )
    outputs, output_tree = jax.tree.flatten(output_shape_dtype)
    if not outputs:
        raise value_error(
            f"cutlass_call() got output_shape_dtype={output_shape_dtype!r}: "
            "JAX drops calls without results, and never writes to arrays",
            "pass the shape and dtype of an output; input_output_aliases makes it an input that is changed",
        )
    types = [jax.numpy.result_type(np.dtype(o.dtype)) for o in outputs]  # float64 is float32 where JAX has no 64 bits
    shapes = tuple(jax.ShapeDtypeStruct(tuple(o.shape), kind) for o, kind in zip(outputs, types, strict=True))
    output_specs = _specs(output_spec, output_mode, output_tree, len(shapes), "output_spec")

    def call(*inputs: object) -> Any:
        leaves, tree = jax.tree.flatten(inputs)
        specs = _specs(input_spec, input_mode, tree, len(leaves), "input_spec", inputs=len(inputs))
        aliases = _aliases(input_output_aliases or {}, leaves, shapes)
        bound_call = _Call(
            fn,
            tree,
            output_tree,
            shapes,
            specs,
            output_specs,
            aliases,
            allow_cuda_graph,
            ffi_call_target,
            _options(compile_options),
            compile_key,
            use_static_tensors,
            vmap_method,
            kwargs,
        )
        results = _primitive.bind(*leaves, call=bound_call)
        return jax.tree.unflatten(output_tree, results)

    return call


def differentiable(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose gradient kernels compute.

    `forward(*inputs)` returns the result and what `backward(saved, gradient)` needs, which returns the gradients of the
    inputs.
    """

    @jax.custom_vjp
    def function(*inputs: Any) -> Any:
        return forward(*inputs)[0]

    function.defvjp(forward, backward)
    return function


def _options(options: object) -> Any:
    return tuple(options) if isinstance(options, (list, tuple)) else options


def _specs(
    specs: object, modes: object, tree: object, count: int, name: str, inputs: int | None = None
) -> tuple[TensorSpec, ...]:
    """Return a spec for each leaf of a tree."""
    if specs is not None and modes is not None:
        raise value_error(f"cutlass_call() got both {name} and modes", "TensorSpec(mode=...) says both")
    if modes is not None:
        is_mode = lambda x: x is None or (isinstance(x, (tuple, list)) and all(isinstance(i, int) for i in x))
        specs = jax.tree.map(lambda m: None if m is None else TensorSpec(mode=tuple(m)), modes, is_leaf=is_mode)
    if specs is None:
        return (TensorSpec(),) * count
    if isinstance(specs, TensorSpec):
        return (specs,) * count
    is_spec = lambda x: x is None or isinstance(x, TensorSpec)
    if inputs is not None and isinstance(specs, list):
        specs = tuple(specs)
    try:
        filled = _broadcast(specs, tree, is_spec)
    except (ValueError, TypeError):
        filled = None
    if filled is None or len(filled) != count or not all(map(is_spec, filled)):
        raise value_error(
            f"cutlass_call() got {name}={specs!r} for arrays in the tree {tree}",
            "pass a TensorSpec or None for each array, in the same tree",
        )
    return tuple(TensorSpec() if spec is None else spec for spec in filled)


def _broadcast(specs: Any, tree: Any, is_spec: Any) -> list[Any]:
    """Return the specs of a prefix of a tree, leaf by leaf."""
    whole = jax.tree.unflatten(tree, range(tree.num_leaves))
    leaves: list[Any] = []

    def add(spec: object, part: object) -> None:
        leaves.extend([spec] * len(jax.tree.leaves(part)))

    jax.tree.map(add, specs, whole, is_leaf=is_spec)
    return leaves


def _aliases(aliases: Mapping[Any, Any], leaves: Sequence[Any], shapes: Sequence[Any]) -> dict[int, int]:
    for i, o in aliases.items():
        if not (0 <= i < len(leaves) and 0 <= o < len(shapes)):
            counts = f"{len(leaves)} inputs and {len(shapes)} outputs"
            raise value_error(f"cutlass_call() got input_output_aliases={dict(aliases)}, and has {counts}")
        before = leaves[i]
        after = shapes[o]
        if tuple(before.shape) != tuple(after.shape) or np.dtype(before.dtype) != after.dtype:
            one, other = (f"{np.dtype(x.dtype)}{tuple(x.shape)}" for x in (before, after))
            raise value_error(f"input {i} is {one} and output {o}, which is to be the same, {other}")
    return dict(aliases)


@dataclasses.dataclass(eq=False, repr=False)
class _Call:
    """A call without its arrays. Equal calls share compiled code."""

    fn: Any
    tree: Any
    output_tree: Any
    shapes: tuple[Any, ...]
    specs: tuple[TensorSpec, ...]
    output_specs: tuple[TensorSpec, ...]
    aliases: dict[int, int]
    captured: bool
    target: str | None
    options: Any
    key: Any
    static: bool
    vmap_method: str
    keywords: dict[str, Any]

    def __post_init__(self) -> None:
        shapes = tuple((str(shape.shape), str(shape.dtype)) for shape in self.shapes)
        keywords = tuple((name, type(value), value) for name, value in self.keywords.items())
        values = vars(self) | {"shapes": shapes, "aliases": tuple(self.aliases.items()), "keywords": keywords}
        key: object = tuple(values.values())
        try:
            hash(key)
        except TypeError:
            key = id(self)
        self._key = key

    def with_axis(self, size: int) -> _Call:
        """Return the call for arrays with one more axis in front."""
        shapes = tuple(jax.ShapeDtypeStruct((size, *s.shape), s.dtype) for s in self.shapes)
        specs, output_specs = (tuple(spec.with_axis() for spec in each) for each in (self.specs, self.output_specs))
        return dataclasses.replace(self, shapes=shapes, specs=specs, output_specs=output_specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Call) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return getattr(self.fn, "__name__", "kernel")

    def compiled(self, avals: Sequence[Any], platform: str) -> tuple[Any, list[int]]:
        """Return the handled call for arrays of these shapes, and the numbers that calls pass.

        If only Python can call the kernel, it is the compiled function.
        """
        shapes = tuple(
            (str(a.shape) if self._symbolic(avals) or self._is_static() else len(a.shape), str(a.dtype)) for a in avals
        )
        where = (self, shapes, platform)
        with _lock:
            if where not in _compiled:
                if len(_compiled) >= _MOST_KEPT:
                    del _compiled[next(iter(_compiled))]
                _compiled[where] = self._compile(avals, platform)
            return _compiled[where]

    def numbers(self, compiled: Any) -> dict[str, Any]:
        """Return the keyword arguments that calls pass."""
        return {name: value for name, value in self.keywords.items() if name in compiled.keys}

    def _is_static(self) -> bool:
        return self.static or any(spec.static or spec.divisibility for spec in (*self.specs, *self.output_specs))

    def _symbolic(self, avals: Sequence[Any]) -> bool:
        return not all(isinstance(extent, int) for a in (*avals, *self.shapes) for extent in a.shape)

    def _compile(self, avals: Sequence[Any], platform: str) -> tuple[Any, list[int]]:
        on_host = platform == "cpu"
        sources = [handler.Source(STREAM, 0 if on_host else 1, "the stream is not known")]

        def fakes(
            kind: int, arrays: Sequence[Any], specs: Sequence[TensorSpec], what: str, skip: Any = ()
        ) -> list[Any]:
            arguments: list[Any] = []
            for index, (array, spec) in enumerate(zip(arrays, specs, strict=True)):
                name = f"{what} {index}"
                rank = len(array.shape)
                if index in skip:
                    arguments.append(None)
                    continue
                fake = spec.checked(rank, name).fake(array.shape, array.dtype, self.static, on_host, name)
                arguments.append(fake)
                mismatch = f"{name} does not fit what was compiled, a {fake}: extents, multiples or alignment"
                sources.append(handler.Source(kind, index, mismatch, spec.order(rank), spec.major(rank)))
            return arguments

        inputs = fakes(ARGUMENT, avals, self.specs, "input")
        same = set(self.aliases.values())
        outputs = fakes(RESULT, self.shapes, self.output_specs, "output", same)
        arguments = jax.tree.unflatten(self.tree, inputs)
        results = self._results(outputs, same)
        jitted = compile_function(
            self.fn,
            make_fake_stream(),
            *arguments,
            *results,
            options=self.options,
            target=_PLATFORMS[platform],
            **self.keywords,
        )
        compiled = getattr(jitted, "compiled", jitted)
        numbers: list[int] = []
        for name, value in self.keywords.items():
            if name in compiled.keys:
                sources.append(handler.Source(NUMBER, len(numbers), f"the number {name} is out of its range"))
                numbers.append(_word(name, value, compiled.keys[name]))
        return handler.add(compiled, sources) or self._python_only(compiled, platform), numbers

    def _python_only(self, compiled: object, platform: str) -> Any:
        """Return a function that XLA cannot call, for Python to call on the host; refuses it elsewhere."""
        if platform == "cpu":
            return compiled
        raise type_error(
            f"{self!r} cannot be called from JAX: its parameters are not arrays, numbers and groups of them alone"
        )

    def _results(self, outputs: Sequence[object], same: set[int]) -> list[Any]:
        """Return the outputs as the function takes them: in their tree, without those that are inputs."""
        if not same:
            tree = jax.tree.unflatten(self.output_tree, outputs)
            return list(tree) if type(tree) is tuple else [tree] if outputs else []
        return [output for output in outputs if output is not None]


_compiled: dict[Any, tuple[Any, list[int]]] = {}
_lock = fork_safe.rlock()


def _word(name: str, value: Any, kind: Any) -> int:
    """Return a number as a word of an attribute."""
    if not (isinstance(kind, type) and issubclass(kind, Numeric)):
        raise type_error(
            f"the keyword {name} is {type(value).__name__}, which a call from JAX cannot pass",
            "annotate it as Constexpr, so that it is compiled in",
        )
    plain = getattr(value, "value", value)
    return struct.unpack("<q", struct.pack("<d", plain))[0] if kind.is_float else int(plain)


# --- the primitive ---------------------------------------------------------------------------------------------------

_primitive = jax.extend.core.Primitive("kiln_call")
_primitive.multiple_results = True


@_primitive.def_abstract_eval
def _abstract(*avals: object, call: _Call) -> list[Any]:
    return [jax.core.ShapedArray(shape.shape, shape.dtype) for shape in call.shapes]


@functools.lru_cache(maxsize=_MOST_KEPT)
def _jitted(call: _Call) -> Any:
    return jax.jit(lambda *arrays: _primitive.bind(*arrays, call=call))


@_primitive.def_impl
def _run(*arrays: object, call: _Call) -> Any:
    return _jitted(call)(*arrays)


def _lower(platform: str, context: Any, *operands: object, call: _Call) -> Any:
    handled, numbers = call.compiled(context.avals_in, platform)
    if not isinstance(handled, handler.HandledCall):
        return mlir.lower_fun(functools.partial(_call_python, handled, call), multiple_results=True)(context, *operands)
    target = call.target or (handler.TARGET if call.captured else handler.UNCAPTURED)
    handler.register(target, "cpu" if platform == "cpu" else "CUDA", call.captured)
    minor_first = lambda avals, specs: [
        tuple(reversed(s.major(len(a.shape)))) for a, s in zip(avals, specs, strict=True)
    ]
    for_export = getattr(context.module_context.lowering_parameters, "for_export", True)
    passed = minor_first(context.avals_in, call.specs)
    result_layouts = minor_first(context.avals_out, call.output_specs)
    rule = jax.ffi.ffi_lowering(
        target, operand_layouts=passed, result_layouts=result_layouts, operand_output_aliases=call.aliases
    )
    return rule(context, *operands, **handler.attributes(handled, numbers, for_export))


for _platform in _PLATFORMS:
    mlir.register_lowering(_primitive, functools.partial(_lower, _platform), platform=_platform)


def _aligned(shape: Any, dtype: Any, contents: object = None) -> Any:
    """Return a writable array aligned as XLA's."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(size + HOST_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % HOST_ALIGNMENT
    aligned = memory[start : start + size].view(dtype).reshape(shape)
    if contents is not None:
        aligned[...] = contents
    return aligned


def _call_python(compiled: Any, call: _Call, *arrays: object) -> Any:
    """Call a function from Python, for example under the sanitizer."""
    in_place = {o: i for i, o in call.aliases.items()}

    def run(*values: Any) -> Any:
        inputs = [_aligned(x.shape, x.dtype, x) for x in values]
        outputs = [
            inputs[in_place[o]] if o in in_place else _aligned(s.shape, s.dtype) for o, s in enumerate(call.shapes)
        ]
        seen = lambda arrays, specs: [
            as_device_memory(x.transpose(spec.order(x.ndim))) for x, spec in zip(arrays, specs, strict=True)
        ]
        arguments = jax.tree.unflatten(call.tree, seen(inputs, call.specs))
        passed = [None if o in in_place else x for o, x in enumerate(seen(outputs, call.output_specs))]
        compiled(Stream(0), *arguments, *call._results(passed, set(in_place)), **call.numbers(compiled))
        return outputs

    return jax.pure_callback(run, list(call.shapes), *arrays)


def _no_derivative(*_: Any, call: _Call) -> Any:
    raise type_error(
        f"{call!r} has no derivative: JAX cannot see into a kernel",
        "give it one: kiln.jax.differentiable(forward, backward), or jax.custom_vjp",
    )


ad.primitive_jvps[_primitive] = lambda primals, tangents, call: _no_derivative(call=call)


def _batched(arrays: Sequence[Any], axes: Sequence[Any], *, call: _Call) -> Any:
    if call.vmap_method == "sequential":
        moved = [a if d is None else jax.numpy.moveaxis(a, d, 0) for a, d in zip(arrays, axes, strict=True)]
        mapped = [a for a, d in zip(moved, axes, strict=True) if d is not None]

        def one(parts: Any) -> Any:
            rest = iter(parts)
            return _primitive.bind(
                *(a if d is None else next(rest) for a, d in zip(moved, axes, strict=True)), call=call
            )

        results = jax.lax.map(one, mapped)
    else:
        size = next(a.shape[d] for a, d in zip(arrays, axes, strict=True) if d is not None)
        moved = [
            jax.numpy.broadcast_to(a, (size, *a.shape)) if d is None else jax.numpy.moveaxis(a, d, 0)
            for a, d in zip(arrays, axes, strict=True)
        ]
        results = _primitive.bind(*moved, call=call.with_axis(size))
    return results, [0] * len(results)


batching.primitive_batchers[_primitive] = _batched
