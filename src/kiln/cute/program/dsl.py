"""The CuTe language: `scf` control flow, kernels and launches on the `cute` dialect."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from ..._support import lazy
from ...base_dsl import sanitizing, settings, tree
from ...base_dsl import trace as tracing
from ...base_dsl.arguments import GroupNode, Node, Quick
from ...base_dsl.bindings import file_location, ir
from ...base_dsl.diagnostics import DSLBaseError, frame_span, runtime_error, type_error, user_frame
from ...base_dsl.function import JitFunction
from ...base_dsl.log import logger
from ...base_dsl.operators import max as max_
from ...base_dsl.operators import min as min_
from ...base_dsl.promises import Kinds
from ...base_dsl.scf import ScfDSL
from ...base_dsl.source_context import return_span
from ...base_dsl.traced_function import TracedFunction
from ...base_dsl.typing import Boolean, Int32, Int64, Integer, Numeric
from ...hardware import current, features
from ...hardware.architectures import Arch
from ..deferred_dialects import cute, effects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Protocol

    from typing_extensions import Self

    from ...base_dsl.caller import Caller
    from ...hardware.architectures import Architecture
    from ...mlir import ext
    from ..host import arguments as host_arguments
    from ..host import native_calls, symbols
    from ..host import stream as streams

    Extents = int | Integer | Sequence[int | Integer]
    """The size of a grid, a CTA or a cluster: x, (x,), (x, y) or (x, y, z)."""

    class JitDecorator(Protocol):
        """What `@jit(...)` with options returns."""

        def __call__(self, function: Callable[P, R], /) -> JitFunction[P, R]: ...

    class KernelDecorator(Protocol):
        """What `@kernel(...)` with options returns."""

        def __call__(self, function: Callable[P, Any], /) -> KernelFunction[P]: ...
else:  # loaded by the first call: they read arrays of other packages
    host_arguments = lazy.Module("kiln.cute.host.arguments")
    native_calls = lazy.Module("kiln.cute.host.native_calls")
    streams = lazy.Module("kiln.cute.host.stream")
    symbols = lazy.Module("kiln.cute.host.symbols")

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
Owner = TypeVar("Owner")


class Settings:
    """The settings `CUTE_DSL_...` as they are now, by names such as `dump_dir`; `arch` is the GPU compiled for."""

    def __getattr__(self, name: str) -> object:
        if name == "arch":
            return current.architecture().name
        variable = f"CUTE_DSL_{name.upper()}"
        if variable not in settings.SETTINGS:
            raise AttributeError(f"there is no setting {variable}")
        return settings.get(variable)


class CuteDSL(ScfDSL):
    """CuTe in Python."""

    name = "cute"

    @functools.cached_property
    def caller(self) -> Caller:  # type: ignore[override]
        """The native caller."""
        return native_calls.CuteCaller()

    def get_arch_enum(self) -> Architecture:
        """Return the GPU architecture that is compiled for, as an `Arch`.

        Where nothing names one and there is no GPU, a program that has used tcgen05 is meant for the first chip with it.
        """
        trace = tracing.current()
        if trace is None or not trace.has_operation(lambda op: effects.needs(op, features.TCGEN05)):
            return current.architecture()
        return current.architecture(default=next(arch.name for arch in Arch if features.TCGEN05.on(arch)))

    @property
    def envar(self) -> Settings:
        """The settings `CUTE_DSL_...` as attributes: `envar.arch`, `envar.dump_dir`."""
        return Settings()

    def dialects(self) -> Sequence[type[ext.Dialect]]:
        return (cute.Cute, cute.Cuda)

    def value_of(self, value: ir.Value) -> object:
        """Return the pointer that an address of the `cute` dialect is; other values as they are."""
        from ..tensor.pointer import from_ir

        return from_ir(value) if cute.is_ptr(value.type) else value

    def describe_arguments(self, function: Any, nodes: Sequence[Node]) -> None:
        """Attach the layout of each array to the argument that is its address, for the sanitizer."""
        if not sanitizing.kinds() and not (sanitizing.checks() and current.compiled_for().name == "cpu"):
            return
        attributes = [
            {} if text is None else {cute.LAYOUT: ir.StringAttr.get(text)}
            for text in host_arguments.array_layouts(nodes)
        ]
        function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in attributes])

    def written_arguments(self, module: object, entry: str) -> frozenset[int]:
        from .written import written_arguments

        return written_arguments(module, entry)

    def check_arguments(self, nodes: Sequence[Node], names: Sequence[str], values: Sequence[object]) -> Any:
        """Add checks that symbols which several tensors share have one value."""
        return symbols.check_shared(nodes, names, values)

    def may_check_traced(self, nodes: Sequence[Node]) -> bool:
        return symbols.may_overflow(nodes)

    def check_traced_arguments(
        self, nodes: Sequence[Node], names: Sequence[str], values: Sequence[object], fits: object
    ) -> Any:
        """Add checks of the number of elements where extents are multiplied in 32 bits."""
        counts = tracing.require("a function").multiplies_extents
        return symbols.check_counts(nodes, names, values, fits) if counts else fits

    def loop_attributes(self, hints: dict[str, Any]) -> dict[str, ir.Attribute]:
        return cute.loop_hints(hints)

    def make_undefined(self, type_: ir.Type) -> ir.Value:
        return cute.undef(type_)

    def make_assert(self, condition: ir.Value, message: str) -> None:
        cute.assert_(condition, message.replace("%", "%%"))  # noqa: PT009

    def convert(self, value: object, annotation: object) -> Node | None:
        return host_arguments.argument_node(value, annotation)

    def seen_as(self, annotation: object) -> Any:
        return host_arguments.seen_as(annotation)

    def explain(self, failure: Exception, tb: types.TracebackType | None) -> DSLBaseError | None:
        from .mistakes import explain

        return explain(failure, tb)

    def instead_of(self, name: str) -> str:
        from .mistakes import instead_of

        return instead_of(name)

    def is_static_annotation(self, annotation: object) -> bool:
        return host_arguments.annotation_kind(annotation) == "static"

    def kind_of(self, value: object) -> str:
        return host_arguments.kind_of(value) or super().kind_of(value)

    def own_promise(self, annotation: object) -> Kinds | None:
        return host_arguments.kinds_promised(annotation)

    def read_annotations(self, annotations: Mapping[str, object]) -> dict[str, Any]:
        return host_arguments.read_annotations(annotations)

    def check(self, value: object, annotation: object, path: str, owner: str = "") -> None:
        super().check(value, annotation, path, owner)
        host_arguments.check_described(value, annotation, path, owner)

    def node(self, value: object, annotation: object, path: str) -> Node:
        if annotation is not None:
            if host_arguments.annotation_kind(annotation) == "shape" and not self.breaks(value, annotation):
                return host_arguments.shape_node(value)
        return super().node(value, annotation, path)

    def quick(self, kind: type, annotation: object, specialize: bool = False) -> Quick | None:
        if annotation is not None and host_arguments.annotation_kind(annotation) in ("shape", "described"):
            return None
        return super().quick(kind, annotation, specialize) or host_arguments.quick_array(kind, specialize)

    @overload
    def jit(self, function: Callable[P, R], /) -> JitFunction[P, R]: ...
    @overload
    def jit(
        self, function: None = None, *, preprocess: bool = True, preprocessor: bool | None = None
    ) -> JitDecorator: ...
    def jit(self, function: object = None, *, preprocess: bool = True, preprocessor: bool | None = None) -> Any:
        """Compile a Python function when it is called, or inline it where another function of the language calls it.

        Called from Python it is a host function: it is traced and compiled for the types of its arguments, and launches
        kernels.

        Args:
            function: the function; None where the decorator has arguments, `@jit(preprocess=False)`.
            preprocess: turn `if`, `for` and `while` over dynamic values into control flow of the program. False leaves
                them to Python.
            preprocessor: another name of `preprocess`.
        """
        preprocess = preprocess if preprocessor is None else preprocessor
        if function is None:
            return functools.partial(self.jit, preprocess=preprocess)
        return JitFunction(self, _plain_function(function, "jit"), preprocess)

    @overload
    def kernel(self, function: Callable[P, Any], /) -> KernelFunction[P]: ...
    @overload
    def kernel(
        self, function: None = None, *, preprocess: bool = True, preprocessor: bool | None = None
    ) -> KernelDecorator: ...
    def kernel(self, function: object = None, *, preprocess: bool = True, preprocessor: bool | None = None) -> Any:
        """Make a Python function a kernel, which every thread of a grid runs.

        A jit function launches it: `kernel(x, y).launch(grid=(m, 1, 1), block=(128, 1, 1))`.

        Args:
            function: the function; None where the decorator has arguments.
            preprocess: turn `if`, `for` and `while` over dynamic values into control flow of the program. False leaves
                them to Python.
            preprocessor: another name of `preprocess`.
        """
        preprocess = preprocess if preprocessor is None else preprocessor
        if function is None:
            return functools.partial(self.kernel, preprocess=preprocess)
        return KernelFunction(self, _plain_function(function, "kernel"), preprocess)


def _plain_function(function: object, decorator: str) -> types.FunctionType:
    if isinstance(function, (staticmethod, classmethod)):
        raise type_error(
            f"@{decorator} stands above @{type(function).__name__}",
            f"write @{type(function).__name__} above @{decorator}",
        )
    if isinstance(function, TracedFunction):
        return function.function
    if not isinstance(function, types.FunctionType):
        raise type_error(f"@{decorator} takes a function, not {type(function).__name__}", "put the decorator on a def")
    return function


DSL = CuteDSL()


class KernelFunction(TracedFunction[P, "KernelLaunch"]):
    """A kernel. Called in a jit function it gives something to launch."""

    _called = "@kernel"

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(
            self: KernelFunction[Concatenate[Owner, Q]], instance: Owner, owner: type | None = None
        ) -> KernelFunction[Q]: ...
        @overload
        def __get__(self, instance: object, owner: type | None = None) -> Self: ...  # below @staticmethod
        def __get__(self, instance: Any, owner: type | None = None) -> Any: ...

    def run(self, args: Any, kwargs: dict[str, Any]) -> Any:
        return super().run(host_arguments.as_tensors(self.parameters, args), kwargs)

    def prepare(self, frame: tracing.FunctionFrame) -> None:
        """Prepare the function that the body is traced into. By default nothing."""

    def more_arguments(
        self, frame: tracing.FunctionFrame, values: Sequence[ir.Value], grid: Sequence[Int64]
    ) -> list[ir.Value] | None:
        """Return, in host code, values of the parameters that the trace of the body added; None: do not launch."""
        return []

    if not TYPE_CHECKING:

        def __call__(self, *args: object, **kwargs: object) -> KernelLaunch:
            active = tracing.current()
            if active is None:
                raise runtime_error(
                    f"the kernel {self.name!r} was called from Python",
                    f"launch it from a @jit function: {self.name}(...).launch(grid=..., block=...)",
                )
            if active.function.kind == "kernel":
                raise runtime_error(
                    f"the kernel {self.name!r} was called from a kernel",
                    "decorate it with @jit to inline it into the other kernel",
                )
            arguments = self.parameters.bind(args, kwargs)
            return KernelLaunch(self, arguments)


_SIZES_ELSEWHERE = {
    **dict.fromkeys(
        ("threads", "num_threads", "threads_per_block", "block_size", "block_dim", "blockDim"),
        "block= has the threads of a block: block=128, or block=(x, y, z)",
    ),
    **dict.fromkeys(("warps", "num_warps"), "block= has the threads of a block: block=32 * num_warps"),
    **dict.fromkeys(
        ("blocks", "num_blocks", "ctas", "num_ctas", "grid_dim", "gridDim"),
        "grid= has the blocks: grid=8, or grid=(x, y, z)",
    ),
    **dict.fromkeys(
        ("shared", "shared_mem", "shared_memory", "shmem", "dynamic_smem", "smem_bytes", "dynamic_smem_bytes"),
        "smem= has the bytes of shared memory; what the kernel allocates is counted by itself",
    ),
    **dict.fromkeys(
        ("clusters", "cluster_dims", "cluster_size"), "cluster= has the blocks of a cluster: cluster=(2, 1, 1)"
    ),
}
"""Names of a launch's sizes in other languages, and what to write for them."""


def _checks_option_names(launch: Callable[P, R]) -> Callable[P, R]:
    """Return `launch`, which answers an option that it does not have with the name of the nearest it has."""
    parameters = inspect.signature(launch).parameters.keys()

    @functools.wraps(launch)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        if args[1:]:
            raise type_error(
                "launch() takes its sizes by name", "launch(grid=(CTAs in x, y, z), block=(threads in x, y, z))"
            )
        if unknown := [name for name in options if name not in parameters]:
            import difflib  # start-up: it takes as long as a tenth of the language

            close = difflib.get_close_matches(unknown[0], list(parameters), 1, 0.75)
            hint = f"did you mean {close[0]}?" if close else ", ".join(parameters)
            hint = _SIZES_ELSEWHERE.get(unknown[0], hint)
            raise type_error(f"launch() got an unknown option {unknown[0]!r}", hint)
        return launch(*args, **options)

    return checked


class KernelLaunch:
    """A kernel with its arguments, ready to be launched."""

    __kiln_static__ = True

    def __init__(self, kernel: KernelFunction, arguments: dict[str, Any]) -> None:
        self.kernel = kernel
        self.arguments = arguments
        self._trace_of = tracing.current()
        frame = user_frame()
        self._creating_frame = id(frame)
        self._creation = None if frame is None else frame_span(frame)
        self._launched = False

    def __del__(self) -> None:
        """Report a launch that is dropped: an error if its statement drops it, else a warning."""
        if self._launched or tracing is None:  # None: the interpreter is ending, and has emptied this module
            return
        active = tracing.current()
        if active is None or active is not self._trace_of or self._creation is None:
            return
        at = self._creation
        name = self.kernel.name
        frame = user_frame()
        if (
            frame is not None
            and id(frame) == self._creating_frame
            and at.line <= frame.f_lineno <= max(at.line, at.end_line)
        ):
            complaint = runtime_error(
                f"the kernel {name!r} is called and not launched: nothing would run",
                f"launch it: {name}(...).launch(grid=..., block=...)",
                span=at,
            )
            active.complaints.append(complaint)
        else:
            logger().warning("%s:%d: the kernel %r is called and never launched", at.filename, at.line, name)

    @_checks_option_names
    def launch(
        self,
        *,
        grid: Extents,
        block: Extents,
        cluster: Extents | None = None,
        smem: int | Integer | None = None,
        stream: object = None,
        max_number_threads: Extents | None = None,
        min_blocks_per_mp: int | None = None,
        use_pdl: bool | Boolean = False,
        cooperative: bool = False,
        fallback_cluster: Extents | None = None,
        launch_completion_event: object = None,
        launch_completion_event_flags: int | Integer | None = None,
        programmatic_event: object = None,
        programmatic_event_flags: int | Integer | None = None,
        programmatic_event_trigger_at_block_start: int | Integer | None = None,
        smem_merge_branch_allocs: bool = False,
        preferred_smem_carveout: int | None = None,
        async_deps: object = None,
        has_cluster: bool = False,
        has_fallback_cluster: bool = False,
        hint_smem_base_uniform: bool = True,
    ) -> None:
        """Run the kernel over a grid of CTAs; sizes are (x, y, z), or fewer numbers.

        `smem` is the least shared memory of a CTA, in bytes; the kernel's own allocations are counted and part of it.
        For a kernel with `get_dyn_smem` it is the size of that memory. With `fallback_cluster`, which is then the
        guaranteed cluster size, GPUs that can choose form clusters of the larger size `cluster` where they have room.
        `preferred_smem_carveout` is the percentage of an SM's memory to be shared memory; by default, what
        `min_blocks_per_mp` CTAs need. `use_pdl` may be a Boolean that only the run knows. `async_deps` is another way
        to pass the stream. The address of shared memory is uniform as it is, so `hint_smem_base_uniform` changes
        nothing.
        """
        active = tracing.require("a launch")
        self._launched = True
        if active.function.kind == "kernel":
            raise runtime_error("a kernel cannot launch a kernel", "launch it from the @jit function")
        kernel = self.kernel
        certain = cluster if fallback_cluster is None else fallback_cluster
        has_fallback = fallback_cluster is not None and cluster is not None
        sizes = [
            *_extent("grid", grid),
            *_extent("block", block),
            *_extent("cluster", certain if certain is not None else 1),
        ]
        nodes = kernel.parameters.nodes(kernel.dsl, self.arguments)
        values = [v for node in nodes for v in node.values()]
        name, frame = self._trace(active, nodes, values)
        more = kernel.more_arguments(frame, values, sizes[:3])
        if more is None:
            return
        values += more
        events = {
            "launch_completion": (launch_completion_event, launch_completion_event_flags, None),
            "programmatic": (programmatic_event, programmatic_event_flags, programmatic_event_trigger_at_block_start),
        }
        events = {name: parts for name, parts in events.items() if parts[0] is not None}
        values += [value for parts in events.values() for value in _event_values(*parts)]
        shared = _size("smem", smem if smem is not None else 0).ir_value()
        queue = _stream_value(stream if stream is not None else _only_stream(async_deps))

        def start(dependent: bool) -> None:
            cute.launch(
                name,
                [s.ir_value() for s in sizes[:3]],
                [s.ir_value() for s in sizes[3:6]],
                [s.ir_value() for s in sizes[6:]],
                shared,
                queue,
                values,
                cooperative=bool(cooperative),
                use_pdl=dependent,
                max_threads=_threads_of(max_number_threads),
                min_blocks=_in_range("min_blocks_per_mp", int(min_blocks_per_mp)) if min_blocks_per_mp else 0,
                preferred_cluster=_preferred_cluster(cluster, fallback_cluster) if has_fallback else (),
                carveout=None if preferred_smem_carveout is None else _percent(preferred_smem_carveout),
                merge_smem=bool(smem_merge_branch_allocs),
                events=list(events),
            )

        _in_either_case(use_pdl, start)

    def _trace(
        self, active: tracing.Trace, nodes: Sequence[Node], values: Sequence[ir.Value]
    ) -> tuple[str, tracing.FunctionFrame]:
        """Trace the kernel's body as a function of the module, and return its name and the function."""
        kernel = self.kernel
        taken = {op.attributes["sym_name"].value for op in active.module.body.operations if "sym_name" in op.attributes}
        base = (kernel.name_prefix or "") + _symbol(kernel)
        name = base
        number = 1
        while name in taken:
            name = f"{base}_{number}"
            number += 1
        location = file_location(kernel.span.filename, kernel.span.line, 1)
        with ir.InsertionPoint(active.module.body):
            function, entry = kernel.dsl.make_function(name, [v.type for v in values], location)
        function.attributes[cute.KERNEL] = ir.UnitAttr.get()
        _name_arguments(entry, self.arguments, nodes, location)
        with tracing.inside_function(active, entry, "kernel") as frame:
            frame.passed = values
            kernel.prepare(frame)
            arguments = iter(list(entry.arguments))
            traced = dict(zip(self.arguments, [node.rebuild(arguments) for node in nodes], strict=True))
            args, kwargs = kernel.parameters.call_arguments(traced)
            try:
                with active.inlined_call():
                    returned = kernel.run(args, kwargs)
            except Exception as failure:
                _end_trace(active, kernel, failure)
                raise
            if returned is not None:
                raise type_error(
                    f"the kernel {kernel.name!r} returns a value",
                    "a kernel returns nothing: write results to a tensor",
                    span=return_span(kernel.function) or kernel.span,
                )
            kernel.dsl.finish_function(function, [a.type for a in entry.arguments], [])
        if active.multiplies:
            from . import overwritten

            overwritten.warn(function)
            active.multiplies = False
        return name, frame


tracing.kernel_codes.append(KernelLaunch._trace.__code__)


def _event_values(event: object, flags: object, trigger: object) -> list[ir.Value]:
    """Return an event of a launch as operands."""
    numbers = [Int32(0 if number is None else number).ir_value() for number in (flags, trigger)]
    return [_stream_value(event), *numbers]


def _end_trace(active: tracing.Trace, kernel: KernelFunction, failure: Exception) -> None:
    """End the trace after an exception in a kernel, of which half is left, even if the program catches it."""
    if active.broken is None:
        active.broken_by = failure
        active.broken = (
            failure
            if isinstance(failure, DSLBaseError)
            else runtime_error(
                f"{type(failure).__name__} is raised while the kernel {kernel.name!r} is traced, and caught by what launches it",
                "decide before the launch whether the kernel can do it, or catch the exception inside the kernel",
                span=kernel.span,
            )
        )


def _symbol(kernel: KernelFunction) -> str:
    """Return a kernel's name in compiled code and profiles: that of a method is preceded by its class's."""
    return kernel.function.__qualname__.rpartition("<locals>.")[2].replace(".", "_").lstrip("_") or kernel.name


def _name_arguments(entry: Any, names: Iterable[str], nodes: Sequence[Node], location: object) -> None:
    """Let the arguments of a function carry their parameters' names, for reports."""
    values = iter(list(entry.arguments))
    for name, node in zip(names, nodes, strict=True):
        for text in _argument_names(name, node):
            next(values).set_location(ir.Location.name(text, location))


def _argument_names(name: str, node: Node) -> Iterable[str]:
    """Return a name for each value of an argument."""
    if not isinstance(node, GroupNode) or not node.has_named_parts:
        return [name] * len(node.types())
    parts = node.children
    return [
        text
        for i, part in enumerate(parts)
        for text in _argument_names(name if len(parts) == 1 else f"{name}[{i}]", part)
    ]


def _in_either_case(condition: Any, act: Any) -> None:
    """Call a function with a Python bool; for a Boolean that is not known when compiling, in a branch for each value."""
    if not isinstance(condition, Boolean) or condition.is_static:
        act(bool(condition))
        return
    branch = tracing.emit("scf.if", (), (condition.ir_value(),), regions=2)
    for region, value in zip(branch.regions, (True, False), strict=True):
        with ir.InsertionPoint(region.blocks.append()):
            act(value)
            tracing.emit("scf.yield")


def _preferred_cluster(preferred: Any, certain: Any) -> list[int]:
    """Return the extents of the cluster that is preferred to another; both are known when compiling."""
    both: list[list[int]] = []
    for what, size in (("cluster", preferred), ("fallback_cluster", certain)):
        parts = list(size) if isinstance(size, (tuple, list)) else [size]
        if len(parts) > 3 or any(isinstance(part, bool) or not isinstance(part, int) or part < 1 for part in parts):
            raise type_error(f"{what} is {size!r}", "Python integers: (x, y, z)")
        both.append(parts + [1] * (3 - len(parts)))
    if any(large % small for large, small in zip(*both, strict=True)):
        raise type_error(
            f"cluster is {tuple(both[0])} and fallback_cluster {tuple(both[1])}",
            "each extent of cluster is a multiple of the other's",
        )
    return both[0]


def _percent(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100:
        raise type_error(f"preferred_smem_carveout is {value!r}", "a percentage, 0 to 100; None for the default")
    return value


def _only_stream(dependencies: object) -> Any:
    """Return the stream of `async_deps`: itself, or the only one of a list."""
    if not isinstance(dependencies, (list, tuple)):
        return dependencies
    if len(dependencies) > 1:
        raise type_error(f"async_deps has {len(dependencies)} streams", "a launch waits for one stream: pass stream=")
    return dependencies[0] if dependencies else None


def _extent(what: str, size: object) -> list[Int64]:
    parts = list(size) if isinstance(size, (tuple, list)) else [size]
    if not 1 <= len(parts) <= 3:
        raise type_error(f"{what} has {len(parts)} extents", f"{what}=(x, y, z)")
    extents = [_size(f"{what}.{axis}", part) for axis, part in zip("xyz", parts, strict=False)]
    return extents + [Int64(1)] * (3 - len(extents))


_LARGEST_SIZE = (1 << 31) - 1
"""No number of a launch may be larger: the driver takes 32 bits."""


def _size(what: str, value: object) -> Int64:
    """Return a number of a launch. A dynamic one is checked when the launch is made, as here: with 64 bits."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, Numeric))
        or (isinstance(value, Numeric) and type(value).is_float)
    ):
        raise type_error(
            f"{what} is {value!r} of type {type(value).__name__}",
            "extents are integers: divide with //, or cute.ceil_div(n, 128)",
        )
    if isinstance(value, int):
        return Int64(_in_range(what, value))
    kind: Any = type(value)
    if kind.width > 64 and kind.signed:
        value = max_(value, kind(-(1 << 63)))
    if kind.width > 64 or (kind.width == 64 and not kind.signed):
        value = min_(value, kind((1 << 63) - 1))  # the largest that can be told: it is refused
    return Int64(value)


def _in_range(what: str, value: int) -> int:
    if not -_LARGEST_SIZE <= value <= _LARGEST_SIZE:
        raise type_error(f"{what} is {value}", f"it is at most {_LARGEST_SIZE}")
    return value


def _threads_of(most: Any) -> int:
    """Return the largest number of threads of a block: a number, or one along each axis; 0 if it is not given."""
    parts = [] if most is None else list(most) if isinstance(most, (tuple, list)) else [most]
    if any(isinstance(part, bool) or not isinstance(part, int) for part in parts):
        raise type_error(f"max_number_threads is {most!r}", "Python integers: (x, y, z)")
    total = 1 if parts else 0
    for part in parts:
        total *= part
    return _in_range("max_number_threads", total)


def _stream_value(stream: Any) -> ir.Value:
    if stream is None:
        stream = tracing.require("a launch").ambient_stream
    if stream is None:
        return Int64(0).ir_value()
    if isinstance(stream, Numeric) and not type(stream).is_float:
        return Int64(stream).ir_value()
    if not isinstance(stream, Numeric) and hasattr(stream, "__extract_mlir_values__"):
        return stream.__extract_mlir_values__()[0]
    handle = streams.handle_of(stream)
    if handle is None and hasattr(stream, "__int__") and not isinstance(stream, (float, Numeric)):
        handle = int(stream)
    if handle is None:
        raise type_error(
            f"stream is {tree.describe(stream)}",
            "pass a stream of torch, cupy or the driver, its handle, or leave it out",
        )
    return Int64(handle).ir_value()
