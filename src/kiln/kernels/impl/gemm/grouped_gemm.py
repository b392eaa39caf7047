"""`grouped_gemm`: a GEMM of groups of rows, each with a matrix of its own, as in mixtures of experts."""

from __future__ import annotations

import dataclasses
import functools
import numbers
from typing import TYPE_CHECKING, Any

from .... import Float32
from ...dispatch import arrays, devices
from ...dispatch.recorder import kernel_function
from ...dispatch.registry import Registry
from ...parts.scale_atoms import SCALE_ATOM
from .arguments import GemmArguments
from .gemm import GemmCall, are_block_scales, readable, scale_tensor
from .group_scale_atoms import group_scale_atoms
from .implementations import REGISTRY as GEMM
from .implementations import Fallback, FallbackConfig
from .padded import Sm90PaddedGemm, Sm100PaddedGemm
from .problem import GemmProblem, GroupedGemmProblem
from .sm90_grouped import Sm90GroupedGemm
from .sm100_grouped import Sm100BlockScaledGroupedGemm, Sm100GroupedGemm
from .vector_scales import of_blocks, packed_bytes, scale_atoms, scale_of_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...dispatch.arrays import Array
    from ...dispatch.devices import Device

__all__ = ["grouped_gemm"]

REGISTRY = Registry("grouped_gemm")


@kernel_function("a", "b", "offsets", "counts", "out", "scale_a", "scale_b", "extras", numbers=("alpha",))
def grouped_gemm(
    a: Any,
    b: Any,
    *,
    offsets: Any = None,
    counts: Any = None,
    expected_rows: int | None = None,
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    scale_a: Any = None,
    scale_b: Any = None,
    activation: str | Callable[[Any], Any] | None = None,
    epilogue: Callable[..., Any] | None = None,
    extras: Sequence[Any] = (),
    precision: str = "ieee",
    config: Any = None,
) -> Any:
    """Return `epilogue(activation(alpha * rows of a @ b[group]), *extras)` for each group of rows, as experts need it.

    The device reads `offsets` or `counts`, and clamps those that lead out of the array.

    Args:
        a: with `offsets` (T, K), group after group; with `counts` (G, M, K), of which the first rows of each group
            count. Elements as in `gemm`.
        b: (G, K, N), a matrix for each group.
        offsets: (G,), int32 or int64: where the rows of each group end. Rows behind the last are not computed.
        counts: (G,), int32 or int64: how many rows each group has. Other rows of the result are undefined.
        expected_rows: the rows of a typical group, to choose a config; by default T / G, or M.
        out: an array for the result.
        out_dtype: the element type of a new result, as in `gemm`.
        alpha: a factor of what is multiplied.
        scale_a: block scales of 8-bit floats, (T, K / 128) or (G, M, K / 128), f32. Scales of vectors, as in `gemm`, lie
            in rows, (T, K / 32) or (T, K / 16); with `counts`, (G, M, K / 32) or (G, M, K / 16), also in atoms.
        scale_b: block scales of 8-bit floats, (G, K / 128, N / 128), f32; scales of vectors of each group as in `gemm`.
        activation: as in `gemm`.
        epilogue: as in `gemm`.
        extras: as in `gemm`.
        precision: as in `gemm`.
        config: a config of an implementation; by default the library chooses.
    """
    arrays.require(
        (offsets is None) != (counts is None),
        f"grouped_gemm with {'neither offsets nor' if offsets is None else 'both offsets and'} counts",
        hint="offsets= of groups that lie one after another, counts= of groups that are as long as the longest",
    )
    call = GroupedGemmCall(
        packed_bytes(a),
        packed_bytes(b),
        out,
        out_dtype,
        alpha,
        scales=(scale_a, scale_b),
        activation=activation,
        epilogue=epilogue,
        extras=extras,
        precision=precision,
        bounds=counts if offsets is None else offsets,
        contiguous=offsets is not None,
        expected_rows=expected_rows,
    )
    return call.run(REGISTRY, config)


@dataclasses.dataclass
class GroupedGemmCall(GemmCall):
    """The arguments of a call of `grouped_gemm`; `bounds` are offsets of contiguous groups, or counts."""

    bounds: Any = None
    contiguous: bool = True
    expected_rows: int | None = None

    function = "grouped_gemm"

    @functools.cached_property
    def shape(self) -> tuple[int, int, int]:
        a = self.a
        b = self.b
        bounds = self.bounds
        name = "offsets" if self.contiguous else "counts"
        rows = self.expected_rows
        arrays.require(
            rows is None or (isinstance(rows, numbers.Integral) and int(rows) > 0),
            f"grouped_gemm with expected_rows={rows!r}: a positive integer",
        )
        arrays.require(
            b.ndim == 3
            and a.ndim == (2 if self.contiguous else 3)
            and a.shape[-1] == b.shape[1]
            and (self.contiguous or a.shape[0] == b.shape[0]),
            f"grouped_gemm with {name}: shapes {tuple(a.shape)} of a and {tuple(b.shape)} of b do not go together",
            hint="(T, K) and (G, K, N)" if self.contiguous else "(G, M, K) and (G, K, N)",
        )
        arrays.require_usable(bounds, f"grouped_gemm: {name}")
        kind = str(bounds.dtype).rpartition(".")[2]
        arrays.require(
            tuple(bounds.shape) == (b.shape[0],)
            and kind in ("int32", "int64")
            and arrays.strides(bounds) in ((1,), (0,)),
            f"grouped_gemm: {name} is {kind} of shape {tuple(bounds.shape)} for {b.shape[0]} groups",
            hint="a contiguous array of int32 or int64, one for each group",
        )
        return (1 if self.contiguous else a.shape[0]), a.shape[-2], b.shape[2]

    def allocate(self, shape: tuple[int, ...]) -> None:
        out_shape = shape[1:] if self.contiguous else shape
        self.add_out(self.out, self.out_dtype, out_shape, [out_shape])
        self.computed: list[Any] = self.outs
        (out,) = self.outs
        arrays.require(
            arrays.strides(out)[-1] == 1 or out.shape[-1] == 1 or 0 in shape,
            f"grouped_gemm: out has strides {arrays.strides(out)}; its rows must be contiguous",
        )
        arrays.require(self.a.shape[-1] > 0, "grouped_gemm: K is 0; it must be positive")

    def check_scales(self) -> None:
        if self.vector_scaled:
            of_a = self.scales[0]
            arrays.require(
                not self.contiguous or of_a.ndim == 2,
                f"grouped_gemm: scale_a has the shape {tuple(of_a.shape)}",
                hint="scales of vectors of groups one after another lie in rows, as a does",
            )
            return
        arrays.require(
            all(x is None for x in self.scales) or are_block_scales(self.scales, *self.shape[1:], self.a.shape[-1]),
            f"grouped_gemm: scales have the shapes {[None if x is None else tuple(x.shape) for x in self.scales]}",
            hint="block scales of a and b: (rows, K / 128) and (G, K / 128, N / 128); scales of rows: "
            "epilogue=lambda value, x: value * x, extras=[x]",
        )

    @property
    def row_scales(self) -> tuple[Any, ...]:
        return ()

    def canonical(self, branching: Sequence[Any]) -> tuple[GroupedGemmProblem, Any, GemmArguments]:
        """Return the problem, the device and the arrays, with three modes."""
        a, out = (arrays.with_batch(x) if self.contiguous else x for x in (self.a, *self.outs))
        a = readable(a)
        b = readable(self.b)
        groups = self.b.shape[0]
        inputs = [arrays.broadcast_to(x, self.shape) for x in self.extras]
        pairs = zip(self.scales, (self.shape[0], groups), strict=True)
        vector_scales = self.scale_atoms(a, b) if self.vector_scaled else []
        scales = [scale_tensor(x, count, Float32) for x, count in pairs if x is not None and not self.vector_scaled]
        fusion = self.fusion(Float32 if self.fp4 else arrays.element_type(a), inputs, branching)
        layout = arrays.layout_of
        rows = self.expected_rows or max(1, -(-self.shape[1] // groups) if self.contiguous else self.shape[1])
        problem = GroupedGemmProblem(
            layout(a),
            layout(b),
            layout(out),
            tuple(map(layout, inputs)),
            fusion,
            self.precision,
            tuple(map(layout, scales)),
            vector_scales=tuple(map(layout, vector_scales)),
            scale_vector=self.scale_vector,
            fp4=self.fp4,
            contiguous=self.contiguous,
            expected_rows=int(rows),
        )
        arguments = GemmArguments(a, b, out, inputs, self.alpha, block_scales=scales, group_bounds=self.bounds)
        return problem, devices.current(), arguments._replace(vector_scales=vector_scales)

    def scale_atoms(self, a: Array, b: Array) -> list[Array]:
        """Return the scale factors of vectors in atoms, those of A for each group."""
        k = a.shape[2] * (2 if self.fp4 else 1)
        if not self.contiguous:
            return scale_atoms(self.scales, (a, b), k, self.scale_vector)
        of_a, of_b = self.scales
        rows = a.shape[1]
        vectors = k // self.scale_vector
        of_a = of_blocks(of_a, rows, vectors, self.scale_vector, False)
        arrays.require(
            tuple(of_a.shape) == (rows, vectors),
            f"grouped_gemm: scale_a has the shape {tuple(of_a.shape)}",
            hint=f"{(rows, vectors)}, one for each {self.scale_vector} elements along K",
        )
        (of_b,) = scale_atoms((None, of_b), (a, b), k, self.scale_vector)
        return [group_scale_atoms(of_a, self.bounds, scale_of_one(self.scale_vector)), of_b]


@REGISTRY.register
class PerGroupFallback(Fallback):
    """A GEMM for each group, whose bounds the host reads; groups of `counts` are one batched GEMM."""

    repeats = False

    def supports(self, problem: GroupedGemmProblem, device: Device) -> str | None:
        return None

    def run(self, problem: GroupedGemmProblem, config: FallbackConfig, args: GemmArguments) -> None:
        if not problem.contiguous:
            self.run_gemm(problem, args._replace(group_bounds=None))
            return
        ends = [min(max(int(end), 0), problem.out.shape[1]) for end in args.group_bounds.tolist()]
        for group, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
            if first >= last:
                continue
            a, out, *inputs = (x[:, first:last] for x in (args.a, args.out, *args.epilogue_inputs))
            b, *scale_b = (x[group : group + 1] for x in (args.b, *args.block_scales[1:]))
            scales = [*(x[:, first:last] for x in args.block_scales[:1]), *scale_b]
            atoms = first // SCALE_ATOM[0] + group
            atoms = slice(atoms, atoms - -(last - first) // SCALE_ATOM[0])  # as `group_scale_atoms` lays them out
            vectors = [x[:, atoms] if i == 0 else x[group : group + 1] for i, x in enumerate(args.vector_scales)]
            arguments = GemmArguments(a, b, out, inputs, args.alpha, block_scales=scales, vector_scales=vectors)
            self.run_gemm(problem, arguments)

    def run_gemm(self, problem: GroupedGemmProblem, args: GemmArguments) -> None:
        """Compute the GEMM of one group, or of a batch of groups."""
        layouts = [
            tuple(map(arrays.layout_of, own))
            for own in ((args.a, args.b, args.out), args.epilogue_inputs, args.block_scales, args.vector_scales)
        ]
        (a, b, out), inputs, scales, vectors = layouts
        single = GemmProblem(
            a,
            b,
            out,
            inputs,
            problem.fusion,
            problem.precision,
            scales,
            vector_scales=vectors,
            scale_vector=problem.scale_vector,
            fp4=problem.fp4,
        )
        GEMM.run(single, devices.current(), args)


REGISTRY.register(Sm90PaddedGemm(Sm90GroupedGemm()))
REGISTRY.register(Sm90GroupedGemm)
REGISTRY.register(Sm100PaddedGemm(Sm100GroupedGemm()))
REGISTRY.register(Sm100GroupedGemm)
REGISTRY.register(Sm100PaddedGemm(Sm100BlockScaledGroupedGemm()))
REGISTRY.register(Sm100BlockScaledGroupedGemm)
