"""`cute.compile`: a function and example arguments in, a compiled function out."""

from __future__ import annotations

import types
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from ...base_dsl import settings
from ...base_dsl.arguments import AMBIENT_STREAM
from ...base_dsl.diagnostics import DSLBaseError, DSLWarning, type_error
from ...base_dsl.dsl import shorten_traceback
from ...base_dsl.function import JitFunction
from ...base_dsl.options import CompileOptions, EnableAssertions, FrontendNext, GenerateLineInfo, OptLevel
from ...base_dsl.target import target_name
from ...hardware.current import compiling_with
from ...hardware.options import (
    RDC,
    DeviceTarget,
    DisableCuteExtCompile,
    GPUArch,
    KeepCUBIN,
    KeepPTX,
    KeepSASS,
    LinkLibraries,
    NvdisasmOptions,
    PtxasOptions,
    RemarkFilter,
    RemarkOutput,
)
from ...interop.options import EnableTVMFFI
from .dsl import DSL, KernelFunction, KernelLaunch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...base_dsl.compiled_function import CompiledFunction
    from .stages import ArtifactType, CompilationArtifact

R = TypeVar("R")

__all__ = [
    "RDC",
    "DeviceTarget",
    "DisableCuteExtCompile",
    "EnableAssertions",
    "EnableTVMFFI",
    "FrontendNext",
    "GPUArch",
    "GenerateLineInfo",
    "KeepCUBIN",
    "KeepPTX",
    "KeepSASS",
    "LinkLibraries",
    "NvdisasmOptions",
    "OptLevel",
    "PtxasOptions",
    "RemarkFilter",
    "RemarkOutput",
    "compile",
    "compile_to",
]


_ARTIFACTS = {"ptx": "ptx", "cubin": "cubin", "sass": "sass"}


class Compile:
    """Compile a jit function ahead of its calls: `compile(fn, *args, options="--opt-level 2")`.

    It traces and compiles at every call, and returns a function that takes the dynamic arguments. Options may also be
    objects: `compile[OptLevel(2), KeepPTX](fn, *args)`.

    Args:
        function: a function decorated with `@jit`, a method of that kind, or an object whose `__call__` is one.
        args: arguments like those of later calls: arrays, fake tensors or numbers. Constexpr ones are compiled in.
        options: compile options in one string, such as `"--gpu-arch sm_90a --keep-ptx"`.
        target: "cpu" or "nvidia"; by default the current target.
        kwargs: arguments of the function by name.
    """

    def __init__(self, *options: Any) -> None:
        self._options = options

    def __getitem__(self, options: object) -> Compile:
        return type(self)(*self._options, *(options if isinstance(options, tuple) else (options,)))

    def _more_arguments(self, options: CompileOptions) -> dict[str, Any]:
        """Return arguments that are not parameters of the function."""
        if not options.convention.ambient_stream:
            return {}
        from ..host.runtime import make_fake_stream

        # launches go to the stream on which the caller's framework works
        return {AMBIENT_STREAM: make_fake_stream(use_tvm_ffi_env_stream=True)}

    def __call__(
        self,
        function: Callable[..., R],
        *args: object,
        options: object = None,
        target: str | None = None,
        **kwargs: object,
    ) -> CompiledFunction[R]:
        """Return the function compiled for arguments like these: arrays, fake tensors or numbers."""
        try:
            jit, args = _jit_function(function, args)
            parsed = CompileOptions(*self._options, options)
            arguments = {**jit.parameters.bind(args, kwargs), **self._more_arguments(parsed)}
            with compiling_with(parsed, target):
                nodes = jit.parameters.nodes(jit.dsl, arguments, takes_none=arguments)
                compiled = jit.compile(nodes, arguments, parsed, target)
            jit.dsl.caller.learn_compiled(compiled, arguments.values())
            for kind in sorted(parsed.kept() - settings.kept()):  # those of the environment are of every compilation
                if kind in _ARTIFACTS and _ARTIFACTS[kind] not in compiled.artifacts:
                    warnings.warn(
                        f"the target {target or target_name()} makes no {kind}: __{kind}__ is None",
                        DSLWarning,
                        stacklevel=2,
                    )
            return compiled.convention.wrap(compiled)
        except DSLBaseError as failure:
            shorten_traceback(failure)
            raise

    def compile_to(
        self,
        artifact_type: ArtifactType,
        function: Callable[..., object],
        *args: object,
        options: object = None,
        target: str | None = None,
        **kwargs: object,
    ) -> CompilationArtifact:
        """Compile a jit function up to a stage, and return what there is then.

        Args:
            artifact_type: the stage, such as `ArtifactType.Llvm` of `cutlass.compiler`.
            function: a function as of `compile`.
            args: arguments like those of later calls.
            options: compile options in one string.
            target: "cpu" or "nvidia"; by default the current target.
            kwargs: arguments of the function by name.
        """
        from .stages import ArtifactType, CompilationArtifact

        if not isinstance(artifact_type, ArtifactType):
            raise type_error(
                f"compile_to() got {artifact_type!r} as the stage",
                f"write ArtifactType.{', '.join(stage.name for stage in ArtifactType)} of cutlass.compiler",
            )
        compiled = self(function, *args, options=options, target=target, **kwargs)
        content = compiled.artifacts[artifact_type.value]
        data = content.encode() if isinstance(content, str) else content
        return CompilationArtifact(artifact_type, compiled.function_name, compiled.target, data)

    def to_precompiled_mlir(
        self,
        function: Callable[..., object],
        *args: object,
        options: object = None,
        target: str | None = None,
        **kwargs: object,
    ) -> str:
        """Return the module that tracing a jit function gives, as text; arguments are those of `compile`."""
        from .stages import ArtifactType

        artifact = self.compile_to(
            ArtifactType.PreCompiledMlir, function, *args, options=options, target=target, **kwargs
        )
        return str(artifact)


def _jit_function(function: object, args: tuple[object, ...]) -> tuple[JitFunction[..., Any], tuple[Any, ...]]:
    """Return the jit function to compile, with `self` put before the arguments of a method."""
    if isinstance(function, types.MethodType):
        inner, more = _jit_function(function.__func__, args)
        return inner, (function.__self__, *more)
    if isinstance(function, JitFunction):
        return function, args
    if isinstance(function, (KernelFunction, KernelLaunch)):
        name = function.name if isinstance(function, KernelFunction) else function.kernel.name
        raise type_error(
            f"compile() got the kernel {name!r}",
            "a kernel is compiled with the @jit function that launches it: compile that one",
        )
    if isinstance(function, types.FunctionType):
        return DSL.jit(function), args
    call = getattr(type(function), "__call__", None)  # noqa: B004 - which one, not whether
    if isinstance(call, JitFunction):
        return call, (function, *args)
    raise type_error(
        f"compile() takes a function decorated with @jit, or an object whose __call__ is one, not {type(function).__name__}",
        "decorate the function with @jit",
    )


compile: Compile = Compile()
compile_to = compile.compile_to
