"""Kernels that know the coordinates of tensors, and take from the launch what they need besides their arguments."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

from ...base_dsl import trace as tracing
from ...base_dsl.arguments import WORKSPACE
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import DSLUserCodeTypeError, error, runtime_error
from ...base_dsl.typing import Int32, Int64, Uint8
from ...utils.tmem_allocator import TmemBufferPool
from .. import arch
from ..arch.smem import alloc_smem
from ..atoms.copying import guarded
from ..deferred_dialects import cute
from ..layout.layout import Layout
from ..program.compiling import Compile
from ..program.dsl import DSL, CuteDSL, KernelFunction, _plain_function
from ..tensor.extents import FOLLOWED, Extents
from ..tensor.pointer import AddressSpace, Pointer
from ..tensor.tensor import TracedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...base_dsl.options import CompileOptions

__all__ = ["CuteExperimentalDSL", "compile", "jit", "kernel"]

jit = DSL.jit
_NOTE = "needs of a kernel"
_SIZES = "bytes of workspaces"
"""The note of a host function that is run to learn how large its workspace must be."""
MAP_BYTES = 128
_LEAST_COLUMNS = 32
_MOST_COLUMNS = 512


class WorkspaceNeeded(DSLUserCodeTypeError):
    """A kernel needs a workspace, and the function that launches it was compiled without one."""


class KernelNeeds:
    """What a kernel under trace needs besides its arguments: tensor maps, a workspace, tensor memory."""

    __kiln_static__ = True

    def __init__(self, frame: tracing.FunctionFrame) -> None:
        self.frame = frame
        self.maps_by_key: dict[Any, Any] = {}
        """Parameters that were added, by what the launch passes for them."""
        self.stages = 0
        """The most stages of a pipeline that TMA fills."""
        self.in_cluster = False
        """Whether CTAs arrive at mbarriers of others, which therefore must not have ended."""
        self._added: list[Callable[[Sequence[ir.Value]], ir.Value]] = []
        self._workspace: Pointer | None = None
        self._maps = 0
        self._pool: TmemBufferPool | None = None
        self._columns: ir.Operation | None = None
        self._pair = False

    def parameter(self, type_: ir.Type, value: Callable[[Sequence[ir.Value]], ir.Value]) -> ir.Value:
        """Add a parameter to the kernel; `value` makes what the launch passes, from the other arguments."""
        self._added.append(value)
        return self.frame.entry.add_argument(type_, ir.Location.unknown())

    # --- the workspace: memory for tensor maps that the kernel writes ---------------------------------------------

    def maps(self, count: int) -> tuple[Pointer, int]:
        """Return the workspace and the number of the first of `count` new tensor maps of each CTA in it."""
        if self._workspace is None:
            address = self.parameter(cute.ptr_type(Uint8.mlir_type, "gmem", 1), lambda _: _workspace().ir_value())
            self._workspace = Pointer(address, Uint8, AddressSpace.gmem, 1)
        first = self._maps
        self._maps = self._maps + count
        return self._workspace, first

    def arguments(self, values: Sequence[ir.Value], grid: Sequence[Int64]) -> list[ir.Value] | None:
        """Return what a launch passes for the added parameters; None if only the workspace's size is asked for."""
        notes = tracing.require("a launch").function.notes
        if _SIZES in notes:
            if self._maps:
                ctas = grid[0] * grid[1] * grid[2]
                notes[_SIZES].append(ctas * (MAP_BYTES * self._maps) + (MAP_BYTES - 1))  # to align it
            return None
        if self._maps:
            if WORKSPACE in notes:
                raise runtime_error(
                    "two kernels that one function launches need a workspace", "launch each from a function of its own"
                )
            notes[WORKSPACE] = True
        return [make(values) for make in self._added]

    # --- tensor memory: allocated where it is first asked for, freed at the end of the kernel ----------------------

    def tensor_memory(self, columns: int, dtype: object, pair: bool) -> Pointer:
        """Return a pointer to new columns of tensor memory of the CTA, or of the pair of CTAs."""
        pool = self._pool
        if pool is None:
            if ir.InsertionPoint.current.block != self.frame.entry:
                raise runtime_error(
                    "allocate() of tensor memory in a branch or a loop",
                    "all threads of the CTA allocate it together: call it before the roles of the warps part",
                )
            self._pair = pair
            self._columns = tracing.emit(
                "arith.constant", [Int32.mlir_type], attributes={"value": ir.IntegerAttr.get(Int32.mlir_type, 0)}
            )
            holder = alloc_smem(Int32, 1)

            def allocate() -> None:
                arch.alloc_tmem(self._count(), holder, pair)
                arch.relinquish_tmem_alloc_permit(pair)

            if pair:  # the other CTA has started
                arch.cluster_arrive_relaxed()
                arch.cluster_wait()
            guarded(_first_warp(), allocate)
            self._meet()
            base = arch.retrieve_tmem_ptr(Int32, 16, holder)
            pool = self._pool = TmemBufferPool(base, _MOST_COLUMNS)
        if pair != self._pair:
            raise runtime_error(
                f"allocate(is2cta={pair}) after allocate(is2cta={self._pair})",
                "all tensor memory of a kernel belongs to one CTA, or all of it to a pair",
            )
        return pool.allocate(columns, dtype)

    def _count(self) -> Int32:
        assert self._columns is not None
        return Int32._make(self._columns.results[0], True)

    def _meet(self) -> None:
        """Wait for all threads of the CTA, or of the cluster where its CTAs work together."""
        if self._pair or self.in_cluster:
            arch.cluster_arrive()
            arch.cluster_wait()
        else:
            arch.sync_threads()

    def finish(self) -> None:
        """Wait for the other CTAs of the cluster at the end of the kernel, and free tensor memory."""
        pool = self._pool
        if pool is not None or self.in_cluster:
            self._meet()
        if pool is None or self._columns is None:
            return
        columns = max(_LEAST_COLUMNS, 1 << (pool._used - 1).bit_length())
        self._columns.attributes["value"] = ir.IntegerAttr.get(Int32.mlir_type, columns)
        guarded(_first_warp(), lambda: arch.dealloc_tmem(pool._ptr, self._count(), self._pair))


def _first_warp() -> Any:
    return arch.make_warp_uniform(arch.warp_idx()) == 0


def _workspace() -> Any:
    workspace = tracing.require("a launch").workspace
    if workspace is None:
        raise error(
            WorkspaceNeeded,
            "a kernel writes tensor maps for tensors whose address only it knows, and has no memory for them",
            hint="compile the function that launches it with cute.experimental.compile, and pass a workspace as the "
            "last argument: compiled.get_aux_func(QueryDeviceWorkspaceFunc, kernel=...) tells its size",
        )
    return workspace.iterator


def needs(what: str) -> KernelNeeds:
    """Return the needs of the kernel that is traced; raise an error outside a kernel of this module."""
    noted = tracing.require(what).function.notes.get(_NOTE)
    if not isinstance(noted, KernelNeeds):
        raise runtime_error(
            f"{what} outside a kernel of cute.experimental", "decorate the kernel with @cute.experimental.kernel"
        )
    return noted


def _followed(argument: object) -> Any:
    """Return a tensor in global memory as one that knows the coordinates of its elements; other values as they are."""
    if isinstance(argument, (tuple, list)) and type(argument) in (tuple, list):
        return type(argument)(map(_followed, argument))
    if not isinstance(argument, TracedTensor) or not argument.in_memory or not isinstance(argument._layout, Layout):
        return argument
    extents = Extents.of(argument._layout, argument._iterator)
    return TracedTensor(argument._iterator, argument._layout, argument._promised, extents)


class _Kernel(KernelFunction):
    """A kernel whose tensors know the coordinates of their elements."""

    def prepare(self, frame: tracing.FunctionFrame) -> None:
        frame.notes[FOLLOWED] = True
        frame.notes[_NOTE] = KernelNeeds(frame)

    def run(self, args: Any, kwargs: dict[str, Any]) -> Any:
        returned = super().run([_followed(a) for a in args], {name: _followed(a) for name, a in kwargs.items()})
        needs("a kernel").finish()
        return returned

    def more_arguments(
        self, frame: tracing.FunctionFrame, values: Sequence[ir.Value], grid: Sequence[Int64]
    ) -> list[ir.Value] | None:
        return frame.notes[_NOTE].arguments(values, grid)


def kernel(function: object = None, *, preprocess: bool = True) -> Any:
    """Decorate a kernel: a function that a grid of threads runs."""
    if function is None:
        return functools.partial(kernel, preprocess=preprocess)
    return _Kernel(DSL, _plain_function(function, "kernel"), preprocess)


class _CompileWithWorkspace(Compile):
    def _more_arguments(self, options: CompileOptions) -> dict[str, Any]:
        from ..runtime import make_fake_compact_tensor, sym_int64  # start-up

        return {
            **super()._more_arguments(options),
            WORKSPACE: make_fake_compact_tensor(Uint8, (sym_int64(),), assumed_align=1),
        }


class _Compile(Compile):
    """`compile(fn, *args)` as `cute.compile`; a function whose kernels need a workspace takes it as last argument."""

    def __call__(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(function, *args, **kwargs)
        except WorkspaceNeeded:
            return _CompileWithWorkspace(*self._options)(function, *args, **kwargs)


compile: _Compile = _Compile()


def total_of_workspaces(run: Callable[[], object]) -> Int64:
    """Run a host function without its launches, and return the bytes of workspace that they need."""
    notes = tracing.require("a workspace").function.notes
    notes[_SIZES] = []
    run()
    return functools.reduce(operator.add, notes.pop(_SIZES), Int64(0))


class CuteExperimentalDSL(CuteDSL):
    """The language of `cute.experimental`: `CuTeDSL` with the decorators and `compile` of that module."""

    jit = staticmethod(jit)  # pyright: ignore[reportAssignmentType]
    kernel = staticmethod(kernel)  # pyright: ignore[reportAssignmentType]
    compile = compile
